"""Latency of the frozen run: what the caller waited for each stage, question by question."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from evaluation.datasets.jsonl import HELPCENTRE
from evaluation.datasets.model import TEST
from evaluation.figures import Latency, ReferenceTimes, Spread, StageTime
from evaluation.records import Candidates, FrozenPool, Reranked, RerankedPool

TUTORIAL = ReferenceTimes(
    source="the tutorial: RTX 3090, PyTorch, batches of 4, means over 60 questions",
    dense=5.70,
    rerank=48.92,
    total=54.63,
)
PARTS = ("total", "network", "queue", "tokenize", "compute")


def latency(candidates: Candidates, reranked: Reranked, split: str = TEST) -> Latency:
    """Describe the times of every question of a split, answerable or not, that has both.

    Args:
        candidates: The pools.
        reranked: Their reranking.
        split: Which questions.
    """
    after = {pool.id: pool for pool in reranked.questions}
    both = [(pool, after[pool.id]) for pool in candidates.questions if pool.split == split and pool.id in after]
    dense = [pool.latency.dense for pool, _ in both]
    rerank = [pool.rerank_ms for _, pool in both]
    beyond = [pool.latency.dense - pool.latency.encode.total - pool.latency.search.total for pool, _ in both]
    return Latency(
        split=split,
        question_count=len(both),
        pool_size=candidates.provenance.configuration.pool_size,
        dense=spread(dense),
        rerank=spread(rerank),
        total=spread([first + second for first, second in zip(dense, rerank, strict=True)]),
        stages=_stages(both),
        other=_mean(beyond),
        reference=TUTORIAL if candidates.provenance.corpus.name == HELPCENTRE else None,
    )


def spread(values: Sequence[float]) -> Spread:
    """Return mean and percentiles (linear between neighbours) of milliseconds; all 0 where there are none."""
    sample = np.asarray(values or [0.0], np.float64)
    middle, high, highest = (float(value) for value in np.percentile(sample, (50, 95, 99)))
    return Spread(mean=float(sample.mean()), p50=middle, p95=high, p99=highest, values=tuple(values))


def _stages(
    both: Sequence[tuple[FrozenPool, RerankedPool]],
) -> dict[Literal["encode", "search", "rerank"], StageTime]:
    def means(read: Callable[[FrozenPool, RerankedPool], StageTime]) -> StageTime:
        times = [read(*pair) for pair in both]
        return StageTime(**{part: _mean([getattr(time, part) for time in times]) for part in PARTS})

    return {
        "encode": means(lambda pool, _: pool.latency.encode),
        "search": means(lambda pool, _: pool.latency.search),
        "rerank": means(lambda _, pool: pool.stage),
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
