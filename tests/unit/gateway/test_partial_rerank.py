"""Reranking the part of a pool for which there is time, by a reranker that is known to take 10 s per candidate."""

from collections.abc import Sequence
from typing import Any

import pytest
from fakes import EncoderPort, PoolStore, RerankerPort
from rerank_costs import learned, time_for

from gateway.budget import StageCaps
from gateway.pipeline import Pipeline, Result
from gateway.ports import Reranked
from gateway.rerank_cost import Offer, RerankCost
from gateway.retrieval import FirstStage
from gateway.search_query import RerankMode, SearchQuery
from gateway.timings import SearchTimer
from serving.deadline import Deadline
from serving.errors import DeadlineSpent, Overloaded

SIX = time_for(6)


class Refusing(RerankerPort):
    """A reranker that refuses a number of calls and says how long each would take."""

    def __init__(self, logits: dict[str, float | None], *retries_s: float) -> None:
        super().__init__(logits)
        self.retries_s = list(retries_s)
        self.sizes: list[int] = []

    async def rerank(self, query: str, passages: Sequence[str], **rest: Any) -> Reranked:
        self.sizes.append(len(passages))
        if self.retries_s:
            raise Overloaded("RERANKER_OVERLOADED", "full", retry_after_s=self.retries_s.pop(0))
        return await super().rerank(query, passages, **rest)


async def run(
    pool: list[tuple[int, str | None]],
    left_s: float,
    reranker: RerankerPort | None = None,
    mode: RerankMode = RerankMode.BEST_EFFORT,
    cost: RerankCost | None = None,
) -> tuple[Result, RerankerPort]:
    """Search a pool with so much time; the text of document n has the logit n."""
    logits: dict[str, float | None] = {text: float(number) for number, text in pool if text}
    reranker = reranker or RerankerPort({**logits, "blank": None})
    pipeline = Pipeline(
        first=FirstStage(
            encoder=EncoderPort(),
            store=PoolStore(*pool),  # type: ignore[arg-type]
            caps=StageCaps(encode=999, search=999, rerank=999),
        ),
        reranker=reranker,
        cost=cost or learned(),
    )
    search = SearchQuery(query="q", collection="c", pool_size=20, top_k=5, rerank=mode)
    deadline, timer = Deadline.after(left_s), SearchTimer()
    retrieved = await pipeline.retrieve(search, deadline, timer)
    return await pipeline.rerank(search, retrieved, deadline, timer), reranker


def texts(count: int) -> list[tuple[int, str | None]]:
    """Make a pool of documents 1, 2, ..."""
    return [(number, f"text {number}") for number in range(1, count + 1)]


async def test_the_top_of_the_pool_that_fits_is_reranked() -> None:
    """Six of twenty are sent and come first, best logit first; the others follow in retrieval order, unscored."""
    result, reranker = await run(texts(20), SIX)
    assert reranker.passages == [f"text {number}" for number in range(1, 7)]
    assert [hit.candidate.id for hit in result.hits] == [6, 5, 4, 3, 2]
    assert (result.shortfall, result.skipped_reason, result.reranked_count) == ("TIME_SHORT", "", 6)
    assert [hit.rerank_rank for hit in result.pool] == [6, 5, 4, 3, 2, 1, *[None] * 14]
    assert all(hit.scored is None and not hit.text_missing for hit in result.pool[6:])
    assert result.text_missing_count == 0


async def test_a_part_that_would_not_fill_the_answer_is_not_reranked() -> None:
    """With time for four of the five hits nothing is sent, and the answer says that there was no time."""
    result, reranker = await run(texts(20), time_for(4))
    assert reranker.passages == []
    assert [hit.candidate.id for hit in result.hits] == [1, 2, 3, 4, 5]
    assert (result.shortfall, result.skipped_reason, result.reranked_count) == ("DEADLINE_SPENT", "DEADLINE_SPENT", 0)


async def test_a_pool_that_fits_is_whole() -> None:
    """Six candidates in the time for six are no degradation."""
    result, _ = await run(texts(6), SIX)
    assert (result.shortfall, result.reranked_count) == ("", 6)


