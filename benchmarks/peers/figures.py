"""From calls to figures: throughput, percentiles, goodput."""

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from benchmarks.peers.load import Sample

PERCENTILES = (50, 95, 99)


class Figures(BaseModel):
    """What one server did under one load."""

    model_config = ConfigDict(frozen=True)

    seconds: float
    """From the first call to the last answer."""
    ok: int
    refused: int = 0
    late: int = 0
    """Not answered within the time limit that the caller had set."""
    errors: int = 0
    calls_per_s: float | None = None
    """Answered well, per second."""
    tokens_per_s: float | None = None
    """Tokens of the requests that were answered well, padding not counted, per second."""
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    """Of the calls that were answered well."""
    goodput: float | None = None
    """Share of all calls that were answered well within the deadline."""
    padding: float | None = None
    """Share of the padded tokens that was padding, where the server tells."""


def summarize(
    samples: Sequence[Sample], tokens: Sequence[int], *, deadline_s: float, arriving_s: float = 0.0
) -> Figures:
    """Summarize a load.

    Args:
        samples: Every call.
        tokens: Tokens of the requests of the stream, by position.
        deadline_s: When an answer is too late to count as goodput.
        arriving_s: Seconds in which calls arrived, where that was fixed; throughput is over no shorter a time.
    """
    good = [one for one in samples if one.outcome == "ok"]
    seconds = max(arriving_s, *(one.ended for one in samples))
    latencies = [one.latency * 1e3 for one in good]
    p50, p95, p99 = (float(value) for value in np.percentile(latencies, PERCENTILES)) if good else (None, None, None)
    return Figures(
        seconds=seconds,
        ok=len(good),
        refused=_count(samples, "refused"),
        late=_count(samples, "late"),
        errors=_count(samples, "error"),
        calls_per_s=len(good) / seconds,
        tokens_per_s=sum(tokens[one.index] for one in good) / seconds,
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        goodput=sum(one.latency <= deadline_s for one in good) / len(samples),
    )


def _count(samples: Sequence[Sample], outcome: str) -> int:
    return sum(one.outcome == outcome for one in samples)
