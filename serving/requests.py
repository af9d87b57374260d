"""One request on its way through the batches: its rows, its outputs in order, and where its time went."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from opentelemetry.context import Context
from opentelemetry.trace import SpanContext

from serving import tracing
from serving.batching import Priority, Waiting
from serving.errors import DeviceOutOfMemory, InferenceFailed, ServiceError


class Row(Protocol):
    """Anything with a length in tokens."""

    def __len__(self) -> int:
        """Tokens."""
        ...


RowT = TypeVar("RowT", bound=Row)
OutT = TypeVar("OutT")
Span = tuple[int, int]
"""Begin and end of a computed batch in nanoseconds on the monotonic clock."""


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
class Request(Generic[RowT, OutT]):
    """One request's rows on their way."""

    future: asyncio.Future[None]
    """Done when every row has its output, or the request has failed."""
    waiting: "list[Waiting[Place[RowT, OutT]]]"
    """The rows, in order."""
    outputs: list[OutT | None]
    missing: int
    trace: Context | None = field(default_factory=tracing.kept)
    """What the spans of this request belong to; None where none are kept."""
    batches: dict[Span, SpanContext | None] = field(default_factory=dict)
    """Every batch that held one of the rows, and its own span where one is kept."""

    @classmethod
    def of(cls, rows: Sequence[RowT], *, arrived: float, deadline: float, priority: Priority) -> "Request[RowT, OutT]":
        """Make a request of the running loop; the times are seconds on the monotonic clock."""
        request = cls(asyncio.get_running_loop().create_future(), [], [None] * len(rows), len(rows))
        request.waiting = [
            Waiting(Place(request, index, row), len(row), arrived, deadline, priority) for index, row in enumerate(rows)
        ]
        return request

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(row.length for row in self.waiting)

    def fail(self, error: ServiceError) -> None:
        """End with an error, unless it has ended."""
        if not self.future.done():
            self.future.set_exception(error)

    def computed(self, span: Span, batch: SpanContext | None) -> None:
        """Note a batch that held one of the rows."""
        self.batches[span] = batch

    def put(self, index: int, output: OutT) -> None:
        """Take one row's output."""
        self.outputs[index] = output
        self.missing -= 1
        if self.missing == 0 and not self.future.done():
            self.future.set_result(None)

    def answer(self, begun: int) -> Answer[OutT]:
        """Sum up a complete request that began at so many nanoseconds."""
        compute = _union(self.batches)
        ended = max(end for _, end in self.batches)
        outputs = [output for output in self.outputs if output is not None]
        return Answer(outputs=outputs, queue=ended - begun - compute, compute=compute)

    def record(self, begun: int, error: BaseException | None = None) -> None:
        """Keep where the time went as spans, the same times of which `answer` is the sum.

        Args:
            begun: When it began, in nanoseconds.
            error: What it ended with instead of an answer.
        """
        if self.trace is None:
            return
        reached, reason = begun, "" if error is None else tracing.why(error)
        failed = isinstance(error, InferenceFailed | DeviceOutOfMemory) and bool(self.batches)
        last = max(self.batches, default=None)  # nothing is computed any more of a request that has failed
        for (begin, end), batch in sorted(self.batches.items(), key=lambda item: item[0]):
            if begin > reached:
                tracing.record(self.trace, "queue", (reached, begin))
            tracing.record(
                self.trace,
                "compute",
                (begin, end),
                batch=batch,
                reason=reason if failed and (begin, end) == last else "",
            )
            reached = max(reached, end)
        if error is not None and not failed:
            tracing.record(self.trace, "queue", (reached, time.monotonic_ns()), reason=reason)


@dataclass(frozen=True, slots=True)
class Place(Generic[RowT, OutT]):
    """Where a waiting row belongs."""

    request: Request[RowT, OutT]
    index: int
    row: RowT


def _union(spans: Iterable[Span]) -> int:
    """Return the length of the union of spans."""
    total, reached = 0, 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total
