"""encode -> search -> rerank over ports, under one deadline. Knows no transport and no engine."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum

from opentelemetry.trace import Span

from gateway.budget import StageCaps, reserves
from gateway.ids import sort_key
from gateway.ports import (
    Candidate,
    DocumentId,
    Encoded,
    Encoder,
    Filter,
    Found,
    Model,
    Reranked,
    Reranker,
    Scored,
    ServerTime,
    VectorStore,
)
from gateway.rerank_cost import Offer, RerankCost
from gateway.timings import SearchTimer
from serving import tracing
from serving.batching import Priority
from serving.deadline import Deadline
from serving.errors import DeadlineSpent, InvalidRequest, NotReady, Overloaded, ServiceError, Unavailable

MAX_PARTS_PER_DOCUMENT = 16
"""How many times the pool's size is read at most to fill a pool that is folded."""
FOLD_STEP = 4
TIME_SHORT = "TIME_SHORT"
"""Why only the top of a pool was reranked."""


class RerankMode(Enum):
    """What the reranker is for."""

    REQUIRED = "required"
    BEST_EFFORT = "best_effort"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """One validated search."""

    query: str
    collection: str
    pool_size: int
    top_k: int
    filter: Filter | None = None
    rerank: RerankMode = RerankMode.REQUIRED
    payload_fields: Sequence[str] = ()
    priority: Priority = Priority.INTERACTIVE
    fold_to_parent: bool = False
    """Whether the parts of a document count as one in `pool_size`, the best of them standing for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A candidate and what became of it; ranks count from 1."""

    candidate: Candidate
    retrieval_rank: int
    rerank_rank: int | None = None
    scored: Scored | None = None
    text_missing: bool = False
    """Whether it has no text that could be scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The answer to a search."""

    hits: Sequence[Hit]
    """The best `top_k`."""
    pool: Sequence[Hit]
    """All candidates in retrieval order."""
    encoder: Model
    reranker: Model | None = None
    shortfall: str = ""
    """Why not all of the pool was reranked although it was asked for; empty where it was."""
    text_missing_count: int = 0

    @property
    def reranked_count(self) -> int:
        """Candidates with a score."""
        return sum(hit.scored is not None for hit in self.pool)

    @property
    def skipped_reason(self) -> str:
        """Why nothing at all was reranked although it was asked for."""
        return self.shortfall if self.reranker is None else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The two stages, over their ports."""

    encoder: Encoder
    store: VectorStore
    reranker: Reranker
    caps: StageCaps
    cost: RerankCost = field(default_factory=RerankCost)

    async def retrieve(self, search: SearchQuery, deadline: Deadline, timer: SearchTimer) -> Result:
        """Run the first stage.

        Raises:
            ServiceError: With the stage in its metadata.
        """
        kept = reserves(deadline.remaining(), self.caps, rerank_required=search.rerank is RerankMode.REQUIRED)
        with _stage("encode", timer):
            until = _before(deadline, kept.encode).within(self.caps.encode)
            encoded = await self.encoder.encode_query(search.query, priority=search.priority, deadline=until)
            timer.server_said(encoded.time)
        with _stage("search", timer) as span:
            until = _before(deadline, kept.search).within(self.caps.search)
            found = await self._search(search, encoded, until)
            timer.server_said(found.time)
            span.set_attributes({"twostage.pool_size": search.pool_size, "twostage.candidates": len(found.candidates)})
        pool = _pool(found)
        return Result(
            hits=pool[: search.top_k],
            pool=pool,
            encoder=encoded.model,
            text_missing_count=sum(hit.text_missing for hit in pool),
        )

    async def _search(self, search: SearchQuery, encoded: Encoded, deadline: Deadline) -> Found:
        """Return the pool; where it is to be folded, read on until it is full or there is nothing left to read."""
        size, time = search.pool_size, ServerTime()
        while True:
            found = await self.store.search(
                search.collection,
                encoded.vectors[0],
                encoder=encoded.model,
                pool_size=size,
                filter=search.filter,
                payload_fields=search.payload_fields,
                deadline=deadline,
            )
            time = time.plus(found.time)
            pool = folded(found.candidates) if search.fold_to_parent else found.candidates
            all_read = len(found.candidates) < size or size >= search.pool_size * MAX_PARTS_PER_DOCUMENT
            if len(pool) >= search.pool_size or all_read:
                return Found(candidates=pool[: search.pool_size], time=time)
            size *= FOLD_STEP

    async def rerank(self, search: SearchQuery, retrieved: Result, deadline: Deadline, timer: SearchTimer) -> Result:
        """Run the second stage on what the first found.

        Under BEST_EFFORT only as much of the pool's top is sent as is predicted to be scored in time, and a failure
        leaves the retrieval order; either says why.

        Raises:
            ServiceError: With the stage in its metadata, under REQUIRED.
        """
        scorable = [hit for hit in retrieved.pool if not hit.text_missing]
        if search.rerank is RerankMode.OFF or not scorable:
            return retrieved
        deadline = _before(deadline, self.caps.margin).within(self.caps.rerank)
        sent: Sequence[Hit] = scorable[: self._affordable(search, scorable, deadline)]
        try:
            with _stage("rerank", timer) as span:
                sent, reranked = await self._score(search, sent, deadline)
                timer.server_said(reranked.time)
                span.set_attributes({"twostage.candidates": len(scorable), "twostage.reranked": len(sent)})
                if len(sent) < len(scorable):
                    span.set_attribute("twostage.degradation", TIME_SHORT)
        except ServiceError as error:
            if search.rerank is RerankMode.REQUIRED or isinstance(error, InvalidRequest):
                raise
            return replace(retrieved, shortfall=_shortfall(error))
        result = _with_scores(search, retrieved, sent, reranked)
        return result if len(sent) == len(scorable) else replace(result, shortfall=TIME_SHORT)

    def _affordable(self, search: SearchQuery, scorable: Sequence[Hit], deadline: Deadline) -> int:
        """Return how many candidates to send: all of them where there is no answer without the reranker."""
        if search.rerank is RerankMode.REQUIRED:
            return len(scorable)
        least = min(search.top_k, len(scorable))
        return self.cost.affordable(_offer(search, scorable), deadline.remaining(), least=least)

    async def _score(
        self, search: SearchQuery, sent: Sequence[Hit], deadline: Deadline
    ) -> tuple[Sequence[Hit], Reranked]:
        """Have candidates scored, or fewer of them where the reranker says at once that all would take too long."""
        deadline.require("rerank")
        if not sent:
            raise DeadlineSpent("DEADLINE_SPENT", "too little time is left to rerank anything")
        try:
            return sent, await self._ask(_offer(search, sent), deadline)
        except Overloaded as refused:
            behind = _before(deadline, self.cost.beyond(_offer(search, sent), refused.retry_after_s))
            fewer = () if behind.spent() else sent[: self._affordable(search, sent, behind)]
            if len(fewer) in (0, len(sent)):
                raise
            return fewer, await self._ask(_offer(search, fewer), deadline)

    async def _ask(self, offer: Offer, deadline: Deadline) -> Reranked:
        """Have passages scored, and learn what that took."""
        left_s = deadline.require("rerank")
        try:
            reranked = await self.reranker.rerank(
                offer.query, offer.passages, priority=offer.priority, deadline=deadline
            )
        except DeadlineSpent:
            self.cost.late(offer, waited_s=left_s - deadline.remaining())
            raise
        self.cost.answered(offer, total_s=left_s - deadline.remaining(), queue_s=reranked.time.queue / 1e9)
        return reranked


def folded(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Keep of every split document the first part only; whole documents stay."""
    first: dict[DocumentId, Candidate] = {}
    for candidate in candidates:
        first.setdefault(candidate.part.parent if candidate.part else candidate.id, candidate)
    return list(first.values())


