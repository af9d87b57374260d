"""How much one caller may ask for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import Overloaded
from serving.rates import NO_LIMITS, CallLimits, Usage


def refusal(usage: Usage, limits: CallLimits, now: float) -> Overloaded:
    """Ask for a call that is refused."""
    with pytest.raises(Overloaded) as caught:
        usage.admit(limits, now)
    return caught.value


def test_a_burst_is_let_through_and_then_the_rate():
    """Three at once, then one each half second; the refusal says exactly when the next one may come."""
    usage, limits = Usage(), CallLimits(requests_per_s=2, burst=3)
    for _ in range(3):
        usage.admit(limits, 10.0)
    refused = refusal(usage, limits, 10.1)
    assert (refused.reason, refused.retry_after_s) == ("RATE_LIMITED", pytest.approx(0.4))
    usage.admit(limits, 10.1 + refused.retry_after_s + 1e-9)
    assert refusal(usage, limits, 10.5 + 1e-9).reason == "RATE_LIMITED"


@given(st.lists(st.floats(0, 2), min_size=1, max_size=200), st.floats(0.5, 50), st.integers(1, 20))
def test_never_more_than_burst_and_rate_allow(pauses: list[float], rate: float, burst: int):
    """However calls come, those let through fit into the bucket and what has dripped into it."""
    usage, limits, now, admitted = Usage(), CallLimits(requests_per_s=rate, burst=burst), 5.0, 0
    for pause in pauses:
        now += pause
        admitted += usage.take(limits, now) == 0
        assert admitted <= burst + rate * (now - 5.0) + 1e-6


def test_calls_at_the_same_time_are_counted_until_they_leave():
    """A third one is refused, and let in once one has left."""
    usage, limits = Usage(), CallLimits(max_calls=2)
    usage.admit(limits, 0)
    usage.admit(limits, 0)
    assert refusal(usage, limits, 0).reason == "TOO_MANY_CALLS"
    usage.leave()
    usage.admit(limits, 0)


def test_a_refused_call_is_not_counted():
    """Neither limit keeps a trace of what the other one refused."""
    usage, limits = Usage(), CallLimits(requests_per_s=1, max_calls=1)
    usage.admit(limits, 0)
    refusal(usage, limits, 5)
    usage.leave()
    usage.admit(limits, 5)
    usage.leave()
    assert usage.running == 0
    assert refusal(usage, limits, 5).reason == "RATE_LIMITED"
    assert usage.running == 0


def test_without_limits_everything_is_let_through():
    """No limit is no limit, and one that is set later holds from then on."""
    usage = Usage()
    for _ in range(1000):
        usage.admit(NO_LIMITS, 1.0)
    assert refusal(usage, CallLimits(max_calls=1000), 1.0).reason == "TOO_MANY_CALLS"


def test_the_default_burst_is_one_second():
    """And never less than one call."""
    assert CallLimits(requests_per_s=20).capacity == 20
    assert CallLimits(requests_per_s=0.1).capacity == 1
