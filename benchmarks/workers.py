"""Calls per second of an encoder with one worker and with several, for queries so short that Python is the limit.

Two models: the demo encoder, and the tests' tiny one, whose computing takes next to nothing, so that what is left is
the server itself. Servers of one and of several workers take turns. The callers are in a process of their own and have
a connection each, but they need a processor too: on a machine of few cores they take it from the workers.

    .venv/bin/python benchmarks/workers.py [--workers 2] [--seconds 5] [--rounds 3]
"""

import argparse
import asyncio
import os
import platform
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import grpc
import numpy as np
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from rich.console import Console
from rich.table import Table

from cli.addresses import free_ports
from models import demo
from retrieval.encoder.v1 import encoder_pb2 as pb
from retrieval.encoder.v1.encoder_pb2_grpc import EncoderServiceStub
from serving.cpu import usable_cpus

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from factories import tiny_encoder_bundle

ROOT = Path(__file__).parents[1]
CONNECTIONS = 32
WARM_UP_S = 1.0
QUERY = "panda bear"
PREFIX = "TWOSTAGE_ENCODER_"
OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
CALLS = re.compile(r'encoder_calls_total\{code="OK",method="Encode"\} (\d+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one server did."""

    calls_per_s: float
    p50_ms: float
    p95_ms: float
    shares: tuple[float, ...]
    """Of all calls, what each worker answered."""


@asynccontextmanager
async def server(bundle: Path, workers: int) -> AsyncIterator[tuple[str, list[int]]]:
    """Run a server; yield its address and the workers' metrics ports."""
    port, metrics_port = free_ports(2)
    settings = {"bundle": bundle, "host": "127.0.0.1", "port": port, "workers": workers, "metrics_port": metrics_port}
    own = {f"{PREFIX}{name}".upper(): str(value) for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.tether", "encoder_server"),
        env={**os.environ, **own, f"{PREFIX}LOG_LEVEL": "WARNING"},
        stdin=asyncio.subprocess.PIPE,
    )
    try:
        for index in range(workers):
            await _listening(metrics_port + index)
        yield f"127.0.0.1:{port}", [metrics_port + index for index in range(workers)]
    finally:
        process.terminate()
        await process.wait()


async def _listening(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


async def _serving(channel: grpc.aio.Channel) -> None:
    """Wait until the worker behind this connection has loaded its model."""
    watch = HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
    async for answer in watch:
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            watch.cancel()
            return


async def measure(bundle: Path, workers: int, seconds: float) -> Round:
    """Call a server from all connections at once, each as soon as it has its answer."""
    async with server(bundle, workers) as (address, metrics_ports), AsyncExitStack() as stack:
        channels = [grpc.aio.insecure_channel(address, options=OPTIONS) for _ in range(CONNECTIONS)]
        stubs = [EncoderServiceStub(await stack.enter_async_context(channel)) for channel in channels]
        await asyncio.gather(*map(_serving, channels))
        request = pb.EncodeRequest(texts=[QUERY], input_type=pb.INPUT_TYPE_QUERY)
        begins = time.perf_counter() + WARM_UP_S

        async def caller(stub: EncoderServiceStub) -> list[float]:
            took = []
            while (begun := time.perf_counter()) < begins + seconds:
                await stub.Encode(request)
                if begun >= begins:
                    took.append(time.perf_counter() - begun)
            return took

        took = [one for calls in await asyncio.gather(*map(caller, stubs)) for one in calls]
        counts = [await asyncio.to_thread(_answered, port) for port in metrics_ports]
    p50, p95 = np.percentile(took, (50, 95)) * 1e3
    shares = tuple(count / sum(counts) for count in counts)
    return Round(calls_per_s=len(took) / seconds, p50_ms=p50, p95_ms=p95, shares=shares)


def _answered(metrics_port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics") as page:
        found = CALLS.search(page.read().decode())
    return int(found[1]) if found else 0


def _row(model: str, workers: int, rounds: Sequence[Round]) -> list[str]:
    rates = sorted(one.calls_per_s for one in rounds)
    return [
        model,
        str(workers),
        f"{median(rates):.0f}",
        f"{rates[0]:.0f} to {rates[-1]:.0f}",
        f"{median(one.p50_ms for one in rounds):.1f}",
        f"{median(one.p95_ms for one in rounds):.1f}",
        " ".join("/".join(f"{share:.0%}" for share in one.shares) for one in rounds),
    ]


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    console = Console(width=110)
    console.print(f"{usable_cpus()} usable CPUs, Python {platform.python_version()}, {CONNECTIONS} connections")
    table = Table(title=f"calls of one short query; median of {options.rounds} rounds of {options.seconds:g} s")
    for heading in ("model", "workers", "calls/s", "range", "p50 ms", "p95 ms", "answered by each worker"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    with tempfile.TemporaryDirectory() as directory:
        encoder, _ = demo.prepare(ROOT / ".twostage/bundles/demo", lambda _line: None)
        bundles = {"demo": encoder, "tiny": tiny_encoder_bundle(Path(directory) / "tiny").path}
        for model, bundle in bundles.items():
            rounds: dict[int, list[Round]] = {1: [], options.workers: []}
            for _ in range(options.rounds):
                for workers, measured in rounds.items():
                    measured.append(await measure(bundle, workers, options.seconds))
            for workers, measured in rounds.items():
                table.add_row(*_row(model, workers, measured))
    console.print(table)


if __name__ == "__main__":
    asyncio.run(main())
