"""An EdgeRoot in a process of its own.

The engine's binding keeps Python's global lock during every call, waits for the disk included: a query of 16 ms stalls
every other thread for 11, and a flush was seen to take 180. In a process of its own it stalls nobody, and a crash of
the engine is not a crash of the gateway.

The event loop itself talks to the process. A thread in between would ask for the global lock three times per call, and
each time wait up to 5 ms for a loop that is busy: 32 callers at once were then answered at half the rate.
"""

import asyncio
import os
import pickle
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self, cast

from gateway.stores.edge_failure import Failure
from gateway.stores.edge_wire import HEADER, MAX_ANSWER_BYTES, MAX_REQUEST_BYTES
from gateway.stores.records import answer_too_large
from serving.deadline import Deadline
from serving.errors import ServiceError, Unavailable

CLOSING_S = 10.0
"""How long the process may take to answer what was accepted, and then to write everything down, before it is killed."""
IN_FLIGHT = 4
"""Calls handed over at once: enough that the engine has the next one while the loop is busy; the others can still be
given up."""
THREAD_BYTES = 1024 * 1024
"""Answers from this size on are unpickled in a thread: the loop would stand still."""


class EdgeProcess:
    """Runs `gateway.stores.edge_worker`; started anew by the first call after it was found dead.

    Args:
        root: The store's directory.
        closing_s: As `CLOSING_S`.
    """

    def __init__(self, root: Path, closing_s: float = CLOSING_S) -> None:
        self._root = root
        self._closing_s = closing_s
        self._process: subprocess.Popen[bytes] | None = None
        self._opening: asyncio.Task[_Line] | None = None

    @classmethod
    async def open(cls, root: Path, closing_s: float = CLOSING_S) -> Self:
        """Start the process and wait until the store is open.

        Raises:
            Misconfigured: As `EdgeRoot.open`.
            Unavailable: `STORE_DOWN`, the process ended.
        """
        started = cls(root, closing_s)
        await started._line()
        return started

    async def call(self, deadline: Deadline, operation: str, *args: Any, **kwargs: Any) -> tuple[Any, int]:
        """Call a method of the EdgeRoot; return what it returns, and the nanoseconds until it was begun.

        It is never begun after the deadline; the caller sees to it that it waits no longer.

        Raises:
            ServiceError: What it raised there.
            InferenceFailed: `ANSWER_TOO_LARGE`, what is sent or what comes back is longer than a message may be.
            Unavailable: `STORE_DOWN`, the process ended; whether it had done the work is not known.
        """
        # The monotonic clock is the machine's: the other process reads the same.
        message = pickle.dumps((time.monotonic_ns(), deadline, operation, args, kwargs))
        if len(message) > MAX_REQUEST_BYTES:
            raise answer_too_large()
        line = await self._line()
        try:
            data = await line.ask(message)
        except ConnectionError as error:
            raise Unavailable("STORE_DOWN", "the vector store's process ended; it is started again") from error
        result, failure, queue = await _unpacked(data)
        if failure is not None:
            raise cast("Failure", failure).error()
        return result, queue

    async def close(self) -> None:
        """Let the process finish what was accepted, write everything down and end; one that stands still is killed."""
        if self._opening is not None:
            with suppress(ServiceError):  # it could not be started again
                await (await self._opening).close(self._closing_s)
        await asyncio.to_thread(self._reap)

    async def _line(self) -> "_Line":
        """Return the line to the process, which is started where it is not running; the start outlives its caller."""
        if self._opening is None or _useless(self._opening):
            self._opening = asyncio.create_task(self._open())
        return await asyncio.shield(self._opening)

    async def _open(self) -> "_Line":
        ours = await asyncio.to_thread(self._start)
        _, line = await asyncio.get_running_loop().create_connection(_Line, sock=ours)
        return line

    def _start(self) -> socket.socket:
        self._reap()
        ours, theirs = socket.socketpair()
        with theirs:
            handle = theirs.fileno()
            command = [sys.executable, "-P", "-m", "gateway.stores.edge_worker", str(self._root), str(handle)]
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                command, pass_fds=[handle], stdin=subprocess.DEVNULL
            )
        try:
            failure = _first_report(ours)
        except (EOFError, OSError) as error:
            ours.close()
            self._reap()
            raise Unavailable("STORE_DOWN", "the vector store's process ended while it started") from error
        if failure is not None:
            ours.close()
            self._reap()
            raise failure.error()
        return ours

    def _reap(self) -> None:
        if self._process is not None:
            try:
                self._process.wait(self._closing_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


class _Line(asyncio.Protocol):
    """Messages to the process and its answers, which come in the same order."""

    def __init__(self) -> None:
        self.lost = False
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._asked: deque[asyncio.Future[bytes]] = deque()
        self._read = bytearray()

    async def ask(self, message: bytes) -> bytes:
        """Send a message and return its answer; a caller that leaves while it waits for room has asked nothing.

        Raises:
            ConnectionError: The process ended first.
        """
        await self._room.acquire()
        if self.lost:
            self._room.release()
            raise ConnectionResetError
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        self._transport.writelines((HEADER.pack(len(message)), message))
        return await answer

    async def close(self, patience_s: float) -> None:
        """Hang up once everything is answered, or when that takes too long."""
        try:
            async with asyncio.timeout(patience_s):
                for _ in range(IN_FLIGHT):
                    await self._room.acquire()
        except TimeoutError:
            self._transport.abort()
        else:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Hand over every answer that is whole."""
        self._read += data
        while len(self._read) >= HEADER.size:
            size = HEADER.unpack_from(self._read)[0]
            if not 0 <= size <= MAX_ANSWER_BYTES:  # what follows would be taken for other answers
                self.lost = True
                self._transport.abort()
                return
            end = HEADER.size + size
            if len(self._read) < end:
                return
            answer = self._asked.popleft()
            if not answer.done():
                answer.set_result(bytes(memoryview(self._read)[HEADER.size : end]))
            del self._read[:end]
            self._room.release()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail whoever waits, also for room."""
        self.lost = True
        for answer in self._asked:
            if not answer.done():
                answer.set_exception(ConnectionResetError(str(error or "")))
            self._room.release()
        self._asked.clear()


async def _unpacked(data: bytes) -> Any:
    if len(data) < THREAD_BYTES:
        return pickle.loads(data)  # noqa: S301 - our own program
    return await asyncio.to_thread(pickle.loads, data)


def _useless(opening: "asyncio.Task[_Line]") -> bool:
    """Tell whether a start has failed, or what it started has ended."""
    return opening.done() and (opening.cancelled() or opening.exception() is not None or opening.result().lost)


def _first_report(ours: socket.socket) -> Failure | None:
    """Wait until the store is open; return why it is not."""
    with Connection(os.dup(ours.fileno())) as connection:
        _, failure, _ = connection.recv()
    return cast("Failure | None", failure)
