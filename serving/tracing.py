"""Which call and which trace the running code belongs to: told in log lines, passed on in metadata, kept as spans.

This is OpenTelemetry's API alone. Where a server has no tracer (`serving.tracing_setup` makes them) no span is made,
and the trace of a caller goes on to the next server as it came. Spans hold counts, reasons and times, never text.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import ParamSpec, TypeAlias, TypeVar, cast

import grpc
from opentelemetry import context
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    format_span_id,
    format_trace_id,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from serving.status import reason_of

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
Times: TypeAlias = tuple[int, int]
"""Begin and end in nanoseconds on the monotonic clock."""

REQUEST_ID_KEY = "x-request-id"
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
W3C = TraceContextTextMapPropagator()
# What W3C asks to be passed on at least. gRPC refuses more than 8 KiB of metadata, the caller's and ours together.
MAX_TRACESTATE = 512
MAX_SPANS = 1_000
"""Spans and traced calls under one call: a stream may go on for hours, and its trace still has to be read."""
FAULTS = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""The statuses that are a server's fault and not its caller's. Source: OpenTelemetry's conventions for gRPC spans."""

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the call being handled: the caller's `x-request-id`, or one of ours."""

_KEPT = context.create_key("twostage-kept")


def _harmless(trace: Callable[P, R]) -> Callable[P, R | None]:
    """Log what goes wrong in tracing, and return None: no call is to fail of it."""

    @wraps(trace)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return trace(*args, **kwargs)
        except Exception:
            log.exception("a span is lost")
            return None

    return guarded


class _Epoch:
    """How far the epoch, from which spans count, is from the monotonic clock, on which all times are taken."""

    STEP = 1_000_000
    """What is less is the time between two looks at clocks, and no step of one of them."""

    def __init__(self) -> None:
        self._distance = 0

    def distance(self) -> int:
        """Return the nanoseconds to add; the same for all calls, so that one moment is one number in every span."""
        distance = time.time_ns() - time.monotonic_ns()
        if abs(distance - self._distance) > self.STEP:
            self._distance = distance
        return self._distance


_EPOCH = _Epoch()


@dataclass(slots=True, eq=False)
class Kept:
    """A call whose spans are kept."""

    span: Span
    """Of the call itself."""
    tracer: Tracer
    to_epoch: int
    """Nanoseconds to add to the monotonic clock."""
    room: int = field(default_factory=lambda: MAX_SPANS)

    def take_room(self) -> bool:
        """Tell whether there may be one more span under this call, and count it."""
        self.room -= 1
        return self.room >= 0

    @_harmless
    def end(self, code: grpc.StatusCode, reason: str, ended: int) -> None:
        """End the call's own span.

        Args:
            code: What the caller saw.
            reason: Why, in one word; empty where the code is all that is known.
            ended: When, in nanoseconds on the monotonic clock.
        """
        self.span.set_attribute("rpc.grpc.status_code", code.value[0])
        if code is not grpc.StatusCode.OK:
            self.span.set_attribute("error.type", reason or code.name)
        if code in FAULTS:
            self.span.set_status(Status(StatusCode.ERROR, reason or code.name))
        self.span.end(ended + self.to_epoch)


@_harmless
def begin(tracer: Tracer | None, path: str, metadata: Metadata, begun: int) -> Kept | None:
    """Make the caller's trace that of the running task, and begin a span; None where spans of this call are not kept.

    The task is the call's own: what is attached to it here is never detached.

    Args:
        tracer: Makes spans; None makes none.
        path: "/package.Service/Method".
        metadata: The call's; what in it is no trace context is ignored.
        begun: When, in nanoseconds on the monotonic clock.
    """
    here = _caller(metadata)
    if here:
        context.attach(here)
    if tracer is None or (here and not get_current_span(here).get_span_context().trace_flags.sampled):
        return None  # the caller has decided, and it is not worth asking the SDK, which would agree
    service, _, method = path.strip("/").rpartition("/")
    attributes = {
        "rpc.system": "grpc",
        "rpc.service": service,
        "rpc.method": method,
        "twostage.request_id": request_id.get(),
    }
    to_epoch = _EPOCH.distance()
    name, kind = f"{service}/{method}", SpanKind.SERVER
    span = tracer.start_span(name, here, kind, attributes, start_time=begun + to_epoch)
    here = set_span_in_context(span, here)
    call = Kept(span, tracer, to_epoch) if span.is_recording() else None
    context.attach(here if call is None else context.set_value(_KEPT, call, here))
    return call


