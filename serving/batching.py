"""The batching policy: which waiting rows are computed next. Pure: no clock, no I/O, no threads.

Cost is counted in padded tokens (rows x longest row), since that is what the device computes. Every batch starts from
the row that has waited longest, so none starves, and takes the rows nearest in length, from among those that came soon
after it, as long as its padding costs no more than a second batch would: by the measured cost, the padding of a whole
batch may not exceed what a batch costs before its first token (or `FREE_PADDING`, if that is more). Below that, nothing
could be gained by two batches instead of one; docs/batching.md compares the policy with others.

Interactive rows go before bulk rows. So that bulk work does not starve, one batch in `BULK_EVERY` is bulk where any
waits. Each of the two has a queue limit of its own: bulk work can never make the server refuse a person.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, TypeVar

from serving.cost import Cost, CostModel

R = TypeVar("R")

# Of the batches that are taken while rows of both priorities wait, one in so many is bulk.
BULK_EVERY = 8
FREE_PADDING = 0.02
"""Share of a batch that may always be padding: a fixed cost near zero is hard to measure."""
ALIKE = 16
"""Rows whose length differs from the oldest's by less than one part in so many are alike: the older ones go first."""


class Priority(IntEnum):
    """Who waits for an answer."""

    INTERACTIVE = 0
    """A person, or a service in a person's request."""
    BULK = 1
    """A job that indexes or evaluates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What a batch and the queue may hold."""

    max_batch_tokens: int
    """Padded tokens per batch; a single longer row still runs, alone."""
    max_batch_rows: int
    """Rows per batch."""
    max_waiting_tokens: int
    """Tokens of one priority that may wait before more are refused."""
    max_delay: float = 0.0
    """Seconds for which a batch that is not full waits for more rows while the device is idle."""
    window: int = 8
    """Rows are chosen from among the oldest so many batches' worth: more is less padding, fewer is more in order."""
    headroom: float = 1.25
    """How many times the predicted wait a request's deadline must leave: see `BatchPolicy.in_time`."""

    def __post_init__(self) -> None:
        if min(self.max_batch_tokens, self.max_batch_rows, self.max_waiting_tokens, self.window) < 1:
            raise ValueError(f"limits are at least 1: {self}")
        if self.max_delay < 0:
            raise ValueError(f"a delay is at least 0: {self}")


@dataclass(slots=True, eq=False)
class Waiting(Generic[R]):
    """One row that waits to be computed."""

    row: R
    length: int
    """Tokens."""
    arrived: float
    """Seconds on the driver's clock."""
    deadline: float
    """Seconds on the driver's clock; the row is never computed after it."""
    priority: Priority = Priority.INTERACTIVE
    abandoned: bool = False
    """Set by `BatchPolicy.abandon`; the row is then never computed."""
    taken: bool = False
    """Set when the row leaves the queue."""


