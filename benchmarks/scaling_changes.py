"""Replicas that come and go under load, for `scaling.py`: searches go on meanwhile, and those that fail are counted."""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle
from typing import Self

import grpc
import numpy as np
from overhead import CORPUS, ROOT, server
from rich.table import Table

from gateway import encoder_client
from gateway.backends import open_backend
from gateway.encoder_client import EncoderClient
from gateway.settings import GatewaySettings
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1.gateway_pb2_grpc import CollectionServiceStub, DocumentServiceStub, GatewayServiceStub
from serving.bundle import Kind
from serving.deadline import Deadline
from serving.errors import Unavailable

sys.path.insert(0, str(ROOT / "tests"))
from fakes import FakeEncoder, serve
from name_server import NameServer, open_name_server
from replicas import Fleet, Replica

KINDS: tuple[Kind, Kind] = ("encoder", "reranker")
COLLECTION = "scaling"
SEARCHERS = 4
POOL = 2
SEARCHES = 300
SHORT_AGE_S = 20
ABSENT_S = (3, 20, 80)
MOST_CALLS = 20_000


def _lines(name: str, key: str) -> list[str]:
    return [json.loads(line)[key] for line in (CORPUS / name).read_text(encoding="utf-8").splitlines()]


QUESTIONS, DOCUMENTS = _lines("queries.jsonl", "query"), _lines("documents.jsonl", "text")


