"""Several channels that stand for one."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.connections import Connections

KINDS = ["unary_unary", "unary_stream", "stream_unary", "stream_stream"]


class FakeChannel:
    """Makes calls that answer with who was called, how and with what."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.closed_after: list[float | None] = []

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        if kind not in KINDS:
            raise AttributeError(kind)

        def make(method: str, *made: Any) -> Callable[..., Any]:
            return lambda *request, **options: (self.number, kind, method, made, request, options)

        return make

    async def close(self, grace: float | None = None) -> None:
        self.closed_after.append(grace)


@pytest.mark.parametrize("kind", KINDS)
def test_calls_take_the_channels_in_turn(kind: str) -> None:
    """Seven calls over three channels go round twice and begin again, with all that they were given."""
    call = getattr(Connections([FakeChannel(number) for number in range(3)]), kind)("/a", "serializer")  # type: ignore[list-item]
    answers = [call("request", timeout=1) for _ in range(7)]
    assert [answer[0] for answer in answers] == [0, 1, 2, 0, 1, 2, 0]
    assert {str(answer[1:]) for answer in answers} == {
        str((kind, "/a", ("serializer",), ("request",), {"timeout": 1})),
    }


def test_every_method_has_turns_of_its_own() -> None:
    """A method that is called rarely does not take another one's turn."""
    connections = Connections([FakeChannel(0), FakeChannel(1)])  # type: ignore[list-item]
    often, rarely = connections.unary_unary("/often"), connections.unary_unary("/rarely")
    assert [call()[0] for call in (often, rarely, often, rarely)] == [0, 0, 1, 1]


async def test_leaving_closes_all() -> None:
    """No connection is left open, and whoever closes may give calls time."""
    channels = [FakeChannel(0), FakeChannel(1)]
    async with Connections(channels) as connections:  # type: ignore[arg-type]
        await connections.close(2.5)
    assert [channel.closed_after for channel in channels] == [[2.5, None]] * 2


async def test_all_are_closed_at_the_same_time() -> None:
    """The grace of many connections is that of one."""
    both = asyncio.Barrier(2)

    class Meeting(FakeChannel):
        async def close(self, grace: float | None = None) -> None:
            await both.wait()

    async with asyncio.timeout(20):
        await Connections([Meeting(0), Meeting(1)]).close()  # type: ignore[list-item]
