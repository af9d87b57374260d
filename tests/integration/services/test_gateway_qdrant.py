"""The gateway over a Qdrant server: whole searches, and every fault of the server as a caller sees it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from clients import client
from fakes import FakeEncoder, FakeReranker, Hang, serve
from patience import with_more_time
from pydantic import SecretStr
from qdrant_stand_in import CODE, StandIn, Step, altered, fails, stand_in
from rigs import COLLECTION, document, failure, health, numbers, request

from gateway.app import open_app
from gateway.settings import GatewaySettings
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1.gateway_pb2_grpc import CollectionServiceStub, DocumentServiceStub, GatewayServiceStub
from serving.errors import Misconfigured

FAULTS: list[tuple[str, Step, int, grpc.StatusCode, str]] = [
    ("down", fails(CODE.UNAVAILABLE), 2, CODE.UNAVAILABLE, "STORE_UNAVAILABLE"),
    ("hanging", Hang(), 1, CODE.DEADLINE_EXCEEDED, "DEADLINE_SPENT"),
    ("slow", fails(CODE.DEADLINE_EXCEEDED), 1, CODE.DEADLINE_EXCEEDED, "DEADLINE_SPENT"),
    ("no collection", fails(CODE.NOT_FOUND), 1, CODE.NOT_FOUND, "COLLECTION_NOT_FOUND"),
    ("full", fails(CODE.RESOURCE_EXHAUSTED, ("retry-after", "3")), 1, CODE.RESOURCE_EXHAUSTED, "STORE_OVERLOADED"),
    ("broken", fails(CODE.INTERNAL), 1, CODE.INTERNAL, "STORE_FAILED"),
    ("unknown", fails(CODE.UNKNOWN), 1, CODE.INTERNAL, "STORE_FAILED"),
    ("our request", fails(CODE.INVALID_ARGUMENT), 1, CODE.INTERNAL, "STORE_REFUSED"),
    ("no access", fails(CODE.PERMISSION_DENIED), 1, CODE.FAILED_PRECONDITION, "STORE_ACCESS_DENIED"),
    ("another server", fails(CODE.UNIMPLEMENTED), 1, CODE.FAILED_PRECONDITION, "STORE_MISCONFIGURED"),
    (
        "nan",
        altered(lambda answer: setattr(answer.result[0], "score", float("nan"))),
        1,
        CODE.INTERNAL,
        "SCORE_NOT_FINITE",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A gateway between a stand-in of Qdrant and fake model servers, and its callers' stubs."""

    qdrant: StandIn
    channel: grpc.aio.Channel
    gateway: GatewayServiceStub
    documents: DocumentServiceStub
    collections: CollectionServiceStub

    async def upsert(self, *documents: pb.Document) -> pb.UpsertDocumentsResponse:
        """Send one message of documents."""
        message = pb.UpsertDocumentsRequest(collection=COLLECTION, documents=documents)
        (answer,) = [one async for one in self.documents.UpsertDocuments(iter([message]))]
        return answer

    async def fill(self) -> None:
        """Make the collection with three documents."""
        await self.collections.CreateCollection(pb.CreateCollectionRequest(collection=COLLECTION))
        answer = await self.upsert(document(1, "alpha"), document(2, "alpha beta"), document("three", "gamma"))
        assert answer.stored.stored_count == 3

    async def ask(self) -> pb.SearchResponse:
        """Search."""
        return await self.gateway.Search(request("alpha beta"), timeout=20)


@asynccontextmanager
async def open_whole(**settings: Any) -> AsyncIterator[Whole]:
    """Open everything, filled."""
    async with AsyncExitStack() as stack:
        qdrant = await stack.enter_async_context(stand_in())
        ports = [await stack.enter_async_context(serve(fake)) for fake in (FakeEncoder(), FakeReranker())]
        told = settings_of(f"http://127.0.0.1:{qdrant.port}", *ports, **settings)
        running = await stack.enter_async_context(open_app(told))
        channel = await stack.enter_async_context(client(running.port))
        whole = Whole(
            qdrant=qdrant,
            channel=channel,
            gateway=GatewayServiceStub(channel),
            documents=DocumentServiceStub(channel),
            collections=CollectionServiceStub(channel),
        )
        await whole.fill()
        yield whole


def settings_of(url: str, encoder: int = 1, reranker: int = 1, **others: Any) -> GatewaySettings:
    """Make the settings of a gateway on a free port, over Qdrant."""
    return GatewaySettings(
        **{
            "host": "127.0.0.1",
            "port": 0,
            "grace_s": 1,
            "store": "qdrant",
            "qdrant_url": url,
            "encoder_target": f"dns:///127.0.0.1:{encoder}",
            "reranker_target": f"dns:///127.0.0.1:{reranker}",
            **others,
        }
    )


async def test_documents_go_in_and_are_found() -> None:
    """Indexing, searching, reading, deleting and dropping work over Qdrant, and provenance says so."""
    async with open_whole() as whole:
        answer = await whole.ask()
        assert numbers(answer.hits)[:2] == [2, 1]
        assert answer.hits[2].id.text == "three"
        assert answer.provenance.store == "qdrant"
        await whole.documents.DeleteDocuments(
            pb.DeleteDocumentsRequest(collection=COLLECTION, ids=[pb.DocumentId(number=2)])
        )
        described = await whole.collections.DescribeCollection(pb.DescribeCollectionRequest(collection=COLLECTION))
        assert described.collection.document_count == 2
        await whole.collections.DropCollection(pb.DropCollectionRequest(collection=COLLECTION))
        assert whole.qdrant.shelves == {}


