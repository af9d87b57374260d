"""Replicas that are added, ended, killed and brought back under load: a caller of the gateway notices nothing.

Every replica is a process at a loopback address of its own, and the gateway looks their names up in DNS. Numbers in
brackets are those of field failures.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import get_args

import grpc
import pytest
from clients import client
from name_server import NameServer, open_name_server
from replicas import PATIENCE_S, Fleet, Replica
from rigs import document, failure, numbers, request
from store_fake import MemoryStore

from gateway import app
from gateway.settings import GatewaySettings
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1.gateway_pb2_grpc import CollectionServiceStub, DocumentServiceStub, GatewayServiceStub
from serving.bundle import Bundle, Kind

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

KINDS: Sequence[Kind] = get_args(Kind)
CALLERS = 8
MOST_ROUNDS = 400
"""So many rounds of searches are made for something to happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A gateway, and what it finds its replicas by."""

    names: NameServer
    fleets: dict[Kind, Fleet]
    channel: grpc.aio.Channel

    async def start(self, **counts: int) -> dict[str, list[Replica]]:
        """Start so many replicas of each kind, index a document, and search until each has been called."""
        started = {
            kind: await asyncio.gather(*(self.fleets[kind].add() for _ in range(counts.get(kind, 1)))) for kind in KINDS
        }
        await self.until_answered()
        for replica in (one for fleet in started.values() for one in fleet):
            await self.until_called(replica)
        return started

    async def until_answered(self) -> None:
        """Fill the collection, again and again until the encoders are found, and search until the rerankers are."""
        collections, documents = CollectionServiceStub(self.channel), DocumentServiceStub(self.channel)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await collections.CreateCollection(pb.CreateCollectionRequest(collection="c"), timeout=20)
                    break
                except grpc.aio.AioRpcError as error:
                    assert error.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017 - any other one is wrong
            message = pb.UpsertDocumentsRequest(collection="c", documents=[document(1, "panda bear")])
            async for answer in documents.UpsertDocuments(iter([message])):
                assert answer.stored.stored_count == 1
            while (await self.ask(rerank=pb.RERANK_BEST_EFFORT)).HasField("degradation"):
                pass

    async def ask(self, **fields: int) -> pb.SearchResponse:
        """Search once."""
        return await GatewayServiceStub(self.channel).Search(request("panda", **fields), timeout=20)

    async def searches(self, count: int) -> None:
        """Search so often from several callers; every search has to be answered, and wholly."""
        left = iter(range(count))

        async def caller() -> None:
            for _ in left:
                check(await self.ask())

        await asyncio.gather(*(caller() for _ in range(CALLERS)))

    async def until_called(self, replica: Replica) -> None:
        """Search until a replica has answered a call."""
        for _ in range(MOST_ROUNDS):
            if await replica.call_count():
                return
            await self.searches(CALLERS)
        raise AssertionError(f"nobody called {replica.address}")

    async def shares(self, replicas: Sequence[Replica], count: int) -> list[int]:
        """Search so often, and return how many of the calls each replica has answered."""
        before = await settled(replicas)
        await self.searches(count)
        after = await settled(replicas, sum(before) + count)
        return [now - then for now, then in zip(after, before, strict=True)]


async def settled(replicas: Sequence[Replica], least: int = 0) -> list[int]:
    """Read how often each was called until two readings agree: a call is counted once its answer is on its way."""
    counts = [-1]
    while True:
        last, counts = counts, [await replica.call_count() for replica in replicas]
        if counts == last and sum(counts) >= least:
            return counts


def check(answer: pb.SearchResponse) -> None:
    """An answer that any of the replicas may have given."""
    assert numbers(answer.hits) == [1]
    assert answer.hits[0].HasField("logit")


@pytest.fixture
def scaled(tiny_encoder: Bundle, tiny_reranker: Bundle, monkeypatch: pytest.MonkeyPatch):
    """Open a gateway with names that nobody has yet; settings are those of the replicas."""

    async def memory(_settings: GatewaySettings, _stack: AsyncExitStack) -> MemoryStore:
        return MemoryStore()

    monkeypatch.setattr(app, "_open_store", memory)

    @asynccontextmanager
    async def opened(**settings: float) -> AsyncIterator[Scaled]:
        async with AsyncExitStack() as stack:
            names = await stack.enter_async_context(open_name_server())
            bundles = {"encoder": tiny_encoder.path, "reranker": tiny_reranker.path}
            fleets = {kind: Fleet(stack, names, kind, bundles[kind], **settings) for kind in KINDS}
            told = GatewaySettings(
                host="127.0.0.1",
                port=0,
                grace_s=1,
                encode_cap_s=60,
                search_cap_s=60,
                encoder_target=fleets["encoder"].target,
                reranker_target=fleets["reranker"].target,
            )
            gateway = await stack.enter_async_context(app.open_app(told))
            channel = await stack.enter_async_context(client(gateway.port))
            yield Scaled(names=names, fleets=fleets, channel=channel)

    return opened


async def test_every_replica_behind_a_name_gets_its_share(scaled):
    """Of 3 encoders and 2 rerankers each is called as often as the others of its kind (field failure 7)."""
    async with scaled() as system:
        replicas = await system.start(encoder=3, reranker=2)
        for kind, count in (("encoder", 3), ("reranker", 2)):
            shares = await system.shares(replicas[kind], 120)
            assert sum(shares) == 120
            assert max(abs(share - 120 / count) for share in shares) <= 2


@pytest.mark.parametrize("kind", KINDS)
async def test_a_replica_that_is_added_gets_calls(kind: Kind, scaled):
    """Once connections are renewed it has at least a tenth of the calls, and none has failed for that (8)."""
    async with scaled(max_connection_age_s=1) as system:
        replicas = await system.start(**{kind: 2})
        added = await system.fleets[kind].add()
        await system.until_called(added)
        shares = await system.shares([*replicas[kind], added], 300)
        assert sum(shares) == 300
        assert shares[-1] >= 30


@pytest.mark.parametrize("kind", KINDS)
async def test_a_replica_that_is_told_to_end_is_not_missed(kind: Kind, scaled):
    """SIGTERM under load fails no call, though the name still has its address, and the replica exits with 0 (59)."""
    async with scaled() as system:
        staying, leaving = (await system.start(**{kind: 2}))[kind]
        leaving.process.terminate()
        while leaving.process.returncode is None:
            await system.searches(CALLERS)
        assert leaving.process.returncode == 0
        assert await system.shares([staying], 100) == [100]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_replica_that_is_killed_is_not_missed(kind: Kind, scaled):
    """What it had in its hands is answered by the other one, and so is all that follows (59)."""
    async with scaled() as system:
        staying, killed = (await system.start(**{kind: 2}))[kind]
        await killed.freeze()
        calls = {asyncio.create_task(system.ask()) for _ in range(2 * CALLERS)}
        pending = calls
        while len(pending) > CALLERS:  # every other call is the frozen one's
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        await killed.kill()
        for answer in await asyncio.gather(*calls):
            check(answer)
        assert await system.shares([staying], 100) == [100]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_replica_that_comes_back_is_called_again(kind: Kind, scaled):
    """It is found at the address that it had, and no call fails while it loads its model (60)."""
    async with scaled() as system:
        staying, killed = (await system.start(**{kind: 2}))[kind]
        await killed.kill()
        await system.searches(CALLERS)
        back = await system.fleets[kind].start(killed.address)
        await system.until_called(back)
        shares = await system.shares([staying, back], 100)
        assert max(shares) - min(shares) <= 2


async def test_a_gateway_that_starts_first_finds_its_backends(scaled):
    """While the names have no addresses searches say so; when replicas come they are found (60)."""
    async with scaled() as system:
        collections = CollectionServiceStub(system.channel)
        failed = await failure(collections.CreateCollection(pb.CreateCollectionRequest(collection="c"), timeout=20))
        assert (failed.code, failed.reason) == (grpc.StatusCode.UNAVAILABLE, "ENCODER_UNAVAILABLE")
        assert system.names.question_count > 0
        replicas = await system.start()
        assert await system.shares(replicas["reranker"], 20) == [20]
