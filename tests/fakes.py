"""Hand-written doubles: model servers that do as they are told, and the gateway's ports in this process.

A fake server answers sensibly until `script` holds a step; every call then takes one. `always` replaces the sensible
answer. A step is given the request, the context and the sensible answer, and returns what is sent, or ends the call.
"""

import asyncio
import re
import zlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from gateway.ports import (
    Candidate,
    DocumentId,
    Encoded,
    EncoderInfo,
    Found,
    ListQuery,
    Model,
    RankedList,
    Reranked,
    Scored,
    ServerTime,
    Vector,
)
from retrieval.encoder.v1 import encoder_pb2, encoder_pb2_grpc
from retrieval.reranker.v1 import reranker_pb2, reranker_pb2_grpc
from serving.batching import Priority
from serving.deadline import Deadline

DIMENSION = 16
ENCODER_DIGEST = "sha256:" + "e" * 64
RERANKER_DIGEST = "sha256:" + "7" * 64
QUEUE_NS, TOKENIZE_NS, COMPUTE_NS = 1_000, 2_000, 3_000

Step = Callable[[Any, Any, Any], Awaitable[Any]]


# --- steps ---------------------------------------------------------------------------------------------------------


def status(
    code: grpc.StatusCode,
    reason: str = "",
    *,
    message: str = "backend's own words",
    field: str = "",
    retry_after_s: float | None = None,
) -> Step:
    """End the call with a status; without a reason it carries no ErrorInfo, as one of gRPC itself."""
    details: list[Any] = []
    if reason:
        metadata = {"field": field} if field else {}
        details.append(error_details_pb2.ErrorInfo(reason=reason, domain="twostage", metadata=metadata))
    if retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    text = f"{field}: {message}" if field else message
    rich = rpc_status.to_status(
        status_pb2.Status(code=code.value[0], message=text, details=[_pack(detail) for detail in details])
    )

    async def step(request: Any, context: Any, answer: Any) -> Any:
        await context.abort(code, text, rich.trailing_metadata if details else ())

    return step


def raw_details(code: grpc.StatusCode, data: bytes) -> Step:
    """End the call with a status whose rich details are these bytes, whatever they say."""

    async def step(request: Any, context: Any, answer: Any) -> Any:
        await context.abort(code, "backend's own words", (("grpc-status-details-bin", data),))

    return step


def altered(change: Callable[[Any], Any]) -> Step:
    """Answer, but changed in place."""

    async def step(request: Any, context: Any, answer: Any) -> Any:
        change(answer)
        return answer

    return step


async def sensible(request: Any, context: Any, answer: Any) -> Any:
    """Answer as a healthy server does."""
    return answer


async def crash(request: Any, context: Any, answer: Any) -> Any:
    """Let an exception out of the handler, which gRPC answers with UNKNOWN."""
    raise RuntimeError("secret inner words")


class Hang:
    """A step that never answers; `begun` and `cancelled` tell what became of the call."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, request: Any, context: Any, answer: Any) -> Any:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


class Gate:
    """A step that answers once it is opened."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, request: Any, context: Any, answer: Any) -> Any:
        self.begun.set()
        await self.opened.wait()
        return answer


# --- servers -------------------------------------------------------------------------------------------------------


class _Scripted:
    """What both fake servers can be told."""

    def __init__(self) -> None:
        self.script: deque[Step] = deque()
        self.always: Step = sensible
        self.requests: list[Any] = []

    async def _play(self, request: Any, context: Any, answer: Any) -> Any:
        self.requests.append(request)
        step = self.script.popleft() if self.script else self.always
        return await step(request, context, answer)


