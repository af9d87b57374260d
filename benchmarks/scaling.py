"""What more replicas of encoder and reranker bring, and that changing their number fails nobody, on one machine.

Every replica is a process with one thread, at a loopback address of its own. Parts:

- grown, shrunk: a gateway in a process of its own finds replicas in DNS, and searches go on while some are added, told
  to end, killed and brought back; searches that fail are counted.
- absent: how long a gateway does not find a name that had no address for a while.
- encoder, reranker: calls per second of one replica and of two, each pinned to a core, in turns. The caller is this
  process with the gateway's own client; on a machine of two cores it takes from two replicas what it needs.
- connections: an encoder with 2 workers, called over 1 and over 8 connections in turns.

    .venv/bin/python benchmarks/scaling.py [--only PART] [--seconds 6] [--rounds 3]
"""

import argparse
import asyncio
import os
import platform
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from statistics import median

import grpc
import numpy as np
from overhead import ROOT
from rich.console import Console
from rich.table import Table
from scaling_changes import DOCUMENTS, QUESTIONS, absent, grown, shrunk
from tokenizers import Tokenizer

from cli.addresses import free_ports
from evaluation.plan import machine
from gateway import encoder_client, reranker_client
from gateway.backends import open_backend
from gateway.encoder_client import EncoderClient
from gateway.reranker_client import RerankerClient
from gateway.settings import GatewaySettings
from models import demo
from serving.bundle import TOKENIZER_NAME, Kind
from serving.deadline import Deadline

sys.path.insert(0, str(ROOT / "tests"))
from replicas import Replica, started

CALLERS = {"encoder": 16, "reranker": 4}
POOL = 20
WARM_UP_S = 1.0

