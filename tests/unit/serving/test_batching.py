"""The batching policy: examples to read, then properties over whole histories of arrivals and batches."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.batching import Batch, BatchLimits, BatchPolicy, Waiting

FOREVER = 1e9


def limits(*, tokens: int = 100, rows: int = 8, waiting: int = 1000, age: float = 10.0) -> BatchLimits:
    """Make limits with small round defaults."""
    return BatchLimits(max_batch_tokens=tokens, max_batch_rows=rows, max_waiting_tokens=waiting, max_age=age)


def row(name: str, length: int, *, arrived: float = 0.0, deadline: float = FOREVER) -> Waiting[str]:
    """Make a row that waits."""
    return Waiting(name, length, arrived=arrived, deadline=deadline)


def names(batch: Batch[str]) -> list[str]:
    """Name the rows of a batch, sorted."""
    return sorted(waiting.row for waiting in batch.rows)


# --- examples ------------------------------------------------------------------------------------------------------


def test_rows_of_like_length_leave_together():
    """The oldest row takes those nearest in length along, so that little of the batch is padding."""
    policy: BatchPolicy[str] = BatchPolicy(limits(tokens=40))
    policy.add([row("old 10", 10), row("long", 90), row("ten", 10), row("nine", 9), row("thirty", 30)])
    assert names(policy.next_batch(1.0)) == ["nine", "old 10", "ten"]


def test_a_row_over_the_budget_leaves_alone():
    """A row longer than a whole batch is computed by itself instead of never."""
    policy: BatchPolicy[str] = BatchPolicy(limits(tokens=50))
    policy.add([row("giant", 80), row("small", 2)])
    assert names(policy.next_batch(0.0)) == ["giant"]
    assert names(policy.next_batch(0.0)) == ["small"]


def test_rows_over_the_age_leave_in_order_of_arrival_whatever_their_length():
    """Beyond max_age the length no longer matters: first come, first served."""
    policy: BatchPolicy[str] = BatchPolicy(limits(tokens=100, rows=3, age=5.0))
    policy.add([row("a", 3), row("b", 30, arrived=0.1), row("c", 3, arrived=0.2), row("d", 3, arrived=0.3)])
    assert [waiting.row for waiting in policy.next_batch(6.0).rows] == ["a", "b", "c"]


def test_padding_counts():
    """The cost of a batch is its rows times its longest row: 10 and 16 tokens are 32, not 26."""
    for budget, padded in ((32, 32), (31, 10)):
        policy: BatchPolicy[str] = BatchPolicy(limits(tokens=budget))
        policy.add([row("a", 10), row("b", 16)])
        assert policy.next_batch(0.0).padded_tokens == padded


def test_an_expired_row_is_reported_and_not_computed():
    """A row whose deadline has come is handed back as expired (field failure 10)."""
    policy: BatchPolicy[str] = BatchPolicy(limits())
    policy.add([row("late", 5, deadline=1.0), row("timely", 5, deadline=1.1)])
    batch = policy.next_batch(1.0)
    assert names(batch) == ["timely"]
    assert [waiting.row for waiting in batch.expired] == ["late"]


def test_an_abandoned_row_vanishes():
    """A row that nobody wants any more is neither computed nor reported, expired or not; its tokens are given back."""
    policy: BatchPolicy[str] = BatchPolicy(limits())
    gone = [row("gone", 5), row("gone and late", 5, deadline=0.0)]
    policy.add(gone)
    for waiting in gone:
        waiting.abandoned = True
    batch = policy.next_batch(0.0)
    assert (batch.rows, batch.expired, policy.waiting_tokens, len(policy)) == ([], [], 0, 0)


def test_an_empty_queue_has_room_for_a_request_of_any_size():
    """A request larger than the queue is let in where it harms nobody, and refused where others wait."""
    policy: BatchPolicy[str] = BatchPolicy(limits(waiting=10))
    assert policy.has_room(500)
    policy.add([row("a", 4)])
    assert policy.has_room(6)
    assert not policy.has_room(7)


def test_taking_all_empties_the_queue():
    """What is taken at the end is everything, in order of arrival."""
    policy: BatchPolicy[str] = BatchPolicy(limits())
    policy.add([row("a", 4), row("b", 5)])
    assert [waiting.row for waiting in policy.take_all()] == ["a", "b"]
    assert (len(policy), policy.waiting_tokens) == (0, 0)


@pytest.mark.parametrize("wrong", [{"tokens": 0}, {"rows": 0}, {"waiting": 0}, {"age": -1.0}])
def test_limits_that_allow_nothing_are_refused(wrong: dict[str, int]):
    """A limit under 1 would never let a row out."""
    with pytest.raises(ValueError, match="at least"):
        limits(**wrong)


# --- properties ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arrive:
    """Rows arrive: length, and seconds until the deadline."""

    rows: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Leave:
    """Time passes, then a batch is taken."""

    after: float


@dataclass(frozen=True)
class Abandon:
    """The n-th row that ever arrived is no longer wanted."""

    index: int


arrivals = st.lists(st.tuples(st.integers(1, 60), st.sampled_from([0.5, 3.0, FOREVER])), min_size=1, max_size=8)
events = st.one_of(
    st.builds(Arrive, arrivals.map(tuple)),
    st.builds(Leave, st.sampled_from([0.0, 0.1, 0.6, 2.5])),
    st.builds(Abandon, st.integers(0, 12)),
)
some_limits = st.builds(
    BatchLimits,
    max_batch_tokens=st.integers(1, 200),
    max_batch_rows=st.integers(1, 6),
    max_waiting_tokens=st.just(10_000),
    max_age=st.sampled_from([0.0, 1.0, 5.0]),
)


@dataclass
class History:
    """Plays events against a policy and keeps book of what it did."""

    policy: BatchPolicy[int]
    now: float = 0.0
    arrived: list[Waiting[int]] = field(default_factory=list)
    computed: Counter[int] = field(default_factory=Counter)
    expired: Counter[int] = field(default_factory=Counter)

    def play(self, event: Arrive | Leave | Abandon) -> None:
        """Do one event and check what has to hold after each."""
        if isinstance(event, Arrive):
            for length, left in event.rows:
                waiting = Waiting(len(self.arrived), length, arrived=self.now, deadline=self.now + left)
                self.arrived.append(waiting)
                self.policy.add([waiting])
        elif isinstance(event, Abandon):
            for waiting in self.arrived[event.index : event.index + 1]:
                waiting.abandoned = True
        else:
            self.now += event.after
            self.leave()
        in_queue = [w.length for w in self.arrived if w.row in self.waiting]
        assert (self.policy.waiting_tokens, len(self.policy)) == (sum(in_queue), len(in_queue))

    @property
    def waiting(self) -> set[int]:
        """Rows that the policy must still hold."""
        return {waiting.row for waiting in self.policy._queue}

    def leave(self) -> None:
        """Take a batch and check it."""
        wanted = [w for w in self.arrived if w.row in self.waiting and not w.abandoned]
        batch = self.policy.next_batch(self.now)
        limit = self.policy.limits
        assert len(batch.rows) <= limit.max_batch_rows
        assert batch.padded_tokens <= limit.max_batch_tokens or len(batch.rows) == 1
        assert all(not w.abandoned for w in [*batch.rows, *batch.expired])
        assert all(w.deadline > self.now for w in batch.rows)
        assert {w.row for w in batch.expired} == {w.row for w in wanted if w.deadline <= self.now}
        in_time = [w for w in wanted if w.deadline > self.now]
        assert bool(batch.rows) == bool(in_time)
        self.check_ages(batch, in_time)
        self.computed.update(w.row for w in batch.rows)
        self.expired.update(w.row for w in batch.expired)

    def check_ages(self, batch: Batch[int], in_time: list[Waiting[int]]) -> None:
        """Rows over the age leave in order of arrival: none is overtaken, not by age and not by length."""
        taken = {w.row for w in batch.rows}
        old = [w.row in taken for w in in_time if self.now - w.arrived > self.policy.limits.max_age]
        assert old == sorted(old, reverse=True)
        if old:
            assert old[0]
        if not all(old):
            assert len(taken) == sum(old), "a young row took the place of an old one"

    def finish(self) -> None:
        """Empty the queue."""
        before = len(self.policy)
        for _ in range(before):
            self.leave()
        assert not self.policy._queue


@settings(max_examples=200, deadline=None)
@given(some_limits, st.lists(events, max_size=25))
def test_every_row_is_computed_once_or_expires_or_was_abandoned(limit: BatchLimits, happened: list[Arrive]):
    """Over any history: budget and row cap hold, books balance, and no row is lost, doubled or wrongly computed."""
    history = History(BatchPolicy(limit))
    for event in happened:
        history.play(event)
    history.finish()
    for waiting in history.arrived:
        times = history.computed[waiting.row] + history.expired[waiting.row]
        assert times == 1 or (times == 0 and waiting.abandoned)


@settings(max_examples=150, deadline=None)
@given(
    limit=some_limits,
    length=st.integers(1, 300),
    before=st.lists(st.integers(1, 60), max_size=20),
    stream=st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=10), min_size=1, max_size=5),
)
def test_a_row_over_the_age_is_not_starved_by_an_endless_stream(
    limit: BatchLimits, length: int, before: list[int], stream: list[list[int]]
):
    """Once over max_age a row waits at most one batch per row that came before it, whatever keeps arriving."""
    policy: BatchPolicy[str] = BatchPolicy(limit)
    policy.add(row("before", size) for size in before)
    policy.add([row("victim", length)])
    now = limit.max_age + 0.1
    for batches in range(len(before) + 1):
        policy.add(row("stream", size, arrived=now) for size in stream[batches % len(stream)])
        batch = policy.next_batch(now)
        now += 0.01
        if "victim" in [waiting.row for waiting in batch.rows]:
            return
    pytest.fail("the row is still waiting")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 60))
def test_any_row_leaves_in_the_end_though_more_like_the_others_keep_coming(lengths: list[int], odd: int):
    """A row of unfashionable length becomes old and then leaves, under a stream that would always be preferred."""
    policy: BatchPolicy[str] = BatchPolicy(limits(tokens=64, rows=4, age=1.0))
    policy.add([row("first", 60)])
    policy.add([row("odd", odd)])
    now, left = 0.0, set[str]()
    while "odd" not in left:
        policy.add(row("stream", size, arrived=now) for size in lengths[:2])
        left.update(names(policy.next_batch(now)))
        now += 0.3
        assert now < 100, "starved"