@contextmanager
def stage(name: str) -> Iterator[Span]:
    """Keep a stage as a span, of which the calls made in it are children; yield the span for attributes."""
    here = kept()
    span = None if here is None else _start(here, name, time.monotonic_ns(), kind=SpanKind.CLIENT)
    if here is None or span is None or span is INVALID_SPAN:
        yield INVALID_SPAN
        return
    context.attach(set_span_in_context(span, here))
    try:
        yield span
    except BaseException as error:
        _fail(span, why(error))
        raise
    finally:
        span.end(time.monotonic_ns() + _kept(here).to_epoch)
        context.attach(here)  # not detached: a token is worth nothing where a generator is closed by somebody else


def kept() -> Context | None:
    """Return where the running code is in its trace; None where no spans are kept of it."""
    here = context.get_current()
    return here if _KEPT in here else None


@_harmless
def record(
    trace: Context | None, name: str, times: Times, *, batch: SpanContext | None = None, reason: str = ""
) -> None:
    """Keep what is over as a span.

    Args:
        trace: What it belongs to, as `kept` has told.
        name: The part of the call.
        times: When.
        batch: The span of the batch that was computed.
        reason: Why it failed, in one word.
    """
    if trace is None:
        return
    span = _start(trace, name, times[0], links=() if batch is None else (Link(batch),)) or INVALID_SPAN
    if reason:
        _fail(span, reason)
    span.end(times[1] + _kept(trace).to_epoch)


@_harmless
def record_batch(traces: Sequence[Context], times: Times, sizes: Mapping[str, int]) -> SpanContext | None:
    """Keep a batch as a span in a trace of its own, with links to the calls whose rows it had.

    Args:
        traces: What the rows belong to, as `kept` has told; none, and there is no span.
        times: When it was computed.
        sizes: Attributes.
    """
    if not traces:
        return None
    calls = {call.span_id: call for call in (get_current_span(trace).get_span_context() for trace in traces)}
    first = _kept(traces[0])
    attributes = {f"twostage.{name}": size for name, size in sizes.items()}
    links = [Link(call) for call in calls.values()]
    begun, ended = times
    span = first.tracer.start_span(
        "batch", Context(), attributes=attributes, links=links, start_time=begun + first.to_epoch
    )
    span.end(ended + first.to_epoch)
    return span.get_span_context()


def outgoing() -> Metadata:
    """Return the metadata with which a call to another server belongs to the call being handled."""
    found: dict[str, str] = {}
    if own := request_id.get():
        found[REQUEST_ID_KEY] = own
    if here := context.get_current():
        W3C.inject(found, here)
        if _KEPT in here and not _kept(here).take_room() and TRACEPARENT in found:
            found[TRACEPARENT] = f"{found[TRACEPARENT][:-2]}00"
    return tuple(found.items())


def ids() -> dict[str, str]:
    """Return request_id, trace_id and span_id of the running code, each where there is one."""
    found = {"request_id": own} if (own := request_id.get()) else {}
    span = get_current_span().get_span_context()
    if span.is_valid:
        found |= {"trace_id": format_trace_id(span.trace_id), "span_id": format_span_id(span.span_id)}
    return found


def exemplar() -> dict[str, str] | None:
    """Return the trace of the running code as an exemplar's labels; None where it is not kept."""
    span = get_current_span().get_span_context()
    return {"trace_id": format_trace_id(span.trace_id)} if span.trace_flags.sampled else None


def why(error: BaseException) -> str:
    """Say in one word why something was not done."""
    return "CANCELLED" if isinstance(error, (asyncio.CancelledError, GeneratorExit)) else reason_of(error)


def _caller(metadata: Metadata) -> Context:
    """Read the trace context of a call; it is empty where there is none or it is malformed."""
    parent = dict(metadata).get(TRACEPARENT)
    if parent is None:
        return Context()
    states = [value for key, value in metadata if key == TRACESTATE]
    if sum(map(len, states)) > MAX_TRACESTATE:
        states = []
    return W3C.extract({TRACEPARENT: [parent], TRACESTATE: states})


def _kept(trace: Context) -> Kept:
    return cast(Kept, trace[_KEPT])  # nobody else has the key


@_harmless
def _start(
    trace: Context, name: str, begun: int, *, kind: SpanKind = SpanKind.INTERNAL, links: Iterable[Link] = ()
) -> Span:
    call = _kept(trace)
    if not call.take_room():
        return INVALID_SPAN
    return call.tracer.start_span(name, trace, kind, links=tuple(links), start_time=begun + call.to_epoch)


def _fail(span: Span, reason: str) -> None:
    span.set_attribute("error.type", reason)
    span.set_status(Status(StatusCode.ERROR, reason))
