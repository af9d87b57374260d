"""When calls are made, by a clock that only moves when somebody waits."""

import asyncio
from itertools import pairwise

import pytest

from cli.loading.generator import Reply, generate
from cli.loading.profile import Closed, Open, Step, profile_of, stairs
from cli.loading.summary import summarize
from serving.errors import Misconfigured


class VirtualClock:
    """Time that passes when every task waits for it."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        event = asyncio.Event()
        self._sleepers.append((self._now + seconds, event))
        await event.wait()

    async def drive(self, work: asyncio.Task) -> None:
        """Move on to the next moment that somebody waits for, until the work is done."""
        while not work.done():
            for _ in range(20):  # let everything that can go on do so
                await asyncio.sleep(0)
            if self._sleepers and not work.done():
                self._sleepers.sort(key=lambda sleeper: sleeper[0])  # stable: of one moment, who came first
                self._now, event = self._sleepers.pop(0)
                event.set()


async def generated(profile: Closed | Open, clock: VirtualClock, seconds_of: object) -> list:
    """Run a generator against a server that takes `seconds_of(number)` for a call."""

    async def call(number: int) -> Reply:
        await clock.sleep(seconds_of(number))
        return Reply(code="OK")

    work = asyncio.create_task(generate(call, profile, clock=clock, seed=1))
    await clock.drive(work)
    return work.result()


def constant(rate: float, seconds: float) -> Open:
    return Open(steps=(Step(rate=rate, seconds=seconds),))


async def test_closed_loop_waits_for_the_last_answers() -> None:
    """Callers begin calls within the time only, and every call that was begun is answered and counted."""
    samples = await generated(Closed(concurrency=2, seconds=1.0), VirtualClock(), lambda _: 0.4)
    assert [round(sample.sent, 3) for sample in samples] == [0.0, 0.0, 0.4, 0.4, 0.8, 0.8]
    assert max(sample.ended for sample in samples) == pytest.approx(1.2)


async def test_closed_loop_makes_exactly_the_calls_asked_for() -> None:
    """A number that callers cannot share evenly is kept all the same."""
    samples = await generated(Closed(concurrency=4, count=7), VirtualClock(), lambda number: 0.1 * (number + 1))
    assert len(samples) == 7


async def test_open_loop_counts_a_stall_against_everybody_who_came_meanwhile() -> None:
    """Coordinated omission: calls that arrive while the server stands still are made, and wait from their moment on."""
    clock, profile = VirtualClock(), constant(10, 10)

    def stalled(number: int) -> float:
        return max(0.0, 5.0 - clock.now()) + 0.01  # nothing is answered before the fifth second

    samples = await generated(profile, clock, stalled)
    early = [sample for sample in samples if sample.intended < 5]
    assert len(samples) == 100
    assert len(early) > 30
    assert all(sample.latency == pytest.approx(5.01 - sample.intended, abs=1e-6) for sample in early)
    closed = await generated(
        Closed(concurrency=1, count=100), VirtualClock(), lambda number: 5.0 if not number else 0.01
    )
    by_open, by_closed = (summarize(found, None, whole=("all", "total")).latency for found in (samples, closed))
    assert by_closed.p95 == pytest.approx(10)  # the same stall, felt by one call of a hundred
    assert by_open.p95 > 4000


async def test_a_client_that_is_late_says_so() -> None:
    """What the client itself could not do in time is part of the latency, and told apart as lag."""
    clock = VirtualClock()
    late = {"once": True}
    real = clock.sleep

    async def oversleeping(seconds: float) -> None:
        await real(seconds + (2.0 if late.pop("once", False) else 0.0))

    clock.sleep = oversleeping  # type: ignore[method-assign]
    work = asyncio.create_task(generate(_instant, constant(5, 2), clock=clock, seed=3))
    await clock.drive(work)
    samples = work.result()
    assert max(sample.lag for sample in samples) == pytest.approx(2.0)
    assert all(sample.latency >= sample.lag for sample in samples)


async def _instant(_: int) -> Reply:
    return Reply(code="OK")


def test_arrivals_are_as_many_as_the_rate_says_and_the_same_again() -> None:
    """Each step has its own number of moments within itself, irregular but repeatable."""
    profile = stairs("10:30:10:2")
    moments = profile.arrivals(7)
    assert moments == sorted(moments) == profile.arrivals(7)
    assert moments != profile.arrivals(8)
    assert [sum(profile.step_at(one) == step for one in moments) for step in range(3)] == [20, 40, 60]
    gaps = {round(after - before, 6) for before, after in pairwise(moments)}
    assert len(gaps) > 100


def test_stairs_go_down_too() -> None:
    """A negative step lowers the rate."""
    assert [step.rate for step in stairs("30:10:-10:5").steps] == [30, 20, 10]


@pytest.mark.parametrize("given", ["10:50:10", "a:b:c:d", "10:50:-10:5", "10:50:0:5", "0:50:10:5", "10:50:10:0"])
def test_stairs_that_lead_nowhere_are_refused(given: str) -> None:
    """What is written wrongly is named, not guessed."""
    with pytest.raises(Misconfigured, match="START:END:STEP:SECONDS"):
        stairs(given)


def test_a_profile_says_how_long_exactly_once() -> None:
    """Neither, or both, of time and number is a contradiction; steps bring both along."""
    nothing = {"concurrency": 2, "rps": None, "steps": None, "seconds": None, "count": None}
    assert profile_of(**{**nothing, "seconds": 3.0}) == Closed(concurrency=2, seconds=3.0)
    assert profile_of(**{**nothing, "rps": 4.0, "count": 8}) == constant(4.0, 2.0)
    for wrong in (
        {},
        {"seconds": 1.0, "count": 1},
        {"steps": "1:2:1:1", "rps": 1.0},
        {"steps": "1:2:1:1", "count": 1},
        {"rps": 0.1, "seconds": 1.0},
    ):
        with pytest.raises(Misconfigured):
            profile_of(**{**nothing, **wrong})
