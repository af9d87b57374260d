"""`python -m encoder_server` as a process of its own, for tests."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from clients import SOON_AGAIN, client
from grpc_health.v1 import health_pb2, health_pb2_grpc

from retrieval.encoder.v1 import encoder_pb2 as pb
from retrieval.encoder.v1 import encoder_pb2_grpc as pb_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
PREFIX = "TWOSTAGE_ENCODER_"
LISTENING = re.compile(r"listening on 127\.0\.0\.1:(\d+)")
LIMIT_S = 60
"""Seconds after which a test gives up on a process; none needs more than a few."""


@dataclass
class Server:
    """An encoder server in a process of its own."""

    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)

    async def port(self) -> int:
        """Read standard error until it says where the server, or the next worker, listens."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(line.decode())
            if found := LISTENING.search(self.lines[-1]):
                return int(found[1])
        pytest.fail("".join(self.lines))

    async def end(self) -> tuple[int, str]:
        """Wait for the end; return exit status and standard error."""
        async with asyncio.timeout(LIMIT_S):
            _, rest = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, "".join(self.lines) + rest.decode()


@asynccontextmanager
async def started(**settings: Any) -> AsyncIterator[Server]:
    """Start a server with settings from the environment; it is killed at the end where it still runs."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TWOSTAGE_")}
    defaults = {"host": "127.0.0.1", "port": 0, "threads": 1, "device": "cpu"}
    given = {PREFIX + name.upper(): str(value) for name, value in {**defaults, **settings}.items()}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "encoder_server", env={**inherited, **given}, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield Server(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def watched(port: int) -> AsyncIterator[tuple[Any, Any, Any]]:
    """Connect to a server and wait until it serves; yield encoder and health stubs, and the watch."""
    async with asyncio.timeout(LIMIT_S), client(port, SOON_AGAIN) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        while (await watch.read()).status != SERVING:
            pass
        yield pb_grpc.EncoderServiceStub(channel), health, watch


def message(sequence: int) -> pb.EncodeStreamRequest:
    """Make one message of a stream."""
    return pb.EncodeStreamRequest(
        sequence=sequence, request=pb.EncodeRequest(texts=["panda"], input_type=pb.INPUT_TYPE_PASSAGE)
    )
