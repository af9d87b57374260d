"""How often calls are made: so many callers at once, or at moments that were fixed beforehand. Pure; knows no clock."""

from dataclasses import dataclass

import numpy as np

from serving.errors import Misconfigured


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """So many callers, each of which calls again once it is answered: a slow server is called less often."""

    concurrency: int
    seconds: float | None = None
    """Calls begin within this time; one of this and `count` is set."""
    count: int | None = None
    """Calls made."""

    def __str__(self) -> str:
        amount = f"for {self.seconds:g} s" if self.count is None else f"until {self.count} calls are made"
        return f"closed loop of {self.concurrency}, {amount}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A constant rate."""

    rate: float
    """Calls per second."""
    seconds: float

    @property
    def count(self) -> int:
        """Calls made in it."""
        return round(self.rate * self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Calls come at their moments whatever became of the others: a slow server is called as often as a fast one."""

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        rates = ", ".join(f"{step.rate:g}/s for {step.seconds:g} s" for step in self.steps)
        return f"open loop, {rates}"

    def arrivals(self, seed: int) -> list[float]:
        """Return the moments, in seconds from the beginning, ascending.

        Within a step they are as a Poisson process of its rate has them, given that it has `Step.count`: that many
        moments, each anywhere in the step.
        """
        generator, begin, moments = np.random.default_rng(seed), 0.0, []
        for step in self.steps:
            moments += sorted(float(one) for one in generator.uniform(begin, begin + step.seconds, step.count))
            begin += step.seconds
        return moments

    def step_at(self, moment: float) -> int:
        """Return the position of the step that a moment belongs to."""
        end = 0.0
        for position, step in enumerate(self.steps):
            end += step.seconds
            if moment < end:
                return position
        return len(self.steps) - 1


Profile = Closed | Open


def stairs(given: str) -> Open:
    """Read `START:END:STEP:SECONDS`: rates from START to END, STEP apart, each for so many seconds.

    Raises:
        Misconfigured: `STEPS`, it is not that, or it leads nowhere.
    """
    try:
        start, end, step, seconds = (float(part) for part in given.split(":"))
    except ValueError:
        start = end = step = seconds = 0.0
    if not (start > 0 and end > 0 and step != 0 and seconds > 0 and (end - start) * step >= 0):
        raise Misconfigured("STEPS", f"{given!r} is not START:END:STEP:SECONDS, such as 10:50:10:30")
    rates = [start + index * step for index in range(int((end - start) / step + 1e-9) + 1)]
    return Open(steps=tuple(Step(rate=rate, seconds=seconds) for rate in rates))


def profile_of(
    *, concurrency: int, rps: float | None, steps: str | None, seconds: float | None, count: int | None
) -> Profile:
    """Return what options mean together.

    Raises:
        Misconfigured: They contradict each other, or do not say how long.
    """
    if steps is not None:
        if rps is not None or seconds is not None or count is not None:
            raise Misconfigured("PROFILE", "--steps says rate and time itself: leave --rps, --duration and --calls out")
        return stairs(steps)
    if (seconds is None) == (count is None):
        raise Misconfigured("PROFILE", "give one of --duration and --calls")
    if rps is None:
        return Closed(concurrency=concurrency, seconds=seconds, count=count)
    step = Step(rate=rps, seconds=seconds if seconds is not None else (count or 0) / rps)
    if not step.count:
        raise Misconfigured("PROFILE", f"{rps:g} calls a second for {step.seconds:g} s are none: give it longer")
    return Open(steps=(step,))
