"""Makes calls by a profile and notes what became of each. Knows no protocol; the clock is handed in.

In an open loop a call's latency counts from the moment at which it was to be made, so that a stalled server, or a
client that cannot keep up, is not spared the calls that would have come meanwhile (coordinated omission).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from cli.loading.profile import Closed, Open, Profile

OK = "OK"
SpanKey = tuple[str, str]
"""Stage and part, for example ("rerank", "queue")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How a call ended."""

    code: str
    """Name of its gRPC status code, for example "OK" or "DEADLINE_EXCEEDED"."""
    spans: Mapping[SpanKey, float] = field(default_factory=dict)
    """Where its time went, in seconds, as the server that was called says."""
    degraded: bool = False
    """Whether the answer lacks a part for which there was no time or no server, and is OK all the same."""
    failure: Exception | None = None
    """What to raise where this call must not fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One call; moments are seconds since the load began."""

    intended: float
    sent: float
    ended: float
    reply: Reply

    @property
    def latency(self) -> float:
        """Seconds from the intended moment to the end."""
        return self.ended - self.intended

    @property
    def lag(self) -> float:
        """Seconds by which the client itself was late."""
        return self.sent - self.intended


class Clock(Protocol):
    """Time as the generators see it."""

    def now(self) -> float:
        """Return seconds."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class WallClock:
    """The real one."""

    def now(self) -> float:
        """Return seconds."""
        return time.perf_counter()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


Call = Callable[[int], Awaitable[Reply]]
"""Makes the call of a number, counted from 0; does not raise."""


async def generate(call: Call, profile: Profile, *, clock: Clock, seed: int = 0) -> list[Sample]:
    """Make the calls of a profile and wait for the last answer: none is cut off.

    Args:
        call: Makes one.
        profile: When.
        clock: What time it is.
        seed: Of an open loop's moments.

    Returns:
        In the order in which calls ended (closed loop) or were to be made (open loop).
    """
    if isinstance(profile, Closed):
        return await _closed(call, profile, clock)
    return await _open(call, profile, clock, seed)


async def _closed(call: Call, profile: Closed, clock: Clock) -> list[Sample]:
    begun, made = clock.now(), 0
    samples: list[Sample] = []

    async def caller() -> None:
        nonlocal made
        while _goes_on(profile, made, clock.now() - begun):
            number, made = made, made + 1
            sent = clock.now() - begun
            reply = await call(number)
            samples.append(Sample(intended=sent, sent=sent, ended=clock.now() - begun, reply=reply))

    await asyncio.gather(*(caller() for _ in range(profile.concurrency)))
    return samples


def _goes_on(profile: Closed, made: int, elapsed: float) -> bool:
    if profile.count is not None:
        return made < profile.count
    return profile.seconds is not None and elapsed < profile.seconds


async def _open(call: Call, profile: Open, clock: Clock, seed: int) -> list[Sample]:
    begun = clock.now()

    async def one(number: int, intended: float) -> Sample:
        sent = clock.now() - begun
        reply = await call(number)
        return Sample(intended=intended, sent=sent, ended=clock.now() - begun, reply=reply)

    tasks = []
    for number, intended in enumerate(profile.arrivals(seed)):
        if (wait := intended - (clock.now() - begun)) > 0:
            await clock.sleep(wait)
        tasks.append(asyncio.create_task(one(number, intended)))
    return list(await asyncio.gather(*tasks))