def _before(deadline: Deadline, reserve_s: float) -> Deadline:
    return Deadline(deadline.at - reserve_s)


def _offer(search: SearchQuery, hits: Sequence[Hit]) -> Offer:
    passages = [hit.candidate.text or "" for hit in hits]
    return Offer(query=search.query, passages=passages, priority=search.priority)


def _pool(found: Found) -> list[Hit]:
    return [
        Hit(candidate=candidate, retrieval_rank=rank, text_missing=candidate.text is None)
        for rank, candidate in enumerate(found.candidates, 1)
    ]


def _with_scores(search: SearchQuery, retrieved: Result, sent: Sequence[Hit], reranked: Reranked) -> Result:
    """Join scores to the pool; order by logit, then by id; what has no score keeps its place after the rest."""
    scored = {hit.retrieval_rank: score for hit, score in zip(sent, reranked.scores, strict=True) if score is not None}
    blank = {hit.retrieval_rank for hit in sent} - scored.keys()
    best = sorted(
        (hit for hit in sent if hit.retrieval_rank in scored),
        key=lambda hit: (-scored[hit.retrieval_rank].logit, sort_key(hit.candidate.id)),
    )
    ranks = {hit.retrieval_rank: rank for rank, hit in enumerate(best, 1)}
    pool = [
        Hit(
            candidate=hit.candidate,
            retrieval_rank=hit.retrieval_rank,
            rerank_rank=ranks.get(hit.retrieval_rank),
            scored=scored.get(hit.retrieval_rank),
            text_missing=hit.text_missing or hit.retrieval_rank in blank,
        )
        for hit in retrieved.pool
    ]
    ordered = sorted(pool, key=lambda hit: (hit.rerank_rank is None, hit.rerank_rank or hit.retrieval_rank))
    return Result(
        hits=ordered[: search.top_k],
        pool=pool,
        encoder=retrieved.encoder,
        reranker=reranked.model,
        text_missing_count=sum(hit.text_missing for hit in pool),
    )


def _shortfall(error: ServiceError) -> str:
    if isinstance(error, DeadlineSpent):
        return "DEADLINE_SPENT"
    if isinstance(error, Overloaded):
        return "RERANKER_OVERLOADED"
    if isinstance(error, (Unavailable, NotReady)):
        return "RERANKER_UNAVAILABLE"
    return "RERANKER_FAILED"


@contextmanager
def _stage(name: str, timer: SearchTimer) -> Iterator[Span]:
    """Measure a stage, put its name on whatever goes wrong in it, and yield its span."""
    with timer.stage(name), tracing.stage(name) as span:
        try:
            yield span
        except ServiceError as error:
            error.metadata["stage"] = name
            if isinstance(error, (DeadlineSpent, Unavailable, NotReady, Overloaded)):
                error.message = f"{name}: {error.message}"
            raise
