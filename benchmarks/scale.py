"""A large collection in the embedded store, of real text, and the recall of an approximate index beside it.

    .venv/bin/python benchmarks/scale.py --public DIR [--passages 200000] [--work .twostage/scale]

DIR holds the public sets as `docs/quality.md` names them. The first twelve words of their sentences, a tenth of them
left out at random so that no two passages are equal, are encoded by the demo encoder and written to the store; the
questions of the sets search them. Vectors are kept in the work directory, so that a second run measures only the store.
"""

import argparse
import asyncio
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import qdrant_edge as edge
from rich.console import Console
from rich.table import Table

from evaluation.datasets.find import find
from gateway.ports import DenseQuery, Document, Model
from gateway.stores.edge import EdgeStore
from models import demo
from serving import model as serving_model
from serving.bundle import Bundle
from serving.deadline import Deadline
from serving.session_options import SessionOptions
from serving.tokens import Tokens

ROOT = Path(__file__).parents[1]
SETS = ("xquad.en", "xquad.de", "xquad.es", "squad_it", "cnil_fr")
POOL = 20
SEARCHES = 200
CHUNK = 8_192
ROWS = 64
MESSAGE = 256
DIMENSION = 384
# What the Qdrant adapter asks for (gateway/parameters.py and gateway/stores/qdrant_collections.py).
M, EF_CONSTRUCT, EFS = 16, 128, (64, 128, 256, 512)
PERCENTILES = (50, 95)
SEED = 0
MIB = 2**20

Vectors = npt.NDArray[np.float32]
console = Console(width=100)


def passages(public: Path, count: int) -> list[str]:
    """Return distinct passages of about 7 to 12 words."""
    rng = np.random.default_rng(SEED)
    sentences = sorted({one for name in SETS for text in _texts(public, name) for one in _sentences(text)})
    made: dict[str, None] = {}
    while len(made) < count:
        words = sentences[int(rng.integers(len(sentences)))].split()
        keep = rng.random(len(words)) > 0.1  # noqa: PLR2004 - a tenth of the words goes
        made[" ".join(word for word, kept in zip(words, keep, strict=True) if kept)] = None
    return list(made)


def _texts(public: Path, name: str) -> Iterator[str]:
    return (document.text for document in find(name, public).documents)


def _sentences(text: str) -> Iterator[str]:
    words = (one.split() for one in re.split(r"(?<=[.!?])\s+", text))
    return (" ".join(one[:12]) for one in words if len(one) >= 8)  # noqa: PLR2004 - a sentence, not a heading


def encode(model: serving_model.Model, texts: Sequence[str], prefix: str) -> Vectors:
    """Encode texts in batches of like length: float32 [texts, 384]."""
    vectors = np.empty((len(texts), DIMENSION), np.float32)
    for begin in range(0, len(texts), CHUNK):
        ids = model.tokenizer.content_ids([prefix + text for text in texts[begin : begin + CHUNK]])
        rows: list[Tokens] = [model.tokenizer.single(one) for one in ids]
        order = np.argsort([len(row) for row in rows], kind="stable")
        for first in range(0, len(order), ROWS):
            taken = order[first : first + ROWS]
            vectors[begin + taken] = model.raw([rows[index] for index in taken])
        console.print(f"encoded {begin + len(rows):,} of {len(texts):,}", style="dim")
    return vectors


def kept(path: Path, make: Callable[[], Vectors]) -> Vectors:
    """Read vectors, or make and keep them."""
    if not path.exists():
        np.save(path, make())
    return np.load(path)


async def fill(store: EdgeStore, encoder: Model, texts: Sequence[str], vectors: Vectors) -> float:
    """Write everything; return the seconds."""
    await store.create("scale", dimension=DIMENSION, encoder=encoder, deadline=Deadline.after(60))
    begun = time.perf_counter()
    for first in range(0, len(texts), MESSAGE):
        documents = [Document(id=first + i, text=text) for i, text in enumerate(texts[first : first + MESSAGE])]
        await store.upsert("scale", documents, list(vectors[first : first + MESSAGE]), deadline=Deadline.after(600))
    return time.perf_counter() - begun


async def exact(store: EdgeStore, encoder: Model, queries: Vectors) -> tuple[list[float], list[set[int]]]:
    """Search; return milliseconds and the ids found."""
    times, found = [], []
    for query in queries:
        begun = time.perf_counter()
        answer = await store.search(
            "scale",
            [DenseQuery(vector=query)],
            encoder=encoder,
            limit=POOL,
            filter=None,
            payload_fields=(),
            deadline=Deadline.after(60),
        )
        times.append((time.perf_counter() - begun) * 1e3)
        found.append({int(one.id) for one in answer.lists[0].candidates if isinstance(one.id, int)})
    return times, found


