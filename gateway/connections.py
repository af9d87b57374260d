"""Several connections to each address of a target, that stand for one channel."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, Self

import grpc


class Connections:
    """Channels to one target, none of which shares a connection with another; calls take them in turn.

    Args:
        channels: All opened in the same way; closed with this.
    """

    def __init__(self, channels: Sequence[grpc.aio.Channel]) -> None:
        self._channels = channels

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Close all at once; calls that run may take `grace` seconds more."""
        await asyncio.gather(*(channel.close(grace) for channel in self._channels))

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Return what makes such calls."""
        return _in_turn([channel.unary_unary(method, *args, **kwargs) for channel in self._channels])

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Return what makes such calls."""
        return _in_turn([channel.unary_stream(method, *args, **kwargs) for channel in self._channels])

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Return what makes such calls."""
        return _in_turn([channel.stream_unary(method, *args, **kwargs) for channel in self._channels])

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Return what makes such calls."""
        return _in_turn([channel.stream_stream(method, *args, **kwargs) for channel in self._channels])


def _in_turn(calls: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    turns = cycle(calls)

    def send(*request: Any, **options: Any) -> Any:
        return next(turns)(*request, **options)

    return send
