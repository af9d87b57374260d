"""The asyncio driver of the batching policy: requests in, one inference thread, answers out in order.

It owns the only thread that computes. Nobody's cancellation, expiry or bad row touches another request, and if the
driver itself ever dies, every waiting request is failed and `on_death` is called, so that the process can end.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

from serving.batching import Batch, BatchLimits, BatchPolicy, Waiting
from serving.deadline import Deadline
from serving.errors import DeadlineSpent, InferenceFailed, NotReady, Overloaded, ServiceError

log = logging.getLogger(__name__)

# Before the first batch there is no measured speed; RetryInfo then says this.
FIRST_RETRY_S = 0.5

OutT = TypeVar("OutT")


class Row(Protocol):
    """Anything with a length in tokens."""

    def __len__(self) -> int:
        """Tokens."""
        ...


RowT = TypeVar("RowT", bound=Row)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """One computed batch, for the metrics."""

    row_count: int
    token_count: int
    padded_token_count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[OutT]):
    """What became of one request's rows."""

    outputs: list[OutT]
    """One per row, in order."""
    queue: int
    """Nanoseconds in which the request waited and none of its rows was computed."""
    compute: int
    """Nanoseconds in which at least one of its rows was computed."""


@dataclass(slots=True, eq=False)
class _Request(Generic[OutT]):
    """One request's rows on their way."""

    future: asyncio.Future[None]
    outputs: list[OutT | None]
    missing: int
    spans: set[tuple[int, int]] = field(default_factory=set)
    """Begin and end in ns of every batch that held one of the rows."""

    def fail(self, error: ServiceError) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def put(self, index: int, output: OutT, span: tuple[int, int]) -> None:
        self.outputs[index] = output
        self.missing -= 1
        self.spans.add(span)
        if self.missing == 0 and not self.future.done():
            self.future.set_result(None)


@dataclass(frozen=True, slots=True)
class _Place(Generic[RowT, OutT]):
    """Where a waiting row belongs."""

    request: _Request[OutT]
    index: int
    row: RowT


