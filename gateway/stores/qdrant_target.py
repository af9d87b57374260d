"""Where a Qdrant server is, and the channel to it."""

import json
import logging
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

import grpc

from gateway.backends import RenewedChannel
from gateway.channels import CHANNEL_OPTIONS, RETRY
from serving.errors import Misconfigured
from serving.tls import TlsFiles, channel_credentials, watch

GRPC_PORT = 6334
REST_PORT = 6333

# Asking these again changes nothing. Creating and dropping a collection would: the second answer contradicts the first.
REPEATABLE = {
    "qdrant.Qdrant": ("HealthCheck",),
    "qdrant.Collections": ("Get", "List", "ListAliases", "Update", "UpdateAliases"),
    "qdrant.Points": ("Query", "Get", "Scroll", "Count", "Upsert", "Delete"),
}

NO_FILES = TlsFiles()

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class QdrantTarget:
    """The address of a Qdrant server's gRPC port, and how to be let in."""

    host: str
    port: int = GRPC_PORT
    api_key: str | None = field(default=None, repr=False)
    tls: bool = False
    files: TlsFiles = NO_FILES
    """Certificates to trust instead of the system's, and the gateway's own where it is asked for one."""

    @classmethod
    def parse(cls, url: str, *, api_key: str | None = None, tls: bool = False, files: TlsFiles = NO_FILES) -> Self:
        """Read `host`, `host:port`, `http://host:port` or `https://host:port`.

        Args:
            url: The address; without a port it is 6334.
            api_key: Sent with every call.
            tls: Whether to use TLS whatever the scheme.
            files: Certificates; any of them implies TLS.

        Raises:
            Misconfigured: `STORE_ADDRESS`, or `STORE_API_KEY` where the key cannot be sent.
        """
        try:
            parts = urlsplit(url if "://" in url else f"//{url}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or parts.scheme not in ("", "http", "https") or parts.path.strip("/") or parts.username:
            raise Misconfigured("STORE_ADDRESS", "the Qdrant URL has to be http(s)://host:port, with the gRPC port")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key.strip() == api_key):
            raise Misconfigured("STORE_API_KEY", "the Qdrant API key holds characters that cannot be sent")
        secure = tls or bool(files.paths) or parts.scheme == "https"
        return cls(host=host, port=port or GRPC_PORT, api_key=api_key or None, tls=secure, files=files)

    @property
    def address(self) -> str:
        """Host and port, as messages show them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries."""
        return () if self.api_key is None else (("api-key", self.api_key),)


def open_channel(target: QdrantTarget) -> Any:
    """Open a channel that asks once more, where that changes nothing, when the server cannot be reached.

    Call inside the running loop.

    Raises:
        Misconfigured: `TLS_FILES` or `FILE_UNREADABLE`, as `serving.tls.watch` says.
    """
    repeatable = [
        {"service": service, "method": method} for service, methods in REPEATABLE.items() for method in methods
    ]
    config = {"methodConfig": [{"name": repeatable, "retryPolicy": RETRY}]}
    options = [("grpc.service_config", json.dumps(config)), *CHANNEL_OPTIONS]
    address = f"dns:///{target.address}"
    if not target.tls:
        if target.api_key is not None:
            log.warning("the API key goes to Qdrant at %s in the clear; TLS is off", target.address)
        return grpc.aio.insecure_channel(address, options=options)
    return RenewedChannel(
        lambda pem: grpc.aio.secure_channel(address, channel_credentials(pem), options=options), watch(target.files)
    )
