"""Encoders and rerankers as processes, each at a loopback address of its own, found by a name as in production."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from clients import SOON_AGAIN, client
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from name_server import NameServer

from cli.addresses import free_ports
from serving.bundle import Kind

METHODS: dict[Kind, str] = {"encoder": "Encode", "reranker": "Rerank"}
PATIENCE_S = 60


class Replica:
    """One server in a process of its own."""

    def __init__(
        self, process: asyncio.subprocess.Process, kind: Kind, address: str, port: int, metrics_port: int
    ) -> None:
        self.process, self.kind, self.address, self.port = process, kind, address, port
        self.metrics_port = metrics_port
        self._counted = re.compile(rf'^{kind}_calls_total{{code="OK",method="{METHODS[kind]}"}} (\d+)', re.MULTILINE)

    async def call_count(self) -> int:
        """Read from its Prometheus page how many calls for its model it has answered; none before there is one."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.metrics_port)
        except ConnectionRefusedError:
            return 0
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        page = (await reader.read()).decode()
        writer.close()
        found = self._counted.search(page)
        return int(found[1]) if found else 0

    async def until_serving(self) -> None:
        """Wait until it says SERVING."""
        async with asyncio.timeout(PATIENCE_S), client(f"{self.address}:{self.port}", SOON_AGAIN) as channel:
            watch = HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
            while (await watch.read()).status != health_pb2.HealthCheckResponse.SERVING:
                pass

    async def freeze(self) -> None:
        """Stop it where it is: connections stay, nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(os.waitpid, self.process.pid, os.WUNTRACED)

    async def kill(self) -> None:
        """End it as the kernel does that needs memory."""
        self.process.kill()
        await self.process.wait()


class Fleet:
    """The replicas of one kind, behind one name.

    Args:
        stack: Ends every process.
        names: Where the name is looked up.
        kind: What is served.
        bundle: The model's directory.
        settings: Of every server.
    """

    def __init__(self, stack: AsyncExitStack, names: NameServer, kind: Kind, bundle: Path, **settings: Any) -> None:
        self._stack, self._names, self._kind = stack, names, kind
        (self._port,) = free_ports(1)
        self._settings = {"bundle": bundle, "threads": 1, "device": "cpu", "log_level": "WARNING", **settings}
        self._started_count = 0
        self.addresses = names.addresses.setdefault(f"{kind}.test", set())

    @property
    def target(self) -> str:
        """What a gateway is to call."""
        return self._names.target(f"{self._kind}.test", self._port)

    async def add(self) -> Replica:
        """Start one more; it serves, and then it has its place behind the name."""
        self._started_count += 1
        replica = await self.start(f"127.0.0.{1 + self._started_count}")
        await replica.until_serving()
        self.addresses.add(replica.address)
        return replica

    async def start(self, address: str) -> Replica:
        """Start one at an address; the name does not change."""
        (metrics_port,) = free_ports(1)
        where = {"host": address, "port": self._port, "metrics_port": metrics_port}
        return await self._stack.enter_async_context(started(self._kind, **self._settings, **where))


@asynccontextmanager
async def started(kind: Kind, **settings: Any) -> AsyncIterator[Replica]:
    """Run a server; its settings have to name host, port and metrics_port."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TWOSTAGE_")}
    own = {f"TWOSTAGE_{kind}_{name}".upper(): str(value) for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", f"{kind}_server", env={**inherited, **own})
    try:
        yield Replica(process, kind, settings["host"], settings["port"], settings["metrics_port"])
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
