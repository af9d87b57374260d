"""Spans of time: exact, and legal as trailing metadata."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.timing import CallTime, Stopwatch, from_duration, to_duration


@given(st.integers(0, 10**18))
def test_nanoseconds_survive_a_duration_exactly(nanoseconds: int):
    """There and back again no nanosecond is lost, and the parts are normalised."""
    duration = to_duration(nanoseconds)
    assert from_duration(duration) == nanoseconds
    assert 0 <= duration.nanos < 10**9


def test_a_duration_means_what_protobuf_means_by_it():
    """1.5 s is one second and half a milliard nanoseconds."""
    assert (to_duration(1_500_000_000).seconds, to_duration(1_500_000_000).nanos) == (1, 500_000_000)


def test_trailers_are_legal_metadata():
    """Keys are lower-case ASCII, values decimal ASCII: gRPC answers INTERNAL to anything else (field failure 73)."""
    trailers = CallTime(total=12_345_678, tokenize=1_999, queue=2_000, compute=0).trailers()
    assert dict(trailers) == {
        "twostage-total-us": "12345",
        "twostage-tokenize-us": "1",
        "twostage-queue-us": "2",
        "twostage-compute-us": "0",
    }
    assert all(re.fullmatch("[a-z0-9._-]+", key) and value.isascii() for key, value in trailers)


def test_message_and_trailers_tell_the_same_parts():
    """There is one record of a call's time, so its tellers cannot differ in what they have."""
    time_spent = CallTime(total=9, tokenize=2, queue=3, compute=4)
    durations = {part: from_duration(duration) for part, duration in time_spent.durations().items()}
    assert durations == dict(time_spent.parts()) == {"total": 9, "tokenize": 2, "queue": 3, "compute": 4}
    assert [key for key, _ in time_spent.trailers()] == [f"twostage-{part}-us" for part in durations]


def test_laps_add_up_to_the_total(monkeypatch: pytest.MonkeyPatch):
    """Consecutive laps leave no gap and do not overlap (field failure 73)."""
    ticks = iter([100, 130, 175, 200])
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(ticks))
    watch = Stopwatch()
    assert [watch.lap("one"), watch.lap("two"), watch.total()] == [30, 45, 100]
