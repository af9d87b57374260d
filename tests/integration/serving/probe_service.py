"""A hand-registered service with a method of each of gRPC's four kinds; each does what the request's text asks for."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import grpc
from clients import client
from google.protobuf.wrappers_pb2 import StringValue
from pydantic_settings import SettingsConfigDict

from cli.calls import made_up
from serving.metrics import ServerMetrics
from serving.server import RunningServer, open_server
from serving.settings import ServerSettings

SERVICE = "probe.v1.ProbeService"
KINDS = ("UnaryUnary", "UnaryStream", "StreamUnary", "StreamStream")
MALFORMED = b"\x0a\x02\xff\xfe"
"""A StringValue whose text is not UTF-8."""

Context = grpc.aio.ServicerContext
Act = Callable[[Context], Awaitable[Any]]


class ProbeSettings(ServerSettings):
    """Settings of the probe's server."""

    prefix: ClassVar[str] = "TWOSTAGE_PROBE_"
    model_config = SettingsConfigDict(env_prefix=prefix)

    host: str = "127.0.0.1"
    grace_s: float = 5.0


class CountedCalls:
    """Stands for the counter of calls, and lets a test wait for the next count."""

    def __init__(self) -> None:
        self.counts: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def labels(self, method: str, code: str) -> "CountedCalls":
        """Note the labels; `inc` follows at once."""
        self.counts.put_nowait((method, code))
        return self

    def inc(self) -> None:
        """Do nothing more."""


@dataclass
class Probe:
    """The service: `acts` says what each text does; any other text is handed back."""

    acts: dict[str, Act] = field(default_factory=dict)
    entered: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    """Gets the text of every request when its handling begins."""
    left: list[str] = field(default_factory=list)
    """Streams of streams whose handler was left, by whatever way."""
    calls: CountedCalls = field(default_factory=CountedCalls)

    async def act(self, request: StringValue, context: Context) -> Any:
        """Do what a text asks for."""
        self.entered.put_nowait(request.value)
        if act := self.acts.get(request.value):
            return await act(context)
        return StringValue(value=request.value)

    async def unary_unary(self, request: StringValue, context: Context) -> Any:
        """Answer once."""
        return await self.act(request, context)

    async def unary_stream(self, request: StringValue, context: Context) -> AsyncIterator[Any]:
        """Answer with a greeting, then with what was asked for."""
        yield StringValue(value="first")
        yield await self.act(request, context)

    async def stream_unary(self, requests: AsyncIterator[StringValue], context: Context) -> Any:
        """Answer the last request."""
        last = StringValue()
        async for request in requests:
            last = request
        return await self.act(last, context)

    async def stream_stream(self, requests: AsyncIterator[StringValue], context: Context) -> AsyncIterator[Any]:
        """Answer every request."""
        try:
            async for request in requests:
                yield await self.act(request, context)
        finally:
            self.left.append("StreamStream")

    def add(self, server: grpc.aio.Server) -> None:
        """Register all four methods."""
        wire = {"request_deserializer": StringValue.FromString, "response_serializer": StringValue.SerializeToString}
        handlers = {
            "UnaryUnary": grpc.unary_unary_rpc_method_handler(self.unary_unary, **wire),
            "UnaryStream": grpc.unary_stream_rpc_method_handler(self.unary_stream, **wire),
            "StreamUnary": grpc.stream_unary_rpc_method_handler(self.stream_unary, **wire),
            "StreamStream": grpc.stream_stream_rpc_method_handler(self.stream_stream, **wire),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


@dataclass(frozen=True)
class Outcome:
    """What a client saw."""

    code: grpc.StatusCode
    details: str
    outputs: list[str]
    trailing: dict[str, str | bytes]
    error: grpc.aio.AioRpcError | None = None

    @property
    def made_up(self) -> bool:
        """Whether the server has no part in it."""
        return self.error is not None and made_up(self.error)


@dataclass(frozen=True)
class Rig:
    """A running probe and a channel to it."""

    probe: Probe
    running: RunningServer
    channel: grpc.aio.Channel

    def start(
        self, kind: str, *texts: str | bytes, metadata: tuple[tuple[str, str], ...] = (), timeout: float = 30
    ) -> Any:
        """Begin a call of a kind with one request, or several where it streams."""
        requests = [text if isinstance(text, bytes) else StringValue(value=text).SerializeToString() for text in texts]
        method = {
            "UnaryUnary": self.channel.unary_unary,
            "UnaryStream": self.channel.unary_stream,
            "StreamUnary": self.channel.stream_unary,
            "StreamStream": self.channel.stream_stream,
        }[kind](f"/{SERVICE}/{kind}", request_serializer=None, response_deserializer=StringValue.FromString)
        return method(
            _stream(requests) if kind.startswith("Stream") else requests[0], metadata=metadata, timeout=timeout
        )

    async def call(self, kind: str, *texts: str | bytes, **options: Any) -> Outcome:
        """Make a call and return what came of it; it is made again where the server has no part in how it ended."""
        while True:
            outcome = await self.call_once(kind, *texts, **options)
            if not outcome.made_up:
                return outcome

    async def call_once(self, kind: str, *texts: str | bytes, **options: Any) -> Outcome:
        """Make a call and return what came of it."""
        call, outputs, error = self.start(kind, *texts, **options), list[str](), None
        try:
            if kind.endswith("Stream"):
                async for response in call:
                    outputs.append(response.value)
            else:
                outputs.append((await call).value)
        except grpc.aio.AioRpcError as caught:
            error = caught
        trailing = dict(await call.trailing_metadata() or ())
        return Outcome(await call.code(), await call.details() or "", outputs, trailing, error)


@asynccontextmanager
async def open_rig(acts: dict[str, Act] | None = None, **settings: Any) -> AsyncIterator[Rig]:
    """Open a server with the probe, serving, and a channel to it."""
    probe, metrics = Probe(acts or {}), ServerMetrics("probe")
    metrics.calls = probe.calls  # type: ignore[assignment]
    async with open_server(ProbeSettings(**settings), metrics, {SERVICE: probe.add}) as running:
        await running.set_serving(serving=True)
        async with client(running.port) as channel:
            yield Rig(probe, running, channel)


def errors_in(records: list[logging.LogRecord]) -> list[str]:
    """Return the messages of log records of level ERROR and above."""
    return [record.getMessage() for record in records if record.levelno >= logging.ERROR]


async def _stream(requests: list[bytes]) -> AsyncIterator[bytes]:
    for request in requests:
        yield request
