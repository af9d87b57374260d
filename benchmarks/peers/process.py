"""A server as a process of this machine: started, waited for, its memory read, and stopped with all its children."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import psutil

START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.1
TAIL_BYTES = 3_000
MIB = 2**20


class NotServing(Exception):
    """A server ended, or gave no answer in time; the message is the end of its log."""


class ServerProcess:
    """One server and its children, in a session of their own.

    Args:
        command: Program and arguments.
        env: Added to this process's environment.
        log: Where standard output and error go.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self._command = command
        self._env = env
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, ready: Callable[[], Awaitable[bool]]) -> float:
        """Start and wait until it is ready; return the seconds that took.

        Raises:
            NotServing: It ended, or was not ready in time.
        """
        begun = asyncio.get_running_loop().time()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env={**os.environ, **self._env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while not await ready():
                    if self._process.returncode is not None:
                        raise NotServing(f"ended with status {self._process.returncode}: {self._tail()}")
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise NotServing(f"not serving after {START_TIMEOUT_S:g} s: {self._tail()}") from None
        return asyncio.get_running_loop().time() - begun

    def resident_mib(self) -> float:
        """Return the resident memory of the process and all its children."""
        return sum(_resident(one) for one in self._tree()) / MIB

    def cpu_s(self) -> float:
        """Return the processor time that the process and all its children have used."""
        return sum(_cpu(one) for one in self._tree())

    def pause(self) -> None:
        """Stop all its processes where they are: some servers poll, and would take time from the one that is asked."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    async def stop(self) -> None:
        """End it and all its children."""
        self.resume()
        tree = self._tree()
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_S)
        for one in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        if self._process is not None:
            await self._process.wait()

    def _tree(self) -> list[psutil.Process]:
        if self._process is None or self._process.returncode is not None:
            return []
        try:
            top = psutil.Process(self._process.pid)
            return [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _signal(self, number: signal.Signals) -> None:
        for one in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(number)

    def _tail(self) -> str:
        return " | ".join(self._log.read_bytes()[-TAIL_BYTES:].decode("utf-8", "replace").strip().splitlines()[-6:])


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
