"""The system under evaluation, over gRPC alone: a gateway and the reranker behind it."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration

from evaluation.figures import DocumentId, StageTime
from evaluation.records import ModelUsed
from retrieval.gateway.v1 import gateway_pb2 as gateway
from retrieval.gateway.v1 import gateway_pb2_grpc as gateway_grpc
from retrieval.reranker.v1 import reranker_pb2 as reranker
from retrieval.reranker.v1 import reranker_pb2_grpc as reranker_grpc
from serving.errors import Unavailable

if TYPE_CHECKING:  # they exist in the stub files only
    from retrieval.encoder.v1.encoder_pb2_grpc import EncoderServiceAsyncStub
    from retrieval.gateway.v1.gateway_pb2_grpc import (
        CollectionServiceAsyncStub,
        DocumentServiceAsyncStub,
        GatewayServiceAsyncStub,
    )
    from retrieval.reranker.v1.reranker_pb2_grpc import RerankerServiceAsyncStub

T = TypeVar("T")
OpenChannel = Callable[[str], AbstractAsyncContextManager[grpc.aio.Channel]]

CALL_TIMEOUT_S = 60.0
RERANK_TIMEOUT_S = 600.0
"""A pool of 60 long passages on a busy processor takes tens of seconds."""
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
OF_ONE_QUESTION = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.INTERNAL,
    }
)
"""Codes that end one question and are counted; any other would meet the next question as well and ends the phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Open channels to a gateway and to its reranker."""

    search: "GatewayServiceAsyncStub"
    documents: "DocumentServiceAsyncStub"
    collections: "CollectionServiceAsyncStub"
    reranker: "RerankerServiceAsyncStub"
    encoder: "EncoderServiceAsyncStub | None" = None
    """Only where a study needs vectors of its own, see `evaluation.first_stage.exact`."""


class QuestionFailed(Exception):
    """A call failed for this question alone; the message is what to record."""


class Stage(Protocol):
    """A stage's time as the gateway tells it."""

    @property
    def total(self) -> Duration: ...  # noqa: D102
    @property
    def network(self) -> Duration: ...  # noqa: D102
    @property
    def queue(self) -> Duration: ...  # noqa: D102
    @property
    def tokenize(self) -> Duration: ...  # noqa: D102
    @property
    def compute(self) -> Duration: ...  # noqa: D102


def plain_channel(address: str) -> grpc.aio.Channel:
    """Open a channel without TLS and key."""
    return grpc.aio.insecure_channel(
        address,
        options=[
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ],
    )


@asynccontextmanager
async def open_system(
    gateway_address: str, reranker_address: str, open_channel: OpenChannel = plain_channel
) -> AsyncIterator[System]:
    """Open both channels; call inside the running loop.

    Args:
        gateway_address: "host:port".
        reranker_address: "host:port".
        open_channel: Given an address, opens a channel to it; default is one without TLS and key.
    """
    async with open_channel(gateway_address) as first, open_channel(reranker_address) as second:
        yield System(
            search=gateway_grpc.GatewayServiceStub(first),
            documents=gateway_grpc.DocumentServiceStub(first),
            collections=gateway_grpc.CollectionServiceStub(first),
            reranker=reranker_grpc.RerankerServiceStub(second),
        )


async def timed(peer: str, call: Awaitable[T]) -> tuple[T, float]:
    """Await a call of one question and return its answer and the milliseconds until it was there.

    Args:
        peer: "gateway" or "reranker", for messages.
        call: Not begun before this is called.

    Raises:
        QuestionFailed: It failed in a way that is this question's own.
        Unavailable: Nobody answers.
        grpc.aio.AioRpcError: It failed in another way.
    """
    begun = time.perf_counter_ns()
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        if error.code() in OF_ONE_QUESTION:
            raise QuestionFailed(f"{error.code().name}: {error.details()}") from error
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            raise Unavailable(f"{peer.upper()}_UNAVAILABLE", f"no {peer} answers: {error.details()}"[:250]) from error
        raise
    return answer, (time.perf_counter_ns() - begun) / 1e6


def milliseconds(duration: Duration) -> float:
    """Return a duration in milliseconds."""
    return duration.seconds * 1e3 + duration.nanos / 1e6


def stage_time(stage: Stage) -> StageTime:
    """Return a stage's time as the gateway tells it."""
    return StageTime(
        total=milliseconds(stage.total),
        network=milliseconds(stage.network),
        queue=milliseconds(stage.queue),
        tokenize=milliseconds(stage.tokenize),
        compute=milliseconds(stage.compute),
    )


def model_used(model: "gateway.ModelReference | reranker.ModelReference") -> ModelUsed:
    """Return which model answered."""
    return ModelUsed(
        id=model.id, revision=model.revision, digest=model.digest, precision=model.precision, device=model.device
    )


def document_id(message: gateway.DocumentId) -> DocumentId:
    """Return a document's id."""
    return message.number if message.WhichOneof("kind") == "number" else message.text


def id_message(identifier: DocumentId) -> gateway.DocumentId:
    """Return a document's id as the gateway takes it: a whole number from 0 as number, anything else as text."""
    if isinstance(identifier, int) and identifier >= 0:
        return gateway.DocumentId(number=identifier)
    return gateway.DocumentId(text=str(identifier))
