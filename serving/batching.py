"""The batching policy: which waiting rows are computed next. Pure: no clock, no I/O, no threads.

Cost is counted in padded tokens (rows x longest row), since that is what the device computes. A batch starts from the
oldest waiting row and takes the rows nearest in length while the budget holds, so that little of it is padding. Rows
that have waited longer than `max_age` are taken in order of arrival, whatever their length, so that none starves.
"""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What a batch and the queue may hold."""

    max_batch_tokens: int
    """Padded tokens per batch; a single longer row still runs, alone."""
    max_batch_rows: int
    """Rows per batch."""
    max_waiting_tokens: int
    """Tokens that may wait before more are refused."""
    max_age: float = 1.0
    """Seconds after which a row is taken by age alone."""

    def __post_init__(self) -> None:
        if min(self.max_batch_tokens, self.max_batch_rows, self.max_waiting_tokens) < 1 or self.max_age < 0:
            raise ValueError(f"limits are at least 1 and an age at least 0: {self}")


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
    abandoned: bool = False
    """Set by whoever no longer wants the row; it is then never computed."""


@dataclass(frozen=True, slots=True)
class Batch(Generic[R]):
    """What to compute next, and what was found expired on the way. Abandoned rows are in neither."""

    rows: list[Waiting[R]] = field(default_factory=list)
    expired: list[Waiting[R]] = field(default_factory=list)

    @property
    def padded_tokens(self) -> int:
        """Rows times the longest row."""
        return len(self.rows) * max((row.length for row in self.rows), default=0)


class BatchPolicy(Generic[R]):
    """The waiting rows and the rule by which they leave."""

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self._queue: list[Waiting[R]] = []
        self._tokens = 0

    def __len__(self) -> int:
        """Rows waiting, abandoned ones included until the next batch."""
        return len(self._queue)

    @property
    def waiting_tokens(self) -> int:
        """Tokens waiting."""
        return self._tokens

    def has_room(self, tokens: int) -> bool:
        """Tell whether so many more tokens may wait; an empty queue has room for any one request."""
        return not self._queue or self._tokens + tokens <= self.limits.max_waiting_tokens

    def add(self, rows: Iterable[Waiting[R]]) -> None:
        """Let rows wait. The caller has asked `has_room`."""
        for row in rows:
            self._queue.append(row)
            self._tokens += row.length

    def next_batch(self, now: float) -> Batch[R]:
        """Take the next batch off the queue; it is empty only where nothing that waits is still wanted in time."""
        wanted = [row for row in self._queue if row.deadline > now and not row.abandoned]
        gone = len(wanted) < len(self._queue)
        expired = [row for row in self._queue if row.deadline <= now and not row.abandoned] if gone else []
        rows = self._pack(wanted, now)
        taken = set(map(id, rows))
        self._queue = [row for row in wanted if id(row) not in taken]
        self._tokens = sum(row.length for row in self._queue)
        return Batch(rows, expired)

    def take_all(self) -> list[Waiting[R]]:
        """Empty the queue without computing anything."""
        rows, self._queue, self._tokens = self._queue, [], 0
        return rows

    def _pack(self, wanted: list[Waiting[R]], now: float) -> list[Waiting[R]]:
        """Choose rows; `wanted` is in order of arrival."""
        if not wanted:
            return []
        batch: list[Waiting[R]] = []
        longest = 0
        for row in self._in_order(wanted, now):
            longest = max(longest, row.length)
            if batch and (len(batch) + 1) * longest > self.limits.max_batch_tokens:
                break
            batch.append(row)
            if len(batch) == self.limits.max_batch_rows:
                break
        return batch

    def _in_order(self, wanted: list[Waiting[R]], now: float) -> Iterator[Waiting[R]]:
        """Yield rows as they are to be taken; lazily, since a queue may be long and old rows need no sorting."""
        oldest, young = wanted[0], 1
        yield oldest
        while young < len(wanted) and now - wanted[young].arrived > self.limits.max_age:
            yield wanted[young]
            young += 1
        rows = self.limits.max_batch_rows
        yield from heapq.nsmallest(rows, wanted[young:], key=lambda row: abs(row.length - oldest.length))
