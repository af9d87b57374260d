"""Measure lists by words in the embedded vector store: `python benchmarks/store_words.py [--passages 20000]`.

Passages are four random sentences each of the help centre's documents, the queries its questions, the vectors random
ones of 384 dimensions; lists of 20. The engine's process is the store's own. Kinds of search take turns, so that noise
of the machine falls on all of them.
"""

import argparse
import asyncio
import itertools
import json
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from gateway.filters import AnyOf, Filter
from gateway.parameters import CollectionParameters, IndexKind, LexicalParameters, PayloadIndex
from gateway.ports import DenseQuery, Document, LexicalQuery, ListQuery, Model
from gateway.stores.edge import EdgeStore
from serving.deadline import Deadline

DATA = Path(__file__).parents[1] / "data/helpcentre"
DIMENSION = 384
LIMIT = 20
BATCH = 256
SEARCHES = 200
ENCODER = Model(id="random", revision="0", digest="sha256:0", precision="fp32")
TENTH = Filter(must=[AnyOf(key="tenant", values=["3"])])
TENANT = PayloadIndex(key="tenant", kind=IndexKind.KEYWORD)


def lines(name: str) -> list[dict[str, Any]]:
    """Read a file of the help centre."""
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def passages(count: int) -> list[str]:
    """Make passages, of ten tenants in turn."""
    texts = [one["text"] for one in lines("documents.jsonl")]
    sentences = [one for text in texts for one in re.split(r"(?<=[.!?])\s+", text)]
    chosen = np.random.default_rng(1).integers(len(sentences), size=(count, 4))
    return [" ".join(sentences[one] for one in row) for row in chosen]


def vectors(count: int, seed: int) -> list[Any]:
    """Random float32 vectors [384]."""
    return list(np.random.default_rng(seed).standard_normal((count, DIMENSION)).astype(np.float32))


async def fill(store: EdgeStore, name: str, texts: Sequence[str], *, lexical: LexicalParameters | None) -> str:
    """Make a collection; upserts per second and megabytes on disk, in words."""
    parameters = CollectionParameters(lexical=lexical, payload_indexes=(TENANT,))
    deadline = Deadline.after(600)
    await store.create(name, dimension=DIMENSION, encoder=ENCODER, parameters=parameters, deadline=deadline)
    rows = vectors(len(texts), seed=2)
    started = time.perf_counter()
    for begin in range(0, len(texts), BATCH):
        part = range(begin, min(begin + BATCH, len(texts)))
        documents = [Document(id=one, text=texts[one], payload={"tenant": str(one % 10)}) for one in part]
        await store.upsert(name, documents, rows[part.start : part.stop], deadline=deadline)
    rate = len(texts) / (time.perf_counter() - started)
    disk = (await store.describe(name, deadline=deadline)).disk_bytes
    return f"{name}: {rate:,.0f} upserts/s, {disk / 1e6:.1f} MB on disk"


async def search(store: EdgeStore, queries: Sequence[ListQuery], wanted: Filter | None) -> float:
    """Milliseconds of one search as the gateway does it."""
    started = time.perf_counter()
    await store.search(
        "with-words",
        queries,
        encoder=ENCODER,
        limit=LIMIT,
        filter=wanted,
        corpus=wanted,
        payload_fields=(),
        deadline=Deadline.after(60),
    )
    return 1e3 * (time.perf_counter() - started)


async def measure(root: Path, count: int, console: Console) -> Table:
    """Fill two collections and search one of them."""
    texts = passages(count)
    average = float(np.mean([len(re.findall(r"[^\W_]+", one)) for one in texts]))
    asked = list(itertools.islice(itertools.cycle(one["query"] for one in lines("queries.jsonl")), SEARCHES))
    dense = [DenseQuery(vector=one) for one in vectors(SEARCHES, seed=3)]
    lexical = [LexicalQuery(text=one) for one in asked]
    async with await EdgeStore.open(root) as store:
        console.print(await fill(store, "without-words", texts, lexical=None))
        console.print(await fill(store, "with-words", texts, lexical=LexicalParameters(average_words=average)))
        times: dict[str, list[float]] = {}
        for by_vector, by_words in zip(dense, lexical, strict=True):
            for scope, wanted in (("all", None), ("one of ten tenants", TENTH)):
                for kind, queries in (("dense", [by_vector]), ("lexical", [by_words]), ("both", [by_vector, by_words])):
                    times.setdefault(f"{kind}, {scope}", []).append(await search(store, queries, wanted))
    table = Table("search", "p50 ms", "p95 ms", title=f"{count:,} passages of {average:.0f} words")
    for name, values in times.items():
        p50, p95 = np.percentile(values[20:], (50, 95))
        table.add_row(name, f"{p50:.2f}", f"{p95:.2f}")
    return table


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=20_000)
    count = parser.parse_args().passages
    console = Console(width=100)
    with tempfile.TemporaryDirectory() as directory:
        console.print(asyncio.run(measure(Path(directory), count, console)))


if __name__ == "__main__":
    main()
