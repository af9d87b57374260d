"""One cell: a target, a load, and what came of it."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import psutil

from benchmarks.peers.cells import LIMIT, Cell, Load, seed_of
from benchmarks.peers.figures import Figures, summarize
from benchmarks.peers.limit import LimitProcess
from benchmarks.peers.load import Sample, closed_loop, open_loop, poisson_arrivals
from benchmarks.peers.target import Computed, Target
from benchmarks.peers.workload import WORKLOADS, Request, stream
from cli.loading.generator import WallClock

WARM_UP_S = 1.0
WARM_UP_CALLERS = 4
WARM_UP_TURN = -1
"""The turn whose texts are asked before a cell, so that none of the cell's has been seen."""
TIMEOUT_S = 120.0
SAMPLE_S = 1.0
LIMIT_REQUESTS = 400
CLOCK = WallClock()


class Peak:
    """The largest memory seen while something runs."""

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read
        self.mib = 0.0

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            self.mib = max(self.mib, self._read())
            await asyncio.sleep(SAMPLE_S)


class Processor:
    """How much of the machine's processor time others use while something is measured.

    Args:
        own: Processor time of what is measured, in seconds.
    """

    def __init__(self, own: Callable[[], float]) -> None:
        self._own = own
        self._begun = self._read()

    def others(self) -> float:
        """Return the share since the beginning."""
        (machine, idle, own), (machine_0, idle_0, own_0) = self._read(), self._begun
        whole = machine - machine_0
        return max(0.0, (whole - (idle - idle_0) - (own - own_0)) / whole) if whole else 0.0

    def _read(self) -> tuple[float, float, float]:
        """Return the machine's whole and idle time, and that of what is measured and of this process."""
        times, mine = psutil.cpu_times(), psutil.Process().cpu_times()
        idle = times.idle + times.iowait
        # Guests' time is part of the user's.
        whole = sum(times) - times.guest - times.guest_nice
        return whole, idle, self._own() + mine.user + mine.system


class Asked:
    """A stream that remembers what it gave."""

    def __init__(self, requests: Iterator[Request]) -> None:
        self._requests = requests
        self.given: list[Request] = []

    def __iter__(self) -> Iterator[Request]:
        return self

    def __next__(self) -> Request:
        request = next(self._requests)
        self.given.append(request)
        return request


class Measure:
    """Measures cells.

    Args:
        words: What texts are made of.
        seconds: How long calls are made in one cell.
        tokens: Tokens of each request, padding not counted.
    """

    def __init__(self, words: list[str], seconds: float, tokens: Callable[[Sequence[Request]], list[int]]) -> None:
        self._words = words
        self._seconds = seconds
        self._tokens = tokens

    async def server(self, target: Target, workload: str, load: Load, turn: int, rate: float | None) -> Cell:
        """Measure a server; `rate` is calls per second, of an open loop."""
        warm = stream(workload, self._words, seed_of(workload, load.name, WARM_UP_TURN - turn))
        callers = min(WARM_UP_CALLERS, load.callers or WARM_UP_CALLERS)
        await closed_loop(target.call, warm, callers=callers, seconds=WARM_UP_S, timeout_s=TIMEOUT_S, clock=CLOCK)
        requests = Asked(stream(workload, self._words, seed_of(workload, load.name, turn)))
        before, peak, processor = await target.computed(), Peak(target.resident_mib), Processor(target.cpu_s)
        watching = asyncio.create_task(peak.watch())
        try:
            samples = await self._load(target, requests, workload, load, turn, rate)
        finally:
            watching.cancel()
        others = processor.others()
        figures = summarize(
            samples,
            self._tokens(requests.given),
            deadline_s=WORKLOADS[workload].deadline_s,
            arriving_s=0.0 if rate is None else self._seconds,
        )
        padding = _padding(before, await target.computed())
        figures = figures.model_copy(update={"padding": padding})
        return Cell(
            at=_now(),
            target=target.name,
            workload=workload,
            load=load.name,
            round=turn,
            rate=rate,
            resident_mib=peak.mib,
            others=others,
            figures=figures,
        )

    async def limit(self, limit: LimitProcess, workload: str, load: Load, turn: int) -> Cell:
        """Measure the bare loop: one request at a time for one caller, sorted batches for more."""
        what = "latency" if load.callers == 1 else "throughput"
        seed = seed_of(workload, load.name, turn)
        processor = Processor(limit.cpu_s)
        found = await limit.measure(
            what, workload=workload, seed=seed, requests=LIMIT_REQUESTS, seconds=self._seconds / 2
        )
        figures = Figures.model_validate({"seconds": self._seconds / 2, "ok": 0, **found})
        return Cell(
            at=_now(),
            target=LIMIT,
            workload=workload,
            load=load.name,
            round=turn,
            resident_mib=limit.resident_mib(),
            others=processor.others(),
            figures=figures,
        )

    async def _load(
        self, target: Target, requests: Iterator[Request], workload: str, load: Load, turn: int, rate: float | None
    ) -> list[Sample]:
        if rate is None:
            callers = load.callers or 1
            return await closed_loop(
                target.call, requests, callers=callers, seconds=self._seconds, timeout_s=TIMEOUT_S, clock=CLOCK
            )
        arrivals = poisson_arrivals(rate, self._seconds, seed_of(workload, load.name, turn))
        timeout_s = WORKLOADS[workload].deadline_s if load.overload else TIMEOUT_S
        return await open_loop(target.call, requests, arrivals, timeout_s=timeout_s, clock=CLOCK)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _padding(before: Computed | None, after: Computed | None) -> float | None:
    """Return the share of padding in what was computed between two readings."""
    if before is None or after is None:
        return None
    tokens, padding = after.tokens - before.tokens, after.padding - before.padding
    return padding / (tokens + padding) if tokens + padding else None
