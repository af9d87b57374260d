"""Where a Qdrant server is, and the channel to it."""

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import grpc

from gateway.channels import CHANNEL_OPTIONS, RETRY
from serving.errors import Misconfigured

GRPC_PORT = 6334
REST_PORT = 6333

# Asking these again changes nothing. Creating and dropping a collection would: the second answer contradicts the first.
REPEATABLE = {
    "qdrant.Qdrant": ("HealthCheck",),
    "qdrant.Collections": ("Get", "List", "ListAliases", "Update", "UpdateAliases"),
    "qdrant.Points": ("Query", "Get", "Scroll", "Count", "Upsert", "Delete"),
}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class QdrantTarget:
    """The address of a Qdrant server's gRPC port, and how to be let in."""

    host: str
    port: int = GRPC_PORT
    api_key: str | None = field(default=None, repr=False)
    tls: bool = False
    ca_file: Path | None = None
    """Certificates to trust instead of the system's."""

    @classmethod
    def parse(cls, url: str, *, api_key: str | None = None, tls: bool = False, ca_file: Path | None = None) -> Self:
        """Read `host`, `host:port`, `http://host:port` or `https://host:port`.

        Args:
            url: The address; without a port it is 6334.
            api_key: Sent with every call.
            tls: Whether to use TLS whatever the scheme.
            ca_file: Certificates to trust; implies TLS.

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
        secure = tls or ca_file is not None or parts.scheme == "https"
        return cls(host=host, port=port or GRPC_PORT, api_key=api_key or None, tls=secure, ca_file=ca_file)

    @property
    def address(self) -> str:
        """Host and port, as messages show them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries."""
        return () if self.api_key is None else (("api-key", self.api_key),)


def open_channel(target: QdrantTarget) -> grpc.aio.Channel:
    """Open a channel that asks once more, where that changes nothing, when the server cannot be reached.

    Call inside the running loop.

    Raises:
        Misconfigured: `STORE_CA_FILE`, the certificates cannot be read.
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
    return grpc.aio.secure_channel(address, _credentials(target.ca_file), options=options)


def _credentials(ca_file: Path | None) -> grpc.ChannelCredentials:
    try:
        return grpc.ssl_channel_credentials(None if ca_file is None else ca_file.read_bytes())
    except OSError as error:
        raise Misconfigured("STORE_CA_FILE", f"{ca_file} cannot be read: {error.strerror}") from error
