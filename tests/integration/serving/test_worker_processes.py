"""Several workers behind one port, as real processes: who is reached, and how they end.

Numbers in brackets are those of field failures.
"""

import asyncio
import http.client
import os
import re
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from factories import tiny_encoder_bundle
from grpc_health.v1 import health_pb2
from neighbours import free_neighbours
from server_process import LIMIT_S, NOT_SERVING, SERVING, Server, message, started, watched

from cli.addresses import free_ports
from retrieval.encoder.v1 import encoder_pb2 as pb

CONNECTIONS = 16
"""So many that the kernel sends all to one of two workers once in 32,768 times."""
CALLS = re.compile(r'encoder_calls_total\{code="OK",method="GetModel"\} (\d+)\.0')


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A sound bundle."""
    return tiny_encoder_bundle(tmp_path / "bundle").path


@asynccontextmanager
async def two_workers(bundle: Path, **settings: Any) -> AsyncIterator[tuple[Server, int, list[psutil.Process]]]:
    """Start a server of two workers; yield it, its port and the workers when both listen."""
    async with started(bundle=bundle, workers=2, **settings) as server:
        port = await server.port()
        assert await server.port() == port
        workers = psutil.Process(server.process.pid).children()
        assert len(workers) == 2
        try:
            yield server, port, workers
        finally:
            for worker in workers:
                with suppress(psutil.NoSuchProcess):
                    worker.kill()


def survivors(workers: list[psutil.Process]) -> list[psutil.Process]:
    """Wait for the workers' end; return those that do not."""
    return psutil.wait_procs(workers, timeout=LIMIT_S)[1]


def calls(metrics_port: int) -> int:
    """Read from a Prometheus page how often a worker has named its model."""
    connection = http.client.HTTPConnection("127.0.0.1", metrics_port, timeout=LIMIT_S)
    connection.request("GET", "/metrics")
    found = CALLS.search(connection.getresponse().read().decode())
    connection.close()
    return int(found[1]) if found else 0


async def test_both_workers_are_reached_and_both_drain(bundle: Path):
    """New connections go to either; at SIGTERM both answer what is open, and the server exits with 0 (19)."""
    metrics_port = free_neighbours()
    async with two_workers(bundle, metrics_port=metrics_port) as (server, port, _), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(watched(port)) for _ in range(CONNECTIONS)]
        for encoder, _, _ in clients:
            await encoder.GetModel(pb.GetModelRequest())
        reached = [await asyncio.to_thread(calls, metrics_port + index) for index in range(2)]
        assert sum(reached) == CONNECTIONS
        assert min(reached) > 0
        streams = [encoder.EncodeStream() for encoder, _, _ in clients]
        for stream in streams:
            await stream.write(message(1))
            assert (await stream.read()).sequence == 1
        server.process.send_signal(signal.SIGTERM)
        for stream, (_, _, watch) in zip(streams, clients, strict=True):
            assert (await watch.read()).status == NOT_SERVING
            await stream.write(message(2))
            assert (await stream.read()).WhichOneof("outcome") == "response"
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF
        status, stderr = await server.end()
    assert status == 0
    assert "Traceback" not in stderr


async def test_a_worker_that_is_killed_takes_the_server_down(bundle: Path):
    """One dead worker drains the others and ends all with 70, for an orchestrator to see (2)."""
    async with two_workers(bundle) as (server, _, workers):
        workers[0].kill()
        status, stderr = await server.end()
    assert status == 70
    assert f"worker {workers[0].pid} ended by signal 9" in stderr
    assert survivors(workers) == []


async def test_workers_do_not_outlive_a_parent_that_is_killed(bundle: Path):
    """After kill -9 of the parent no worker is left, open calls or not."""
    async with two_workers(bundle, grace_s=3600) as (server, port, workers), watched(port) as (encoder, _, _):
        stream = encoder.EncodeStream()
        await stream.write(message(1))
        assert (await stream.read()).sequence == 1
        server.process.kill()
        assert await asyncio.to_thread(survivors, workers) == []


async def test_a_worker_whose_parent_has_gone_does_not_begin(bundle: Path):
    """A parent that ended while its worker was still starting can end it no more, so the worker does it itself."""
    async with started(bundle=bundle, workers=2, parent_pid=os.getppid()) as server:
        status, stderr = await server.end()
    assert (status, stderr) == (70, "")


async def test_a_second_signal_ends_parent_and_workers_at_once(bundle: Path):
    """Whoever does not want to wait for the drain of the workers sends the signal again (19)."""
    async with (
        two_workers(bundle, grace_s=3600) as (server, port, workers),
        watched(port) as (encoder, _, watch),
    ):
        stream = encoder.EncodeStream()
        await stream.write(message(1))
        assert (await stream.read()).sequence == 1
        server.process.send_signal(signal.SIGTERM)
        assert (await watch.read()).status == NOT_SERVING
        server.process.send_signal(signal.SIGTERM)
        assert (await server.end())[0] == 128 + signal.SIGTERM
        assert await asyncio.to_thread(survivors, workers) == []


async def test_a_misconfigured_worker_is_the_servers_misconfiguration(tmp_path: Path):
    """What a worker's operator has to mend ends the server with 2, and the worker's own line says what it is."""
    async with started(bundle=tmp_path / "none", workers=2, log_level="WARNING") as server:
        status, stderr = await server.end()
    assert status == 2
    assert str(tmp_path / "none") in stderr
    assert "WORKER_MISCONFIGURED: " in stderr.splitlines()[-1]
    assert "Traceback" not in stderr


@pytest.mark.parametrize("reuse", [False, True])
async def test_a_port_that_another_server_has_is_one_line_and_a_failure(bundle: Path, *, reuse: bool):
    """Workers share their port with each other alone: not with a server that allows sharing either (36)."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        async with started(bundle=bundle, workers=2, port=port) as server:
            status, stderr = await server.end()
    assert status == 2
    (line,) = stderr.splitlines()
    assert line.startswith(f"ADDRESS_UNAVAILABLE: cannot listen on 127.0.0.1:{port}: ")


async def test_a_health_port_that_another_server_shares_is_one_line_and_a_failure(bundle: Path):
    """Workers share the port of their health checks with each other alone as well (36)."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        async with started(bundle=bundle, workers=2, health_port=port) as server:
            status, stderr = await server.end()
    assert status == 2
    (line,) = stderr.splitlines()
    assert line.startswith(f"ADDRESS_UNAVAILABLE: cannot listen on 127.0.0.1:{port}: ")


async def test_workers_answer_health_checks_on_their_own_port(bundle: Path):
    """The parent keeps the port from others and not from its workers."""
    (health_port,) = free_ports(1)
    async with two_workers(bundle, health_port=health_port), watched(health_port) as (_, health, _):
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == SERVING