class FakeEncoder(_Scripted, encoder_pb2_grpc.EncoderServiceServicer):
    """Counts words into buckets, so that texts with words in common are near; roles do not matter."""

    def __init__(self, digest: str = ENCODER_DIGEST) -> None:
        super().__init__()
        self.word_limit = 50
        self.model = encoder_pb2.ModelReference(
            id="fake-encoder", revision="1", digest=digest, precision="fp32", device="cpu"
        )

    async def Encode(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = encoder_pb2.EncodeResponse(
            embeddings=[
                encoder_pb2.Embedding(packed=word_vector(text).astype("<f4").tobytes(), token_count=5)
                for text in request.texts
            ],
            model=self.model,
            timings=encoder_pb2.Timings(**_timings()),
        )
        return await self._play(request, context, answer)

    async def Split(self, request: Any, context: Any) -> Any:  # noqa: N802
        limit = request.max_tokens if request.HasField("max_tokens") else self.word_limit
        passages = sentence_passages if request.per_sentence else word_passages
        texts = [encoder_pb2.SplitText(passages=passages(text, limit)) for text in request.texts]
        return await self._play(request, context, encoder_pb2.SplitResponse(texts=texts, model=self.model))

    async def GetModel(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = encoder_pb2.GetModelResponse(model=self.model, dimension=DIMENSION, passage_prefix="passage: ")
        return await self._play(request, context, answer)


class FakeReranker(_Scripted, reranker_pb2_grpc.RerankerServiceServicer):
    """Gives as many points as words in common with the query; `logits` overrides that by text."""

    def __init__(self) -> None:
        super().__init__()
        self.logits: dict[str, float] = {}
        self.model = reranker_pb2.ModelReference(
            id="fake-reranker", revision="2", digest=RERANKER_DIGEST, precision="fp32", device="cpu"
        )

    async def Rerank(self, request: Any, context: Any) -> Any:  # noqa: N802
        scored = [
            (self.logits.get(candidate.text, shared_words(request.query, candidate.text)), index, candidate)
            for index, candidate in enumerate(request.candidates)
            if candidate.text.strip()
        ]
        blank = [index for index, candidate in enumerate(request.candidates) if not candidate.text.strip()]
        answer = reranker_pb2.RerankResponse(
            ranked=[
                reranker_pb2.RankedCandidate(
                    id=candidate.id, index=index, logit=logit, probability=1 / (1 + np.exp(-logit)), token_count=9
                )
                for logit, index, candidate in sorted(scored, key=lambda entry: (-entry[0], entry[1]))
            ],
            skipped_indices=blank,
            model=self.model,
            timings=reranker_pb2.Timings(**_timings()),
        )
        return await self._play(request, context, answer)


def word_passages(text: str, limit: int) -> list[encoder_pb2.Passage]:
    """Cut a text into passages of so many words, without overlap."""
    words = [match.span() for match in re.finditer(r"\S+", text)]
    spans = [(words[i][0], words[min(i + limit, len(words)) - 1][1]) for i in range(0, len(words), limit)]
    return [_passage(text, span, limit) for span in spans]


def sentence_passages(text: str, limit: int) -> list[encoder_pb2.Passage]:
    """Cut a text after its full stops, however long sentences are."""
    return [_passage(text, match.span(), limit) for match in re.finditer(r"[^.\s][^.]*\.?", text)]


def _passage(text: str, span: tuple[int, int], limit: int) -> encoder_pb2.Passage:
    begin, end = (len(text[:index].encode()) for index in span)
    return encoder_pb2.Passage(begin=begin, end=end, token_count=limit)


def word_vector(text: str) -> Vector:
    """Return the unit vector of a text's word counts; float32 [16]."""
    counts = np.zeros(DIMENSION)
    for word in _words(text):
        counts[zlib.crc32(word.encode()) % DIMENSION] += 1
    counts[0] += 0.01  # no text is without length
    return np.asarray(counts / np.linalg.norm(counts), np.float32)


def shared_words(query: str, text: str) -> float:
    """Return how many different words two texts share, around zero."""
    return len(set(_words(query)) & set(_words(text))) - 0.5


@asynccontextmanager
async def serve(*servicers: Any, port: int = 0) -> AsyncIterator[int]:
    """Serve fakes over gRPC with nothing of ours around them, and give the port."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)])
    for servicer in servicers:
        if isinstance(servicer, encoder_pb2_grpc.EncoderServiceServicer):
            encoder_pb2_grpc.add_EncoderServiceServicer_to_server(servicer, server)
        else:
            reranker_pb2_grpc.add_RerankerServiceServicer_to_server(servicer, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(0)


# --- ports ---------------------------------------------------------------------------------------------------------

ENCODER_MODEL = Model(id="port-encoder", revision="1", digest=ENCODER_DIGEST, precision="fp32", device="cpu")
RERANKER_MODEL = Model(id="port-reranker", revision="2", digest=RERANKER_DIGEST, precision="fp32", device="cpu")
SERVER_TIME = ServerTime(queue=QUEUE_NS, tokenize=TOKENIZE_NS, compute=COMPUTE_NS)


class EncoderPort:
    """The encoder port: word vectors, or `error`."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.deadlines: list[Deadline] = []
        self.priorities: list[Priority] = []

    async def encode_queries(
        self, queries: Sequence[str], *, priority: Priority = Priority.INTERACTIVE, deadline: Deadline
    ) -> Encoded:
        return await self.encode_passages(queries, truncate=False, priority=priority, deadline=deadline)

    async def encode_passages(
        self, texts: Sequence[str], *, truncate: bool, priority: Priority = Priority.BULK, deadline: Deadline
    ) -> Encoded:
        self.priorities.append(priority)
        self.deadlines.append(deadline)
        if self.error is not None:
            raise self.error
        vectors = [word_vector(text) for text in texts]
        return Encoded(vectors=vectors, truncated=[False] * len(texts), model=ENCODER_MODEL, time=SERVER_TIME)

    async def info(self, *, deadline: Deadline) -> EncoderInfo:
        return EncoderInfo(model=ENCODER_MODEL, dimension=DIMENSION, passage_prefix="passage: ")


class RerankerPort:
    """The reranker port: logits by passage, None for one found blank, or `error`."""

    def __init__(self, logits: Mapping[str, float | None]) -> None:
        self.logits = logits
        self.error: Exception | None = None
        self.passages: list[str] = []
        self.deadlines: list[Deadline] = []
        self.priorities: list[Priority] = []

    async def rerank(
        self, query: str, passages: Sequence[str], *, priority: Priority = Priority.INTERACTIVE, deadline: Deadline
    ) -> Reranked:
        self.priorities.append(priority)
        self.passages, self.deadlines = list(passages), [*self.deadlines, deadline]
        if self.error is not None:
            raise self.error
        scores = [_scored(self.logits[passage]) for passage in passages]
        return Reranked(scores=scores, model=RERANKER_MODEL, time=SERVER_TIME)


class PoolStore:
    """The search half of the store port: a fixed pool of (id, text), or `error`."""

    name = "pool"

    def __init__(self, *pool: tuple[DocumentId, str | None]) -> None:
        self.pool = pool
        self.error: Exception | None = None
        self.asked: list[Mapping[str, Any]] = []

    async def search(self, name: str, queries: Sequence[ListQuery], *, limit: int, **rest: Any) -> Found:
        self.asked.append({"name": name, "queries": queries, "limit": limit, **rest})
        if self.error is not None:
            raise self.error
        candidates = [
            Candidate(id=identifier, score=1 - rank / 100, text=text)
            for rank, (identifier, text) in enumerate(self.pool[:limit])
        ]
        compute = SERVER_TIME.compute
        lists = [RankedList(candidates=candidates, compute=compute) for _ in queries]
        return Found(lists=lists, collection=name, time=SERVER_TIME)


def _scored(logit: float | None) -> Scored | None:
    return None if logit is None else Scored(logit=logit, probability=0.5, truncated=False)


def _timings() -> dict[str, duration_pb2.Duration]:
    return {
        "total": duration_pb2.Duration(nanos=QUEUE_NS + TOKENIZE_NS + COMPUTE_NS),
        "queue": duration_pb2.Duration(nanos=QUEUE_NS),
        "tokenize": duration_pb2.Duration(nanos=TOKENIZE_NS),
        "compute": duration_pb2.Duration(nanos=COMPUTE_NS),
    }


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _pack(message: Any) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
