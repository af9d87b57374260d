"""Ports of this machine: free ones, and whether named ones are."""

import errno
import random
import socket
from collections.abc import Mapping
from itertools import islice

from serving.errors import Misconfigured

OUTSIDE_EPHEMERAL = range(20_000, 32_768)  # Linux: net.ipv4.ip_local_port_range is 32768 to 60999
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - told apart here, not bound


def reachable(host: str, port: int) -> str:
    """Return the address under which this machine reaches a server that listens on `host`."""
    return f"{EVERYWHERE.get(host, host)}:{port}"


def free(host: str, port: int) -> bool:
    """Return whether a server could listen there now.

    Raises:
        Misconfigured: The host is none of this machine.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            # As the servers do: connections of a server that has ended do not keep its port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except PermissionError as error:
                raise Misconfigured("PORT_FORBIDDEN", f"{host}:{port} may not be listened on") from error
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return False
                raise
    except OSError as error:
        raise Misconfigured("HOST_UNUSABLE", f"{host}: {error.strerror}") from error
    return True


def require_free(host: str, ports: Mapping[str, int]) -> None:
    """Check that every server would get its port.

    Args:
        host: The address all listen on.
        ports: Server to port.

    Raises:
        Misconfigured: One is taken, or two servers are given the same.
    """
    if len(set(ports.values())) < len(ports):
        given = ", ".join(f"{name} {port}" for name, port in ports.items())
        raise Misconfigured("PORTS_EQUAL", f"every server needs a port of its own, given are {given}")
    taken = [f"{host}:{port} ({name})" for name, port in ports.items() if not free(host, port)]
    if taken:
        raise Misconfigured(
            "PORT_TAKEN",
            f"already in use: {', '.join(taken)}; stop what runs there (`twostage doctor` shows who answers), or give "
            f"other ports with --{next(iter(ports))}-port and its like",
        )


def free_ports(count: int) -> list[int]:
    """Return ports that are free on every address, all different, and reserved for this process and its servers.

    A server binds its port seconds later, when its model is loaded. Until this process ends, nobody else is given the
    ports: not the kernel's takers of any port, since they are below those it hands out (from 32768 on, where it is left
    as it comes), and nobody who asks here.
    """
    # Two programs that were seeded alike would otherwise try the same ports in the same order.
    shuffled = random.SystemRandom().sample(OUTSIDE_EPHEMERAL, len(OUTSIDE_EPHEMERAL))
    return list(islice(filter(_reserve, shuffled), count))


def _reserve(port: int) -> bool:
    """Bind a port until this process ends, so that servers can still listen on it; return whether nobody had it."""
    holder = socket.socket()
    try:
        # A metrics page listens on all addresses, so that nobody may have it on any.
        holder.bind(("0.0.0.0", port))  # noqa: S104 - held, not served
    except OSError:
        holder.close()
        return False
    # Set only now: before, it would have let this bind what another has reserved. Servers set it as well, and two that
    # do share a port as long as only one of them listens (Linux: socket(7)).
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.detach()  # nothing closes it before the end of the process
    return True
