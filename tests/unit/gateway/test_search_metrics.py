"""What the gateway tells of the quality of its searches."""

from typing import Any

import pytest
from fakes import ENCODER_MODEL, RERANKER_MODEL

from gateway.metrics import SearchMetrics
from gateway.pipeline import Hit, Result
from gateway.pool import ListReport
from gateway.ports import Candidate, Scored
from gateway.search_query import RerankMode, Retrieval, RetrievalMode, SearchQuery
from serving.metrics import ServerMetrics


class Told:
    """Instruments of a gateway, and what is on its page."""

    def __init__(self) -> None:
        self.metrics = ServerMetrics("gateway")
        self.searches = SearchMetrics(self.metrics)

    def observe(
        self,
        result: Result,
        rerank: RerankMode = RerankMode.REQUIRED,
        mode: RetrievalMode = RetrievalMode.DENSE,
    ) -> None:
        """Record an answer to a search."""
        search = SearchQuery(
            query="q", collection="c", pool_size=9, top_k=9, rerank=rerank, retrieval=Retrieval(mode=mode)
        )
        self.searches.observe(search, result)

    def value(self, name: str, **labels: str) -> float | None:
        """Return a sample."""
        return self.metrics.registry.get_sample_value(f"gateway_{name}", labels)

    def below(self, name: str, bound: str) -> float | None:
        """Return how many observations are at most so large."""
        return self.value(f"{name}_bucket", le=bound)


def hit(rank: int, score: float, probability: float | None = None, *, text_missing: bool = False) -> Hit:
    """Make a hit of the pool at a rank."""
    return Hit(
        candidate=Candidate(id=rank, score=score, text=None if text_missing else "t"),
        retrieval_rank=rank,
        scored=None if probability is None else Scored(logit=0.0, probability=probability, truncated=False),
        text_missing=text_missing,
    )


def answer(*pool: Hit, first: int = 1, **fields: Any) -> Result:
    """Make an answer whose first hit is the one at a rank of the pool."""
    hits = sorted(pool, key=lambda one: one.retrieval_rank != first)
    usual = {"encoder": ENCODER_MODEL, "reranker": RERANKER_MODEL, "lists": lists("dense")}
    return Result(**{"hits": hits, "pool": pool, **usual, **fields})


def lists(*names: str) -> list[ListReport]:
    """Make reports of lists."""
    return [ListReport(name=name, candidate_count=1, compute=1) for name in names]


def test_an_answer_is_told_by_its_pool_its_scores_and_its_first_hit():
    """Three candidates, two of them scored, the first hit from rank 2: each instrument has its own number once."""
    told = Told()
    told.observe(answer(hit(1, 0.91, 0.4), hit(2, 0.87, 0.97), hit(3, 0.2, text_missing=True), first=2,
                        text_missing_count=1))  # fmt: skip
    assert (told.value("pool_candidates_count"), told.value("pool_candidates_sum")) == (1, 3)
    assert (told.value("reranked_candidates_count"), told.value("reranked_candidates_sum")) == (1, 2)
    assert told.value("text_missing_candidates_total") == 1
    assert told.value("top_retrieval_score_sum") == pytest.approx(0.91)
    assert [told.below("top_retrieval_score", bound) for bound in ("0.9", "0.92")] == [0, 1]
    assert told.value("top_probability_sum") == pytest.approx(0.97)
    assert [told.below("top_probability", bound) for bound in ("0.95", "0.99")] == [0, 1]
    assert (told.value("first_hit_retrieval_rank_count"), told.value("first_hit_retrieval_rank_sum")) == (1, 2)


def test_a_search_without_reranking_tells_nothing_of_the_reranker():
    """Neither nothing reranked nor a probability is observed where nothing was asked for."""
    told = Told()
    told.observe(answer(hit(1, 0.9), reranker=None), RerankMode.OFF)
    assert (told.value("pool_candidates_count"), told.value("top_retrieval_score_count")) == (1, 1)
    names = ("reranked_candidates", "top_probability", "first_hit_retrieval_rank")
    assert [told.value(f"{name}_count") for name in names] == [0, 0, 0]


def test_an_empty_pool_has_no_scores():
    """A search that found nothing counts as a pool of none, reranked none."""
    told = Told()
    told.observe(answer(reranker=None))
    assert (told.below("pool_candidates", "0.0"), told.below("reranked_candidates", "0.0")) == (1, 1)
    assert [told.value(f"{name}_count") for name in ("top_retrieval_score", "top_probability")] == [0, 0]


def test_a_degradation_counts_by_its_stage_and_reason():
    """A search that was not wholly reranked counts once, one that was not at all."""
    told = Told()
    told.observe(answer(hit(1, 0.9, 0.5), hit(2, 0.8), shortfall="TIME_SHORT"), RerankMode.BEST_EFFORT)
    told.observe(answer(hit(1, 0.9, 0.5)), RerankMode.BEST_EFFORT)
    assert told.value("degradations_total", stage="rerank", reason="TIME_SHORT") == 1
    assert (told.value("reranked_candidates_count"), told.value("reranked_candidates_sum")) == (2, 2)


def test_a_score_below_zero_does_not_make_the_sum_fall():
    """It counts as 0: Prometheus takes a sum that falls for a restart."""
    told = Told()
    told.observe(answer(hit(1, -0.5), reranker=None), RerankMode.OFF)
    assert (told.value("top_retrieval_score_sum"), told.below("top_retrieval_score", "0.0")) == (0, 1)


def test_buckets_have_the_bounds_that_were_promised():
    """Bounds are round numbers, as people type them into queries."""
    told = Told()
    assert all(
        told.below("top_retrieval_score", str(step / 100)) == 0 for step in (*range(0, 70, 10), *range(70, 101, 2))
    )
    assert all(told.below("top_probability", bound) == 0 for bound in ("0.001", "0.1", "0.3", "0.7", "0.9", "0.999"))
    assert [told.below("first_hit_retrieval_rank", f"{bound}.0") for bound in (1, 2, 3, 5, 10, 20, 50, 100)] == [0] * 8


def test_a_fused_score_is_no_cosine():
    """Where several lists filled the pool its first score is of another size, and does not count as a similarity."""
    told = Told()
    told.observe(answer(hit(1, 0.016), lists=lists("dense", "lexical")), mode=RetrievalMode.HYBRID)
    told.observe(answer(hit(1, 12.5), lists=lists("lexical")), mode=RetrievalMode.LEXICAL)
    assert told.value("top_retrieval_score_count") == 0
    assert [told.value("searches_total", mode=mode) for mode in ("hybrid", "lexical", "dense")] == [1, 1, None]


def test_a_writer_that_wrote_nothing_is_a_degradation():
    """The stage and the reason are told, beside those of the reranker."""
    told = Told()
    told.observe(answer(hit(1, 0.9), write_skipped_reason="DEADLINE_SPENT"))
    assert told.value("degradations_total", stage="write", reason="DEADLINE_SPENT") == 1
