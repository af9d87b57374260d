"""The reranker's RPCs: validate, submit, convert."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

import grpc
from prometheus_client import Counter

from reranker_server.model import Pairs, order, sigmoid, tokenize
from reranker_server.settings import RerankerSettings
from retrieval.reranker.v1 import reranker_pb2 as pb
from retrieval.reranker.v1 import reranker_pb2_grpc as pb_grpc
from serving.batching import Priority
from serving.deadline import Deadline
from serving.engine import EngineSlot
from serving.errors import InvalidRequest
from serving.limits import require_size
from serving.metrics import ServerMetrics
from serving.server import deadline_of
from serving.timing import CallTime, Stopwatch
from serving.tokens import PairTruncation

SERVICE = pb.DESCRIPTOR.services_by_name["RerankerService"].full_name
TRUNCATIONS = {
    pb.TRUNCATION_UNSPECIFIED: PairTruncation.LONGEST_FIRST,
    pb.TRUNCATION_LONGEST_FIRST: PairTruncation.LONGEST_FIRST,
    pb.TRUNCATION_ONLY_PASSAGE: PairTruncation.ONLY_PASSAGE,
    pb.TRUNCATION_REJECT: None,
}
PRIORITIES = {
    pb.PRIORITY_UNSPECIFIED: Priority.INTERACTIVE,
    pb.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    pb.PRIORITY_BULK: Priority.BULK,
}
# An id is only handed back: long ones would let the answer outgrow what clients accept.
MAX_ID_BYTES = 512

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class CandidateCounts:
    """How many candidates were answered, and what could not be read whole of them and of their queries."""

    def __init__(self, metrics: ServerMetrics) -> None:
        service, registry = metrics.service, metrics.registry
        self._candidates = Counter(f"{service}_candidates", "Candidates answered, skipped too.", registry=registry)
        self._cut = Counter(f"{service}_truncated_candidates", "Those whose pair was cut.", registry=registry)
        self._cut_queries = Counter(
            f"{service}_truncated_queries", "Calls whose query was cut in a pair.", registry=registry
        )
        self._skipped = Counter(f"{service}_skipped_candidates", "Blank candidates, not scored.", registry=registry)

    def count(self, candidate_count: int, response: pb.RerankResponse) -> None:
        """Count the candidates of one answer."""
        self._candidates.inc(candidate_count)
        self._cut.inc(response.truncated_count)
        self._cut_queries.inc(response.query_truncated)
        self._skipped.inc(len(response.skipped_indices))


class RerankerService(pb_grpc.RerankerServiceServicer):
    """Implements retrieval.reranker.v1.RerankerService.

    Args:
        slot: Where the engine will be.
        settings: Limits and the default deadline.
        metrics: Where stages and candidates are recorded.
    """

    def __init__(self, slot: EngineSlot, settings: RerankerSettings, metrics: ServerMetrics) -> None:
        self._slot = slot
        self._settings = settings
        self._metrics = metrics
        self._candidates = CandidateCounts(metrics)

    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResponse:  # noqa: N802
        """Score the candidates and return them best first."""
        watch, reference = Stopwatch(), self._reference
        candidates = list(request.candidates)
        _validate(request, candidates, self._settings)
        deadline = deadline_of(context, self._settings.default_deadline_s)
        response, time = await self._rerank(request, candidates, deadline, watch) if candidates else _empty(watch)
        response.model.CopyFrom(reference)
        response.timings.CopyFrom(pb.Timings(**time.durations()))
        context.set_trailing_metadata(time.trailers())
        self._metrics.observe_stage("rerank", time.parts())
        self._candidates.count(len(candidates), response)
        return response

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:  # noqa: N802, ARG002
        """Return the model and the limits."""
        engine, settings = self._slot.engine, self._settings
        return pb.GetModelResponse(
            model=self._reference,
            limits=pb.Limits(
                max_tokens=engine.model.max_tokens,
                max_candidates=settings.max_candidates,
                max_text_bytes=settings.max_text_bytes,
                max_waiting_tokens=engine.batcher.limits.max_waiting_tokens,
            ),
        )

    @cached_property
    def _reference(self) -> pb.ModelReference:
        """The model, written once: a server has one all its life."""
        return pb.ModelReference(**self._slot.engine.reference)

    async def _rerank(
        self, request: pb.RerankRequest, candidates: Sequence[pb.Candidate], deadline: Deadline, watch: Stopwatch
    ) -> tuple[pb.RerankResponse, CallTime]:
        engine = self._slot.engine
        query, passages = request.query, [candidate.text for candidate in candidates]
        engine.refuse_hopeless(deadline, priority=PRIORITIES[request.priority])
        pairs = await engine.tokenize(
            lambda tokenizer: tokenize(
                tokenizer,
                query,
                passages,
                truncation=TRUNCATIONS[request.truncation],
                skip_blank=request.skip_blank,
            ),
            characters=len(query) + sum(map(len, passages)),
        )
        tokenized = watch.lap("tokenize")
        if not pairs.rows:
            return pb.RerankResponse(skipped_indices=pairs.skipped), CallTime(total=watch.total(), tokenize=tokenized)
        answer = await engine.compute(pairs.rows, deadline, priority=PRIORITIES[request.priority])
        response = _response(request, candidates, pairs, [float(logit) for logit in answer.outputs])
        time = CallTime(total=watch.total(), tokenize=tokenized, queue=answer.queue, compute=answer.compute)
        return response, time


def _validate(request: pb.RerankRequest, candidates: Sequence[pb.Candidate], settings: RerankerSettings) -> None:
    """Check everything that needs no tokenizer; without candidates the query is not looked at."""
    if request.HasField("top_n") and request.top_n < 1:
        raise InvalidRequest("TOP_N_RANGE", f"{request.top_n}, at least 1", field="top_n")
    if request.truncation not in TRUNCATIONS:
        raise InvalidRequest("ENUM_UNKNOWN", f"no such value: {request.truncation}", field="truncation")
    if request.priority not in PRIORITIES:
        raise InvalidRequest("ENUM_UNKNOWN", f"no such value: {request.priority}", field="priority")
    if len(candidates) > settings.max_candidates:
        message = f"{len(candidates)} candidates, the limit is {settings.max_candidates}"
        raise InvalidRequest("TOO_MANY_CANDIDATES", message, field="candidates")
    if candidates:
        require_size(request.query, settings.max_text_bytes, field="query")
    for index, candidate in enumerate(candidates):
        require_size(candidate.text, settings.max_text_bytes, field=f"candidates[{index}].text")
        require_size(candidate.id, MAX_ID_BYTES, field=f"candidates[{index}].id")


def _response(
    request: pb.RerankRequest, candidates: Sequence[pb.Candidate], pairs: Pairs, logits: list[float]
) -> pb.RerankResponse:
    ids = [candidates[index].id for index in pairs.indices]
    top_n = request.top_n if request.HasField("top_n") else len(logits)
    ranked = [
        pb.RankedCandidate(
            id=ids[position],
            index=pairs.indices[position],
            logit=logits[position],
            probability=sigmoid(logits[position]),
            truncated=pairs.rows[position].truncated,
            token_count=len(pairs.rows[position]),
        )
        for position in order(logits, ids)[:top_n]
    ]
    truncated_count = sum(row.truncated for row in pairs.rows)
    return pb.RerankResponse(
        ranked=ranked,
        truncated=truncated_count > 0,
        truncated_count=truncated_count,
        query_truncated=any(row.query_truncated for row in pairs.rows),
        skipped_indices=pairs.skipped,
    )


def _empty(watch: Stopwatch) -> tuple[pb.RerankResponse, CallTime]:
    return pb.RerankResponse(), CallTime(total=watch.total())
