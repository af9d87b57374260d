"""Where the time of a search went: the sums, and what a server with another clock can do to them.

Numbers in brackets are those of field failures.
"""

from contextlib import suppress
from time import monotonic_ns

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ports import ServerTime
from gateway.timings import STAGES, SearchTime, SearchTimer, StageTime

SPANS = st.integers(0, 10**12)
CLAIMS = st.integers(-(10**12), 10**12)


@given(total=SPANS, queue=CLAIMS, tokenize=CLAIMS, compute=CLAIMS, accounted=st.booleans())
def test_the_parts_of_a_stage_are_its_total(
    total: int, queue: int, tokenize: int, compute: int, *, accounted: bool
) -> None:
    """Whatever a server claims, no part is negative and their sum is the measured total to the microsecond (73)."""
    stage = StageTime.of(total, ServerTime(queue=queue, tokenize=tokenize, compute=compute), accounted=accounted)
    parts = [nanoseconds for part, nanoseconds in stage.parts().items() if part != "total"]
    assert min(parts) >= 0
    assert sum(parts) == stage.total == total // 1_000 * 1_000
    assert (stage.unaccounted if accounted else stage.network) == 0


@given(total=SPANS, claims=st.tuples(SPANS, SPANS, SPANS), accounted=st.booleans())
def test_trailers_add_up_as_the_message_does(total: int, claims: tuple[int, int, int], *, accounted: bool) -> None:
    """The sums hold in trailing metadata too, which counts microseconds: nothing is lost by rounding (73)."""
    queue, tokenize, compute = claims
    server = ServerTime(queue=queue, tokenize=tokenize, compute=compute)
    stages = {name: StageTime.of(total, server, accounted=accounted) for name in STAGES}
    time = SearchTime(total=4 * (total // 1_000 * 1_000) + 7_000, **stages)
    said = {key: int(value) for key, value in time.trailers()}
    dense, rerank = said["twostage-dense-total-us"], said["twostage-rerank-total-us"]
    write = said.get("twostage-write-total-us", 0)
    assert write + dense + rerank + said["twostage-all-other-us"] == said["twostage-all-total-us"]
    for name in time.stages():
        keys = [f"twostage-{name}-{part}-us" for part in ("network", "queue", "tokenize", "compute", "unaccounted")]
        parts = [said.get(key, 0) for key in keys]
        assert sum(parts) == said[f"twostage-{name}-total-us"]


def test_trailer_keys_and_values_are_what_grpc_accepts() -> None:
    """Keys are lower case, values ASCII digits: anything else would turn an OK answer into INTERNAL (73)."""
    for key, value in SearchTimer().stop().trailers():
        assert key == key.lower()
        assert key.isascii()
        assert value.isdigit()


def test_a_stopped_timer_tells_the_same_for_ever() -> None:
    """Message, trailers and metrics read one time: the first stop's."""
    timer = SearchTimer()
    with timer.stage("encode"):
        timer.server_said(ServerTime(compute=1))
    first = timer.stop()
    assert timer.stop() == timer.read() == first


def test_a_server_that_said_nothing_is_no_slow_network() -> None:
    """Nobody accounts for such a stage; what one stage's server said is not taken for the next stage's."""
    timer = SearchTimer()
    with timer.stage("encode"):
        timer.server_said(ServerTime(queue=10**12))
    with timer.stage("search"):
        spend()
    time = timer.stop()
    assert time.encode.queue == time.encode.total
    assert time.search.unaccounted == time.search.total > 0


def test_a_stage_that_fails_keeps_what_its_server_said_and_no_more() -> None:
    """The rest was spent on a call that came to nothing; the stage after it starts anew."""
    timer = SearchTimer()
    with suppress(TimeoutError), timer.stage("search"):
        timer.server_said(ServerTime(compute=1_000))
        spend()
        raise TimeoutError
    with timer.stage("rerank"):
        timer.server_said(ServerTime())
        spend()
    time = timer.stop()
    assert (time.search.compute, time.search.network) == (1_000, 0)
    assert time.search.unaccounted == time.search.total - 1_000
    assert (time.rerank.network, time.rerank.unaccounted) == (time.rerank.total, 0)


@pytest.mark.parametrize("before", [True, False])
def test_one_call_without_an_answer_leaves_the_rest_of_its_stage_unaccounted(*, before: bool) -> None:
    """Whether it was the first call of the stage or the last: the rest cannot be told apart any more."""
    timer = SearchTimer()
    with timer.stage("rerank"):
        if before:
            timer.unaccounted()
        timer.server_said(ServerTime(queue=1_000))
        if not before:
            timer.unaccounted()
        spend()
    rerank = timer.stop().rerank
    assert (rerank.queue, rerank.network) == (1_000, 0)
    assert rerank.unaccounted == rerank.total - 1_000 > 0


def test_what_no_stage_has_is_not_told() -> None:
    """Where every call was answered neither trailers nor metrics have an entry more."""
    timer = SearchTimer()
    for name in ("encode", "search", "rerank"):
        with timer.stage(name):
            timer.server_said(ServerTime())
    assert not [key for key in timer.stop().spans() if "unaccounted" in key]


def spend() -> None:
    """Let some microseconds pass."""
    begun = monotonic_ns()
    while monotonic_ns() < begun + 10_000:
        pass
