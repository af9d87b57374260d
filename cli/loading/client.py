"""Makes calls over gRPC and reads from their trailers where the server says the time went."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from cli.calls import failed, let_in_channel
from cli.loading.generator import OK, Call, Reply, SpanKey
from cli.loading.questions import Method
from retrieval.encoder.v1.encoder_pb2_grpc import EncoderServiceStub
from retrieval.gateway.v1.gateway_pb2_grpc import GatewayServiceStub
from retrieval.reranker.v1.reranker_pb2_grpc import RerankerServiceStub

MICROSECONDS = 1e6
TRAILER = "twostage-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a method is a method of."""

    server: str
    """Which server has it; also the prefix of its metrics."""
    rpc: str
    service: str
    stub: Any
    port: int
    """Where the server listens unless told otherwise."""
    whole: SpanKey
    """Where the server says how long the whole call took."""


TARGETS: dict[Method, Target] = {
    "search": Target(
        server="gateway",
        rpc="Search",
        service="retrieval.gateway.v1.GatewayService",
        stub=GatewayServiceStub,
        port=50_051,
        whole=("all", "total"),
    ),
    "encode": Target(
        server="encoder",
        rpc="Encode",
        service="retrieval.encoder.v1.EncoderService",
        stub=EncoderServiceStub,
        port=50_052,
        whole=("encode", "total"),
    ),
    "rerank": Target(
        server="reranker",
        rpc="Rerank",
        service="retrieval.reranker.v1.RerankerService",
        stub=RerankerServiceStub,
        port=50_053,
        whole=("rerank", "total"),
    ),
}


@asynccontextmanager
async def open_call(
    method: Method, address: str, requests: Sequence[Message], *, connections: int, timeout_s: float
) -> AsyncIterator[Call]:
    """Open the connections, let in as the command is; calls take them, and the requests, in turn.

    Raises:
        Misconfigured: The certificates are wrong.
    """
    target = TARGETS[method]
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(let_in_channel(address)) for _ in range(connections)]
        calls = [getattr(target.stub(channel), target.rpc) for channel in channels]

        async def one(number: int) -> Reply:
            call = calls[number % connections](requests[number % len(requests)], timeout=timeout_s)
            return await _reply(call, method)

        yield one


async def _reply(call: Any, method: Method) -> Reply:
    try:
        response = await call
    except grpc.aio.AioRpcError as error:
        spans = read_spans(error.trailing_metadata(), method)
        return Reply(code=error.code().name, spans=spans, failure=failed(error))
    degraded = method == "search" and response.HasField("degradation")
    return Reply(code=OK, spans=read_spans(await call.trailing_metadata(), method), degraded=degraded)


def read_spans(trailers: Any, method: Method) -> dict[SpanKey, float]:
    """Read spans in seconds out of trailing metadata: `twostage-STAGE-PART-us`, or `twostage-PART-us` of one stage."""
    spans = {}
    for key, value in trailers or ():
        words = key.removeprefix(TRAILER).removesuffix("-us").split("-")
        if key.startswith(TRAILER) and key.endswith("-us") and len(words) <= 2 and str(value).isdecimal():  # noqa: PLR2004
            stage, part = words if len(words) > 1 else (method, words[0])
            spans[stage, part] = int(value) / MICROSECONDS
    return spans
