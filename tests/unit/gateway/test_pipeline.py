"""The two stages over ports in this process: how scores are joined, and what becomes of a stage that fails.

Numbers in brackets are those of field failures.
"""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from fakes import ENCODER_MODEL, RERANKER_MODEL, EncoderPort, PoolStore, RerankerPort, word_vector

from gateway.budget import StageCaps
from gateway.pipeline import Pipeline, Result
from gateway.retrieval import FirstStage
from gateway.search_query import RerankMode, SearchQuery
from gateway.timings import SearchTimer
from serving.batching import Priority
from serving.deadline import Deadline
from serving.errors import (
    DeadlineSpent,
    InferenceFailed,
    InvalidRequest,
    Misconfigured,
    NotFound,
    NotReady,
    Overloaded,
    ServiceError,
    Unavailable,
)

UUID_A = UUID("00000000-0000-0000-0000-00000000000a")
FAILURES = [
    (Unavailable("RERANKER_UNAVAILABLE", "gone"), "RERANKER_UNAVAILABLE"),
    (NotReady("STARTING", "not yet"), "RERANKER_UNAVAILABLE"),
    (Overloaded("RERANKER_OVERLOADED", "full", retry_after_s=1), "RERANKER_OVERLOADED"),
    (DeadlineSpent("DEADLINE_SPENT", "late"), "DEADLINE_SPENT"),
    (InferenceFailed("RERANKER_FAILED", "broken"), "RERANKER_FAILED"),
    (Misconfigured("RERANKER_MISCONFIGURED", "another server"), "RERANKER_FAILED"),
]


class Bench:
    """A pipeline over fakes; `run` goes through both stages."""

    def __init__(self, store: PoolStore, logits: dict[str, float | None] | None = None) -> None:
        self.encoder, self.store, self.reranker = EncoderPort(), store, RerankerPort(logits or {})
        caps = StageCaps(encode=1, search=2, rerank=3, margin=0.5)
        first = FirstStage(encoder=self.encoder, store=store, caps=caps)  # type: ignore[arg-type]
        self.pipeline = Pipeline(first=first, reranker=self.reranker)
        self.timer = SearchTimer()

    async def run(self, *, deadline_s: float = 60, **fields: Any) -> Result:
        search = query(**fields)
        deadline = Deadline.after(deadline_s)
        retrieved = await self.pipeline.retrieve(search, deadline, self.timer)
        return await self.pipeline.rerank(search, retrieved, deadline, self.timer)


def query(**fields: Any) -> SearchQuery:
    return SearchQuery(**{"query": "q", "collection": "c", "pool_size": 10, "top_k": 10, **fields})


def ids(result: Result) -> list[Any]:
    return [hit.candidate.id for hit in result.hits]


async def test_scores_join_the_candidates_they_belong_to() -> None:
    """Hits are ordered by logit, keep their retrieval rank, and the pool keeps its order with both ranks."""
    bench = Bench(PoolStore((1, "low"), (2, "high"), (3, "middle")), {"low": -5, "high": 5, "middle": 0})
    result = await bench.run()
    assert [(hit.candidate.id, hit.retrieval_rank, hit.rerank_rank) for hit in result.hits] == [
        (2, 2, 1),
        (3, 3, 2),
        (1, 1, 3),
    ]
    assert [(hit.candidate.id, hit.retrieval_rank, hit.rerank_rank) for hit in result.pool] == [
        (1, 1, 3),
        (2, 2, 1),
        (3, 3, 2),
    ]
    assert [hit.scored.logit for hit in result.pool if hit.scored] == [-5, 5, 0]
    assert (result.encoder, result.reranker) == (ENCODER_MODEL, RERANKER_MODEL)


async def test_equal_logits_are_ordered_by_id() -> None:
    """Of equal logits numbers come first and as numbers, then UUIDs, then text, whatever the retrieval order was."""
    pool = (("b", "1"), ("a", "2"), (UUID_A, "3"), (10, "4"), (9, "5"), ("10", "6"))
    bench = Bench(PoolStore(*pool), dict.fromkeys("123456", 1.0))
    assert ids(await bench.run()) == [9, 10, UUID_A, "10", "a", "b"]


async def test_logits_that_look_alike_as_probabilities_keep_their_order() -> None:
    """A logit of 20 beats 17 although both are displayed as probability 1 (field failure 21)."""
    bench = Bench(PoolStore((1, "a"), (2, "b")), {"a": 17.0, "b": 20.0})
    assert ids(await bench.run()) == [2, 1]


async def test_top_k_is_taken_after_the_whole_pool_was_reranked() -> None:
    """The last of the pool can become the only hit, and the pool stays whole."""
    bench = Bench(PoolStore((1, "a"), (2, "b"), (3, "c")), {"a": 0, "b": 1, "c": 2})
    result = await bench.run(top_k=1)
    assert ids(result) == [3]
    assert len(result.pool) == 3