def approximate(place: Path, vectors: Vectors, queries: Vectors, truth: list[set[int]]) -> Iterator[tuple[str, ...]]:
    """Build an index as the Qdrant adapter asks for, and measure it at several ef."""
    hnsw = edge.HnswIndexConfig(m=M, ef_construct=EF_CONSTRUCT, full_scan_threshold=1)
    params = edge.EdgeVectorParams(size=DIMENSION, distance=edge.Distance.Cosine, hnsw_config=hnsw)
    optimizers = edge.EdgeOptimizersConfig(indexing_threshold=1, default_segment_number=1)
    shard = edge.EdgeShard.create(str(place), edge.EdgeConfig(vectors=params, optimizers=optimizers))
    for first in range(0, len(vectors), MESSAGE):
        points = [edge.Point(first + i, one.tolist(), {}) for i, one in enumerate(vectors[first : first + MESSAGE])]
        shard.update(edge.UpdateOperation.upsert_points(points))
    begun = time.perf_counter()
    shard.optimize()
    console.print(
        f"index of {len(vectors):,} vectors, m {M}, ef_construct {EF_CONSTRUCT}: "
        f"built in {time.perf_counter() - begun:.0f} s"
    )
    for ef in EFS:
        times, hits = [], 0
        for query, wanted in zip(queries.tolist(), truth, strict=True):
            begun = time.perf_counter()
            request = edge.QueryRequest(
                limit=POOL, query=edge.Query.Nearest(query), params=edge.SearchParams(hnsw_ef=ef, exact=False)
            )
            answer = shard.query(request)
            times.append((time.perf_counter() - begun) * 1e3)
            hits += len(wanted & {one.id for one in answer})
        p50, p95 = np.percentile(times, PERCENTILES)
        yield f"index, ef {ef}", f"{p50:.2f}", f"{p95:.2f}", f"{hits / (POOL * len(truth)):.4f}"
    shard.close()


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--public", type=Path, required=True)
    parser.add_argument("--passages", type=int, default=200_000)
    parser.add_argument("--work", type=Path, default=ROOT / ".twostage/scale")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    bundle = Bundle(demo.prepare(ROOT / ".twostage/bundles/demo", console.print)[0])
    model = serving_model.Model(bundle, "encoder", SessionOptions())
    manifest = bundle.manifest
    encoder = Model(id=manifest.model_id, revision=manifest.revision, digest=bundle.digest, precision="fp32")
    texts = passages(given.public, given.passages)
    begun = time.perf_counter()
    vectors = kept(given.work / f"passages-{given.passages}.npy", lambda: encode(model, texts, manifest.passage_prefix))
    console.print(f"{len(texts):,} passages encoded or read in {time.perf_counter() - begun:.0f} s")
    asked = [
        question.query for name in SETS for question in find(name, given.public).questions[: SEARCHES // len(SETS)]
    ]
    queries = encode(model, asked, manifest.query_prefix)
    await _measure(given.work, encoder, texts, vectors, queries)


async def _measure(work: Path, encoder: Model, texts: Sequence[str], vectors: Vectors, queries: Vectors) -> None:
    for name in ("store", "index"):
        shutil.rmtree(work / name, ignore_errors=True)
    async with await EdgeStore.open(work / "store") as store:
        seconds = await fill(store, encoder, texts, vectors)
        times, truth = await exact(store, encoder, queries)
        resident = sum(one.memory_info().rss for one in psutil.Process().children(recursive=True)) / MIB
        described = await store.describe("scale", deadline=Deadline.after(60))
    console.print(
        f"written in {seconds:.0f} s ({len(texts) / seconds:,.0f}/s); engine process {resident:.0f} MiB resident, "
        f"{described.disk_bytes / MIB:.0f} MiB on disk, {described.document_count:,} documents"
    )
    table = Table(title=f"{len(queries)} questions, pool {POOL}")
    for heading in ("search", "p50 ms", "p95 ms", "recall@20"):
        table.add_column(heading, justify="left" if heading == "search" else "right")
    p50, p95 = np.percentile(times, PERCENTILES)
    table.add_row("store (exact)", f"{p50:.2f}", f"{p95:.2f}", "1.0000")
    for row in approximate(work / "index", vectors, queries, truth):
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    asyncio.run(main())
