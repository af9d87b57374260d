"""A time budget as a value, passed down unchanged from the RPC's edge to the last call."""

import time
from dataclasses import dataclass, field, replace
from typing import Self

from serving.errors import DeadlineSpent

LATE_SHARE, LATE_S = 0.02, 0.01
"""What may seem to be left of a deadline, as a share of the budget and in seconds, when the caller's has passed."""


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """An instant on the monotonic clock, in seconds."""

    at: float
    budget_s: float = field(default=0.0, compare=False)
    """Seconds that were left when it was set."""

    @classmethod
    def after(cls, seconds: float) -> Self:
        """Return the instant that lies so many seconds ahead."""
        return cls(time.monotonic() + seconds, max(0.0, seconds))

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())

    def spent(self) -> bool:
        """Tell whether no time is left."""
        return self.remaining() == 0.0

    def within(self, seconds: float) -> Self:
        """Return this deadline or the one so many seconds ahead, whichever is earlier."""
        return min(self, type(self).after(seconds))

    def before(self, seconds: float) -> Self:
        """Return the instant that lies so many seconds before this one."""
        return replace(self, at=self.at - seconds)

    def require(self, stage: str) -> float:
        """Return the seconds left for a stage.

        Raises:
            DeadlineSpent: There are none.
        """
        left = self.remaining()
        if left == 0.0:
            raise DeadlineSpent("DEADLINE_SPENT", f"no time left for {stage}", stage=stage)
        return left


def seems_over(left_s: float, budget_s: float) -> bool:
    """Tell whether a caller's deadline has passed, by what is left here of the seconds that it gave.

    It comes before the server's view of it: gRPC rounds a timeout up by at most 1 % on its way.
    """
    return left_s <= LATE_SHARE * budget_s + LATE_S