console = Console(width=120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What came of calling for some seconds."""

    calls_per_s: float
    p50_ms: float
    p95_ms: float
    shares: str = ""
    """Of all calls, what each process answered."""


Call = Callable[[], Awaitable[object]]


async def turn(call: Call, callers: int, seconds: float) -> Turn:
    """Call in a closed loop; what ends within the time is counted, whenever it began."""
    begins = time.perf_counter() + WARM_UP_S
    ends = begins + seconds
    took: list[float] = []

    async def caller() -> None:
        ended = 0.0
        while ended < ends:
            begun = time.perf_counter()
            await call()
            ended = time.perf_counter()
            if begins <= ended < ends:
                took.append(ended - begun)

    await asyncio.gather(*(caller() for _ in range(callers)))
    p50, p95 = np.percentile(took, (50, 95)) * 1e3
    return Turn(calls_per_s=len(took) / seconds, p50_ms=p50, p95_ms=p95)


def encoding(channel: grpc.aio.Channel) -> Call:
    """Encode one question after the other."""
    client, questions = EncoderClient(channel), cycle(QUESTIONS)
    return lambda: client.encode_queries([next(questions)], deadline=Deadline.after(120))


def reranking(channel: grpc.aio.Channel) -> Call:
    """Rerank pools of documents, a question with the next 20."""
    client, questions, starts = RerankerClient(channel), cycle(QUESTIONS), cycle(range(0, 160, POOL))

    def call() -> Awaitable[object]:
        begin = next(starts)
        pool = DOCUMENTS[begin : begin + POOL]
        return client.rerank(next(questions), pool, deadline=Deadline.after(120))

    return call


STAGES = {"encoder": (encoder_client.SERVICE, encoding), "reranker": (reranker_client.SERVICE, reranking)}


async def in_turns(
    pages: Sequence[Replica],
    targets: Mapping[str, tuple[str, GatewaySettings]],
    callers: int,
    options: argparse.Namespace,
) -> dict[str, list[Turn]]:
    """Call each target in turn, so often as there are rounds; `pages` are those of all processes."""
    service, calling = STAGES[pages[0].kind]
    turns: dict[str, list[Turn]] = {name: [] for name in targets}
    for _ in range(options.rounds):
        for name, (target, settings) in targets.items():
            before = [await page.call_count() for page in pages]
            async with open_backend(settings, target, service) as channel:
                one = await turn(calling(channel), callers, options.seconds)
            counts = np.subtract([await page.call_count() for page in pages], before)
            shares = "/".join(f"{share:.0%}" for share in counts / counts.sum())
            turns[name].append(replace(one, shares=shares))
    return turns


def tokens_per_call(kind: Kind, bundle: Path) -> float:
    """Count the tokens of the mean call, its special ones and the query's prefix included."""
    tokenizer = Tokenizer.from_file(str(bundle / TOKENIZER_NAME))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def lengths(texts: Sequence[str]) -> np.ndarray:
        return np.array([len(each.ids) for each in tokenizer.encode_batch(texts, add_special_tokens=False)])

    if kind == "encoder":
        return float(lengths([f"query: {question}" for question in QUESTIONS]).mean()) + 2
    pairs = lengths(QUESTIONS)[:, None] + lengths(DOCUMENTS[:160])[None, :] + 4
    return float(np.minimum(pairs, 512).mean()) * POOL


def pin(pid: int, core: int) -> None:
    """Keep all threads of a process on one core."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


async def capacity(kind: Kind, options: argparse.Namespace) -> Table:
    """Calls per second of one replica and of two."""
    bundle = ROOT / ".twostage/bundles/demo" / kind
    (port,) = free_ports(1)
    async with AsyncExitStack() as stack:
        replicas = []
        for core, metrics_port in enumerate(free_ports(2)):
            where = {"host": f"127.0.0.{2 + core}", "port": port, "metrics_port": metrics_port}
            one = await stack.enter_async_context(started(kind, bundle=bundle, threads=1, device="cpu", **where))
            await one.until_serving()
            pin(one.process.pid, core)
            replicas.append(one)
        addresses = [f"{one.address}:{port}" for one in replicas]
        targets = {
            f"{count} {kind}{'s' * (count > 1)}": (f"ipv4:{','.join(addresses[:count])}", GatewaySettings())
            for count in (1, 2)
        }
        turns = await in_turns(replicas, targets, CALLERS[kind], options)
    what = {"encoder": "one question", "reranker": f"a question with {POOL} documents"}[kind]
    what += f", {tokens_per_call(kind, bundle):.0f} tokens"
    return table(f"{what} per call, {CALLERS[kind]} callers", turns, options)


async def connections(options: argparse.Namespace) -> Table:
    """An encoder of two workers over one connection and over eight."""
    bundle = ROOT / ".twostage/bundles/demo/encoder"
    port, metrics_port = free_ports(2)
    where = {"host": "127.0.0.1", "port": port, "metrics_port": metrics_port}
    async with started("encoder", bundle=bundle, workers=2, device="cpu", **where) as one:
        await one.until_serving()
        target = f"dns:///{one.address}:{port}"
        targets = {f"{n} connection{'s' * (n > 1)}": (target, GatewaySettings(backend_connections=n)) for n in (1, 8)}
        pages = [Replica(one.process, "encoder", one.address, port, metrics_port + worker) for worker in (0, 1)]
        turns = await in_turns(pages, targets, 32, options)
    return table("one question per call, 32 callers, encoder of 2 workers", turns, options)


def table(title: str, turns: Mapping[str, Sequence[Turn]], options: argparse.Namespace) -> Table:
    """Show medians, and every turn's throughput."""
    shown = Table(title=f"{title}; medians of {options.rounds} turns of {options.seconds:g} s")
    for heading in ("", "calls/s", "p50 ms", "p95 ms", "calls/s of every turn, and what each process answered"):
        shown.add_column(heading, justify="right" if heading else "left")
    for name, each in turns.items():
        cells = [median(getattr(one, part) for one in each) for part in ("calls_per_s", "p50_ms", "p95_ms")]
        rates = ", ".join(f"{one.calls_per_s:.1f} ({one.shares})" for one in each)
        shown.add_row(name, *(f"{cell:.1f}" for cell in cells), rates)
    return shown


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("grown", "shrunk", "absent", "encoder", "reranker", "connections"))
    parser.add_argument("--seconds", type=float, default=6.0, help="of every turn")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    demo.prepare(ROOT / ".twostage/bundles/demo", lambda line: console.print(line, style="dim"))
    console.print(f"{machine()}, Python {platform.python_version()}, grpcio {grpc.__version__}")
    parts: dict[str, Callable[[], Awaitable[Table]]] = {
        "grown": grown,
        "shrunk": shrunk,
        "absent": absent,
        "encoder": lambda: capacity("encoder", options),
        "reranker": lambda: capacity("reranker", options),
        "connections": lambda: connections(options),
    }
    for name, part in parts.items():
        if options.only in (None, name):
            console.print(await part())


if __name__ == "__main__":
    asyncio.run(main())
