"""Which calls have not ended: what a drain waits for."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc


class RunningCalls(grpc.aio.ServerInterceptor):
    """Knows the calls of our own services from before their request is read until their status is sent.

    Health, reflection and channelz do no work that anybody waits for, and their streams would never end by themselves.

    Args:
        services: Full names of our own services.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self._prefixes = tuple(f"/{name}/" for name in services)
        self._calls: set[asyncio.Task[Any]] = set()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any] | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Note the call, which is the task that this runs in."""
        call = asyncio.current_task()
        if call is not None and handler_call_details.method.startswith(self._prefixes):
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        return await continuation(handler_call_details)

    async def ended(self) -> None:
        """Wait until no call is running."""
        while self._calls:
            await asyncio.wait(self._calls)
