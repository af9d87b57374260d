"""TLS from files that may change: a server shows every new connection what its files hold now.

Connections that are open keep what they were made with, and end at `max_connection_age_s`.
"""

import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import grpc

from serving.errors import Misconfigured
from serving.watched import Watched

Side = Literal["server", "client"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Where certificates are, all in PEM.

    Args:
        cert: One's own certificate and what it was signed with, but for the root; comes with `key`.
        key: The private key of it, without a password.
        ca: Certificates that the other side's has to be signed with.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise Misconfigured("TLS_FILES", "a certificate and its private key come together; one is not set")

    @property
    def paths(self) -> Sequence[Path]:
        """Those that are set."""
        return [path for path in (self.cert, self.key, self.ca) if path is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pem:
    """What the files held at one moment; they belong together."""

    cert: bytes | None
    key: bytes | None
    ca: bytes | None


def watch(files: TlsFiles) -> Watched[Pem]:
    """Read the files, and again whenever they change.

    Raises:
        Misconfigured: `TLS_FILES`, they hold no certificates or the key is another one's; `FILE_UNREADABLE`.
    """
    return Watched(files.paths, lambda contents: _read(files, contents))


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Return what a server's port needs; with `ca` it talks to clients with a certificate only.

    Raises:
        Misconfigured: As `watch`.
    """
    watched = watch(files)
    shown = watched.current()

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown  # gRPC asks at every handshake; None is no news
        pem = watched.current()
        if pem is shown:
            return None
        shown = pem
        return _configuration(pem)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(shown),
        renewed,  # type: ignore[arg-type]  # its published type does not know that None is no news
        require_client_authentication=files.ca is not None,
    )


def channel_credentials(pem: Pem) -> grpc.ChannelCredentials:
    """Return what a client's channel needs; without `ca` it trusts the system's certificates."""
    return grpc.ssl_channel_credentials(root_certificates=pem.ca, private_key=pem.key, certificate_chain=pem.cert)


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    pair = (pem.key or b"", pem.cert or b"")
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=pem.ca)


def _read(files: TlsFiles, contents: Sequence[bytes]) -> Pem:
    """Check that what was read is whole: gRPC would find out in the middle of a handshake."""
    held = dict(zip(files.paths, contents, strict=True))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        if files.ca is not None:
            context.load_verify_locations(cadata=held[files.ca].decode("ascii", "replace"))
        if files.cert is not None and files.key is not None:
            context.load_cert_chain(files.cert, files.key, password="")
        # The library reads the pair by itself; it may have changed since.
        changed = any(path.read_bytes() != content for path, content in held.items())
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise Misconfigured("TLS_FILES", f"{_names(files)}: {_why(error)}") from None
    if changed:
        raise Misconfigured("TLS_FILES", f"{_names(files)}: changed while being read")
    return Pem(
        cert=held[files.cert] if files.cert else None,
        key=held[files.key] if files.key else None,
        ca=held[files.ca] if files.ca else None,
    )


def _names(files: TlsFiles) -> str:
    return ", ".join(map(str, files.paths))


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "no PEM"
    return str(reason).lower().replace("_", " ")
