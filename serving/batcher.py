"""The batcher as requests see it: admission, waiting and answers, on the event loop.

Batches are chosen by `serving.batching` and computed by the threads of `serving.device`. Nobody's cancellation, expiry
or bad row touches another request. If a device thread ever dies, every waiting request is failed and `on_death` is
called, so that the process can end.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Self

from opentelemetry.trace import SpanContext

from serving import tracing
from serving.batching import BatchLimits, BatchPolicy, Priority, Waiting
from serving.cost import CostModel
from serving.deadline import Deadline, seems_over
from serving.device import Computed, Computing, DeviceThreads
from serving.errors import DeadlineSpent, NotReady, Overloaded, ServiceError
from serving.outcomes import Outcome, outcome_of
from serving.requests import Answer, OutT, Place, Request, RowT

# Before the first batches there is no measured cost; RetryInfo then says this.
FIRST_RETRY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """One computed batch, for the metrics."""

    row_count: int
    token_count: int
    padded_token_count: int
    seconds: float


class Batcher(Generic[RowT, OutT]):
    """Computes rows of many requests together.

    Args:
        computing: What computes, one per instance.
        limits: What a batch and the queue may hold.
        costs: What batches cost, where something is known already.
        prefetch: Whether a full batch is prepared while another one runs.
        on_batch: Told of every computed batch.
        on_end: Told how each submission ended, once.
        on_death: Called once if computing has come to an end that nobody asked for.
    """

    def __init__(  # noqa: PLR0913 - three of them are told what happens
        self,
        computing: Sequence[Computing[RowT, OutT]],
        limits: BatchLimits,
        *,
        costs: CostModel | None = None,
        prefetch: bool = False,
        on_batch: Callable[[BatchReport], None] = lambda _: None,
        on_end: Callable[[Priority, Outcome], None] = lambda *_: None,
        on_death: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self._policy: BatchPolicy[Place[RowT, OutT]] = BatchPolicy(limits, costs, instances=len(computing))
        self._device: DeviceThreads[RowT, OutT] = DeviceThreads(
            computing,
            self._policy,
            prefetch=prefetch,
            on_expired=lambda rows: self._post(self._expire, rows),
            on_computed=lambda computed: self._post(self._deliver, computed),
        )
        self._on_batch = on_batch
        self._on_end = on_end
        self._on_death = on_death
        self._open: set[Request[RowT, OutT]] = set()
        self._lines: dict[Priority, deque[Request[RowT, OutT]]] = {priority: deque() for priority in Priority}
        self._closing: ServiceError | None = None
        self._ended: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        loops = self._device.loops
        self._threads = ThreadPoolExecutor(len(loops), thread_name_prefix="inference")
        self._ended = [self._loop.run_in_executor(self._threads, loop) for loop in loops]
        for ended in self._ended:
            ended.add_done_callback(self._thread_ended)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drain()

    @property
    def limits(self) -> BatchLimits:
        """What a batch and the queue may hold."""
        return self._policy.limits

    @property
    def waiting_rows(self) -> int:
        """Rows in the queue."""
        return len(self._policy)

    @property
    def waiting_tokens(self) -> int:
        """Tokens in the queue."""
        return self._policy.waiting_tokens

    @property
    def oldest_age(self) -> float:
        """Seconds for which the oldest row in the queue has waited; 0 where none waits."""
        with self._device.changed:
            oldest = self._policy.oldest_arrival()
        return 0.0 if oldest is None else time.monotonic() - oldest

    def refuse_hopeless(self, deadline: Deadline, *, priority: Priority = Priority.INTERACTIVE) -> None:
        """Refuse whom `submit` would refuse however few the rows, before texts are tokenized for nothing.

        Raises:
            Overloaded: As `submit`.
            NotReady: The batcher is closing.
        """
        try:
            with self._device.changed:
                self._require_possible(0, 0, priority, deadline)
        except ServiceError as error:
            self._on_end(priority, outcome_of(error, late=False))
            raise

    async def submit(
        self,
        rows: Sequence[RowT],
        deadline: Deadline,
        *,
        priority: Priority = Priority.INTERACTIVE,
        wait: bool = False,
    ) -> Answer[OutT]:
        """Compute rows, all or none.

        Args:
            rows: At least one.
            deadline: When the answer is no longer wanted.
            priority: Who waits for it.
            wait: Wait for room in a full queue, in line, instead of being refused.

        Raises:
            Overloaded: The queue is full (`QUEUE_FULL`), or too long for this deadline (`DEADLINE_UNREACHABLE`).
            DeviceOutOfMemory: A row does not fit the device's memory, even alone.
            DeadlineSpent: The deadline passed first; rows not yet begun are never computed.
            InferenceFailed: One of the rows could not be computed.
            NotReady: The batcher is closing.
        """
        begun = time.monotonic_ns()
        request: Request[RowT, OutT] = Request.of(
            rows, arrived=time.monotonic(), deadline=deadline.at, priority=priority
        )
        try:
            await self._submit(request, deadline, priority, wait=wait)
        except BaseException as error:
            self._on_end(priority, outcome_of(error, late=seems_over(deadline.remaining(), deadline.budget_s)))
            request.record(begun, error)
            raise
        self._on_end(priority, Outcome.COMPUTED)
        request.record(begun)
        return request.answer(begun)

    async def _submit(
        self, request: Request[RowT, OutT], deadline: Deadline, priority: Priority, *, wait: bool
    ) -> None:
        """Wait for the end of a request."""
        try:
            async with asyncio.timeout_at(_loop_time(deadline)):
                if wait:
                    self._stand_in_line(request, priority)
                else:
                    self._admit(request, priority, deadline)
                await request.future
        except TimeoutError:
            raise _deadline_spent() from None
        finally:
            self._leave(request)

    async def drain(self) -> None:
        """Refuse new rows, compute the waiting ones, end the threads."""
        self._closing = self._closing or NotReady("DRAINING", "this server is shutting down")
        self._empty_lines(self._closing)
        self._device.close()
        if self._ended:
            await asyncio.wait(self._ended)
            self._threads.shutdown()

    def _admit(self, request: Request[RowT, OutT], priority: Priority, deadline: Deadline) -> None:
        """Let a request wait for the device, or refuse it at once."""
        with self._device.changed:
            self._require_possible(request.tokens, len(request.waiting), priority, deadline)
            self._enter(request)

    def _require_possible(self, tokens: int, rows: int, priority: Priority, deadline: Deadline) -> None:
        """Check that there is room for rows and time to compute them; the lock is held."""
        if self._closing is not None:
            raise self._closing
        if self._lines[priority] or not self._policy.has_room(tokens, priority):
            raise self._queue_full(tokens, priority)
        left = deadline.remaining()
        if not self._policy.in_time(tokens, rows, left, priority):
            seconds = self._policy.seconds_until_done(tokens, rows, priority)
            message = f"the queue is predicted to take {seconds:.2f} s, {left:.2f} s are left"
            raise Overloaded("DEADLINE_UNREACHABLE", message, retry_after_s=seconds)

    def _enter(self, request: Request[RowT, OutT]) -> None:
        """Hand a request's rows to the device; the lock is held."""
        self._open.add(request)
        self._policy.add(request.waiting)
        self._device.changed.notify_all()

    def _queue_full(self, tokens: int, priority: Priority) -> Overloaded:
        waiting, limit = self._policy.waiting_tokens, self._policy.limits.max_waiting_tokens
        message = f"{waiting} tokens wait, {tokens} more would exceed the limit of {limit}"
        retry = self._policy.seconds_until_done(0, 0, priority) or FIRST_RETRY_S
        return Overloaded("QUEUE_FULL", message, retry_after_s=retry)

    def _stand_in_line(self, request: Request[RowT, OutT], priority: Priority) -> None:
        if self._closing is not None:
            raise self._closing
        self._lines[priority].append(request)
        self._let_in()

    def _let_in(self) -> None:
        """Let in who stands first in line as long as there is room; nobody overtakes in a line."""
        with self._device.changed:
            for priority, line in self._lines.items():
                while line and (line[0].future.done() or self._policy.has_room(line[0].tokens, priority)):
                    request = line.popleft()
                    if not request.future.done():
                        self._enter(request)

    def _leave(self, request: Request[RowT, OutT]) -> None:
        """Forget a request that has ended, whatever has become of it."""
        if not request.future.cancel() and not request.future.cancelled():
            request.future.exception()  # an error that came too late for its caller is no fault of the event loop
        if request in self._open:
            self._open.remove(request)
            with self._device.changed:
                self._policy.abandon(request.waiting)
        if any(self._lines.values()):
            self._let_in()

    def _expire(self, rows: list[Waiting[Place[RowT, OutT]]]) -> None:
        for waiting in rows:
            waiting.row.request.fail(_deadline_spent())

    def _deliver(self, computed: Computed[RowT, OutT]) -> None:
        """Report a batch and give its outputs to their requests."""
        begun, ended = computed.span
        report = BatchReport(
            row_count=len(computed.rows),
            token_count=sum(waiting.length for waiting in computed.rows),
            padded_token_count=computed.padded_tokens,
            seconds=(ended - begun) / 1e9,
        )
        try:
            self._on_batch(report)
        except Exception as error:  # noqa: BLE001 - a fault of ours, not of a row
            self._die(error)
        batch = _record_batch(computed, report)
        for waiting, output in zip(computed.rows, computed.outputs, strict=True):
            place = waiting.row
            place.request.computed(computed.span, batch)
            if isinstance(output, ServiceError):
                place.request.fail(output)
            else:
                place.request.put(place.index, output)
        if any(self._lines.values()):
            self._let_in()

    def _post(self, call: Callable[..., None], argument: object) -> None:
        """Call on the event loop, from a device thread."""
        self._loop.call_soon_threadsafe(call, argument)

    def _thread_ended(self, ended: asyncio.Future[None]) -> None:
        error = asyncio.CancelledError() if ended.cancelled() else ended.exception()
        if error is not None:
            self._die(error)

    def _die(self, error: BaseException) -> None:
        """Leave nobody waiting, however computing ended."""
        dead = NotReady("DRIVER_DEAD", "this server stopped computing and is going down")
        first = self._closing is None or self._closing.reason != dead.reason
        self._closing = dead
        self._empty_lines(dead)
        for request in self._open:
            request.fail(dead)
        with self._device.changed:
            self._policy.take_all()
        self._device.close()
        if first:
            self._on_death(error)

    def _empty_lines(self, error: ServiceError) -> None:
        for line in self._lines.values():
            while line:
                line.popleft().fail(error)


def _record_batch(computed: Computed[RowT, OutT], report: BatchReport) -> SpanContext | None:
    """Keep a batch as a span if the trace of any of its requests is kept."""
    requests = dict.fromkeys(waiting.row.request for waiting in computed.rows)
    traces = [request.trace for request in requests if request.trace is not None]
    sizes = {"rows": report.row_count, "tokens": report.token_count, "padded_tokens": report.padded_token_count}
    return tracing.record_batch(traces, computed.span, sizes)


def _deadline_spent() -> DeadlineSpent:
    return DeadlineSpent("DEADLINE_SPENT", "no time left while waiting for the device", stage="queue")


def _loop_time(deadline: Deadline) -> float:
    """Return the deadline on the loop's clock."""
    return asyncio.get_running_loop().time() + deadline.remaining()
