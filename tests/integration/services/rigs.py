"""Whole servers for tests, on free ports of loopback: a gateway between fakes, and what a client sees of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from clients import client
from fakes import FakeEncoder, FakeReranker, serve
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from store_fake import MemoryStore

from cli.addresses import free_ports
from cli.calls import made_up
from gateway import encoder_client, reranker_client
from gateway.app import ACCESS, _services
from gateway.breaker import BreakerPolicy
from gateway.channels import open_channel
from gateway.convert import struct_of
from gateway.guard import Guard
from gateway.ports import VectorStore
from gateway.scoped_store import ScopedStore
from gateway.settings import GatewaySettings
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1.gateway_pb2_grpc import CollectionServiceStub, DocumentServiceStub, GatewayServiceStub
from serving.metrics import ServerMetrics
from serving.server import open_server

COLLECTION = "c"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """How a call failed, as the caller sees it."""

    code: grpc.StatusCode
    details: str
    reason: str
    info: Mapping[str, str]
    retry_after_s: float | None
    trailers: Mapping[str, str]


class Rig:
    """A gateway between a fake encoder, a fake reranker and a store."""

    def __init__(
        self, channel: grpc.aio.Channel, encoder: FakeEncoder, reranker: FakeReranker, metrics: ServerMetrics
    ) -> None:
        self.channel, self.encoder, self.reranker, self.metrics = channel, encoder, reranker, metrics
        self.search = GatewayServiceStub(channel)
        self.documents = DocumentServiceStub(channel)
        self.collections = CollectionServiceStub(channel)

    async def fill(self, *texts: str) -> None:
        """Create the collection and store texts under 1, 2, ..."""
        await self.collections.CreateCollection(pb.CreateCollectionRequest(collection=COLLECTION))
        if texts:
            await self.upsert([document(number, text) for number, text in enumerate(texts, 1)])

    async def upsert(self, documents: Sequence[pb.Document], **fields: Any) -> pb.UpsertDocumentsResponse:
        """Send one message of documents."""
        message = pb.UpsertDocumentsRequest(collection=COLLECTION, documents=documents, **fields)
        (answer,) = [one async for one in self.documents.UpsertDocuments(iter([message]))]
        return answer

    async def ask(self, query: str = "alpha", *, deadline_s: float | None = 20, **fields: Any) -> pb.SearchResponse:
        """Search."""
        return await self.search.Search(request(query, **fields), timeout=deadline_s)

    async def counted(self, code: grpc.StatusCode, method: str = "Search") -> None:
        """Wait until the metrics say that a call ended with a code, which they do once its answer is on its way."""
        labels = {"method": method, "code": code.name}
        async with asyncio.timeout(20):
            while not self.metrics.registry.get_sample_value("gateway_calls_total", labels):
                await health(self.channel)


@asynccontextmanager
async def open_rig(
    store: VectorStore | None = None, breaker: BreakerPolicy | None = None, **settings: Any
) -> AsyncIterator[Rig]:
    """Open a gateway between fakes; `encoder_target` and `reranker_target` in the settings replace theirs."""
    async with AsyncExitStack() as stack:
        encoder, reranker = FakeEncoder(), FakeReranker()
        ports = [await stack.enter_async_context(serve(fake)) for fake in (encoder, reranker)]
        told = GatewaySettings(
            **{
                "host": "127.0.0.1",
                "port": 0,
                "grace_s": 1,
                "encode_cap_s": 60,  # longer than a busy machine stands still
                "search_cap_s": 60,
                "encoder_target": f"dns:///127.0.0.1:{ports[0]}",
                "reranker_target": f"dns:///127.0.0.1:{ports[1]}",
                **settings,
            }
        )
        backends = [
            await stack.enter_async_context(open_channel(told.encoder_target, encoder_client.SERVICE)),
            await stack.enter_async_context(open_channel(told.reranker_target, reranker_client.SERVICE)),
        ]
        metrics = ServerMetrics("gateway")
        services = _services(
            encoder_client.EncoderClient(backends[0], Guard(encoder_client.PEER, breaker)),
            reranker_client.RerankerClient(backends[1], Guard(reranker_client.PEER, breaker)),
            ScopedStore(store or MemoryStore()),
            told,
            metrics,
        )
        running = await stack.enter_async_context(open_server(told, metrics, services, ACCESS))
        stack.push_async_callback(running.drain, delay_s=0, grace_s=1)
        await running.set_serving(serving=True)
        channel = await stack.enter_async_context(client(running.port))
        yield Rig(channel, encoder, reranker, metrics)


def free_port() -> int:
    """Return a port that nobody listens on."""
    (port,) = free_ports(1)
    return port


def request(query: str = "alpha", **fields: Any) -> pb.SearchRequest:
    """Make a search of the collection."""
    return pb.SearchRequest(**{"query": query, "collection": COLLECTION, **fields})


def document(identifier: int | str, text: str, **payload: Any) -> pb.Document:
    """Make a document."""
    key = pb.DocumentId(number=identifier) if isinstance(identifier, int) else pb.DocumentId(text=identifier)
    return pb.Document(id=key, text=text, payload=struct_of(payload) if payload else None)


def numbers(hits: Sequence[pb.Hit]) -> list[int]:
    """Return the numeric ids of hits."""
    return [hit.id.number for hit in hits]


async def asked(make: Callable[[], Awaitable[T]]) -> T:
    """Make a call and await it; it is made again where the server has no part in how it failed."""
    while True:
        try:
            return await make()
        except grpc.aio.AioRpcError as error:
            if not made_up(error):
                raise


async def failure(call: Awaitable[Any] | Callable[[], Awaitable[Any]]) -> Failed:
    """Await a call that has to fail; one that streams its requests is given as what makes it, as for `asked`."""
    try:
        answer = await (asked(call) if callable(call) else call)
    except grpc.aio.AioRpcError as error:
        return failed_as(error)
    raise AssertionError(f"answered {answer}")


async def stream_failure(call: Any) -> tuple[list[Any], Failed]:
    """Read a stream that has to fail, given as for `failure`; return what came before, too."""
    answers: list[Any] = []

    async def read() -> None:
        answers.clear()
        async for answer in call() if callable(call) else call:
            answers.append(answer)  # noqa: PERF401 - what came before the failure is kept

    try:
        await (asked(read) if callable(call) else read())
    except grpc.aio.AioRpcError as error:
        return answers, failed_as(error)
    raise AssertionError(f"answered {answers}")


async def health(channel: grpc.aio.Channel, service: str = "") -> int:
    """Ask for the health of a service."""
    check = health_pb2_grpc.HealthStub(channel).Check
    return (await check(health_pb2.HealthCheckRequest(service=service), timeout=20)).status


def failed_as(error: grpc.aio.AioRpcError) -> Failed:
    """Read a failure."""
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    rich = rpc_status.from_call(error)  # type: ignore[arg-type]
    for detail in rich.details if rich is not None else ():
        detail.Unpack(info)
        detail.Unpack(retry)
    seconds = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    return Failed(
        code=error.code(),
        details=error.details() or "",
        reason=info.reason,
        info=dict(info.metadata),
        retry_after_s=seconds or None,
        trailers={key: value for key, value in error.trailing_metadata() or () if isinstance(value, str)},
    )
