"""What a kept query vector saves, and what it takes.

Starts an encoder server that keeps query vectors, in this process, on the demo bundle, and asks over gRPC, in turns of
32 calls, questions that are new and one that was asked before. Then fills a cache and counts its memory.

    .venv/bin/python benchmarks/query_cache.py
"""

import asyncio
import platform
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import grpc
import numpy as np
import onnxruntime

from encoder_server.app import open_app
from encoder_server.cache import Encoded, Key, QueryCache
from encoder_server.settings import EncoderSettings
from retrieval.encoder.v1 import encoder_pb2 as pb
from retrieval.encoder.v1.encoder_pb2_grpc import EncoderServiceStub
from serving.cpu import usable_cpus

BUNDLE = Path(__file__).parents[1] / ".twostage/bundles/demo/encoder"
QUESTION = "How do I sign in when I have lost my telephone?"
ROUNDS, CALLS = 6, 32
ENTRIES, DIMENSION = 20_000, 384


async def _ask(stub: EncoderServiceStub, texts: Sequence[str], *, cached: bool) -> list[float]:
    """Return the milliseconds of each of some calls, as the caller sees them."""
    spent = []
    for text in texts:
        request = pb.EncodeRequest(texts=[text], input_type=pb.INPUT_TYPE_QUERY, vector_format=pb.VECTOR_FORMAT_BYTES)
        begun = time.perf_counter()
        answer = await stub.Encode(request)
        spent.append((time.perf_counter() - begun) * 1e3)
        if answer.embeddings[0].cached is not cached:
            raise SystemExit(f"a vector that was {'' if cached else 'not '}to be kept was{' not' if cached else ''}")
    return spent


async def _latencies() -> dict[str, list[float]]:
    """Return the milliseconds of every call; both kinds take turns, and the first turn is not counted."""
    spent: dict[str, list[float]] = {"computed": [], "kept": []}
    settings = EncoderSettings(bundle=BUNDLE, host="127.0.0.1", port=0, cache_mib=64)
    async with open_app(settings) as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = EncoderServiceStub(channel)
        await _ask(stub, [QUESTION], cached=False)
        for turn in range(ROUNDS + 1):
            new = [f"{QUESTION} {turn * CALLS + call + 1_000}" for call in range(CALLS)]
            calls = {
                "computed": await _ask(stub, new, cached=False),
                "kept": await _ask(stub, [QUESTION] * CALLS, cached=True),
            }
            for kind, times in calls.items():
                spent[kind] += times if turn else []
    return spent


def _memory() -> tuple[float, float]:
    """Return the bytes per entry that the cache counts, and those that Python allocates."""
    tracemalloc.start()
    cache = QueryCache(2**40)
    for number in range(ENTRIES):
        entry = Encoded(packed=bytes(4 * DIMENSION), token_count=14, truncated=False)
        cache.put(Key("model", "query: ", f"{QUESTION} {number}"), entry)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return cache.size_bytes / ENTRIES, taken / ENTRIES


def main() -> None:
    """Measure and print."""
    print(f"{platform.machine()}, {usable_cpus()} cores, Python {platform.python_version()}, ", end="")
    print(f"onnxruntime {onnxruntime.__version__}; one query of one question, one caller at a time")
    for kind, spent in asyncio.run(_latencies()).items():
        p50, p95 = np.percentile(spent, (50, 95))
        print(f"{kind:>9}: p50 {p50:.2f} ms, p95 {p95:.2f} ms, {len(spent)} calls")
    counted, taken = _memory()
    print(f"{ENTRIES} entries: {counted:.0f} bytes each are counted, {taken:.0f} allocated")


if __name__ == "__main__":
    main()
