"""Deadlines as values."""

import time

import pytest

from serving.deadline import Deadline
from serving.errors import DeadlineSpent


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A monotonic clock that stands at the last number of the list."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[-1])
    return now


def test_what_is_left_shrinks_and_is_never_negative(clock: list[float]):
    """A deadline in the past has zero seconds left, so that a timeout made of it is legal."""
    deadline = Deadline.after(5)
    assert (deadline.at, deadline.remaining(), deadline.spent()) == (105.0, 5.0, False)
    clock.append(103.5)
    assert deadline.remaining() == 1.5
    clock.append(107.0)
    assert (deadline.remaining(), deadline.spent()) == (0.0, True)


@pytest.mark.usefixtures("clock")
def test_a_stage_gets_its_cap_or_what_is_left():
    """The earlier of budget and cap counts, and the budget itself stays what it was (field failure 10)."""
    deadline = Deadline.after(5)
    assert deadline.within(2) == Deadline(102.0)
    assert deadline.within(20) == deadline == Deadline(105.0)


def test_a_stage_without_time_names_itself(clock: list[float]):
    """What was about to begin when the time was over is in the error."""
    deadline = Deadline.after(5)
    assert deadline.require("rerank") == 5.0
    clock.append(105.0)
    with pytest.raises(DeadlineSpent, match="rerank") as caught:
        deadline.require("rerank")
    assert (caught.value.reason, caught.value.metadata) == ("DEADLINE_SPENT", {"stage": "rerank"})
