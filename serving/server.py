"""A gRPC server with truthful health: NOT_SERVING from the moment the port opens until told otherwise."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, TypeAlias

import grpc
from grpc_channelz.v1 import channelz
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from opentelemetry.trace import Tracer

from serving.auth import Access
from serving.deadline import Deadline
from serving.doors import address, bind, open_guards
from serving.errors import Misconfigured
from serving.metrics import ServerMetrics
from serving.running_calls import RunningCalls
from serving.settings import ServerSettings

log = logging.getLogger(__name__)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
HEALTH_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
OVERALL = ""
"""The name that Kubernetes and grpc_health_probe ask for when told none."""
NOTICE_S = 0.05
"""Seconds in which a watcher of the health hears of the drain before its watch ends, and of that before it is cut."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class _Health(health_pb2_grpc.HealthServicer):
    """The health of services, and watches that end at the drain: they never end by themselves, and use up its grace.

    Nothing is held while a watcher is written to: one that does not read would keep everybody else waiting. Such a one
    hears of no end, for gRPC lets no status overtake a message; it is cut when the server has no more to do.
    """

    def __init__(self) -> None:
        self._statuses: dict[str, int] = {}
        self._changed = asyncio.Event()
        """Set once, at the next change, and then replaced."""
        self._draining = False

    def set(self, names: Sequence[str], status: int) -> None:
        """Change the health of some names together."""
        self._statuses.update(dict.fromkeys(names, status))
        self._tell_watches()

    async def Check(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """Tell the health of a name, or NOT_FOUND."""
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:  # noqa: N802
        """Tell the health of a name at once and at every change, until the caller leaves or the server drains."""
        told = None
        while True:
            changed, status = self._changed, self._statuses.get(request.service, SERVICE_UNKNOWN)
            if status != told:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                told = status
            elif self._draining:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "this server is shutting down")
            else:
                await changed.wait()

    def end_watches(self) -> None:
        """End all watches, also those that are yet to come."""
        self._draining = True
        self._tell_watches()

    def _tell_watches(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class RunningServer:
    """A server whose port is open.

    Args:
        server: The gRPC server, started.
        health_servicer: Its health service.
        names: Every name whose health is kept, the overall one included.
        port: The port it listens on.
        calls: Those of our own services that are running.
    """

    def __init__(
        self, server: grpc.aio.Server, health_servicer: _Health, names: Sequence[str], port: int, calls: RunningCalls
    ) -> None:
        self.port = port
        self._server = server
        self._health = health_servicer
        self._names = names
        self._calls = calls

    async def set_serving(self, *, serving: bool) -> None:
        """Set the health of every service together, so that no probe sees half of it."""
        self._health.set(self._names, SERVING if serving else NOT_SERVING)

    async def drain(self, *, delay_s: float, grace_s: float) -> None:
        """Say NOT_SERVING, keep answering for `delay_s`, then let running calls end within `grace_s`.

        What then still runs of health, reflection and channelz is cut.
        """
        await self.set_serving(serving=False)
        await asyncio.sleep(max(delay_s, NOTICE_S))
        self._health.end_watches()
        stopping = asyncio.create_task(self._server.stop(grace_s))
        ended = asyncio.create_task(self._ended())
        try:
            await asyncio.wait([stopping, ended], return_when=asyncio.FIRST_COMPLETED)
            await self._server.stop(0)
            await stopping
        finally:
            stopping.cancel()
            ended.cancel()

    async def _ended(self) -> None:
        """Wait until the calls of our own services have ended, those too that were taken in the last moment."""
        await asyncio.sleep(NOTICE_S)
        await self._calls.ended()


@asynccontextmanager
async def open_server(
    settings: ServerSettings,
    metrics: ServerMetrics,
    services: dict[str, Callable[[grpc.aio.Server], None]],
    access: Access | None = None,
) -> AsyncIterator[RunningServer]:
    """Open the port with health NOT_SERVING; on leaving, cut what still runs (drain first).

    Args:
        settings: Where to listen and what to allow.
        metrics: Where calls are counted.
        services: Full service name -> what adds it to the server.
        access: What the services make of a caller's scope; None where they have no scopes.

    Raises:
        Misconfigured: The address cannot be bound, or keys, certificates or the way to a collector are wrong.
    """
    # The tracer goes last: spans of calls that are cut are sent, too.
    async with _tracer(settings, metrics.service) as tracer:
        calls = RunningCalls(tuple(services))
        guards = open_guards(settings, metrics, tuple(services), access, tracer)
        server = grpc.aio.server(interceptors=[calls, *guards], options=_options(settings))
        for add in services.values():
            add(server)
        health_servicer, names = _Health(), [OVERALL, *services]
        health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
        health_servicer.set(names, NOT_SERVING)
        if settings.reflection:
            reflection.enable_server_reflection([*services, HEALTH_SERVICE, reflection.SERVICE_NAME], server)
        if settings.channelz:
            channelz.add_channelz_servicer(server)
        port = bind(server, settings)
        close_metrics = _serve_metrics(metrics, settings.metrics_port)
        try:
            async with _health_apart(settings, health_servicer):
                await server.start()
                log.info("listening on %s:%d, not serving yet", settings.host, port)
                yield RunningServer(server, health_servicer, names, port, calls)
        finally:
            await server.stop(0)
            close_metrics()


def _tracer(settings: ServerSettings, service: str) -> AbstractAsyncContextManager[Tracer | None]:
    """Open what makes spans, where the settings say where they go."""
    if settings.otlp_endpoint is None:
        return nullcontext()
    from serving.tracing_setup import open_tracer  # noqa: PLC0415 - the SDK, and a sixth of a second

    return open_tracer(service, settings.otlp_endpoint, settings.trace_share)


@asynccontextmanager
async def _health_apart(settings: ServerSettings, health_servicer: _Health) -> AsyncIterator[None]:
    """Serve the same health on a port of its own, where the settings name one."""
    if not settings.health_port:
        yield
        return
    server = grpc.aio.server(options=_options(settings))
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    where = address(settings.host, settings.health_port)
    try:
        server.add_insecure_port(where)
    except RuntimeError as error:
        raise Misconfigured("ADDRESS_UNAVAILABLE", f"cannot answer health checks on {where}") from error
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


def deadline_of(context: Context, default_s: float) -> Deadline:
    """Return the caller's deadline, or the server's default where the caller set none."""
    remaining = context.time_remaining()
    return Deadline.after(default_s if remaining is None else remaining)


def _serve_metrics(metrics: ServerMetrics, port: int) -> Callable[[], None]:
    try:
        return metrics.serve(port)
    except OSError as error:
        raise Misconfigured("ADDRESS_UNAVAILABLE", f"cannot serve metrics on port {port}: {error.strerror}") from error


def _options(settings: ServerSettings) -> list[tuple[str, int]]:
    return [
        # With the default of 1 a second server binds the same port and the two share the traffic at random, which only
        # workers of one parent are to do.
        ("grpc.so_reuseport", int(settings.parent_pid is not None)),
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Without a grace option: a call that is running when its connection is old enough ends when it ends.
        ("grpc.max_connection_age_ms", int(settings.max_connection_age_s * 1000)),
        # The spelling with `recv` that many use is silently ignored.
        ("grpc.http2.min_ping_interval_without_data_ms", int(settings.min_ping_interval_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
