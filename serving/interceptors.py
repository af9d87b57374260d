"""The outermost layer of every call: errors become statuses, every call one log line, one metric and one span.

UNKNOWN never leaves a server: not for an exception, not for a request that is no valid message, not for a handler that
returns nothing or something that cannot be sent, and not for an inner await that somebody cancelled, after which gRPC
would send nothing at all.
"""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from opentelemetry.trace import Tracer

from serving import tracing
from serving.deadline import seems_over
from serving.errors import InvalidRequest, NotReady
from serving.metrics import ServerMetrics
from serving.status import code_of, reason_of, to_status

log = logging.getLogger("serving.calls")

MAX_REQUEST_ID = 64
MALFORMED = "not a valid message; is all text UTF-8?"

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class _Malformed:
    """Stands for a request that could not be parsed."""


class CallGuard(grpc.aio.ServerInterceptor):
    """Guards the methods of our own services; health, reflection and channelz pass through.

    Args:
        services: Full names of the services to guard.
        metrics: Where calls are counted.
        tracer: Makes their spans; None makes none.
    """

    def __init__(self, services: tuple[str, ...], metrics: ServerMetrics, tracer: Tracer | None = None) -> None:
        self._prefixes = tuple(f"/{name}/" for name in services)
        self._metrics = metrics
        self._tracer = tracer

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """Wrap the handler that is about to be called."""
        handler = await continuation(handler_call_details)
        path: str = handler_call_details.method
        if handler is None or not path.startswith(self._prefixes):
            return handler
        return self._wrap(handler, path)

    def _wrap(self, handler: Handler, path: str) -> Handler:
        make, behaviour = _PARTS[(handler.request_streaming, handler.response_streaming)]
        inner = getattr(handler, behaviour)

        # Serialized in here and not by gRPC, so that a response that cannot be is an error like any other.
        serialize = handler.response_serializer or bytes

        async def one(request: Any, context: Context) -> bytes:
            async with self._guard(path, context):
                response = await inner(_parsed(request, streaming=handler.request_streaming), context)
                if response is None:
                    raise RuntimeError(f"{path} returned nothing")
                return serialize(response)

        async def many(request: Any, context: Context) -> AsyncIterator[bytes]:
            async with self._guard(path, context):
                responses = inner(_parsed(request, streaming=handler.request_streaming), context)
                async with aclosing(responses):
                    async for response in responses:
                        yield serialize(response)

        wrapped: Handler = make(
            many if handler.response_streaming else one,
            request_deserializer=_tolerant(handler.request_deserializer),
        )
        return wrapped

    @asynccontextmanager
    async def _guard(self, path: str, context: Context) -> AsyncIterator[None]:
        begun, budget, method = time.monotonic_ns(), context.time_remaining(), path.rpartition("/")[2]
        metadata = tuple(context.invocation_metadata() or ())
        tracing.request_id.set(_request_id(metadata))  # never reset: every call is a task with a context of its own
        kept = tracing.begin(self._tracer, path, metadata, begun)
        code, reason = grpc.StatusCode.OK, ""
        running = self._metrics.running(method)
        running.inc()
        try:
            yield
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                code = _code_of_leaving(context, budget)  # nobody listens any more
                raise
            code, reason = grpc.StatusCode.UNAVAILABLE, "CANCELLED_INSIDE"
            await _abort(context, NotReady(reason, "the work for this call was cancelled"))
        except grpc.aio.AbortError:
            raise
        except GeneratorExit:
            code = _code_of_leaving(context, budget)
            raise
        except Exception as error:  # noqa: BLE001 - this is where every error ends
            code, reason = code_of(error), reason_of(error)
            await _abort(context, error)
        finally:
            code = context.code() or code  # what a handler has set or aborted with is what the caller sees
            ended = time.monotonic_ns()
            seconds = (ended - begun) / 1e9
            running.dec()
            self._metrics.calls.labels(method, code.name).inc()
            self._metrics.observe_call(method, seconds)
            if kept is not None:
                kept.end(code, reason, ended)
            log.debug("%s %s %.1f ms", method, code.name, seconds * 1e3)


def _code_of_leaving(context: Context, budget: float | None) -> grpc.StatusCode:
    """Tell a caller whose time was over from one who hung up."""
    left = context.time_remaining()
    late = budget is not None and left is not None and seems_over(left, budget)
    return grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED


async def _abort(context: Context, error: BaseException) -> None:
    """Answer with the status of an error, keeping trailing metadata that the handler has set."""
    error_id = uuid.uuid4().hex[:12]
    status = to_status(error, error_id)
    if status.code is grpc.StatusCode.INTERNAL:
        log.error("internal error, error_id=%s", error_id, exc_info=error)
    else:
        log.info("%s %s: %s", status.code.name, reason_of(error), status.details)
    trailing = (*(context.trailing_metadata() or ()), *status.trailing_metadata)
    await context.abort(status.code, status.details, trailing)


def _request_id(metadata: tracing.Metadata) -> str:
    given = str(dict(metadata).get(tracing.REQUEST_ID_KEY, ""))[:MAX_REQUEST_ID]
    if given and given.isascii() and given.isprintable():  # so that it can be metadata again
        return given
    # Not a secret, so it needs no randomness from the system, which uuid4 asks for.
    return f"{random.getrandbits(64):016x}"


def _tolerant(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    """Keep gRPC from answering UNKNOWN to bytes that are no message, such as text that is not UTF-8."""

    def parse(data: bytes) -> Any:
        try:
            return deserialize(data) if deserialize else data
        except (DecodeError, ValueError):
            return _Malformed()

    return parse


def _parsed(request: Any, *, streaming: bool) -> Any:
    if streaming:
        return _parsed_stream(request)
    if isinstance(request, _Malformed):
        raise InvalidRequest("REQUEST_MALFORMED", MALFORMED, field="request")
    return request


async def _parsed_stream(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _parsed(request, streaming=False)


# (request streaming, response streaming) -> how gRPC makes such a handler, and the name of the behaviour in it.
_PARTS: dict[tuple[bool, bool], tuple[Any, str]] = {
    (False, False): (grpc.unary_unary_rpc_method_handler, "unary_unary"),
    (False, True): (grpc.unary_stream_rpc_method_handler, "unary_stream"),
    (True, False): (grpc.stream_unary_rpc_method_handler, "stream_unary"),
    (True, True): (grpc.stream_stream_rpc_method_handler, "stream_stream"),
}