@pytest.mark.parametrize("name", [fault[0] for fault in FAULTS])
async def test_faults_of_the_server(name: str) -> None:
    """Each fault has its code, reason and stage, no word of the server's, and the next search is fine (32)."""
    if name == "hanging":
        await with_more_time(lambda seconds: _check_fault(name, search_cap_s=seconds))
    else:
        await _check_fault(name, search_cap_s=60)


async def _check_fault(name: str, **settings: Any) -> None:
    _, step, times, code, reason = next(fault for fault in FAULTS if fault[0] == name)
    async with open_whole(**settings) as whole:
        await whole.ask()
        whole.qdrant.faults.extend([step] * times)
        failed = await failure(whole.ask())
        assert (failed.code, failed.reason, failed.info["stage"]) == (code, reason, "search")
        assert "own words" not in failed.details
        assert failed.retry_after_s == (3 if name == "full" else None)
        assert int(failed.trailers["twostage-search-total-us"]) > 0
        assert numbers((await whole.ask()).hits)[:2] == [2, 1]


async def test_hits_without_text_are_answered_without_a_score() -> None:
    """A hit whose text is gone comes last, unscored, and the search is answered (field failure 33)."""

    def forget(answer: Any) -> None:
        (point,) = [one for one in answer.result if one.id.num == 2]
        point.payload.clear()

    async with open_whole() as whole:
        whole.qdrant.faults.append(altered(forget))
        hits = (await whole.ask()).hits
        assert hits[-1].id.number == 2
        assert hits[-1].text_missing
        assert not hits[-1].HasField("rerank_rank")


async def test_a_collection_of_another_size_is_the_operators() -> None:
    """A collection made again with another dimension is FAILED_PRECONDITION, and its name can be used anew."""
    async with open_whole() as whole:
        shelf = whole.qdrant.shelves[COLLECTION]
        shelf.size = shelf.config.params.vectors_config.params.size = 5
        failed = await failure(whole.ask())
        assert (failed.code, failed.reason) == (CODE.FAILED_PRECONDITION, "VECTOR_SIZE_MISMATCH")
        stored = await whole.upsert(document(1, "alpha"))
        assert (stored.failure.code, stored.failure.reason) == (9, "VECTOR_SIZE_MISMATCH")
        await whole.collections.DropCollection(pb.DropCollectionRequest(collection=COLLECTION))
        await whole.fill()
        assert numbers((await whole.ask()).hits)[:2] == [2, 1]


async def test_a_server_that_goes_and_comes_back() -> None:
    """While Qdrant is away searches are UNAVAILABLE and the gateway stays up; then they work again."""
    async with open_whole() as whole:
        await whole.qdrant.line.refuse()
        failed = await failure(whole.ask())
        assert (failed.code, failed.reason, failed.info["stage"]) == (
            CODE.UNAVAILABLE,
            "STORE_UNAVAILABLE",
            "search",
        )
        assert await health(whole.channel) == 1
        await whole.qdrant.line.listen()
        assert numbers((await eventually(whole)).hits)[:2] == [2, 1]


async def test_the_gateway_starts_before_qdrant() -> None:
    """Nothing listens at the start: the gateway serves, and its calls are UNAVAILABLE."""
    async with stand_in() as qdrant:
        await qdrant.line.refuse()
        async with open_app(settings_of(f"127.0.0.1:{qdrant.port}")) as running, client(running.port) as channel:
            assert await health(channel) == 1
            failed = await failure(CollectionServiceStub(channel).ListCollections(pb.ListCollectionsRequest()))
            assert (failed.code, failed.reason) == (CODE.UNAVAILABLE, "STORE_UNAVAILABLE")
        await qdrant.line.listen()


async def test_the_api_key_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    """The key of the file wins, line break and all, and settings never show either."""
    file = tmp_path / "key"
    file.write_text("from-file\n")
    async with stand_in() as qdrant:
        url = f"127.0.0.1:{qdrant.port}"
        given = settings_of(url, qdrant_api_key=SecretStr("from-env"))
        both = settings_of(url, qdrant_api_key=SecretStr("from-env"), qdrant_api_key_file=file)
        for key, settings in (("from-env", given), ("from-file", both)):
            qdrant.api_key = key
            async with open_app(settings):
                assert "from-env" not in repr(settings)
        with pytest.raises(Misconfigured) as raised:
            async with open_app(given):
                pass
        assert raised.value.reason == "STORE_ACCESS_DENIED"


async def test_a_key_file_that_is_missing_stops_the_start(tmp_path: Path) -> None:
    """A path that leads nowhere is named."""
    with pytest.raises(Misconfigured) as raised:
        async with open_app(settings_of("127.0.0.1:1", qdrant_api_key_file=tmp_path / "none")):
            pass
    assert raised.value.reason == "STORE_API_KEY"
    assert "none" in raised.value.message


async def eventually(whole: Whole) -> pb.SearchResponse:
    """Search until the gateway has found the server again; the test's own time limit ends it."""
    while True:
        try:
            return await whole.ask()
        except grpc.aio.AioRpcError as error:
            assert error.code() is CODE.UNAVAILABLE  # noqa: PT017 - any other is wrong
