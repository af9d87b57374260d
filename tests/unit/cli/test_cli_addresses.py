"""Ports: taken, free, twice the same."""

import random
import socket

import pytest

from cli.addresses import free, free_ports, reachable, require_free
from serving.errors import Misconfigured


def test_a_port_that_somebody_listens_on_is_taken() -> None:
    """A listener is found, also by who wants all addresses, and its end too."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert not free("127.0.0.1", port)
        assert not free("0.0.0.0", port)
    assert free("127.0.0.1", port)


def test_every_taken_port_is_named() -> None:
    """Whoever has to choose other ports learns of all that are taken at once."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = {"gateway": one.getsockname()[1], "encoder": free_ports(1)[0], "reranker": two.getsockname()[1]}
        with pytest.raises(Misconfigured) as caught:
            require_free("127.0.0.1", ports)
    assert caught.value.reason == "PORT_TAKEN"
    assert f"127.0.0.1:{ports['gateway']} (gateway), 127.0.0.1:{ports['reranker']} (reranker);" in caught.value.message


def test_two_servers_cannot_share_a_port() -> None:
    """The same port twice is refused before anything starts."""
    with pytest.raises(Misconfigured, match="gateway 5, encoder 5"):
        require_free("127.0.0.1", {"gateway": 5, "encoder": 5})


def test_a_foreign_address_is_no_place_to_listen() -> None:
    """An address of another machine is an operator's mistake, not a taken port."""
    with pytest.raises(Misconfigured) as caught:
        free("203.0.113.7", 1)
    assert caught.value.reason == "HOST_UNUSABLE"


def test_free_ports_differ() -> None:
    """Several ports taken at once are all different."""
    assert len(set(free_ports(5))) == 5


def test_free_ports_do_not_follow_the_seed() -> None:
    """Programs that were seeded alike, as tests in several processes may be, are not given the same ports."""
    random.seed(0)
    first = free_ports(5)
    random.seed(0)
    assert free_ports(5) != first


def test_a_port_of_any_address_is_taken() -> None:
    """Who listens on another of this machine's addresses has the port too: a metrics page wants it on all."""
    with socket.create_server(("127.0.0.2", 0)) as listener:
        assert not free("0.0.0.0", listener.getsockname()[1])


def test_a_given_port_waits_for_its_server() -> None:
    """Between asking for a port and listening on it nobody else gets it, on any address, and the server does."""
    (port,) = free_ports(1)
    for host in ("127.0.0.1", "0.0.0.0"):  # as who asks for free ports tries them
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((host, port))
    assert free("127.0.0.1", port)
    with socket.create_server(("127.0.0.1", port)):
        assert not free("127.0.0.1", port)
    assert free("127.0.0.1", port)


def test_a_free_port_is_none_that_the_kernel_hands_out() -> None:
    """A server that binds its port seconds later does not find another program's connection on it."""
    assert max(free_ports(20)) < 32_768


def test_a_server_that_listens_everywhere_is_reached_here() -> None:
    """0.0.0.0 is no address to call."""
    assert reachable("0.0.0.0", 1) == "127.0.0.1:1"
    assert reachable("10.0.0.5", 1) == "10.0.0.5:1"