async def test_candidates_without_text_stand_behind_the_scored_ones() -> None:
    """They are not sent, keep their retrieval order after the scored ones, and are flagged and counted (33)."""
    bench = Bench(PoolStore((1, None), (2, "b"), (3, None), (4, "d")), {"b": -9, "d": 9})
    result = await bench.run()
    assert bench.reranker.passages == ["b", "d"]
    assert ids(result) == [4, 2, 1, 3]
    assert [hit.text_missing for hit in result.hits] == [False, False, True, True]
    assert [hit.rerank_rank for hit in result.hits] == [1, 2, None, None]
    assert result.text_missing_count == 2
    assert result.skipped_reason == ""


async def test_a_passage_that_turns_out_blank_counts_as_without_text() -> None:
    """What the reranker finds blank stands behind the scored ones, flagged and counted alike (33)."""
    bench = Bench(PoolStore((1, "\u200b"), (2, "b")), {"\u200b": None, "b": -3})
    result = await bench.run()
    assert ids(result) == [2, 1]
    assert [hit.text_missing for hit in result.hits] == [False, True]
    assert result.hits[1].scored is None
    assert result.text_missing_count == 1


async def test_a_pool_without_any_text_is_not_reranked() -> None:
    """The reranker is not asked, the order is that of retrieval, and everything is counted as missing."""
    bench = Bench(PoolStore((1, None), (2, None)))
    result = await bench.run()
    assert bench.reranker.deadlines == []
    assert ids(result) == [1, 2]
    assert (result.text_missing_count, result.reranker) == (2, None)


async def test_an_empty_pool_is_an_empty_answer() -> None:
    """Nothing found is no error, and the reranker is not asked."""
    bench = Bench(PoolStore())
    result = await bench.run()
    assert (result.hits, result.pool, result.reranker, result.skipped_reason) == ([], [], None, "")
    assert bench.reranker.deadlines == []


async def test_off_returns_the_retrieval_order_without_asking_the_reranker() -> None:
    """Under OFF there are no scores, no reranker in the provenance and no reason, since nothing is missing."""
    bench = Bench(PoolStore((1, "a"), (2, "b")), {"a": 0, "b": 1})
    result = await bench.run(rerank=RerankMode.OFF, top_k=1)
    assert ids(result) == [1]
    assert bench.reranker.deadlines == []
    assert (result.reranker, result.skipped_reason) == (None, "")
    assert all(hit.scored is None and hit.rerank_rank is None for hit in result.pool)


@pytest.mark.parametrize(("error", "reason"), FAILURES, ids=lambda value: getattr(value, "reason", None))
async def test_best_effort_answers_without_scores_and_says_why(error: ServiceError, reason: str) -> None:
    """A reranker that fails leaves the retrieval order, with one stable reason per kind of failure."""
    bench = Bench(PoolStore((1, "a"), (2, "b")))
    bench.reranker.error = error
    result = await bench.run(rerank=RerankMode.BEST_EFFORT, top_k=1)
    assert ids(result) == [1]
    assert (result.skipped_reason, result.reranker) == (reason, None)


@pytest.mark.parametrize(("error", "_reason"), FAILURES, ids=lambda value: getattr(value, "reason", None))
async def test_required_fails_with_the_stage_named(error: ServiceError, _reason: str) -> None:
    """The same failures are the call's under REQUIRED, with the stage in the metadata."""
    bench = Bench(PoolStore((1, "a")))
    bench.reranker.error = error
    with pytest.raises(type(error)) as caught:
        await bench.run()
    assert caught.value.metadata["stage"] == "rerank"


async def test_a_wrong_query_is_the_callers_even_under_best_effort() -> None:
    """What the reranker refuses about the query is not hidden as a degradation."""
    bench = Bench(PoolStore((1, "a")))
    bench.reranker.error = InvalidRequest("TEXT_TOO_LARGE", "too large", field="query")
    with pytest.raises(InvalidRequest):
        await bench.run(rerank=RerankMode.BEST_EFFORT)


async def test_no_time_for_reranking_is_degradation_or_error() -> None:
    """With the budget gone after retrieval the reranker is not asked: BEST_EFFORT degrades, REQUIRED fails (10)."""
    bench = Bench(PoolStore((1, "a")), {"a": 0})
    search = query(rerank=RerankMode.BEST_EFFORT)
    retrieved = await bench.pipeline.retrieve(search, Deadline.after(60), bench.timer)
    result = await bench.pipeline.rerank(search, retrieved, Deadline.after(0.4), bench.timer)
    assert result.skipped_reason == "DEADLINE_SPENT"
    with pytest.raises(DeadlineSpent, match="rerank"):
        await bench.pipeline.rerank(query(), retrieved, Deadline.after(0.4), bench.timer)
    assert bench.reranker.deadlines == []