async def test_required_sends_all_whatever_is_predicted() -> None:
    """A caller that wants all or nothing is not second-guessed."""
    _, reranker = await run(texts(20), SIX, mode=RerankMode.REQUIRED)
    assert len(reranker.passages) == 20


async def test_documents_without_text_and_those_not_reached_are_told_apart() -> None:
    """Missing text is flagged wherever it is; what was not sent is not flagged, and all keep their order at the end."""
    pool = texts(12)
    pool[1], pool[3], pool[10] = (2, None), (4, "blank"), (11, None)
    result, reranker = await run(pool, SIX)
    assert reranker.passages == ["text 1", "text 3", "blank", "text 5", "text 6", "text 7"]
    assert [hit.candidate.id for hit in result.pool if hit.text_missing] == [2, 4, 11]
    assert (result.text_missing_count, result.reranked_count, result.shortfall) == (3, 5, "TIME_SHORT")
    assert [hit.candidate.id for hit in result.hits] == [7, 6, 5, 3, 1]


async def test_a_reranker_that_has_no_time_for_all_is_asked_for_fewer_at_once() -> None:
    """Refused because six behind a queue of 15 s would take 75 s, five are sent, for which there is time."""
    pool = texts(20)
    logits: dict[str, float | None] = {text: float(number) for number, text in pool if text}
    result, reranker = await run(pool, SIX, Refusing(logits, 75.0))
    assert isinstance(reranker, Refusing)
    assert reranker.sizes == [6, 5]
    assert (result.shortfall, result.reranked_count) == ("TIME_SHORT", 5)


@pytest.mark.parametrize("retries_s", [(75.0, 75.0), (500.0,)], ids=["twice", "hopeless"])
async def test_a_full_reranker_is_not_asked_for_ever(retries_s: tuple[float, ...]) -> None:
    """A second refusal, or a queue that outlasts the deadline, leaves the retrieval order and says why."""
    result, reranker = await run(texts(20), SIX, Refusing({}, *retries_s))
    assert isinstance(reranker, Refusing)
    assert len(reranker.sizes) == len(retries_s)
    assert (result.shortfall, result.reranked_count) == ("RERANKER_OVERLOADED", 0)


async def test_required_is_refused_once() -> None:
    """Under REQUIRED a full queue is the caller's to wait for, with the delay that the reranker named."""
    reranker = Refusing({}, 75.0)
    with pytest.raises(Overloaded) as caught:
        await run(texts(20), SIX, reranker, mode=RerankMode.REQUIRED)
    assert (reranker.sizes, caught.value.retry_after_s, caught.value.metadata["stage"]) == ([20], 75.0, "rerank")


class Noting(RerankCost):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, int]] = []

    def answered(self, sent: Offer, *, total_s: float, queue_s: float) -> None:
        assert 0 < queue_s < 1e-3  # what the fake says of itself, in seconds
        assert total_s > 0
        self.told.append(("answered", len(sent.passages)))

    def late(self, sent: Offer, *, waited_s: float) -> None:
        assert waited_s >= 0
        self.told.append(("late", len(sent.passages)))


@pytest.mark.parametrize("mode", [RerankMode.BEST_EFFORT, RerankMode.REQUIRED])
async def test_answers_are_learned_from_whatever_the_mode(mode: RerankMode) -> None:
    """The reranker's speed is known to the first search that may do without it."""
    cost = Noting()
    await run(texts(3), 60, mode=mode, cost=cost)
    assert cost.told == [("answered", 3)]


async def test_late_answers_are_learned_from() -> None:
    """A call that ran out of time is told to the cost, so that others are not sent into the same queue."""
    cost, reranker = Noting(), RerankerPort({})
    reranker.error = DeadlineSpent("DEADLINE_SPENT", "late")
    result, _ = await run(texts(3), 60, reranker, cost=cost)
    assert cost.told == [("late", 3)]
    assert result.shortfall == "DEADLINE_SPENT"
