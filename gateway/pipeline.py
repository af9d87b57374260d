"""encode -> search -> rerank over ports, under one deadline. Knows no transport and no engine."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum

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
from gateway.timings import SearchTimer
from serving.batching import Priority
from serving.deadline import Deadline
from serving.errors import DeadlineSpent, InvalidRequest, NotReady, Overloaded, ServiceError, Unavailable

MAX_PARTS_PER_DOCUMENT = 16
"""How many times the pool's size is read at most to fill a pool that is folded."""
FOLD_STEP = 4


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
    skipped_reason: str = ""
    """Why nothing was reranked although it was asked for; empty where it was."""
    text_missing_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCaps:
    """Most seconds per stage, and what every stage leaves of the caller's time."""

    encode: float
    search: float
    rerank: float
    margin: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The two stages, over their ports."""

    encoder: Encoder
    store: VectorStore
    reranker: Reranker
    caps: StageCaps

    async def retrieve(self, search: SearchQuery, deadline: Deadline, timer: SearchTimer) -> Result:
        """Run the first stage.

        Raises:
            ServiceError: With the stage in its metadata.
        """
        deadline = Deadline(deadline.at - self.caps.margin)
        with _stage("encode", timer):
            encoded = await self.encoder.encode_query(
                search.query, priority=search.priority, deadline=deadline.within(self.caps.encode)
            )
            timer.server_said(encoded.time)
        with _stage("search", timer):
            found = await self._search(search, encoded, deadline.within(self.caps.search))
            timer.server_said(found.time)
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

        Under BEST_EFFORT a failure leaves the retrieval order and says why.

        Raises:
            ServiceError: With the stage in its metadata, under REQUIRED.
        """
        scorable = [hit for hit in retrieved.pool if not hit.text_missing]
        if search.rerank is RerankMode.OFF or not scorable:
            return retrieved
        deadline = Deadline(deadline.at - self.caps.margin).within(self.caps.rerank)
        try:
            with _stage("rerank", timer):
                deadline.require("rerank")
                passages = [hit.candidate.text or "" for hit in scorable]
                reranked = await self.reranker.rerank(
                    search.query, passages, priority=search.priority, deadline=deadline
                )
                timer.server_said(reranked.time)
        except ServiceError as error:
            if search.rerank is RerankMode.REQUIRED or isinstance(error, InvalidRequest):
                raise
            return replace(retrieved, skipped_reason=_skipped_reason(error))
        return _with_scores(search, retrieved, scorable, reranked)


def folded(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Keep of every split document the first part only; whole documents stay."""
    first: dict[DocumentId, Candidate] = {}
    for candidate in candidates:
        first.setdefault(candidate.part.parent if candidate.part else candidate.id, candidate)
    return list(first.values())


def _pool(found: Found) -> list[Hit]:
    return [
        Hit(candidate=candidate, retrieval_rank=rank, text_missing=candidate.text is None)
        for rank, candidate in enumerate(found.candidates, 1)
    ]


def _with_scores(search: SearchQuery, retrieved: Result, scorable: Sequence[Hit], reranked: Reranked) -> Result:
    """Join scores to the pool; order by logit, then by id; what has no score keeps its place after the rest."""
    scored = {
        hit.retrieval_rank: score for hit, score in zip(scorable, reranked.scores, strict=True) if score is not None
    }
    best = sorted(
        (hit for hit in scorable if hit.retrieval_rank in scored),
        key=lambda hit: (-scored[hit.retrieval_rank].logit, sort_key(hit.candidate.id)),
    )
    ranks = {hit.retrieval_rank: rank for rank, hit in enumerate(best, 1)}
    pool = [
        Hit(
            candidate=hit.candidate,
            retrieval_rank=hit.retrieval_rank,
            rerank_rank=ranks.get(hit.retrieval_rank),
            scored=scored.get(hit.retrieval_rank),
            text_missing=hit.retrieval_rank not in scored,
        )
        for hit in retrieved.pool
    ]
    ordered = sorted(pool, key=lambda hit: (hit.rerank_rank is None, hit.rerank_rank or hit.retrieval_rank))
    return Result(
        hits=ordered[: search.top_k],
        pool=pool,
        encoder=retrieved.encoder,
        reranker=reranked.model,
        text_missing_count=len(pool) - len(best),
    )


def _skipped_reason(error: ServiceError) -> str:
    if isinstance(error, DeadlineSpent):
        return "DEADLINE_SPENT"
    if isinstance(error, Overloaded):
        return "RERANKER_OVERLOADED"
    if isinstance(error, (Unavailable, NotReady)):
        return "RERANKER_UNAVAILABLE"
    return "RERANKER_FAILED"


@contextmanager
def _stage(name: str, timer: SearchTimer) -> Iterator[None]:
    """Measure a stage and put its name on whatever goes wrong in it."""
    with timer.stage(name):
        try:
            yield
        except ServiceError as error:
            error.metadata["stage"] = name
            if isinstance(error, (DeadlineSpent, Unavailable, NotReady, Overloaded)):
                error.message = f"{name}: {error.message}"
            raise