@pytest.mark.parametrize(
    ("stage", "error"),
    [
        ("encode", Unavailable("ENCODER_UNAVAILABLE", "gone")),
        ("encode", InferenceFailed("ENCODER_FAILED", "broken")),
        ("search", NotFound("COLLECTION_NOT_FOUND", "none")),
        ("search", Misconfigured("ENCODER_MISMATCH", "another")),
    ],
)
async def test_the_first_stage_names_itself_even_under_best_effort(stage: str, error: ServiceError) -> None:
    """Without a pool there is nothing to fall back to, so that the error says which half of the stage it was."""
    bench = Bench(PoolStore((1, "a")))
    (bench.encoder if stage == "encode" else bench.store).error = error
    with pytest.raises(type(error)) as caught:
        await bench.run(rerank=RerankMode.BEST_EFFORT)
    assert caught.value.metadata["stage"] == stage


async def test_transient_errors_name_the_stage_in_words_once() -> None:
    """The message begins with the stage, and only once."""
    bench = Bench(PoolStore((1, "a")))
    bench.encoder.error = Unavailable("ENCODER_UNAVAILABLE", "gone")
    with pytest.raises(Unavailable) as caught:
        await bench.run()
    assert caught.value.message == "encode: gone"


async def test_the_store_is_asked_for_what_the_search_says() -> None:
    """Vector, encoder, pool size and payload keys reach the store unchanged."""
    bench = Bench(PoolStore((1, "a"), (2, "b")), {"a": 0})
    await bench.run(pool_size=1, top_k=1, payload_fields=("k",))
    (asked,) = bench.store.asked
    assert (asked["name"], asked["limit"], asked["payload_fields"]) == ("c", 1, ("k",))
    assert asked["encoder"] == ENCODER_MODEL
    (dense,) = asked["queries"]
    assert (dense.vector == word_vector("q")).all()


async def test_every_stage_gets_the_smaller_of_its_cap_and_what_is_left() -> None:
    """Caps bound a long deadline; a short one, less the margin, bounds the caps (10, 13)."""
    long, short = Bench(PoolStore((1, "a")), {"a": 0}), Bench(PoolStore((1, "a")), {"a": 0})
    before = Deadline.after(0).at
    await long.run(deadline_s=1_000)
    await short.run(deadline_s=1)
    after = Deadline.after(0).at
    for bench, caps in ((long, (1, 2, 3)), (short, (0.5, 0.5, 0.5))):
        stages = (bench.encoder.deadlines[0], bench.store.asked[0]["deadline"], bench.reranker.deadlines[0])
        for deadline, cap in zip(stages, caps, strict=True):
            assert before + cap <= deadline.at <= after + cap


@pytest.mark.parametrize(
    ("mode", "ends"),
    [
        (RerankMode.REQUIRED, (40, 60, 100)),
        (RerankMode.BEST_EFFORT, (80, 100, 100)),
        (RerankMode.OFF, (80, 100)),
    ],
)
async def test_the_first_stage_leaves_time_to_those_after_it(mode: RerankMode, ends: tuple[float, ...]) -> None:
    """Of 100 s encoding leaves a fifth to the search, and both leave two fifths to a reranker that is required (10)."""
    bench = Bench(PoolStore((1, "a")), {"a": 0})
    caps = StageCaps(encode=999, search=999, rerank=999, margin=20, search_share=0.2, rerank_share=0.4)
    bench.pipeline = replace(bench.pipeline, first=replace(bench.pipeline.first, caps=caps))
    before = Deadline.after(0).at
    await bench.run(deadline_s=120, rerank=mode)
    after = Deadline.after(0).at
    deadlines = (bench.encoder.deadlines[0], bench.store.asked[0]["deadline"], *bench.reranker.deadlines)
    for deadline, end in zip(deadlines, ends, strict=True):
        assert before + end <= deadline.at <= after + end


async def test_what_the_servers_say_of_their_time_is_split_out() -> None:
    """Each stage shows its server's queue, tokenize and compute, never more than was measured here."""
    bench = Bench(PoolStore((1, "a")), {"a": 0})
    await bench.run()
    time = bench.timer.stop()
    for stage in time.stages().values():
        assert stage.network + stage.queue + stage.tokenize + stage.compute == stage.total
        assert stage.compute == min(3_000, stage.total)


async def test_a_failed_stage_is_timed_too() -> None:
    """The time of the stage that failed is there, it is not taken for the network's, and the sums hold (73)."""
    bench = Bench(PoolStore((1, "a")))
    bench.reranker.error = InferenceFailed("RERANKER_FAILED", "broken")
    with pytest.raises(InferenceFailed):
        await bench.run()
    time = bench.timer.stop()
    assert time.rerank.unaccounted == time.rerank.total > 0
    assert time.dense + time.rerank.total + time.other == time.total


async def test_both_model_stages_are_told_the_priority_of_the_search() -> None:
    """A search in bulk is bulk in either stage, and one that says nothing is interactive."""
    bench = Bench(PoolStore((1, "low")), {"low": 0})
    await bench.run()
    await bench.run(priority=Priority.BULK)
    assert bench.encoder.priorities == bench.reranker.priorities == [Priority.INTERACTIVE, Priority.BULK]
