"""The batching policy over random histories: what has to hold after every step, whatever arrives and what it costs."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.batching import BULK_EVERY, FREE_PADDING, Batch, BatchLimits, BatchPolicy, Priority, Waiting
from serving.cost import Cost, CostModel

FOREVER = 1e9
Row = Waiting[int]


@dataclass(frozen=True)
class Arrive:
    """Rows arrive: length, seconds until the deadline, priority."""

    rows: tuple[tuple[int, float, Priority], ...]


@dataclass(frozen=True)
class Leave:
    """Time passes, then a batch is taken."""

    after: float


@dataclass(frozen=True)
class Abandon:
    """Rows from the first to before the second, of all that ever arrived, are no longer wanted."""

    first: int
    last: int


Event = Arrive | Leave | Abandon

priorities = st.sampled_from(Priority)
arrivals = st.lists(st.tuples(st.integers(1, 60), st.sampled_from([0.5, 3.0, FOREVER]), priorities), max_size=8)
events = st.one_of(
    st.builds(Arrive, arrivals.map(tuple)),
    st.builds(Leave, st.sampled_from([0.0, 0.1, 0.6, 2.5])),
    st.builds(Abandon, st.integers(0, 20), st.integers(0, 24)),
)
some_limits = st.builds(
    BatchLimits,
    max_batch_tokens=st.integers(1, 300),
    max_batch_rows=st.integers(1, 6),
    max_waiting_tokens=st.just(10_000),
    window=st.integers(1, 4),
)
some_costs = st.builds(
    Cost,
    fixed=st.sampled_from([0.0, 0.01, 0.3, 2.0]),
    per_token=st.sampled_from([0.0, 1e-4, 1e-2]),
    per_row=st.sampled_from([0.0, 1e-3]),
)


def knowing(cost: Cost) -> CostModel:
    """Make a model that has learned this."""
    model = CostModel()
    model.cost = cost
    return model


@dataclass
class History:
    """Plays events against a policy and keeps its own books, of rows by their identity."""

    limits: BatchLimits
    cost: Cost
    now: float = 0.0
    arrived: list[Row] = field(default_factory=list)
    waiting: list[Row] = field(default_factory=list)
    ended: Counter[int] = field(default_factory=Counter)
    since_bulk: int = 0

    def __post_init__(self) -> None:
        self.policy: BatchPolicy[int] = BatchPolicy(self.limits, knowing(self.cost))

    def play(self, event: Event) -> None:
        """Do one event, then compare the books."""
        if isinstance(event, Arrive):
            self.arrive(event)
        elif isinstance(event, Abandon):
            self.end(self.arrived[event.first : event.last], abandon=True)
        else:
            self.now += event.after
            self.leave()
        self.check_books()

    def arrive(self, event: Arrive) -> None:
        """Let rows wait."""
        for length, left, priority in event.rows:
            row = Row(len(self.arrived), length, arrived=self.now, deadline=self.now + left, priority=priority)
            self.arrived.append(row)
            self.waiting.append(row)
            self.policy.add([row])

    def end(self, rows: list[Row], *, abandon: bool = False) -> None:
        """Strike rows off the books that the policy computed, reported as expired, or was told to abandon."""
        if abandon:
            self.policy.abandon(rows)
        for row in rows:
            if any(row is one for one in self.waiting):
                self.waiting = [one for one in self.waiting if one is not row]
                self.ended[row.row] += 1
            elif not abandon:
                pytest.fail(f"row {row.row} was not waiting")

    def leave(self) -> None:
        """Take a batch and check it."""
        before = list(self.waiting)
        batch = self.policy.next_batch(self.now)
        self.end([*batch.rows, *batch.expired])
        self.check_size(batch)
        self.check_deadlines(batch, before)
        self.check_turn(batch, before)
        self.check_padding(batch)

    def check_books(self) -> None:
        """What the policy says it holds is what it must hold, in sum and of each priority."""
        tokens = sum(row.length for row in self.waiting)
        oldest = min((row.arrived for row in self.waiting), default=None)
        assert (len(self.policy), self.policy.waiting_tokens) == (len(self.waiting), tokens)
        assert self.policy.oldest_arrival() == oldest
        assert (self.policy.due(self.now) is None) == (not self.waiting)
        for priority in Priority:
            held = sum(row.length for row in self.waiting if row.priority is priority)
            most = self.limits.max_waiting_tokens - held
            assert (self.policy.has_room(most, priority), self.policy.has_room(most + 1, priority)) == (True, not held)

    def check_size(self, batch: Batch[int]) -> None:
        """Budget and rows hold, but for a single long row."""
        assert len(batch.rows) <= self.limits.max_batch_rows
        assert batch.padded_tokens <= self.limits.max_batch_tokens or len(batch.rows) == 1

    def check_deadlines(self, batch: Batch[int], before: list[Row]) -> None:
        """Nothing is computed late that could be left out, and nothing is given up that could be in time."""
        timely = [row for row in before if self.in_time([row])]
        assert not any(row.deadline <= self.now for row in batch.rows)
        assert not any(self.in_time([row]) for row in batch.expired)
        assert bool(batch.rows) == any(row.deadline > self.now for row in before)
        assert self.in_time(batch.rows) if timely else len(batch.rows) <= 1

    def in_time(self, rows: list[Row]) -> bool:
        """Tell whether a batch of these would end by the deadlines of all, and none of them has passed."""
        first = min((row.deadline for row in rows), default=FOREVER)
        padded = len(rows) * max((row.length for row in rows), default=0)
        return first > self.now and self.now + self.cost.seconds(padded, len(rows)) <= first

    def check_turn(self, batch: Batch[int], before: list[Row]) -> None:
        """A batch has the oldest timely row of the priority whose turn it is, and bulk has one turn in BULK_EVERY."""
        timely = {
            priority: [row for row in before if row.priority is priority and self.in_time([row])]
            for priority in Priority
        }
        turns = [rows[0] for rows in timely.values() if rows]
        if not turns:
            return
        assert any(row is oldest for row in batch.rows for oldest in turns)
        if all(timely.values()):
            bulk = timely[Priority.BULK][0] in batch.rows
            self.since_bulk = 0 if bulk else self.since_bulk + 1
            assert self.since_bulk < BULK_EVERY
            assert bulk or timely[Priority.INTERACTIVE][0] in batch.rows
        else:
            self.since_bulk = 0

    def check_padding(self, batch: Batch[int]) -> None:
        """Padding is within what the fixed cost pays for; riders of the other priority may cost as much again."""
        if not batch.rows:
            return
        overhead = self.cost.fixed / self.cost.per_token if self.cost.per_token else 0.0
        slack = max(overhead, FREE_PADDING * batch.padded_tokens)
        mixed = len({row.priority for row in batch.rows}) > 1
        assert batch.padded_tokens - batch.tokens <= slack + mixed * overhead + 1e-6


@settings(max_examples=300, deadline=None)
@given(some_limits, some_costs, st.lists(events, max_size=30))
def test_every_step_of_every_history_is_right(limits: BatchLimits, cost: Cost, happened: list[Event]):
    """Over any history books balance at every step, batches keep all limits, and no row ends twice or never."""
    history = History(limits, cost)
    for event in happened:
        history.play(event)
    for _ in range(len(history.waiting)):
        history.play(Leave(0.0))
    assert not history.waiting
    assert history.ended == Counter(row.row for row in history.arrived)


@settings(max_examples=100, deadline=None)
@given(some_limits, some_costs, st.lists(events, max_size=20))
def test_taking_all_takes_exactly_what_waits(limits: BatchLimits, cost: Cost, happened: list[Event]):
    """What is taken at the end is what the books say, each row once, whatever came before."""
    history = History(limits, cost)
    for event in happened:
        history.play(event)
    history.end(history.policy.take_all())
    history.check_books()
    assert not history.waiting


@settings(max_examples=100, deadline=None)
@given(
    limits=some_limits,
    cost=some_costs,
    victim=st.tuples(st.integers(1, 300), priorities),
    before=st.lists(st.tuples(st.integers(1, 60), priorities), max_size=20),
    stream=st.lists(st.tuples(st.integers(1, 60), priorities), min_size=1, max_size=10),
)
def test_no_row_is_starved_by_an_endless_stream(
    limits: BatchLimits,
    cost: Cost,
    victim: tuple[int, Priority],
    before: list[tuple[int, Priority]],
    stream: list[tuple[int, Priority]],
):
    """A row waits at most one turn of its priority per row that came before it, whatever keeps arriving."""
    policy: BatchPolicy[str] = BatchPolicy(limits, knowing(cost))
    row = Waiting("victim", victim[0], arrived=0.0, deadline=FOREVER, priority=victim[1])
    policy.add(Waiting("before", size, arrived=0.0, deadline=FOREVER, priority=of) for size, of in before)
    policy.add([row])
    for _ in range(BULK_EVERY * (len(before) + 1)):
        policy.add(Waiting("stream", size, arrived=0.0, deadline=FOREVER, priority=of) for size, of in stream)
        policy.next_batch(0.0)
        if row.taken:
            return
    pytest.fail("the row is still waiting")


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 100), min_size=1, max_size=40),
    spans=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    cost=some_costs,
)
def test_requests_are_put_together_again_from_their_own_rows(lengths: list[int], spans: list[int], cost: Cost):
    """However batches reorder rows, each row stays the object that its request handed in."""
    policy: BatchPolicy[tuple[int, int]] = BatchPolicy(
        BatchLimits(max_batch_tokens=120, max_batch_rows=5, max_waiting_tokens=10_000), knowing(cost)
    )
    requests = [
        [Waiting((number, index), length, arrived=0.0, deadline=FOREVER) for index, length in enumerate(lengths[:span])]
        for number, span in enumerate(spans)
    ]
    outputs: list[list[int | None]] = [[None] * len(rows) for rows in requests]
    for rows in requests:
        policy.add(rows)
    while len(policy):
        for row in policy.next_batch(0.0).rows:
            number, index = row.row
            assert row is requests[number][index]
            assert outputs[number][index] is None
            outputs[number][index] = row.length
    assert outputs == [lengths[:span] for span in spans]
