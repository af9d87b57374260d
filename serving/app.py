"""What the two model servers have in common: open the port, load the engine, say SERVING; drain in reverse."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc

from serving.bundle import Kind
from serving.engine import Engine, EngineSlot, open_engine
from serving.metrics import ServerMetrics
from serving.process import Fatal
from serving.server import RunningServer, open_server
from serving.settings import ModelServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServer:
    """A model server that says SERVING."""

    running: RunningServer
    engine: Engine

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self.running.port


@asynccontextmanager
async def open_model_server(
    settings: ModelServerSettings,
    kind: Kind,
    services: Callable[[EngineSlot, ServerMetrics], dict[str, Callable[[grpc.aio.Server], None]]],
    on_fatal: Fatal = lambda _: None,
) -> AsyncIterator[ModelServer]:
    """Open a model server; leaving drains it.

    Args:
        settings: What to load and where to listen.
        kind: What the bundle has to be; also the prefix of the metrics.
        services: Makes full service name -> what adds it to a server.
        on_fatal: Told where the server cannot go on.

    Raises:
        Misconfigured: An operator has to act.
    """
    metrics, slot = ServerMetrics(kind), EngineSlot()
    async with AsyncExitStack() as stack:
        # The port opens first, so that probes are answered NOT_SERVING, and a taken port is known, before the load.
        running = await stack.enter_async_context(open_server(settings, metrics, services(slot, metrics)))

        dying: list[asyncio.Task[None]] = []

        def die(error: BaseException) -> None:
            dying.append(asyncio.create_task(running.set_serving(serving=False)))
            on_fatal(error)

        engine = await stack.enter_async_context(open_engine(settings, kind, metrics, die))
        slot.fill(engine)
        # Left first: calls end while the batcher still computes.
        stack.push_async_callback(running.drain, delay_s=settings.drain_delay_s, grace_s=settings.grace_s)
        await running.set_serving(serving=True)
        yield ModelServer(running=running, engine=engine)