@dataclass
class Searches:
    """A closed loop of searches, until it is left."""

    stub: GatewayServiceStub
    done_count: int = 0
    failures: list[str] = field(default_factory=list)
    ends: bool = False
    progress: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> Self:
        questions = cycle(QUESTIONS)
        self._callers = [asyncio.create_task(self._call(questions)) for _ in range(SEARCHERS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.ends = True
        await asyncio.gather(*self._callers)

    async def _call(self, questions: "cycle[str]") -> None:
        while not self.ends and self.done_count < MOST_CALLS:
            request = pb.SearchRequest(query=next(questions), collection=COLLECTION, pool_size=POOL)
            try:
                await self.stub.Search(request, timeout=30)
            except grpc.aio.AioRpcError as error:
                self.failures.append(f"{error.code().name} {error.details()}")
            self.done_count += 1
            self.progress.set()

    async def more(self, count: int) -> None:
        """Wait for so many searches."""
        until = self.done_count + count
        while self.done_count < until:
            self.progress.clear()
            await self.progress.wait()

    async def until_called(self, *replicas: Replica) -> None:
        """Wait until each has answered a call."""
        for replica in replicas:
            while not await replica.call_count():
                await self.more(SEARCHERS)


class Changes:
    """A gateway process, its fleets, and a table of what was done to them."""

    def __init__(self, fleets: dict[Kind, Fleet], channel: grpc.aio.Channel) -> None:
        self.fleets, self.channel = fleets, channel
        self.replicas: dict[Kind, list[Replica]] = {kind: [] for kind in KINDS}
        self.table = Table(title=f"{SEARCHERS} callers search all the time, pool {POOL}, demo models")
        for heading in ("what is done", "searches", "failed", "what is seen"):
            self.table.add_column(heading, justify="right" if heading in {"searches", "failed"} else "left")

    async def grow(self, **counts: int) -> None:
        """Add replicas of each kind."""
        for kind in KINDS:
            self.replicas[kind] += await asyncio.gather(*(self.fleets[kind].add() for _ in range(counts[kind])))

    @asynccontextmanager
    async def step(self, name: str) -> AsyncIterator[tuple[Searches, list[str]]]:
        """Search while something is done; what is seen goes into the list."""
        seen: list[str] = []
        async with Searches(GatewayServiceStub(self.channel)) as searches:
            yield searches, seen
        failed = f"{len(searches.failures)} {set(searches.failures) or ''}"
        self.table.add_row(name, str(searches.done_count), failed, "; ".join(seen))

    async def counts(self, kind: Kind) -> list[int]:
        """Return how many calls each replica has answered."""
        return [await replica.call_count() for replica in self.replicas[kind]]


@asynccontextmanager
async def changing(**settings: object) -> AsyncIterator[Changes]:
    """Start a gateway before any replica."""
    bundles = ROOT / ".twostage/bundles/demo"
    async with AsyncExitStack() as stack:
        names = await stack.enter_async_context(open_name_server())
        fleets = {kind: Fleet(stack, names, kind, bundles / kind, **settings) for kind in KINDS}
        store = stack.enter_context(tempfile.TemporaryDirectory())
        targets = {f"{kind}_target": fleets[kind].target for kind in KINDS}
        address, _ = await stack.enter_async_context(server("gateway", store_path=store, **targets))
        yield Changes(fleets, await stack.enter_async_context(grpc.aio.insecure_channel(address)))


async def index(channel: grpc.aio.Channel) -> None:
    """Store some documents, as soon as the encoders are found."""
    while True:
        try:
            request = pb.CreateCollectionRequest(collection=COLLECTION)
            await CollectionServiceStub(channel).CreateCollection(request, timeout=30)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            await asyncio.sleep(0.02)
        else:
            break
    documents = [pb.Document(id=pb.DocumentId(number=n), text=text) for n, text in enumerate(DOCUMENTS[:16])]
    message = pb.UpsertDocumentsRequest(collection=COLLECTION, documents=documents, truncate=True)
    async for answer in DocumentServiceStub(channel).UpsertDocuments(iter([message])):
        if answer.HasField("failure"):
            raise RuntimeError(answer.failure.message)


async def grown() -> Table:
    """A gateway before its replicas, an even spread, and one more of each."""
    async with changing(max_connection_age_s=SHORT_AGE_S) as system:
        await system.grow(encoder=3, reranker=2)
        begun = time.monotonic()
        await index(system.channel)
        found_s = time.monotonic() - begun
        async with system.step("gateway first, then replicas") as (searches, seen):
            await searches.more(1)
            await searches.until_called(*(one for kind in KINDS for one in system.replicas[kind]))
            seen.append(f"first answer {found_s:.1f} s after the names have addresses")
        async with system.step("3 encoders, 2 rerankers") as (searches, seen):
            before = {kind: await system.counts(kind) for kind in KINDS}
            await searches.more(SEARCHES)
            for kind in KINDS:
                shares = np.subtract(await system.counts(kind), before[kind])
                worst = np.abs(shares / shares.mean() - 1).max()
                seen.append(f"{kind} {' '.join(map(str, shares))}, at most {worst:.1%} from even")
        async with system.step(f"one of each is added; connection age {SHORT_AGE_S} s") as (searches, seen):
            begun = time.monotonic()
            await system.grow(encoder=1, reranker=1)
            started_s = time.monotonic() - begun
            await searches.until_called(*(system.replicas[kind][-1] for kind in KINDS))
            waited_s = time.monotonic() - begun - started_s
            before = {kind: await system.counts(kind) for kind in KINDS}
            await searches.more(SEARCHES)
            parts = {kind: np.subtract(await system.counts(kind), before[kind]) for kind in KINDS}
            shares_of = ", ".join(f"{part[-1] / part.sum():.0%} of the {kind} calls" for kind, part in parts.items())
            seen.append(f"both called {waited_s:.1f} s after they serve; then {shares_of}")
        return system.table


async def shrunk() -> Table:
    """Replicas that are told to end, killed, and brought back."""
    async with changing(max_connection_age_s=60) as system:
        await system.grow(encoder=2, reranker=2)
        await index(system.channel)
        first, second = ([system.replicas[kind][n] for kind in KINDS] for n in (0, 1))
        async with system.step("both are called") as (searches, _):
            await searches.until_called(*first, *second)
        for name, end in (("SIGTERM to one of each", "terminate"), ("kill -9 of one of each", "kill")):
            ending = first if end == "terminate" else second
            async with system.step(name) as (searches, seen):
                await searches.more(20)
                for replica in ending:
                    getattr(replica.process, end)()
                seen.append(f"exit status {' and '.join([str(await one.process.wait()) for one in ending])}")
                await searches.more(100)
            async with system.step("they come back") as (searches, seen):
                back = [await system.fleets[one.kind].start(one.address) for one in ending]
                for replica in back:
                    await replica.until_serving()
                    begun = time.monotonic()
                    await searches.until_called(replica)
                    seen.append(f"{replica.kind} called {time.monotonic() - begun:.1f} s after it serves")
        return system.table


async def absent() -> Table:
    """How long a gateway does not find a name that had no address for a while."""
    shown = Table(title="a name without any address, called all the time")
    for heading in ("absent s", "first answer, s after it has one"):
        shown.add_column(heading, justify="right")
    async with open_name_server() as names, serve(FakeEncoder()) as port:
        found = await asyncio.gather(*(_found_after(gap_s, names, port) for gap_s in ABSENT_S))
    for gap_s, after_s in zip(ABSENT_S, found, strict=True):
        shown.add_row(str(gap_s), f"{after_s:.1f}")
    return shown


async def _found_after(gap_s: int, names: NameServer, port: int) -> float:
    name = f"absent-for-{gap_s}.test"
    comes = time.monotonic() + gap_s
    asyncio.get_running_loop().call_later(gap_s, names.addresses.__setitem__, name, {"127.0.0.1"})
    async with open_backend(GatewaySettings(), names.target(name, port), encoder_client.SERVICE) as channel:
        client = EncoderClient(channel)
        while True:
            try:
                await client.info(deadline=Deadline.after(30))
            except Unavailable:
                await asyncio.sleep(0.1)
            else:
                return time.monotonic() - comes
