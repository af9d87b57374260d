"""The threads that keep a device busy: each takes a batch, prepares it, runs it and hands it over.

A thread takes its next batch when its device is free, so that the choice is made as late as it can be. With `prefetch`
a second thread per device takes a full batch while the first one's runs, prepares it, and waits for the device: no
Python then lies between two batches. Batches that are not full are never taken early, since more rows may come.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from serving.batching import Batch, BatchPolicy, Waiting
from serving.errors import DeviceOutOfMemory, InferenceFailed, ServiceError
from serving.requests import OutT, Place, RowT, Span

log = logging.getLogger(__name__)

MAX_FAILURES = 16
"""So many batches in a row without one good output: the device is broken, and the process should end."""


_RowT_contra = TypeVar("_RowT_contra", contravariant=True)
_OutT_co = TypeVar("_OutT_co", covariant=True)


class Feed(Protocol):
    """One batch as `Computing.run` takes it."""

    @property
    def padded_tokens(self) -> int:
        """Tokens that the device computes."""
        ...


class Computing(Protocol[_RowT_contra, _OutT_co]):
    """What computes rows; calls come from device threads."""

    def prepare(self, rows: Sequence[_RowT_contra]) -> Feed:
        """Make of rows what `run` takes: work of the processor that needs no device."""
        ...

    def run(self, feed: Any) -> Sequence[_OutT_co | ServiceError]:
        """Compute: one output or error per row, in order. Called by one thread at a time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed(Generic[RowT, OutT]):
    """One batch that was computed."""

    rows: "Sequence[Waiting[Place[RowT, OutT]]]"
    outputs: Sequence[OutT | ServiceError]
    """One per row."""
    span: Span
    padded_tokens: int


class DeviceBroken(Exception):
    """Nothing that the device was given lately came out right."""


@dataclass(slots=True, eq=False)
class _Slot(Generic[RowT, OutT]):
    """One instance of the model on the device."""

    computing: Computing[RowT, OutT]
    free: threading.Lock = field(default_factory=threading.Lock)
    taken: int = 0
    """Batches that its threads hold."""
    free_at: float = 0.0
    """When the batch that runs is predicted to end, in seconds on the monotonic clock."""


class DeviceThreads(Generic[RowT, OutT]):
    """The threads, and the one lock under which they and the event loop use the policy.

    Args:
        computing: One per instance; several instances compute at the same time.
        policy: Which rows are next; to be touched under `changed` only.
        prefetch: Whether each instance has a second thread that prepares its next batch.
        on_expired: Told of rows that can no longer be computed in time; called on a device thread.
        on_computed: Told of each computed batch; called on a device thread.
    """

    def __init__(
        self,
        computing: Sequence[Computing[RowT, OutT]],
        policy: BatchPolicy[Place[RowT, OutT]],
        *,
        prefetch: bool,
        on_expired: "Callable[[list[Waiting[Place[RowT, OutT]]]], None]",
        on_computed: Callable[[Computed[RowT, OutT]], None],
    ) -> None:
        self.changed = threading.Condition()
        self._policy = policy
        self._on_expired = on_expired
        self._on_computed = on_computed
        self._closing = False
        self._failures = 0
        slots: list[_Slot[RowT, OutT]] = [_Slot(one) for one in computing]
        self._slots = [slot for slot in slots for _ in range(1 + prefetch)]

    @property
    def loops(self) -> list[Callable[[], None]]:
        """What each thread runs: returns after `close` when nothing waits, raises where the device is broken."""
        return [lambda slot=slot: self._loop(slot) for slot in self._slots]  # type: ignore[misc]

    def close(self) -> None:
        """Let the threads end when nothing waits any more."""
        with self.changed:
            self._closing = True
            self.changed.notify_all()

    def _loop(self, slot: _Slot[RowT, OutT]) -> None:
        while (batch := self._take(slot)) is not None:
            try:
                self._compute(slot, batch.rows)
            finally:
                with self.changed:
                    slot.taken -= 1
                    self.changed.notify_all()

    def _take(self, slot: _Slot[RowT, OutT]) -> "Batch[Place[RowT, OutT]] | None":
        """Wait for a batch; None is the end."""
        with self.changed:
            while True:
                seconds = self._seconds_until_due(slot)
                if seconds == 0:
                    now = time.monotonic()
                    batch = self._policy.next_batch(max(now, slot.free_at) if slot.taken else now)
                    if batch.expired:
                        self._on_expired(batch.expired)
                    if batch.rows:
                        slot.taken += 1
                        seconds = self._policy.costs.cost.seconds(batch.padded_tokens, len(batch.rows))
                        slot.free_at = max(now, slot.free_at) + seconds
                        return batch
                elif self._closing and not len(self._policy):
                    return None
                else:
                    self.changed.wait(seconds)

    def _seconds_until_due(self, slot: _Slot[RowT, OutT]) -> float | None:
        """Say when this slot should take a batch; None is not before something changes."""
        if slot.taken:
            return 0 if self._policy.full() else None
        due = self._policy.due(time.monotonic())
        return due if due is None or not self._closing else 0

    def _compute(self, slot: _Slot[RowT, OutT], rows: "Sequence[Waiting[Place[RowT, OutT]]]") -> None:
        """Compute rows; where the engine throws, each half again, so that a bad row or a lack of memory stays alone."""
        rows = [row for row in rows if not row.abandoned]
        if not rows:
            return
        try:
            computed = _run(slot, rows)
        except Exception as error:
            if len(rows) > 1:
                log.warning("a batch of %d rows failed, computing each half of it: %r", len(rows), error)
                self._compute(slot, rows[: len(rows) // 2])
                self._compute(slot, rows[len(rows) // 2 :])
                return
            log.exception("a row of %d tokens cannot be computed", rows[0].length)
            now = time.monotonic_ns()
            computed = Computed(rows=rows, outputs=[_failure(error)], span=(now, now), padded_tokens=rows[0].length)
        self._finish(computed)

    def _finish(self, computed: Computed[RowT, OutT]) -> None:
        """Learn from a batch and hand it over."""
        failed = [
            waiting
            for waiting, output in zip(computed.rows, computed.outputs, strict=True)
            if isinstance(output, ServiceError)
        ]
        begun, ended = computed.span
        with self.changed:
            self._failures = self._failures + 1 if len(failed) == len(computed.rows) else 0
            self._policy.costs.observe(computed.padded_tokens, len(computed.rows), (ended - begun) / 1e9)
            for waiting in failed:
                # All of a request or nothing: the rest of it is not computed.
                self._policy.abandon(waiting.row.request.waiting)
        self._on_computed(computed)
        if self._failures >= MAX_FAILURES:
            raise DeviceBroken(f"{self._failures} batches in a row gave no output")


def _run(slot: _Slot[RowT, OutT], rows: "Sequence[Waiting[Place[RowT, OutT]]]") -> Computed[RowT, OutT]:
    feed = slot.computing.prepare([waiting.row.row for waiting in rows])
    with slot.free:
        begun = time.monotonic_ns()
        outputs = slot.computing.run(feed)
        ended = time.monotonic_ns()
    if len(outputs) != len(rows):
        raise RuntimeError(f"{len(rows)} rows in, {len(outputs)} outputs back")
    return Computed(rows=rows, outputs=outputs, span=(begun, ended), padded_tokens=feed.padded_tokens)


def _failure(error: Exception) -> ServiceError:
    """Say what a caller is told of what the engine threw."""
    if isinstance(error, DeviceOutOfMemory):
        return error
    return InferenceFailed("INFERENCE_FAILED", "the engine failed")
