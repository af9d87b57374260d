"""Channels whose every call carries an API key. Knows no service."""

import logging
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol

from serving.auth import HEADER
from serving.errors import Misconfigured
from serving.watched import Watched

log = logging.getLogger(__name__)


class Channel(Protocol):
    """What generated stubs ask of a channel."""

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Return what makes such calls."""

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Return what makes such calls."""

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Return what makes such calls."""

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Return what makes such calls."""


class KeyedChannel:
    """A channel around another one, of either kind of gRPC, that adds a key to every call.

    Neither gRPC's interceptors, which cost grpc.aio a task per call, nor its call credentials, which demand TLS on
    loopback as well.

    Args:
        channel: Makes the calls; whoever opened it closes it.
        key: Returns the key of the moment.
    """

    def __init__(self, channel: Channel, key: Callable[[], str]) -> None:
        self._channel, self._key = channel, key

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Return what makes such calls."""
        return self._keyed(self._channel.unary_unary(method, *args, **kwargs))

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Return what makes such calls."""
        return self._keyed(self._channel.unary_stream(method, *args, **kwargs))

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Return what makes such calls."""
        return self._keyed(self._channel.stream_unary(method, *args, **kwargs))

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Return what makes such calls."""
        return self._keyed(self._channel.stream_stream(method, *args, **kwargs))

    def _keyed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def send(*request: Any, metadata: Sequence[tuple[str, str | bytes]] = (), **options: Any) -> Any:
            return call(*request, metadata=(*metadata, (HEADER, f"Bearer {self._key()}")), **options)

        return send


def watch_key(path: Path) -> Watched[str]:
    """Read a file with one key, and again whenever it changes.

    Raises:
        Misconfigured: `API_KEY_FILE`, or `FILE_UNREADABLE`.
    """

    def read(contents: Sequence[bytes]) -> str:
        key = contents[0].strip().decode("ascii", "replace")
        if not key.isascii() or not key.isprintable() or not key or " " in key:
            raise Misconfigured("API_KEY_FILE", f"{path} holds no API key")
        return key

    return Watched([path], read)


def on_this_machine(target: str) -> bool:
    """Tell whether a gRPC target, or `host:port`, is loopback, where a key cannot be overheard."""
    host = target.rpartition("/")[2].rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or target.startswith("unix:")