class Batcher(Generic[RowT, OutT]):
    """Computes rows of many requests together.

    Args:
        compute: Called on the inference thread with rows; returns one output or InferenceFailed per row, in order.
        limits: What a batch and the queue may hold.
        on_batch: Told of every computed batch.
        on_death: Called once if the driver dies.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[RowT]], Sequence[OutT | InferenceFailed]],
        limits: BatchLimits,
        *,
        on_batch: Callable[[BatchReport], None] = lambda _: None,
        on_death: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self._compute = compute
        self._policy: BatchPolicy[_Place[RowT, OutT]] = BatchPolicy(limits)
        self._on_batch = on_batch
        self._on_death = on_death
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inference")
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._running: list[Waiting[_Place[RowT, OutT]]] = []
        self._closing: ServiceError | None = None
        self._seconds_per_token = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._drive(), name="batcher")
        self._task.add_done_callback(self._ended)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drain()

    @property
    def waiting_rows(self) -> int:
        """Rows in the queue."""
        return len(self._policy)

    @property
    def waiting_tokens(self) -> int:
        """Tokens in the queue."""
        return self._policy.waiting_tokens

    async def submit(self, rows: Sequence[RowT], deadline: Deadline, *, wait: bool = False) -> Answer[OutT]:
        """Compute rows, all or none.

        Args:
            rows: At least one.
            deadline: When the answer is no longer wanted.
            wait: Wait for room in a full queue instead of being refused.

        Raises:
            Overloaded: The queue is full.
            DeadlineSpent: The deadline passed first; rows not yet begun are never computed.
            InferenceFailed: One of the rows could not be computed.
            NotReady: The batcher is closing.
        """
        tokens = sum(map(len, rows))
        begun = time.monotonic_ns()
        try:
            async with asyncio.timeout_at(_loop_time(deadline)):
                await self._admit(tokens, wait=wait)
                request = await self._run(rows, deadline)
        except TimeoutError:
            raise DeadlineSpent("DEADLINE_SPENT", "no time left while waiting for the device", stage="queue") from None
        ended = max(end for _, end in request.spans)
        compute = _union(request.spans)
        outputs = [output for output in request.outputs if output is not None]
        return Answer(outputs=outputs, queue=ended - begun - compute, compute=compute)

    async def drain(self) -> None:
        """Refuse new rows, compute the waiting ones, end the thread."""
        self._closing = self._closing or NotReady("DRAINING", "this server is shutting down")
        self._work.set()
        self._room.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        self._thread.shutdown()

    async def _admit(self, tokens: int, *, wait: bool) -> None:
        while self._closing is None and not self._policy.has_room(tokens):
            if not wait:
                waiting = self._policy.waiting_tokens
                retry = waiting * self._seconds_per_token or FIRST_RETRY_S
                limit = self._policy.limits.max_waiting_tokens
                message = f"{waiting} tokens wait, {tokens} more would exceed the limit of {limit}"
                raise Overloaded("QUEUE_FULL", message, retry_after_s=retry)
            self._room.clear()
            await self._room.wait()
        if self._closing is not None:
            raise self._closing

    async def _run(self, rows: Sequence[RowT], deadline: Deadline) -> _Request[OutT]:
        request: _Request[OutT] = _Request(asyncio.get_running_loop().create_future(), [None] * len(rows), len(rows))
        now = time.monotonic()
        waiting = [
            Waiting(_Place(request, index, row), len(row), arrived=now, deadline=deadline.at)
            for index, row in enumerate(rows)
        ]
        self._policy.add(waiting)
        self._work.set()
        try:
            await request.future
        finally:
            for row in waiting:
                row.abandoned = True
        return request

    async def _drive(self) -> None:
        while True:
            batch = self._policy.next_batch(time.monotonic())
            self._room.set()
            for expired in batch.expired:
                expired.row.request.fail(
                    DeadlineSpent("DEADLINE_SPENT", "no time left while waiting for the device", stage="queue")
                )
            if batch.rows:
                self._running = batch.rows
                await self._compute_batch(batch)
                self._running = []
                await asyncio.sleep(0)  # a request that has just failed marks its other rows before the next batch
            elif self._closing is not None:
                return
            else:
                self._work.clear()
                await self._work.wait()

    async def _compute_batch(self, batch: Batch[_Place[RowT, OutT]]) -> None:
        outputs, span = await self._on_thread([place.row.row for place in batch.rows])
        if isinstance(outputs, Exception) and len(batch.rows) > 1:
            log.warning("a batch of %d rows failed, computing them one by one", len(batch.rows))
            for row in batch.rows:
                if not row.abandoned:
                    await self._compute_batch(Batch([row]))
            return
        if isinstance(outputs, Exception):
            log.error("a row of %d tokens cannot be computed", batch.rows[0].length, exc_info=outputs)
            outputs = [InferenceFailed("INFERENCE_FAILED", "the engine failed")]
        self._deliver(batch, outputs, span)

    def _deliver(
        self,
        batch: Batch[_Place[RowT, OutT]],
        outputs: Sequence[OutT | InferenceFailed],
        span: tuple[int, int],
    ) -> None:
        seconds = (span[1] - span[0]) / 1e9
        self._seconds_per_token = seconds / batch.padded_tokens
        self._on_batch(
            BatchReport(
                row_count=len(batch.rows),
                token_count=sum(row.length for row in batch.rows),
                padded_token_count=batch.padded_tokens,
                seconds=seconds,
            )
        )
        for waiting, output in zip(batch.rows, outputs, strict=True):
            place = waiting.row
            if isinstance(output, InferenceFailed):
                place.request.fail(output)
            else:
                place.request.put(place.index, output, span)

    async def _on_thread(
        self, rows: list[RowT]
    ) -> tuple[Sequence[OutT | InferenceFailed] | Exception, tuple[int, int]]:
        """Compute rows and say when; an exception of the engine is returned, not raised."""

        def timed() -> tuple[Sequence[OutT | InferenceFailed] | Exception, tuple[int, int]]:
            begun = time.monotonic_ns()
            try:
                outputs: Sequence[OutT | InferenceFailed] | Exception = self._compute(rows)
            except Exception as error:  # noqa: BLE001 - whatever the engine throws concerns this batch only
                outputs = error
            if not isinstance(outputs, Exception) and len(outputs) != len(rows):
                outputs = RuntimeError(f"{len(rows)} rows in, {len(outputs)} outputs back")
            return outputs, (begun, time.monotonic_ns())

        return await asyncio.get_running_loop().run_in_executor(self._thread, timed)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Leave nobody waiting, however the driver ended."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            return
        self._closing = NotReady("DRIVER_DEAD", "this server stopped computing and is going down")
        self._room.set()
        for waiting in [*self._running, *self._policy.take_all()]:
            waiting.row.request.fail(self._closing)
        self._on_death(error)


def _loop_time(deadline: Deadline) -> float:
    """Return the deadline on the loop's clock."""
    return asyncio.get_running_loop().time() + deadline.remaining()


def _union(spans: Iterable[tuple[int, int]]) -> int:
    """Return the length of the union of spans."""
    total, reached = 0, 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total
