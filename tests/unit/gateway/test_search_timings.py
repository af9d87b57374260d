"""Where the time of a search went: the sums, and what a server with another clock can do to them.

Numbers in brackets are those of field failures.
"""

from hypothesis import given
from hypothesis import strategies as st

from gateway.ports import ServerTime
from gateway.timings import STAGES, SearchTime, SearchTimer, StageTime

SPANS = st.integers(0, 10**12)
CLAIMS = st.integers(-(10**12), 10**12)


@given(total=SPANS, queue=CLAIMS, tokenize=CLAIMS, compute=CLAIMS)
def test_the_parts_of_a_stage_are_its_total(total: int, queue: int, tokenize: int, compute: int) -> None:
    """Whatever a server claims, no part is negative and their sum is the measured total to the microsecond (73)."""
    stage = StageTime.of(total, ServerTime(queue=queue, tokenize=tokenize, compute=compute))
    parts = (stage.network, stage.queue, stage.tokenize, stage.compute)
    assert min(parts) >= 0
    assert sum(parts) == stage.total == total // 1_000 * 1_000


@given(total=SPANS, claims=st.tuples(SPANS, SPANS, SPANS))
def test_trailers_add_up_as_the_message_does(total: int, claims: tuple[int, int, int]) -> None:
    """The sums hold in trailing metadata too, which counts microseconds: nothing is lost by rounding (73)."""
    queue, tokenize, compute = claims
    stages = {name: StageTime.of(total, ServerTime(queue=queue, tokenize=tokenize, compute=compute)) for name in STAGES}
    time = SearchTime(total=4 * (total // 1_000 * 1_000) + 7_000, **stages)
    said = {key: int(value) for key, value in time.trailers()}
    dense, rerank = said["twostage-dense-total-us"], said["twostage-rerank-total-us"]
    write = said.get("twostage-write-total-us", 0)
    assert write + dense + rerank + said["twostage-all-other-us"] == said["twostage-all-total-us"]
    for name in time.stages():
        parts = [said[f"twostage-{name}-{part}-us"] for part in ("network", "queue", "tokenize", "compute")]
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


def test_a_server_that_said_nothing_leaves_all_to_the_network() -> None:
    """What one stage's server said is not taken for the next stage's."""
    timer = SearchTimer()
    with timer.stage("encode"):
        timer.server_said(ServerTime(queue=10**12))
    with timer.stage("search"):
        pass
    time = timer.stop()
    assert time.encode.queue == time.encode.total
    assert time.search.network == time.search.total
