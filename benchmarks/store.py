"""Measure the embedded vector store: `python benchmarks/store.py [--documents 200 20000]`.

Random vectors of 384 dimensions, texts of 400 characters, pools of 20. "stall" is how late the event loop came to a
1 ms timer while 50 searches were always waiting and batches of 64 were being written. Lists by words are measured by
`benchmarks/store_words.py`.
"""

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import qdrant_edge as edge
from rich.console import Console
from rich.table import Table

from gateway.filters import AnyOf, Filter
from gateway.ports import DenseQuery, Document, Model
from gateway.stores.edge import EdgeStore
from serving.deadline import Deadline

DIMENSION = 384
POOL = 20
BATCH = 64
ENCODER = Model(id="random", revision="0", digest="sha256:0", precision="fp32")
NAME = "bench"
EVERY_TENTH = Filter(must=[AnyOf(key="group", values=[3])])


def documents(first: int, count: int) -> list[Document]:
    """Documents with consecutive ids in ten groups."""
    return [Document(id=one, text="x" * 400, payload={"group": one % 10}) for one in range(first, first + count)]


def vectors(count: int, seed: int) -> list[Any]:
    """Random float32 vectors [384]."""
    return list(np.random.default_rng(seed).standard_normal((count, DIMENSION)).astype(np.float32))


async def search(store: EdgeStore, query: Any, wanted: Filter | None = None) -> None:
    """One search as the gateway does it."""
    await store.search(
        NAME,
        [DenseQuery(vector=query)],
        encoder=ENCODER,
        limit=POOL,
        filter=wanted,
        payload_fields=(),
        deadline=Deadline.after(60),
    )


async def milliseconds(calls: Sequence[Callable[[], Awaitable[None]]]) -> list[float]:
    """How long each call took, one after the other."""
    times = []
    for call in calls:
        started = time.perf_counter()
        await call()
        times.append(1e3 * (time.perf_counter() - started))
    return times


async def write(store: EdgeStore, count: int) -> list[float]:
    """Fill the collection; milliseconds of every batch."""
    rows = vectors(count, seed=1)

    def batch(start: int) -> Callable[[], Awaitable[None]]:
        part = rows[start : start + BATCH]
        return lambda: store.upsert(NAME, documents(start, len(part)), part, deadline=Deadline.after(60))

    return await milliseconds([batch(start) for start in range(0, count, BATCH)])


async def under_load(store: EdgeStore, seconds: float) -> tuple[float, list[float]]:
    """Searches per second, and the loop's lateness in ms, with 50 searchers and one writer."""
    over, done, late = time.monotonic() + seconds, itertools.count(), []
    queries = vectors(50, seed=3)

    async def searcher(query: Any) -> None:
        while time.monotonic() < over:
            await search(store, query)
            next(done)

    async def writer() -> None:
        while time.monotonic() < over:
            await store.upsert(NAME, documents(0, BATCH), vectors(BATCH, seed=4), deadline=Deadline.after(60))

    async def timer() -> None:
        while time.monotonic() < over:
            due = time.perf_counter() + 1e-3
            await asyncio.sleep(1e-3)
            late.append(1e3 * (time.perf_counter() - due))

    await asyncio.gather(timer(), writer(), *[searcher(query) for query in queries])
    return next(done) / seconds, late


def flush_cost(root: Path) -> list[float]:
    """Milliseconds of the engine's flush after each batch, in a collection of its own."""
    params = edge.EdgeVectorParams(size=DIMENSION, distance=edge.Distance.Cosine)
    shard = edge.EdgeShard.create(str(root / "flush"), edge.EdgeConfig(vectors=params))
    rows = [one.tolist() for one in vectors(BATCH, seed=2)]
    times = []
    for start in range(0, 50 * BATCH, BATCH):
        points = [edge.Point(start + index, row, {"text": "x" * 400}) for index, row in enumerate(rows)]
        shard.update(edge.UpdateOperation.upsert_points(points))
        started = time.perf_counter()
        shard.flush()
        times.append(1e3 * (time.perf_counter() - started))
    shard.close()
    return times


async def measure(root: Path, count: int, *, in_process: bool) -> list[str]:
    """One row of the table."""
    queries = vectors(200, seed=2)
    async with await EdgeStore.open(root, in_process=in_process) as store:
        await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=Deadline.after(60))
        writes = await write(store, count)
        await search(store, queries[0])
        alone = await milliseconds([partial(search, store, query) for query in queries])
        filtered = await milliseconds([partial(search, store, query, EVERY_TENTH) for query in queries[:50]])
        rate, late = await under_load(store, seconds=3)
        disk = (await store.describe(NAME, deadline=Deadline.after(60))).disk_bytes
    return [
        f"{count:,}",
        "gateway's" if in_process else "own",
        spread(alone),
        spread(filtered),
        f"{rate:,.0f}",
        f"{np.percentile(late, 50):.1f} / {np.percentile(late, 99):.1f} / {max(late):.1f}",
        f"{1e3 * count / sum(writes):,.0f}",
        spread(writes),
        f"{disk / 1e6:.1f}",
    ]


def spread(times: Sequence[float]) -> str:
    """Median and 95th percentile."""
    return f"{np.percentile(times, 50):.2f} / {np.percentile(times, 95):.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, nargs="+", default=[200, 20_000])
    counts = parser.parse_args().documents
    table = Table(
        "documents", "process", "search ms p50 / p95", "filtered ms", "searches/s", "stall ms p50 / p99 / max"
    )
    for title in ("upserts/s", "batch of 64 ms", "disk MB"):
        table.add_column(title)
    with tempfile.TemporaryDirectory() as directory:
        for count in counts:
            for in_process in (True, False):
                root = Path(directory) / f"{count}-{in_process}"
                table.add_row(*asyncio.run(measure(root, count, in_process=in_process)))
        flushes = flush_cost(Path(directory))
    console = Console(width=160)
    console.print(table)
    console.print(f"flush after a batch of {BATCH}: {spread(flushes)} ms (p50 / p95)")


if __name__ == "__main__":
    main()
