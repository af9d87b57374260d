"""The load generators, on a clock that the test moves."""

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Iterator
from itertools import count, pairwise
from typing import Protocol, TypeVar

import pytest

from benchmarks.peers.load import Outcome, closed_loop, open_loop, poisson_arrivals

T = TypeVar("T")
TURNS = 50
"""Rounds of the event loop in which everything that can go on without the clock has gone on."""


class VirtualClock:
    """A clock that jumps to the next moment at which somebody wants to wake, once nobody can go on."""

    def __init__(self) -> None:
        self._now = 0.0
        """Seconds; a test may set it forward."""
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._numbers), future))
        await future

    async def run(self, work: Coroutine[object, object, T]) -> T:
        task = asyncio.create_task(work)
        while not task.done():
            for _ in range(TURNS):
                await asyncio.sleep(0)
            if self._sleepers and not task.done():
                wake, _, future = heapq.heappop(self._sleepers)
                self._now = max(self._now, wake)
                future.set_result(None)
        return task.result()


class OneAtATime:
    """A server that computes one call after the other, each for as long as its request says."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._free = asyncio.Lock()
        self.together = 0
        self.most_together = 0

    async def call(self, seconds: float, timeout_s: float) -> Outcome:
        self.together += 1
        self.most_together = max(self.most_together, self.together)
        async with self._free:
            await self._clock.sleep(seconds)
        self.together -= 1
        return "ok"


def always(seconds: float) -> Iterator[float]:
    while True:
        yield seconds


async def closed(callers: int, *, service_s: float, seconds: float) -> tuple[OneAtATime, list[tuple[float, float]]]:
    clock = VirtualClock()
    server = OneAtATime(clock)
    loop = closed_loop(server.call, always(service_s), callers=callers, seconds=seconds, timeout_s=9, clock=clock)
    return server, [(one.intended, one.ended) for one in await clock.run(loop)]


async def test_one_caller_asks_again_only_when_answered() -> None:
    """One caller of a server that takes 2 s makes its calls at 0, 2 and 4 s in 5 s, and waits for the last."""
    server, spans = await closed(1, service_s=2.0, seconds=5.0)
    assert spans == [(0.0, 2.0), (2.0, 4.0), (4.0, 6.0)]
    assert server.most_together == 1


async def test_callers_keep_so_many_calls_in_flight() -> None:
    """Three callers have three calls in flight, and each waits for the two before it."""
    server, spans = await closed(3, service_s=1.0, seconds=4.0)
    assert server.most_together == 3
    assert [ended for _, ended in spans] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert [ended - intended for intended, ended in spans][3:] == [3.0, 3.0, 3.0]


async def test_closed_loop_gives_every_caller_its_own_requests() -> None:
    """No request of the stream is made twice and none is left out."""
    clock = VirtualClock()
    server = OneAtATime(clock)
    loop = closed_loop(server.call, always(1.0), callers=4, seconds=6.0, timeout_s=9, clock=clock)
    samples = await clock.run(loop)
    assert sorted(one.index for one in samples) == list(range(len(samples)))


class Server(Protocol):
    """What is called."""

    async def call(self, seconds: float, timeout_s: float) -> Outcome:
        """Answer."""
        ...


async def arrive(
    times: list[float], make: Callable[[VirtualClock], Server], timeout_s: float = 100.0
) -> list[tuple[float, float, Outcome]]:
    clock = VirtualClock()
    server = make(clock)
    loop = open_loop(server.call, always(3.0), times, timeout_s=timeout_s, clock=clock)
    samples = await clock.run(loop)
    return [(one.intended, one.latency, one.outcome) for one in samples]


async def test_open_loop_does_not_wait_for_answers() -> None:
    """Calls arriving at 0, 1 and 2 s at a server that takes 3 s each wait for each other from when they arrive."""
    assert await arrive([0.0, 1.0, 2.0], OneAtATime) == [(0.0, 3.0, "ok"), (1.0, 5.0, "ok"), (2.0, 7.0, "ok")]


class Stalling:
    """A caller whose first call holds up the whole process, as a busy machine does."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._first = True

    async def call(self, seconds: float, timeout_s: float) -> Outcome:
        if self._first:
            self._first = False
            self._clock._now += 10.0
        return "ok"


async def test_open_loop_counts_from_the_intended_moment() -> None:
    """Calls that a stall of 10 s delays have the delay in their latency instead of being left out."""
    assert await arrive([0.0, 1.0, 4.0], Stalling) == [(0.0, 10.0, "ok"), (1.0, 9.0, "ok"), (4.0, 6.0, "ok")]


async def test_open_loop_gives_up_what_is_already_too_late() -> None:
    """A call whose time limit passed before it could be made is late, and is not made."""
    samples = await arrive([0.0, 1.0, 4.0], Stalling, timeout_s=7.0)
    assert [outcome for _, _, outcome in samples] == ["ok", "late", "ok"]


def test_poisson_arrivals_have_the_rate_and_the_spread() -> None:
    """Gaps have the mean 1 / rate and, as exponential ones have, a standard deviation of the same size."""
    times = poisson_arrivals(50.0, 200.0, seed=3)
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(1 / 50, rel=0.03)
    assert deviation == pytest.approx(mean, rel=0.05)


def test_poisson_arrivals_fill_the_whole_time_and_no_more() -> None:
    """Arrivals ascend, begin after 0 and end just before the time is over."""
    times = poisson_arrivals(20.0, 30.0, seed=1)
    assert times == sorted(times)
    assert times[0] > 0
    assert 29.0 < times[-1] < 30.0


def test_poisson_arrivals_are_the_same_for_the_same_seed() -> None:
    """Every target is given the same arrivals, and another seed gives others."""
    assert poisson_arrivals(5.0, 10.0, seed=4) == poisson_arrivals(5.0, 10.0, seed=4)
    assert poisson_arrivals(5.0, 10.0, seed=4) != poisson_arrivals(5.0, 10.0, seed=5)
