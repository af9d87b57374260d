"""What became of a submission to the batcher, in one word."""

import asyncio
from enum import Enum

from serving.errors import DeadlineSpent, NotReady, Overloaded


class Outcome(Enum):
    """How a submission ended; every one ends in exactly one of these ways."""

    COMPUTED = "computed"
    QUEUE_FULL = "queue_full"
    """Refused on arrival."""
    DEADLINE_UNREACHABLE = "deadline_unreachable"
    """Refused on arrival: the queue would take longer than the caller waits."""
    EXPIRED = "expired"
    """The deadline passed first, here or at the caller, who then leaves."""
    ABANDONED = "abandoned"
    """The caller left before its deadline."""
    FAILED = "failed"
    """The engine failed, or gave no finite answer."""
    CLOSING = "closing"
    """The batcher was draining, or had died."""


REFUSALS = {outcome.name: outcome for outcome in (Outcome.QUEUE_FULL, Outcome.DEADLINE_UNREACHABLE)}
"""By the reason of the error."""


def outcome_of(error: BaseException, *, late: bool) -> Outcome:
    """Return how a submission that raised has ended; `late` says that the caller's deadline has passed."""
    match error:
        case asyncio.CancelledError() | GeneratorExit():
            return Outcome.EXPIRED if late else Outcome.ABANDONED
        case DeadlineSpent():
            return Outcome.EXPIRED
        case NotReady():
            return Outcome.CLOSING
        case Overloaded():  # a device without memory, which is one of these, refuses nobody
            return REFUSALS.get(error.reason, Outcome.FAILED)
    return Outcome.FAILED
