"""Where the milliseconds of a search go, and what memory each server takes.

Starts the three servers as processes on the demo bundles, indexes the help-centre corpus, asks one warm-up question,
then the 60 test questions one after the other, and then all of them from 4 callers at once. Loading is not counted.

    .venv/bin/python benchmarks/stages.py
"""

import asyncio
import json
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import onnxruntime
import psutil
from google.protobuf.duration_pb2 import Duration
from rich.console import Console
from rich.table import Table

from cli.addresses import free_ports
from cli.processes import System, SystemConfig, running_system
from evaluation.plan import machine
from models import demo
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1 import gateway_pb2_grpc as pb_grpc
from serving.timing import from_duration

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "data/helpcentre"
COLLECTION = "helpcentre"
CALLERS = 4
SAMPLE_S = 0.05
PERCENTILES = (50, 95)
MIB = 2**20

console = Console(width=110)


@dataclass
class Memory:
    """Resident memory of each server, MiB, its children counted with it."""

    pids: Mapping[str, int]
    peak: dict[str, float] = field(default_factory=dict)

    def read(self) -> dict[str, float]:
        """Read all once and keep the peaks."""
        now = {name: _resident(pid) for name, pid in self.pids.items()}
        self.peak = {name: max(mib, self.peak.get(name, 0.0)) for name, mib in now.items()}
        return now

    async def watch(self) -> None:
        """Read until cancelled."""
        while True:
            self.read()
            await asyncio.sleep(SAMPLE_S)


def _resident(pid: int) -> float:
    process = psutil.Process(pid)
    return sum(one.memory_info().rss for one in [process, *process.children(recursive=True)]) / MIB


def _lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (CORPUS / name).read_text(encoding="utf-8").splitlines()]


async def _index(channel: grpc.aio.Channel) -> None:
    await pb_grpc.CollectionServiceStub(channel).CreateCollection(pb.CreateCollectionRequest(collection=COLLECTION))
    documents = [
        pb.Document(id=pb.DocumentId(number=line["id"]), text=line["text"]) for line in _lines("documents.jsonl")
    ]
    requests = [
        pb.UpsertDocumentsRequest(collection=COLLECTION, documents=documents[begin : begin + 32], truncate=True)
        for begin in range(0, len(documents), 32)
    ]
    async for answer in pb_grpc.DocumentServiceStub(channel).UpsertDocuments(iter(requests)):
        if answer.HasField("failure"):
            raise RuntimeError(answer.failure.message)


async def _ask(stub: pb_grpc.GatewayServiceStub, question: str) -> pb.Timings:
    return (await stub.Search(pb.SearchRequest(query=question, collection=COLLECTION), timeout=120)).timings


async def _closed_loop(stub: pb_grpc.GatewayServiceStub, questions: Sequence[str], callers: int) -> list[pb.Timings]:
    waiting = list(reversed(questions))

    async def caller() -> list[pb.Timings]:
        answers = []
        while waiting:
            answers.append(await _ask(stub, waiting.pop()))
        return answers

    return [one for answers in await asyncio.gather(*(caller() for _ in range(callers))) for one in answers]


def _rows(timings: Sequence[pb.Timings]) -> dict[str, np.ndarray]:
    def column(read: Callable[[pb.Timings], Duration]) -> np.ndarray:
        return np.array([from_duration(read(one)) for one in timings]) / 1e6

    stages = {
        f"{name} {part}": column(lambda t, n=name, p=part: getattr(getattr(t, n), p))
        for name in ("encode", "search", "rerank")
        for part in ("network", "queue", "tokenize", "compute", "total")
    }
    return {
        **stages,
        "dense": column(lambda t: t.dense),
        "other": column(lambda t: t.other),
        "total": column(lambda t: t.total),
    }


def _timing_table(alone: Sequence[pb.Timings], together: Sequence[pb.Timings]) -> Table:
    title = (
        f"milliseconds per search, {len(alone)} test questions, pool 20; x1: one caller, x{CALLERS}: {CALLERS} at once"
    )
    table = Table(title=title)
    table.add_column("span")
    for callers in (1, CALLERS):
        for heading in ("mean", *(f"p{p}" for p in PERCENTILES)):
            table.add_column(f"{heading} x{callers}", justify="right")
    first, second = _rows(alone), _rows(together)
    for span in first:
        cells = [f"{v:.2f}" for s in (first[span], second[span]) for v in (s.mean(), *np.percentile(s, PERCENTILES))]
        table.add_row(span, *cells, end_section=span.endswith(" total"))
    return table


def _memory_table(rest: Mapping[str, float], memory: Memory) -> Table:
    table = Table(title="resident memory, MiB, child processes included")
    for heading in ("server", "at rest", f"peak, {CALLERS} callers"):
        table.add_column(heading, justify="left" if heading == "server" else "right")
    for name, mib in rest.items():
        table.add_row(name, f"{mib:.0f}", f"{memory.peak[name]:.0f}")
    return table


async def _measure(system: System) -> None:
    questions = [line["query"] for line in _lines("queries.jsonl") if line["split"] == "test"]
    memory = Memory(system.pids)
    rest = memory.read()
    async with grpc.aio.insecure_channel(system.gateway, options=[("grpc.enable_http_proxy", 0)]) as channel:
        await _index(channel)
        stub = pb_grpc.GatewayServiceStub(channel)
        await _ask(stub, questions[0])
        alone = await _closed_loop(stub, questions, 1)
        watching = asyncio.create_task(memory.watch())
        try:
            together = await _closed_loop(stub, questions, CALLERS)
        finally:
            watching.cancel()
    console.print(_timing_table(alone, together))
    console.print(_memory_table(rest, memory))


async def main() -> None:
    """Measure and print."""
    bundles = ROOT / ".twostage/bundles/demo"
    encoder, reranker = demo.prepare(bundles, lambda line: console.print(line, style="dim"))
    console.print(
        f"{machine()}, Python {platform.python_version()}, onnxruntime {onnxruntime.__version__}, demo bundles"
    )
    gateway_port, encoder_port, reranker_port = free_ports(3)
    with tempfile.TemporaryDirectory() as store:
        config = SystemConfig(
            encoder_bundle=encoder,
            reranker_bundle=reranker,
            store=Path(store),
            gateway_port=gateway_port,
            encoder_port=encoder_port,
            reranker_port=reranker_port,
        )
        async with running_system(config) as system:
            await _measure(system)


if __name__ == "__main__":
    asyncio.run(main())
