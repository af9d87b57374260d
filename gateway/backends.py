"""Channels to encoders and rerankers as the settings describe them: with TLS that is renewed, and with a key."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self, cast

import grpc

from gateway.channels import open_channel
from gateway.connections import Connections
from gateway.settings import GatewaySettings
from serving.keyed import KeyedChannel, on_this_machine, watch_key
from serving.tls import Pem, TlsFiles, channel_credentials, watch
from serving.watched import Watched

CLOSE_GRACE_S = 60.0
"""How long calls on a channel that was replaced may still take: the longest stage has no more."""

log = logging.getLogger(__name__)


@asynccontextmanager
async def open_backend(settings: GatewaySettings, target: str, service: str) -> AsyncIterator[grpc.aio.Channel]:
    """Open a channel to the servers of a target; leaving closes it.

    Raises:
        Misconfigured: A certificate or a key cannot be read or is wrong.
    """
    files = tls_files(settings)
    connect = partial(_connect, target, service, settings.backend_connections)
    if files is None:
        opened: Any = connect()
    else:
        opened = RenewedChannel(lambda now: connect(channel_credentials(now)), watch(files))
    async with opened as channel:
        yield _keyed(channel, settings, target, secure=files is not None)


class RenewedChannel:
    """Stands for a channel; calls go to one that was opened with what the files hold now.

    gRPC's channels keep the credentials that they were made with. So another one is opened when the files change, and
    the old one is closed once its calls have ended.

    Args:
        open_channel: Opens a channel.
        pem: What the files hold.
    """

    def __init__(self, open_channel: Callable[[Pem], grpc.aio.Channel | Connections], pem: Watched[Pem]) -> None:
        self._open, self._watched = open_channel, pem
        self._pem = pem.current()
        self._channel = open_channel(self._pem)
        self._calls: dict[str, Any] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace_s: float | None = None) -> None:
        """Close what is open; calls under way may still take so long."""
        await asyncio.gather(self._channel.close(grace_s), *self._closing)

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Return what makes such calls."""
        return self._calling("unary_unary", method, args, kwargs)

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Return what makes such calls."""
        return self._calling("unary_stream", method, args, kwargs)

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Return what makes such calls."""
        return self._calling("stream_unary", method, args, kwargs)

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Return what makes such calls."""
        return self._calling("stream_stream", method, args, kwargs)

    def _calling(self, kind: str, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        def send(*request: Any, **options: Any) -> Any:
            self._renew()
            call = self._calls.get(method)
            if call is None:
                call = self._calls[method] = getattr(self._channel, kind)(method, *args, **kwargs)
            return call(*request, **options)

        return send

    def _renew(self) -> None:
        pem = self._watched.current()
        if pem is self._pem:
            return
        opened = self._open(pem)  # first: where that fails, the old one is still there
        closing = asyncio.create_task(self._channel.close(CLOSE_GRACE_S))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self._pem, self._channel, self._calls = pem, opened, {}


def _connect(
    target: str, service: str, count: int, credentials: grpc.ChannelCredentials | None = None
) -> grpc.aio.Channel | Connections:
    """Open a channel, or as many as there are to be connections to each address."""
    if count == 1:
        return open_channel(target, service, credentials)
    return Connections([open_channel(target, service, credentials) for _ in range(count)])


def tls_files(settings: GatewaySettings) -> TlsFiles | None:
    """Return what calls to encoders and rerankers are made with, or None where they go in the clear."""
    files = TlsFiles(cert=settings.backend_cert_file, key=settings.backend_key_file, ca=settings.backend_ca_file)
    return files if settings.backend_tls or files.paths else None


def _keyed(channel: Any, settings: GatewaySettings, target: str, *, secure: bool) -> grpc.aio.Channel:
    if settings.backend_api_key_file is not None:
        if not secure and not on_this_machine(target):
            log.warning("the API key goes to %s in the clear; TLS is off", target)
        channel = KeyedChannel(channel, watch_key(settings.backend_api_key_file).current)
    return cast("grpc.aio.Channel", channel)  # it has what the stubs ask for
