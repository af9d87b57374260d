"""encode -> search -> rerank over ports, under one deadline. Knows no transport and no engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gateway.budget import reserves
from gateway.fusion import ListRank
from gateway.ids import sort_key
from gateway.pool import Filled, ListReport
from gateway.ports import Candidate, Model, Reranked, Reranker, Scored
from gateway.rerank_cost import Offer, RerankCost
from gateway.retrieval import FirstStage
from gateway.search_query import RerankMode, SearchQuery
from gateway.stage import stage
from gateway.timings import SearchTimer
from serving.deadline import Deadline
from serving.errors import DeadlineSpent, InvalidRequest, NotReady, Overloaded, ServiceError, Unavailable

TIME_SHORT = "TIME_SHORT"
"""Why only the top of a pool was reranked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A candidate and what became of it; ranks count from 1."""

    candidate: Candidate
    retrieval_rank: int
    rerank_rank: int | None = None
    scored: Scored | None = None
    text_missing: bool = False
    """Whether it has no text that could be scored."""
    passage: str | None = None
    """What the reranker reads."""
    lists: Sequence[ListRank] = ()
    """Where each list of the first stage had it; empty where there was one list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The answer to a search."""

    hits: Sequence[Hit]
    """The best `top_k`."""
    pool: Sequence[Hit]
    """All candidates in retrieval order."""
    encoder: Model | None
    """None where nothing was encoded."""
    reranker: Model | None = None
    lists: Sequence[ListReport] = ()
    """The lists that filled the pool."""
    search_shortfall: str = ""
    """Why the pool may have fewer candidates than there are; empty where it has what it should."""
    written_count: int = 0
    """Hypothetical passages that were written."""
    write_skipped_reason: str = ""
    """Why none was although it was asked for."""
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

    first: FirstStage
    reranker: Reranker
    cost: RerankCost = field(default_factory=RerankCost)

    async def retrieve(self, search: SearchQuery, deadline: Deadline, timer: SearchTimer) -> Result:
        """Run the first stage.

        Raises:
            ServiceError: With the stage in its metadata.
        """
        required = search.rerank is RerankMode.REQUIRED
        kept = reserves(deadline.remaining(), self.first.caps, rerank_required=required)
        found = await self.first.fill(search, kept, deadline, timer)
        pool = _hits(found.filled)
        return Result(
            hits=pool[: search.top_k],
            pool=pool,
            encoder=found.encoder,
            lists=found.filled.lists,
            search_shortfall=found.filled.shortfall,
            written_count=found.written_count,
            write_skipped_reason=found.write_skipped_reason,
            text_missing_count=sum(hit.text_missing for hit in pool),
        )

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
        deadline = deadline.before(self.first.caps.margin).within(self.first.caps.rerank)
        sent: Sequence[Hit] = scorable[: self._affordable(search, scorable, deadline)]
        try:
            with stage("rerank", timer) as span:
                sent, reranked = await self._score(search, sent, deadline, timer)
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
        self, search: SearchQuery, sent: Sequence[Hit], deadline: Deadline, timer: SearchTimer
    ) -> tuple[Sequence[Hit], Reranked]:
        """Have candidates scored, or fewer of them where the reranker says at once that all would take too long."""
        deadline.require("rerank")
        if not sent:
            raise DeadlineSpent("DEADLINE_SPENT", "too little time is left to rerank anything")
        try:
            return sent, await self._ask(_offer(search, sent), deadline)
        except Overloaded as refused:
            behind = deadline.before(self.cost.beyond(_offer(search, sent), refused.retry_after_s))
            fewer = () if behind.spent() else sent[: self._affordable(search, sent, behind)]
            if len(fewer) in (0, len(sent)):
                raise
            timer.unaccounted()
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


def _offer(search: SearchQuery, hits: Sequence[Hit]) -> Offer:
    passages = [hit.passage or "" for hit in hits]
    return Offer(query=search.query, passages=passages, priority=search.priority)


def _hits(pool: Filled) -> list[Hit]:
    return [
        Hit(
            candidate=one.candidate,
            retrieval_rank=rank,
            text_missing=one.passage is None,
            passage=one.passage,
            lists=one.lists,
        )
        for rank, one in enumerate(pool.candidates, 1)
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
        replace(
            hit,
            rerank_rank=ranks.get(hit.retrieval_rank),
            scored=scored.get(hit.retrieval_rank),
            text_missing=hit.text_missing or hit.retrieval_rank in blank,
        )
        for hit in retrieved.pool
    ]
    ordered = sorted(pool, key=lambda hit: (hit.rerank_rank is None, hit.rerank_rank or hit.retrieval_rank))
    return replace(
        retrieved,
        hits=ordered[: search.top_k],
        pool=pool,
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
