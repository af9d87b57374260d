"""Load generators: what is called and how often, and what became of every call. They know no server and no protocol.

Closed loop: a fixed number of callers, each of which asks again once it is answered. Open loop: calls arrive when they
arrive, whatever became of the others, and a call's latency counts from the moment at which it was to be made, so that
a stalled server is not spared the calls that would have come meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from cli.loading.generator import Clock

R = TypeVar("R")

Outcome = Literal["ok", "refused", "late", "error"]
Call = Callable[[R, float], Awaitable[Outcome]]
"""Sends one request and waits at most so many seconds for the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One call."""

    index: int
    """Position of its request in the stream."""
    intended: float
    """Seconds since the load began at which it was to be made."""
    ended: float
    """Seconds since the load began."""
    outcome: Outcome

    @property
    def latency(self) -> float:
        """Seconds from the intended moment to the answer."""
        return self.ended - self.intended


async def closed_loop(
    call: Call[R], requests: Iterator[R], *, callers: int, seconds: float, timeout_s: float, clock: Clock
) -> list[Sample]:
    """Let callers ask for some seconds, then let the last answers come in."""
    begun, numbered = clock.now(), enumerate(requests)
    samples: list[Sample] = []

    async def caller() -> None:
        while (intended := clock.now() - begun) < seconds:
            index, request = next(numbered)
            outcome = await call(request, timeout_s)
            ended = clock.now() - begun
            samples.append(Sample(index=index, intended=intended, ended=ended, outcome=outcome))

    await asyncio.gather(*(caller() for _ in range(callers)))
    return samples


async def open_loop(
    call: Call[R], requests: Iterator[R], arrivals: Sequence[float], *, timeout_s: float, clock: Clock
) -> list[Sample]:
    """Make each call at its moment, answered or not; a call's time limit counts from its intended moment too."""
    begun = clock.now()

    async def one(index: int, request: R, intended: float) -> Sample:
        left = intended + timeout_s - (clock.now() - begun)
        outcome: Outcome = await call(request, left) if left > 0 else "late"
        return Sample(index=index, intended=intended, ended=clock.now() - begun, outcome=outcome)

    tasks = []
    for index, intended in enumerate(arrivals):
        if (wait := intended - (clock.now() - begun)) > 0:
            await clock.sleep(wait)
        tasks.append(asyncio.create_task(one(index, next(requests), intended)))
    return list(await asyncio.gather(*tasks))


def poisson_arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Return arrival times in seconds, ascending, of a Poisson process of so many calls a second."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1 / rate, size=int(rate * seconds + 10 * (rate * seconds) ** 0.5 + 10))
    times = np.cumsum(gaps)
    return [float(one) for one in times[times < seconds]]
