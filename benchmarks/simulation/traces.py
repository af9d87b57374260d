"""Arrival traces: which requests come when, with how many rows of which lengths, and by when they want an answer."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.simulation.devices import Device
from serving.batching import Priority

# A burst: for a tenth of the time, requests come at five times the mean of the rest.
BURST_EVERY_S = 5.0
BURST_SHARE = 0.1
BURST_FACTOR = 5.0
BUDGETS = (256, 512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768)
SAMPLE_TOKENS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call."""

    kind: str
    lengths: tuple[int, ...]
    """Tokens of each row."""
    budget: float
    """Seconds that the caller waits."""
    priority: Priority = Priority.INTERACTIVE
    arrived: float = 0.0
    """Seconds since the start."""


Draw = Callable[[random.Random], Request]


def query(generator: random.Random) -> Request:
    """Draw a search query to encode."""
    return Request(kind="query", lengths=(generator.randint(8, 32),), budget=generator.uniform(1, 10))


def rerank(generator: random.Random) -> Request:
    """Draw 20 pairs of one query with its candidates."""
    lengths = tuple(generator.randint(60, 300) for _ in range(20))
    return Request(kind="rerank", lengths=lengths, budget=generator.uniform(1, 10))


def rerank_in_3_s(generator: random.Random) -> Request:
    """Draw pairs as `rerank` does, for a service that gives every call the same time."""
    return replace(rerank(generator), budget=3.0)


def passages(generator: random.Random) -> Request:
    """Draw a call of a job that indexes."""
    lengths = tuple(generator.randint(20, 400) for _ in range(32))
    return Request(kind="bulk", lengths=lengths, budget=60.0, priority=Priority.BULK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What comes: each kind by its share of the tokens."""

    name: str
    shares: tuple[tuple[Draw, float], ...]
    bursts: bool = False


WORKLOADS = (
    Workload(name="queries", shares=((query, 1.0),)),
    Workload(name="rerank", shares=((rerank, 1.0),)),
    Workload(name="queries + bulk", shares=((query, 0.3), (passages, 0.7))),
    Workload(name="queries, bursts", shares=((query, 1.0),), bursts=True),
    Workload(name="rerank, bursts", shares=((rerank, 1.0),), bursts=True),
)

HURRIED = Workload(name="rerank, all in 3 s", shares=((rerank_in_3_s, 1.0),))
"""No part of the comparison: a CPU takes most of a second for one request, so that even a calm one loses some."""


def trace(workload: Workload, device: Device, load: float, seconds: float, seed: int) -> list[Request]:
    """Draw a trace that offers `load` times what the device can do at best, in order of arrival.

    Args:
        workload: What comes.
        device: Whose capacity is loaded.
        load: 1.0 is the capacity: all rows sorted by length, in batches of the best size (see `ideal_seconds`).
        seconds: Length of the trace.
        seed: The same seed gives the same trace.
    """
    generator = random.Random(f"{workload.name} {seed}")  # noqa: S311 - a simulation, not a secret
    sample = [draw(generator) for draw, share in workload.shares for _ in range(_sample_count(draw, share))]
    rows = [length for request in sample for length in request.lengths]
    tokens_per_s = load * sum(rows) / ideal_seconds(device, rows)
    requests: list[Request] = []
    for draw, share in workload.shares:
        mean = sum(sum(draw(generator).lengths) for _ in range(200)) / 200
        times = _arrivals(share * tokens_per_s / mean, seconds, generator, bursts=workload.bursts)
        requests += [_at(draw(generator), arrived) for arrived in times]
    return sorted(requests, key=lambda request: request.arrived)


def ideal_seconds(device: Device, lengths: Sequence[int]) -> float:
    """Return the least time in which a device computes these rows: sorted by length, batches of the best budget."""
    return min(_packed_seconds(device, sorted(lengths), budget) for budget in BUDGETS)


def _packed_seconds(device: Device, lengths: Sequence[int], budget: int) -> float:
    seconds, start = 0.0, 0
    for end in range(1, len(lengths) + 1):
        if end == len(lengths) or (end + 1 - start) * lengths[end] > budget:
            seconds += device.seconds(end - start, lengths[end - 1])
            start = end
    return seconds


def _sample_count(draw: Draw, share: float) -> int:
    """Say how many requests of a kind a sample has, so that it has the mix of a trace."""
    tokens = sum(draw(random.Random(0)).lengths)  # noqa: S311
    return max(1, round(share * SAMPLE_TOKENS / tokens))


def _arrivals(rate: float, seconds: float, generator: random.Random, *, bursts: bool) -> Iterator[float]:
    """Draw a Poisson process; with bursts its rate changes, its mean does not."""
    calm = rate / (1 + BURST_SHARE * (BURST_FACTOR - 1))
    most = calm * BURST_FACTOR if bursts else rate
    now = generator.expovariate(most)
    while now < seconds:
        bursting = now % BURST_EVERY_S < BURST_SHARE * BURST_EVERY_S
        if not bursts or bursting or generator.random() < 1 / BURST_FACTOR:
            yield now
        now += generator.expovariate(most)


def _at(request: Request, arrived: float) -> Request:
    return Request(
        kind=request.kind,
        lengths=request.lengths,
        budget=request.budget,
        priority=request.priority,
        arrived=arrived,
    )
