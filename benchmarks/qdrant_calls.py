"""Compare two ways to call a Qdrant server: its high-level client, and the stubs that the gateway's store uses.

Random vectors of 384 dimensions, texts of 400 characters, 20 hits with their text. The server is the tests' stand-in,
in a process of its own, or a real one: `python benchmarks/qdrant_calls.py [--url http://host:6334]`. The rounds take
turns, so that noise of the machine falls on both. Last, a cap of 300 ms against a server that never answers.
"""

import argparse
import asyncio
import contextlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from qdrant_client import AsyncQdrantClient, models
from rich.console import Console
from rich.table import Table

from gateway.ports import DenseQuery, Document, Model
from gateway.stores.qdrant import QdrantStore
from gateway.stores.qdrant_target import QdrantTarget
from serving.deadline import Deadline
from serving.errors import DeadlineSpent, NotFound

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from fakes import Hang
from qdrant_stand_in import stand_in

NAME = "twostage-bench"
DIMENSION = 384
DOCUMENTS = 2_000
HITS = 20
SEARCHES = 300
CALLERS = 50
CAP_S = 0.3
ENCODER = Model(id="random", revision="0", digest="sha256:0", precision="fp32")

Search = Callable[[Any], Awaitable[Any]]


def client_of(target: QdrantTarget, timeout_s: float = 60) -> AsyncQdrantClient:
    """Make the high-level client as one would for this job."""
    return AsyncQdrantClient(
        host=target.host,
        port=1,
        grpc_port=target.port,
        prefer_grpc=True,
        check_compatibility=False,
        timeout=timeout_s,  # type: ignore[arg-type]  # it says int and takes any number
        grpc_options={"grpc.enable_http_proxy": 0},
    )


def by_client(client: AsyncQdrantClient) -> Search:
    """Search with the high-level client, asking for as little as the store does."""

    async def search(query: Any) -> Any:
        return await client.query_points(
            NAME,
            query=query.tolist(),
            limit=HITS + 1,
            with_payload=["_twostage_text", "_twostage_id"],
            with_vectors=False,
            search_params=models.SearchParams(hnsw_ef=128, exact=False),
            timeout=60,
        )

    return search


def by_store(store: QdrantStore) -> Search:
    """Search as the gateway does: checks, candidates and order included."""

    async def search(query: Any) -> Any:
        return await store.search(
            NAME,
            [DenseQuery(vector=query)],
            encoder=ENCODER,
            limit=HITS,
            filter=None,
            payload_fields=(),
            deadline=Deadline.after(60),
        )

    return search


async def fill(store: QdrantStore) -> None:
    """Make the collection."""
    with contextlib.suppress(NotFound):
        await store.drop(NAME, deadline=Deadline.after(60))
    await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=Deadline.after(60))
    rows = list(np.random.default_rng(1).standard_normal((DOCUMENTS, DIMENSION)).astype(np.float32))
    documents = [Document(id=one, text="x" * 400, payload={"group": one % 10}) for one in range(DOCUMENTS)]
    for start in range(0, DOCUMENTS, 200):
        part = slice(start, start + 200)
        await store.upsert(NAME, documents[part], rows[part], deadline=Deadline.after(60))


async def latencies(ways: dict[str, Search]) -> dict[str, list[float]]:
    """Milliseconds of every search, the ways taking turns."""
    queries = np.random.default_rng(2).standard_normal((SEARCHES, DIMENSION)).astype(np.float32)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for query in queries:
        for name, search in ways.items():
            started = time.perf_counter()
            await search(query)
            times[name].append(1e3 * (time.perf_counter() - started))
    return {name: values[20:] for name, values in times.items()}


async def under_load(search: Search) -> tuple[float, float]:
    """Milliseconds of our own processor time per search with 50 callers, and the p99 of how late a 1 ms timer came."""
    queries = np.random.default_rng(3).standard_normal((CALLERS, DIMENSION)).astype(np.float32)
    late: list[float] = []
    running = True

    async def timer() -> None:
        while running:
            due = time.perf_counter() + 1e-3
            await asyncio.sleep(1e-3)
            late.append(1e3 * (time.perf_counter() - due))

    async def caller(query: Any) -> None:
        for _ in range(10):
            await search(query)

    watching = asyncio.create_task(timer())
    busy = time.process_time()
    await asyncio.gather(*[caller(query) for query in queries])
    busy = time.process_time() - busy
    running = False
    await watching
    return 1e3 * busy / (10 * CALLERS), float(np.percentile(late, 99))


async def compare(target: QdrantTarget) -> Table:
    """Measure both ways on one server."""
    table = Table("way", "p50 ms", "p95 ms", "min ms", "own CPU ms, 50 callers", "loop late p99 ms, 50 callers")
    client = client_of(target)
    async with await QdrantStore.open(target) as store:
        await fill(store)
        ways = {"AsyncQdrantClient": by_client(client), "QdrantStore (stubs)": by_store(store)}
        for name, times in (await latencies(ways)).items():
            cpu, late = await under_load(ways[name])
            figures = (*np.percentile(times, (50, 95)), min(times), cpu, late)
            table.add_row(name, *[f"{one:.2f}" for one in figures])
        await store.drop(NAME, deadline=Deadline.after(60))
    await client.close()
    return table


async def capped() -> Table:
    """Milliseconds until a search with a cap of 300 ms gives up on a server that hangs."""
    table = Table("way", "ends after ms")
    async with stand_in() as server:
        target = QdrantTarget(host="127.0.0.1", port=server.port)
        client = client_of(target, CAP_S)
        query = np.ones(DIMENSION, np.float32)
        async with await QdrantStore.open(target) as store:
            await fill(store)
            server.faults.extend([Hang(), Hang()])
            started = time.perf_counter()
            try:
                await client.query_points(NAME, query=query.tolist(), limit=HITS)
            except Exception as error:  # noqa: BLE001 - whatever it is called
                table.add_row(
                    f"AsyncQdrantClient: {type(error).__name__}", f"{1e3 * (time.perf_counter() - started):.0f}"
                )
            started = time.perf_counter()
            try:
                await store.search(
                    NAME,
                    [DenseQuery(vector=query)],
                    encoder=ENCODER,
                    limit=HITS,
                    filter=None,
                    payload_fields=(),
                    deadline=Deadline.after(CAP_S),
                )
            except DeadlineSpent as error:
                table.add_row(f"QdrantStore: {type(error).__name__}", f"{1e3 * (time.perf_counter() - started):.0f}")
        await client.close()
    return table


async def serve() -> None:
    """Be the server of another process until it closes our input."""
    async with stand_in() as server:
        print(server.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="gRPC address of a real Qdrant")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.serve:
        asyncio.run(serve())
        return
    console = Console(width=140)
    versions = ", ".join(f"{name} {version(name)}" for name in ("qdrant-client", "grpcio", "qdrant-edge-py"))
    console.print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, {versions}")
    if told.url:
        console.print(asyncio.run(compare(QdrantTarget.parse(told.url, api_key=os.environ.get("QDRANT_API_KEY")))))
    else:
        command = [sys.executable, __file__, "--serve"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            port = int(process.stdout.readline()) if process.stdout else 0
            console.print(asyncio.run(compare(QdrantTarget(host="127.0.0.1", port=port))))
            process.communicate()
    console.print(asyncio.run(capped()))


if __name__ == "__main__":
    main()
