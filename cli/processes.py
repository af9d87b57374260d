"""The three servers as processes of this machine: started together, watched, and stopped in order.

Every server is configured through its environment variables alone, as a container would be. Each gets a session of its
own, so that the terminal's Ctrl-C reaches only the parent, which then stops the gateway before what it calls; and each
is tethered to the parent (`cli.tether`), so that none outlives it.
"""

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from cli import addresses
from cli.access import PLAIN, access
from cli.health import until_serving
from cli.home import Device
from serving.errors import ServiceError

MODULES = {"gateway": "gateway", "encoder": "encoder_server", "reranker": "reranker_server"}
STOP_ORDER = (("gateway",), ("encoder", "reranker"))
TAIL_LINES = 12
MAX_LINE_BYTES = 1024 * 1024
LOG_TIMEOUT_S = 2.0
STOP_TIMEOUT_S = 40.0
"""Longer than the 30 s in which a server lets running calls end."""

OnLine = Callable[[str, str], None]
"""Told the server's name and one line of its log."""


class ServerEnded(ServiceError):
    """A server ended on its own, or did not get as far as serving."""

    def __init__(self, name: str, what: str, tail: Sequence[str]) -> None:
        super().__init__("SERVER_ENDED", f"the {name} {what}", server=name)
        self.tail = tuple(tail)
        """Its last log lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemConfig:
    """What to start, and where."""

    encoder_bundle: Path
    reranker_bundle: Path
    store: Path
    synonyms: Path | None = None
    """Directory of the gateway's synonyms."""
    host: str = "127.0.0.1"
    gateway_port: int
    encoder_port: int
    reranker_port: int
    device: Device = "auto"
    log_format: Literal["text", "json"] = "text"
    start_timeout_s: float = 300.0
    """Time for all to say SERVING; reading, verifying and testing a large model takes minutes on a slow disk."""

    @property
    def ports(self) -> Mapping[str, int]:
        """Server to port."""
        return {"gateway": self.gateway_port, "encoder": self.encoder_port, "reranker": self.reranker_port}

    def address(self, name: str) -> str:
        """Where this machine reaches a server."""
        return addresses.reachable(self.host, self.ports[name])

    def variables(self, name: str) -> Mapping[str, str]:
        """The environment variables that configure a server."""
        own = {"host": self.host, "port": str(self.ports[name]), "log_format": self.log_format}
        if name == "gateway":
            own |= {f"{peer}_target": f"dns:///{self.address(peer)}" for peer in ("encoder", "reranker")}
            own["store_path"] = str(self.store)
            own |= {"synonyms_path": str(self.synonyms)} if self.synonyms is not None else {}
        else:
            bundle = self.encoder_bundle if name == "encoder" else self.reranker_bundle
            own |= {"bundle": str(bundle), "device": self.device}
        return {f"TWOSTAGE_{name}_{key}".upper(): value for key, value in own.items()}


class _Server:
    """One process and its log."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, on_line: OnLine) -> None:
        self.name = name
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._process = process
        self._on_line = on_line
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, name: str, config: SystemConfig, on_line: OnLine) -> "_Server":
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cli.tether", MODULES[name]),
            # A directory of the working directory that is named like one of our packages must not be taken for it.
            env={**os.environ, "PYTHONSAFEPATH": "1", **config.variables(name)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            limit=MAX_LINE_BYTES,
        )
        return cls(name, process, on_line)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Return the exit status when the process has ended and its log is read, as a rule to the end."""
        status = await self._process.wait()
        # A process that it has started may hold the pipe open for longer.
        await asyncio.wait({self._reading}, timeout=LOG_TIMEOUT_S)
        return status

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self.wait()
        except TimeoutError:
            self.kill()
            await self.wait()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - asked for above
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:
                line = b"(a line over 1 MiB)\n"
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            self.tail.append(text)
            self._on_line(self.name, text)


class System:
    """The three servers.

    Args:
        config: What to start, and where.
        on_line: Told every line that a server logs.
    """

    def __init__(self, config: SystemConfig, on_line: OnLine = lambda _name, _line: None) -> None:
        self.config = config
        self._on_line = on_line
        self._servers: dict[str, _Server] = {}

    @property
    def gateway(self) -> str:
        """Address of the gateway."""
        return self.config.address("gateway")

    @property
    def pids(self) -> Mapping[str, int]:
        """Server to process id."""
        return {name: server.pid for name, server in self._servers.items()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator["System"]:
        """Start all, yield when all say SERVING, and stop all: the gateway first, then what it calls.

        Raises:
            Misconfigured: A port is taken; nothing was started.
            ServerEnded: A server ended, or was not serving in time.
        """
        addresses.require_free(self.config.host, self.config.ports)
        access.set(PLAIN)  # whatever the command was told for servers elsewhere
        try:
            for name in MODULES:
                self._servers[name] = await _Server.start(name, self.config, self._on_line)
            await self._until_serving()
            yield self
        finally:
            await self._stop()

    async def ended(self) -> NoReturn:
        """Wait until a server ends on its own.

        Raises:
            ServerEnded: Always.
        """
        waits = {asyncio.create_task(server.wait()): server for server in self._servers.values()}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        first = next(iter(done))
        raise ServerEnded(waits[first].name, _described(first.result()), waits[first].tail)

    def kill(self) -> None:
        """End all at once."""
        for server in self._servers.values():
            server.kill()

    async def _until_serving(self) -> None:
        serving = {name: asyncio.create_task(until_serving(self.config.address(name))) for name in MODULES}
        ended = asyncio.create_task(self.ended())
        try:
            async with asyncio.timeout(self.config.start_timeout_s):
                for task in serving.values():
                    await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
                    if ended.done():
                        await ended
        except TimeoutError as error:
            late = next(name for name, task in serving.items() if not task.done())
            what = f"is not serving after {self.config.start_timeout_s:g} s"
            raise ServerEnded(late, what, self._servers[late].tail) from error
        finally:
            for waiting in (ended, *serving.values()):
                waiting.cancel()
            await asyncio.gather(ended, *serving.values(), return_exceptions=True)

    async def _stop(self) -> None:
        try:
            for names in STOP_ORDER:
                await asyncio.gather(*(self._servers[name].stop() for name in names if name in self._servers))
        finally:
            self.kill()


def running_system(
    config: SystemConfig, on_line: OnLine = lambda _name, _line: None
) -> AbstractAsyncContextManager[System]:
    """Start the three servers and stop them on leaving, see `System.running`."""
    return System(config, on_line).running()


def _described(status: int) -> str:
    return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
