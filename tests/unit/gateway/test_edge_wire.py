"""Messages between the gateway and the engine's process: how long they may be, and what becomes of longer ones."""

import asyncio
import pickle
import socket
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from gateway.ports import ANSWER_TOO_LARGE
from gateway.stores import edge_process, edge_wire
from gateway.stores.edge_failure import Failure
from gateway.stores.edge_process import IN_FLIGHT, THREAD_BYTES, EdgeProcess, _Line
from gateway.stores.edge_wire import packed
from gateway.stores.edge_worker import answered
from serving.deadline import Deadline
from serving.errors import InferenceFailed, Unavailable

TEXT = "x" * 100_000


def unpacked(message: memoryview) -> Any:
    return pickle.loads(message)  # noqa: S301 - made here


class Counted:
    """Counts how many of its kind are pickled."""

    pickled = 0

    def __reduce__(self) -> Any:
        Counted.pickled += 1
        return str, (TEXT + str(Counted.pickled),)


class Where:
    """Is unpickled as the thread that does it."""

    def __reduce__(self) -> Any:
        return threading.get_ident, ()


@asynccontextmanager
async def line() -> AsyncIterator[tuple[EdgeProcess, socket.socket]]:
    """A line to a process that is a socket of the test's."""
    ours, theirs = socket.socketpair()
    with theirs:
        transport, opened = await asyncio.get_running_loop().create_connection(_Line, sock=ours)
        process = EdgeProcess(Path())
        process._opening = asyncio.create_task(asyncio.sleep(0, opened))
        await process._opening
        yield process, theirs
        transport.abort()


async def asking(process: EdgeProcess, count: int = 1) -> list[asyncio.Task[Any]]:
    """Calls that are under way."""
    tasks = [asyncio.create_task(process.call(Deadline.after(60), "list")) for _ in range(count)]
    await asyncio.wait(tasks, timeout=0)
    return tasks


def test_an_answer_is_packed_no_further_than_it_may_be_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred texts of which three fit are refused after a few, and three are packed as pickle does it."""
    monkeypatch.setattr(edge_wire, "MAX_ANSWER_BYTES", 3 * len(TEXT) + 1_000)
    assert len(unpacked(packed([Counted() for _ in range(3)]))) == 3
    Counted.pickled = 0
    with pytest.raises(InferenceFailed) as raised:
        packed([Counted() for _ in range(100)])
    assert raised.value.reason == ANSWER_TOO_LARGE
    assert Counted.pickled < 6


def test_what_is_too_large_is_answered_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller learns why there is no answer, and how long it waited for its turn."""
    monkeypatch.setattr(edge_wire, "MAX_ANSWER_BYTES", len(TEXT))
    result, failure, queue = unpacked(answered(lambda: [TEXT], 7))
    assert (result, queue) == (None, 7)
    assert isinstance(failure, Failure)
    assert failure.error().reason == ANSWER_TOO_LARGE
    assert unpacked(answered(lambda: "short", 8)) == ("short", None, 8)


@pytest.mark.parametrize(
    "header",
    [
        struct.pack("!iQ", -1, 2**31),  # what CPython's Connection writes before messages of 2 GiB and more
        struct.pack("!i", edge_wire.MAX_ANSWER_BYTES + 1),
    ],
)
async def test_an_answer_longer_than_there_are_any_is_a_lost_line(header: bytes) -> None:
    """All who wait are told so, those without room on the line too; nobody is given a piece of it."""
    async with line() as (process, theirs):
        waiting = await asking(process, IN_FLIGHT + 2)
        theirs.sendall(header + b"PICKLE" * 3)
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(one) for one in outcomes] == [Unavailable] * len(waiting)


async def test_a_request_longer_than_the_line_carries_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not sent, and those before and after it get their own answers."""
    async with line() as (process, theirs):
        monkeypatch.setattr(edge_process, "MAX_REQUEST_BYTES", 10_000)
        (before,) = await asking(process)
        with pytest.raises(InferenceFailed) as raised:
            await process.call(Deadline.after(60), "get", TEXT)
        assert raised.value.reason == ANSWER_TOO_LARGE
        (after,) = await asking(process)
        with Connection(theirs.dup().detach()) as other:
            for number in range(2):
                assert other.recv()[2] == "list"
                other.send((number, None, 0))
        assert await before == (0, 0)
        assert await after == (1, 0)


@pytest.mark.parametrize(("size", "aside"), [(100, False), (THREAD_BYTES, True)])
async def test_a_long_answer_is_unpacked_beside_the_loop(size: int, aside: bool) -> None:  # noqa: FBT001 - a case
    """What takes long to unpickle is unpickled in a thread, and the usual answer at once."""
    async with line() as (process, theirs):
        (asked,) = await asking(process)
        answer = pickle.dumps(((Where(), b"x" * size), None, 0))
        await asyncio.get_running_loop().sock_sendall(nonblocking(theirs), struct.pack("!i", len(answer)) + answer)
        (thread, _), _ = await asked
        assert (thread != threading.get_ident()) == aside


def nonblocking(end: socket.socket) -> socket.socket:
    """A socket as the loop writes to it."""
    end.setblocking(False)
    return end
