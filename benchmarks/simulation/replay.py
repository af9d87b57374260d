"""A trace replayed on a virtual clock: one device, one queue before it."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.simulation.devices import Device
from benchmarks.simulation.queues import Queue, Row
from benchmarks.simulation.traces import Request
from serving.batching import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a trace."""

    latencies: dict[str, list[float]]
    """Seconds from arrival to the last row, of every request that was computed whole, by kind."""
    good_share: float
    """Requests that were answered before their deadline."""
    tokens_per_s: float
    """Tokens of answers in time, without padding, per second from the first arrival to the last answer."""
    padding: float
    """Share of the computed tokens that is padding."""
    idle: float
    """Share of the time in which the device computes nothing."""
    batch_count: int

    def percentile(self, q: float, kind: str | None = None) -> float:
        """Return a percentile of the latency in seconds, of one kind or of all; NaN where none was answered."""
        found = [value for name, values in self.latencies.items() if kind in (None, name) for value in values]
        return float(np.percentile(found, q)) if found else float("nan")


@dataclass(slots=True)
class _Open:
    """A request in work."""

    request: Request
    rows: list[Row]
    left: int
    failed: bool = False


@dataclass(slots=True)
class _Books:
    """What is counted along the way."""

    good: int = 0
    good_tokens: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    busy: float = 0.0
    batch_count: int = 0
    latencies: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


class Replay:
    """One run.

    Args:
        requests: In order of arrival.
        queue: How they are batched.
        device: What computes them.
        seed: Of the noise.
        prefetch: While the device computes, a batch that is full is taken and laid out, which hides the gap.
    """

    def __init__(
        self, requests: Sequence[Request], queue: Queue, device: Device, *, seed: int = 0, prefetch: bool = False
    ) -> None:
        self._requests = requests
        self._queue = queue
        self._device = device
        self._noise = random.Random(seed)  # noqa: S311 - a simulation, not a secret
        self._prefetch = prefetch
        self._came = 0
        self._open: dict[int, _Open] = {}
        self._books = _Books()

    def run(self) -> Outcome:
        """Replay the whole trace and empty the queue."""
        now = 0.0
        while True:
            self._arrive(now)
            due = self._queue.due(now)
            if due is None or due > 0:
                later = self._next_arrival()
                wake = min(later, now + due) if due is not None else later
                if wake == float("inf"):
                    return self._outcome(now)
                now = max(wake, np.nextafter(now, np.inf))
                continue
            now = self._compute_run(now)

    def _compute_run(self, now: float) -> float:
        """Compute a batch, and those that were taken ahead during it; return when the device is free."""
        batch: Batch[int] | None = self._take(now)
        gap = self._device.gap
        while batch is not None and batch.rows:
            longest = max(row.length for row in batch.rows)
            seconds = self._device.noisy(len(batch.rows), longest, self._noise)
            end = now + gap + seconds
            ahead, ready = self._arrive_during(now + gap, end)
            self._finish(batch, seconds, end)
            gap, now, batch = max(0.0, ready - end), end, ahead
        return now

    def _arrive_during(self, begun: float, end: float) -> tuple[Batch[int] | None, float]:
        """Let requests come while the device computes; return the batch that was taken ahead, and when it is ready."""
        if not self._prefetch:
            self._arrive(end)
            return None, end
        moment = begun
        while not self._queue.full():
            moment = self._next_arrival()
            if moment > end:
                return None, end
            self._arrive(moment)
        taken = self._take(end)
        self._arrive(end)
        return taken, moment + self._device.gap

    def _next_arrival(self) -> float:
        return self._requests[self._came].arrived if self._came < len(self._requests) else float("inf")

    def _arrive(self, until: float) -> None:
        while self._next_arrival() <= until:
            number, request = self._came, self._requests[self._came]
            self._came += 1
            deadline = request.arrived + request.budget
            rows = [
                Row(number, length, arrived=request.arrived, deadline=deadline, priority=request.priority)
                for length in request.lengths
            ]
            if self._queue.admit(rows, request.arrived):
                self._open[number] = _Open(request, rows, len(rows))

    def _take(self, now: float) -> Batch[int]:
        batch = self._queue.take(now)
        for row in batch.expired:
            entry = self._open.pop(row.row, None)
            if entry is not None:
                self._queue.drop(entry.rows)
        return batch

    def _finish(self, batch: Batch[int], seconds: float, end: float) -> None:
        books = self._books
        books.busy += seconds
        books.batch_count += 1
        books.tokens += batch.tokens
        books.padded_tokens += batch.padded_tokens
        self._queue.learn(batch.padded_tokens, len(batch.rows), seconds)
        for row in batch.rows:
            entry = self._open.get(row.row)
            if entry is None:
                continue
            entry.left -= 1
            if not entry.left:
                self._answer(self._open.pop(row.row).request, end)

    def _answer(self, request: Request, end: float) -> None:
        books = self._books
        books.latencies[request.kind].append(end - request.arrived)
        if end <= request.arrived + request.budget:
            books.good += 1
            books.good_tokens += sum(request.lengths)

    def _outcome(self, now: float) -> Outcome:
        books = self._books
        return Outcome(
            latencies=dict(books.latencies),
            good_share=books.good / len(self._requests),
            tokens_per_s=books.good_tokens / now,
            padding=1 - books.tokens / books.padded_tokens,
            idle=1 - books.busy / now,
            batch_count=books.batch_count,
        )