@dataclass(frozen=True, slots=True)
class Batch(Generic[R]):
    """What to compute next, and what can no longer be computed in time. Abandoned rows are in neither."""

    rows: list[Waiting[R]] = field(default_factory=list)
    expired: list[Waiting[R]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens without padding."""
        return sum(row.length for row in self.rows)

    @property
    def padded_tokens(self) -> int:
        """Rows times the longest row."""
        return len(self.rows) * max((row.length for row in self.rows), default=0)


class BatchPolicy(Generic[R]):
    """The waiting rows and the rule by which they leave.

    Args:
        limits: What a batch and the queue may hold.
        costs: What a batch costs; whoever computes batches tells it how long they took.
        instances: Batches that are computed at the same time.
    """

    def __init__(self, limits: BatchLimits, costs: CostModel | None = None, *, instances: int = 1) -> None:
        self.limits = limits
        self._instances = instances
        self.costs = costs or CostModel()
        self._queues: dict[Priority, deque[Waiting[R]]] = {priority: deque() for priority in Priority}
        self._tokens = dict.fromkeys(Priority, 0)
        self._counts = dict.fromkeys(Priority, 0)
        self._since_bulk = 0

    def __len__(self) -> int:
        """Rows waiting."""
        return sum(self._counts.values())

    @property
    def waiting_tokens(self) -> int:
        """Tokens waiting."""
        return sum(self._tokens.values())

    def oldest_arrival(self) -> float | None:
        """When the row that has waited longest came, on the driver's clock; None where none waits."""
        heads = [self._head(priority) for priority in Priority]
        return min((row.arrived for row in heads if row is not None), default=None)

    def has_room(self, tokens: int, priority: Priority = Priority.INTERACTIVE) -> bool:
        """Tell whether so many more tokens may wait; an empty queue has room for any one request."""
        waiting = self._tokens[priority]
        return not waiting or waiting + tokens <= self.limits.max_waiting_tokens

    def seconds_until_done(self, tokens: int, rows: int, priority: Priority = Priority.INTERACTIVE) -> float:
        """Predict when rows that arrived now would be computed, were no padding needed; 0 before costs are known."""
        ahead = [before for before in Priority if before <= priority]
        tokens += sum(self._tokens[before] for before in ahead)
        rows += sum(self._counts[before] for before in ahead)
        batches = max(tokens / self.limits.max_batch_tokens, rows / self.limits.max_batch_rows, 1)
        cost = self.costs.cost
        return (cost.fixed * batches + cost.per_token * tokens + cost.per_row * rows) / self._instances

    def in_time(self, tokens: int, rows: int, seconds: float, priority: Priority = Priority.INTERACTIVE) -> bool:
        """Tell whether rows that arrived now should be let in, to be computed within so many seconds.

        Where nothing waits everyone is: a prediction that is wrong must not keep itself alive. Else there has to be
        headroom, because the prediction knows neither padding nor noise nor who comes later and goes first. A request
        that is let in and late has cost all others the time that it was computed in: without headroom much of an
        overloaded device's time goes to answers that nobody waits for any more (docs/batching.md).
        """
        return not len(self) or self.limits.headroom * self.seconds_until_done(tokens, rows, priority) <= seconds

    def add(self, rows: Iterable[Waiting[R]]) -> None:
        """Let rows wait. The caller has asked `has_room`."""
        for row in rows:
            self._queues[row.priority].append(row)
            self._count(row, 1)

    def abandon(self, rows: Iterable[Waiting[R]]) -> None:
        """Nobody wants these any more: where they still wait they count no longer and are never computed."""
        for row in rows:
            if not row.abandoned and not row.taken:
                self._count(row, -1)
            row.abandoned = True
        for priority, queue in self._queues.items():
            # Dead rows are dropped when their turn comes; a queue that is mostly dead is not waited for.
            if len(queue) > 2 * self._counts[priority] + self.limits.max_batch_rows:
                self._queues[priority] = deque(row for row in queue if not row.abandoned)

    def due(self, now: float) -> float | None:
        """Seconds until the next batch should be taken by an idle device; None where nothing waits."""
        oldest = self.oldest_arrival()
        if oldest is None:
            return None
        return 0.0 if self.full() else max(0.0, oldest + self.limits.max_delay - now)

    def full(self) -> bool:
        """Tell whether a whole batch waits, so that waiting for more rows would gain nothing."""
        limits = self.limits
        return self.waiting_tokens >= limits.max_batch_tokens or len(self) >= limits.max_batch_rows

    def next_batch(self, now: float) -> Batch[R]:
        """Take the next batch off the queue; it is empty only where nothing that waits is still wanted in time."""
        expired: list[Waiting[R]] = []
        late: list[Waiting[R]] = []
        first, second = self._order()
        window = self._window(first, now, expired, late)
        if not window:
            first, second = second, first
            window = self._window(first, now, expired, late)
        riders = self._window(second, now, expired, late) if window else []
        if late and not window:
            # A prediction may be wrong, and only computing can correct it: an idle device tries.
            window.append(late.pop(_latest(late)))
        expired += late
        for row in expired:
            self._take(row)
        packing: _Packing[R] = _Packing(self.limits, self.costs.cost, now)
        packing.fill(window)
        packing.ride(riders)
        for row in packing.rows:
            self._take(row)
        self._put_back(first, window)
        self._put_back(second, riders)
        self._since_bulk = 0 if first is Priority.BULK else self._since_bulk + 1
        return Batch(packing.rows, expired)

    def take_all(self) -> list[Waiting[R]]:
        """Empty the queue without computing anything."""
        rows = [row for queue in self._queues.values() for row in queue if not row.abandoned]
        for row in rows:
            self._take(row)
        for queue in self._queues.values():
            queue.clear()
        return rows

    def _order(self) -> tuple[Priority, Priority]:
        """Say which priority has its turn, and which may ride along."""
        if self._since_bulk >= BULK_EVERY - 1:
            return Priority.BULK, Priority.INTERACTIVE
        return Priority.INTERACTIVE, Priority.BULK

    def _window(
        self, priority: Priority, now: float, expired: list[Waiting[R]], late: list[Waiting[R]]
    ) -> list[Waiting[R]]:
        """Take the oldest live rows off a queue, a few batches' worth; sort out those that cannot be in time."""
        queue, cost = self._queues[priority], self.costs.cost
        most_tokens = self.limits.window * self.limits.max_batch_tokens
        most_rows = self.limits.window * self.limits.max_batch_rows
        window: list[Waiting[R]] = []
        tokens = 0
        while queue and tokens < most_tokens and len(window) < most_rows:
            row = queue.popleft()
            if row.abandoned:
                continue
            if row.deadline <= now:
                expired.append(row)
            elif row.deadline < now + cost.seconds(row.length, 1):
                late.append(row)
            else:
                window.append(row)
                tokens += row.length
        return window

    def _put_back(self, priority: Priority, window: list[Waiting[R]]) -> None:
        self._queues[priority].extendleft(row for row in reversed(window) if not row.taken)

    def _head(self, priority: Priority) -> Waiting[R] | None:
        queue = self._queues[priority]
        while queue and queue[0].abandoned:
            queue.popleft()
        return queue[0] if queue else None

    def _take(self, row: Waiting[R]) -> None:
        if not row.taken:
            row.taken = True
            self._count(row, -1)

    def _count(self, row: Waiting[R], sign: int) -> None:
        self._tokens[row.priority] += sign * row.length
        self._counts[row.priority] += sign


class _Packing(Generic[R]):
    """One batch in the making."""

    def __init__(self, limits: BatchLimits, cost: Cost, now: float) -> None:
        self.rows: list[Waiting[R]] = []
        self._limits = limits
        self._cost = cost
        self._now = now
        self._longest = 0
        self._tokens = 0
        self._deadline = float("inf")
        self._overhead = cost.fixed / cost.per_token if cost.per_token else 0.0  # a batch's fixed cost in padded tokens

    @property
    def padded_tokens(self) -> int:
        """Rows times the longest row."""
        return len(self.rows) * self._longest

    def fill(self, window: list[Waiting[R]]) -> None:
        """Start from the oldest row and add those nearest in length; of like ones the older, so that requests end."""
        if not window:
            return
        self._add(window[0])
        length = window[0].length
        for row in sorted(window[1:], key=lambda row: abs(row.length - length) * ALIKE // length):
            if self._full():
                return
            if self._fits(row) and self._pays(row):
                self._add(row)

    def ride(self, riders: list[Waiting[R]]) -> None:
        """Add rows of the other priority, as many as a batch's fixed cost would pay for."""
        limit = self.padded_tokens + self._overhead
        for row in riders:
            if self._full():
                return
            if row.length <= self._longest and self.padded_tokens + self._longest <= limit and self._fits(row):
                self._add(row)

    def _full(self) -> bool:
        """Tell whether no row fits any more, however short."""
        rows = len(self.rows) + 1
        return rows > self._limits.max_batch_rows or rows * self._longest > self._limits.max_batch_tokens

    def _fits(self, row: Waiting[R]) -> bool:
        """Tell whether budget and deadlines of the batch hold with one row more."""
        padded = self._padded_with(row)
        if padded > self._limits.max_batch_tokens:
            return False
        return self._now + self._cost.seconds(padded, len(self.rows) + 1) <= min(self._deadline, row.deadline)

    def _pays(self, row: Waiting[R]) -> bool:
        """Tell whether the batch's padding, with one row more, costs less than a second batch."""
        padded = self._padded_with(row)
        return padded - self._tokens - row.length <= max(self._overhead, FREE_PADDING * padded)

    def _padded_with(self, row: Waiting[R]) -> int:
        return (len(self.rows) + 1) * max(self._longest, row.length)

    def _add(self, row: Waiting[R]) -> None:
        self.rows.append(row)
        self._tokens += row.length
        self._longest = max(self._longest, row.length)
        self._deadline = min(self._deadline, row.deadline)


def _latest(rows: list[Waiting[R]]) -> int:
    """Return the position of the row with the latest deadline."""
    return max(range(len(rows)), key=lambda index: rows[index].deadline)
