"""What tracing costs a search: no endpoint, an endpoint and no call sampled, every call sampled.

Three systems of three server processes each, on the tests' tiny models, so that what is left is the servers' own work.
They are called in turn, one call after the other, so that what else the machine does meets all alike. The spans go to
a collector in a process of its own, which takes and forgets them.

    .venv/bin/python benchmarks/tracing.py [--rounds 20] [--calls 50]
"""

import argparse
import asyncio
import os
import platform
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import psutil
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from rich.console import Console
from rich.table import Table

from cli.addresses import free_ports
from cli.health import until_serving
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1.gateway_pb2_grpc import CollectionServiceStub, DocumentServiceStub, GatewayServiceStub
from serving.cpu import usable_cpus

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from factories import tiny_encoder_bundle, tiny_reranker_bundle

SERVERS = {"encoder": "encoder_server", "reranker": "reranker_server", "gateway": "gateway"}
COLLECTION = "tracing"
POOL = 20
WORDS = ("panda", "bear", "tea", "river", "mountain", "paper")
WARM_UP = 100


class Sink(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans and forgets them."""

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        """Say thanks."""
        return trace_service_pb2.ExportTraceServiceResponse()


async def collect(port: int) -> None:
    """Be the collector, until ended."""
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Sink(), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


class System:
    """Three servers and what their searches took."""

    def __init__(self, channel: grpc.aio.Channel, processes: list[asyncio.subprocess.Process]) -> None:
        self.channel = channel
        self.milliseconds: list[float] = []
        self._processes = [psutil.Process(process.pid) for process in processes]
        self._search: Any = GatewayServiceStub(channel).Search

    def processor_s(self) -> float:
        """Return the processor time of all three."""
        return sum(sum(process.cpu_times()[:2]) for process in self._processes)

    async def fill(self) -> None:
        """Store a pool of documents."""
        collections: Any = CollectionServiceStub(self.channel)
        documents: Any = DocumentServiceStub(self.channel)
        await collections.CreateCollection(pb.CreateCollectionRequest(collection=COLLECTION))
        texts = [
            " ".join(WORDS[(number + step) % len(WORDS)] for step in range(1 + number % 9)) for number in range(POOL)
        ]
        stored = [pb.Document(id=pb.DocumentId(number=number), text=text) for number, text in enumerate(texts)]
        messages = iter([pb.UpsertDocumentsRequest(collection=COLLECTION, documents=stored)])
        async for _ in documents.UpsertDocuments(messages):
            pass

    async def search(self, number: int) -> None:
        """Search once."""
        query = f"{WORDS[number % len(WORDS)]} {WORDS[number // len(WORDS) % len(WORDS)]}"
        begun = time.perf_counter()
        await self._search(pb.SearchRequest(query=query, collection=COLLECTION))
        self.milliseconds.append((time.perf_counter() - begun) * 1e3)


@asynccontextmanager
async def started(module: str, settings: Mapping[str, Any]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a process that ends with this one."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.tether", module),
        env={**os.environ, **{name: str(value) for name, value in settings.items()}},
        stdin=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def system(directory: Path, name: str, tracing: Mapping[str, Any]) -> AsyncIterator[System]:
    """Run three servers with the same settings of tracing."""
    ports = dict(zip(SERVERS, free_ports(3), strict=True))
    own: dict[str, dict[str, Any]] = {
        "encoder": {"bundle": directory / "encoder", "threads": 1},
        "reranker": {"bundle": directory / "reranker", "threads": 1},
        "gateway": {
            "encoder_target": f"127.0.0.1:{ports['encoder']}",
            "reranker_target": f"127.0.0.1:{ports['reranker']}",
            "store_path": directory / name,
        },
    }
    async with AsyncExitStack() as stack:
        processes = []
        for server, module in SERVERS.items():
            told = {**own[server], **tracing, "host": "127.0.0.1", "port": ports[server], "log_level": "WARNING"}
            settings = {f"TWOSTAGE_{server}_{key}".upper(): value for key, value in told.items()}
            processes.append(await stack.enter_async_context(started(module, settings)))
        for server in SERVERS:
            await until_serving(f"127.0.0.1:{ports[server]}")
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{ports['gateway']}"))
        opened = System(channel, processes)
        await opened.fill()
        yield opened


async def main(rounds: int, calls: int) -> None:
    """Measure and print."""
    console = Console(width=110)
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    kinds: dict[str, dict[str, Any]] = {
        "no endpoint": {},
        "no call sampled": {"otlp_endpoint": endpoint, "trace_share": 0},
        "every call sampled": {"otlp_endpoint": endpoint, "trace_share": 1},
    }
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tiny_encoder_bundle(directory / "encoder")
        tiny_reranker_bundle(directory / "reranker")
        collector = await asyncio.create_subprocess_exec(sys.executable, __file__, "--collect", str(port))
        stack.callback(collector.terminate)
        systems = {name: await stack.enter_async_context(system(directory, name, kind)) for name, kind in kinds.items()}
        for each in systems.values():
            for number in range(WARM_UP):
                await each.search(number)
            each.milliseconds.clear()
        spent = dict.fromkeys(systems, 0.0)
        for number in range(rounds):
            for name, each in systems.items():
                before = each.processor_s()
                for call in range(calls):
                    await each.search(number * calls + call)
                spent[name] += each.processor_s() - before
        await _print(console, systems, spent, rounds * calls)


async def _print(console: Console, systems: Mapping[str, System], spent: Mapping[str, float], count: int) -> None:
    console.print(f"{usable_cpus()} usable CPUs, Python {platform.python_version()}, pool of {POOL}, one caller")
    table = Table(title=f"{count} searches each, in turns")
    for heading in ("tracing", "median ms", "p95 ms", "processor ms per search, all servers"):
        table.add_column(heading, justify="left" if heading == "tracing" else "right")
    for name, each in systems.items():
        ordered = sorted(each.milliseconds)
        p95 = ordered[int(len(ordered) * 0.95)]
        table.add_row(name, f"{median(ordered):.2f}", f"{p95:.2f}", f"{spent[name] / count * 1e3:.2f}")
    console.print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--collect", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    asyncio.run(collect(given.collect) if given.collect else main(given.rounds, given.calls))
