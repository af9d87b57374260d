"""The ways to batch that are compared: two that are common, and ours (the code that serves, not a copy)."""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from serving.batching import Batch, BatchLimits, BatchPolicy, Waiting

Row = Waiting[int]
"""A row of the request of this number."""


class Queue(Protocol):
    """Rows in, batches out."""

    def admit(self, rows: Sequence[Row], now: float) -> bool:
        """Let rows wait, or refuse them."""
        ...

    def due(self, now: float) -> float | None:
        """Return the seconds until an idle device should take a batch; None where nothing waits."""
        ...

    def full(self) -> bool:
        """Tell whether a whole batch waits."""
        ...

    def take(self, now: float) -> Batch[int]:
        """Take the next batch."""
        ...

    def drop(self, rows: Sequence[Row]) -> None:
        """Forget rows whose request has failed."""
        ...

    def learn(self, padded_tokens: int, rows: int, seconds: float) -> None:
        """Hear what a batch took."""
        ...


class Fixed:
    """So many rows in order of arrival, for which an idle device waits a while; it knows no deadline and no length."""

    def __init__(self, rows: int, max_delay: float) -> None:
        self._rows = rows
        self._max_delay = max_delay
        self._waiting: deque[Row] = deque()

    def admit(self, rows: Sequence[Row], now: float) -> bool:  # noqa: ARG002
        """Let any rows wait."""
        self._waiting.extend(rows)
        return True

    def due(self, now: float) -> float | None:
        """Wait until the batch is full or the oldest has waited its time."""
        if not self._waiting:
            return None
        return 0.0 if self.full() else max(0.0, self._waiting[0].arrived + self._max_delay - now)

    def full(self) -> bool:
        """Count rows."""
        return len(self._waiting) >= self._rows

    def take(self, now: float) -> Batch[int]:  # noqa: ARG002
        """Take the oldest."""
        return Batch([self._waiting.popleft() for _ in range(min(self._rows, len(self._waiting)))])

    def drop(self, rows: Sequence[Row]) -> None:
        """Compute them all the same."""

    def learn(self, padded_tokens: int, rows: int, seconds: float) -> None:
        """Learn nothing."""


class FifoBudget:
    """As many of the oldest rows as the padded tokens of a batch allow; rows that are late are dropped."""

    def __init__(self, tokens: int, rows: int) -> None:
        self._tokens = tokens
        self._rows = rows
        self._waiting: deque[Row] = deque()

    def admit(self, rows: Sequence[Row], now: float) -> bool:  # noqa: ARG002
        """Let any rows wait."""
        self._waiting.extend(rows)
        return True

    def due(self, now: float) -> float | None:  # noqa: ARG002
        """Never wait."""
        return 0.0 if self._waiting else None

    def full(self) -> bool:
        """Count tokens and rows."""
        return len(self._waiting) >= self._rows or sum(row.length for row in self._waiting) >= self._tokens

    def take(self, now: float) -> Batch[int]:
        """Take from the front while the budget holds."""
        batch: Batch[int] = Batch()
        longest = 0
        while self._waiting and len(batch.rows) < self._rows:
            row = self._waiting[0]
            if row.abandoned or row.deadline <= now:
                batch.expired.append(self._waiting.popleft())
                continue
            longest = max(longest, row.length)
            if batch.rows and (len(batch.rows) + 1) * longest > self._tokens:
                break
            batch.rows.append(self._waiting.popleft())
        return batch

    def drop(self, rows: Sequence[Row]) -> None:
        """Mark them, so that they are dropped when their turn comes."""
        for row in rows:
            row.abandoned = True

    def learn(self, padded_tokens: int, rows: int, seconds: float) -> None:
        """Learn nothing."""


class Ours:
    """`serving.batching` as the servers drive it."""

    def __init__(self, limits: BatchLimits) -> None:
        self.policy: BatchPolicy[int] = BatchPolicy(limits)

    def admit(self, rows: Sequence[Row], now: float) -> bool:
        """Refuse what finds no room and what could not be computed in time."""
        tokens, priority = sum(row.length for row in rows), rows[0].priority
        if not self.policy.has_room(tokens, priority):
            return False
        if not self.policy.in_time(tokens, len(rows), rows[0].deadline - now, priority):
            return False
        self.policy.add(rows)
        return True

    def due(self, now: float) -> float | None:
        """Ask the policy."""
        return self.policy.due(now)

    def full(self) -> bool:
        """Ask the policy."""
        return self.policy.full()

    def take(self, now: float) -> Batch[int]:
        """Ask the policy."""
        return self.policy.next_batch(now)

    def drop(self, rows: Sequence[Row]) -> None:
        """Tell the policy."""
        self.policy.abandon(rows)

    def learn(self, padded_tokens: int, rows: int, seconds: float) -> None:
        """Feed the cost model."""
        self.policy.costs.observe(padded_tokens, rows, seconds)
