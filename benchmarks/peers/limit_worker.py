"""The bare limit as a process: one graph, onnxruntime, rows that are already ids, ideally sorted, and no server.

Reads one JSON command a line from standard input and answers with one JSON line. It shares with our servers the graph
and the number of threads, and nothing else: the session is onnxruntime's own, with its defaults.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from benchmarks.peers.rows import Rower
from benchmarks.peers.workload import read_words, stream
from serving.bundle import Bundle
from serving.cpu import usable_cpus
from serving.tokens import Tokens, pad

BUDGETS = (256, 512, 1_024, 2_048, 4_096)
"""Padded tokens per batch that are tried."""
SWEEP_S = 2.0

Arrays = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


def pack(rows: Sequence[Tokens], budget: int) -> Iterator[list[Tokens]]:
    """Cut rows, longest last, into batches of at most so many padded tokens; a longer row is a batch of its own."""
    batch: list[Tokens] = []
    for row in sorted(rows, key=len):
        if batch and (len(batch) + 1) * len(row) > budget:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


class Limit:
    """A bare session and the rows to put through it."""

    def __init__(self, bundle: Bundle, corpus: Path) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = usable_cpus()
        options.inter_op_num_threads = 1
        self._session = ort.InferenceSession(bundle.model_path, options, providers=["CPUExecutionProvider"])
        self._pad = bundle.manifest.special_tokens.pad
        self._rower = Rower(bundle)
        self._words = read_words(corpus)
        self._budgets: dict[str, int] = {}

    def throughput(self, workload: str, seed: int, requests: int, seconds: float) -> dict[str, Any]:
        """Compute sorted batches of many requests for some seconds, in the best batch size found."""
        groups = self._groups(workload, seed, requests)
        rows = [row for group in groups for row in group]
        if workload not in self._budgets:
            tried = {budget: self._run(rows, budget, SWEEP_S)["tokens_per_s"] for budget in BUDGETS}
            self._budgets[workload] = max(tried, key=lambda budget: tried[budget])
        figures = self._run(rows, self._budgets[workload], seconds)
        figures["calls_per_s"] = figures["tokens_per_s"] / (sum(map(len, rows)) / len(groups))
        return figures

    def latency(self, workload: str, seed: int, requests: int, seconds: float) -> dict[str, Any]:
        """Compute one request after the other for some seconds, each in the better of one batch and several."""
        groups = self._groups(workload, seed, requests)
        spent: dict[str, list[float]] = {}
        for name, budget in (("whole", sys.maxsize), ("cut", self._budgets.get(workload, BUDGETS[1]))):
            spent[name] = [*self._timed(groups, budget, seconds / 2)]
        times = min(spent.values(), key=lambda values: float(np.median(values)))
        p50, p95, p99 = (float(value) * 1e3 for value in np.percentile(times, (50, 95, 99)))
        return {"p50_ms": p50, "p95_ms": p95, "p99_ms": p99, "ok": len(times)}

    def _groups(self, workload: str, seed: int, requests: int) -> list[list[Tokens]]:
        return [self._rower.rows(one) for one in islice(stream(workload, self._words, seed), requests)]

    def _timed(self, groups: Sequence[Sequence[Tokens]], budget: int, seconds: float) -> Iterator[float]:
        begun = time.perf_counter()
        for group in groups:
            arrays = [self._arrays(batch) for batch in pack(group, budget)]
            start = time.perf_counter()
            for one in arrays:
                self._compute(one)
            yield time.perf_counter() - start
            if time.perf_counter() - begun > seconds:
                return

    def _run(self, rows: Sequence[Tokens], budget: int, seconds: float) -> dict[str, Any]:
        batches = list(pack(rows, budget))
        # Whatever part is computed in the time has to be like the whole.
        np.random.default_rng(0).shuffle(batches)
        tokens = padded = 0
        spent = 0.0
        for batch in batches:
            arrays = self._arrays(batch)
            start = time.perf_counter()
            self._compute(arrays)
            spent += time.perf_counter() - start
            tokens += sum(map(len, batch))
            padded += arrays[0].size
            if spent > seconds:
                break
        return {"tokens_per_s": tokens / spent, "padding": 1 - tokens / padded, "budget": budget, "seconds": spent}

    def _arrays(self, batch: Sequence[Tokens]) -> Arrays:
        return pad(batch, self._pad)

    def _compute(self, arrays: Arrays) -> None:
        self._session.run(None, dict(zip(("input_ids", "attention_mask"), arrays, strict=True)))


def main() -> None:
    """Answer commands until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    given = parser.parse_args()
    limit = Limit(Bundle(given.bundle), given.corpus)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        method = limit.throughput if command.pop("measure") == "throughput" else limit.latency
        print(json.dumps(method(**command)), flush=True)


if __name__ == "__main__":
    main()
