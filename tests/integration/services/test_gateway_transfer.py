"""Collections from one gateway's store to another's, and what is wrong with such a transfer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from qdrant_stand_in import StandIn, Unheard, fails, lost, stand_in
from rigs import COLLECTION, Rig, document, failure, open_rig
from store_fake import MemoryStore

from gateway.ports import Document
from gateway.stores.edge import EdgeStore
from gateway.stores.qdrant import QdrantStore
from gateway.stores.qdrant_target import QdrantTarget
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.deadline import Deadline

CODE = grpc.StatusCode
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
PARAMETERS = pb.CollectionParameters(
    hnsw_m=24,
    quantization=pb.QUANTIZATION_INT8,
    payload_indexes=[
        pb.PayloadIndex(key="kind", type=pb.PAYLOAD_INDEX_TYPE_KEYWORD),
        pb.PayloadIndex(key="note", type=pb.PAYLOAD_INDEX_TYPE_TEXT),
    ],
)

LOST = {
    2: [(CODE.UNAVAILABLE, "IMPORT_LOST")],
    3: [(CODE.UNAVAILABLE, "IMPORT_LOST"), (CODE.INVALID_ARGUMENT, "IMPORT_COUNT")],
}
"""How an import of two documents fails whose collection is lost, by what its footer says: the batch or the footer."""


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[tuple[Any, Any, Any]]:
    """An embedded store, a Qdrant server, and another embedded store."""
    async with (
        stand_in() as server,
        await EdgeStore.open(tmp_path / "first", in_process=True) as first,
        await QdrantStore.open(QdrantTarget(host="127.0.0.1", port=server.port)) as middle,
        await EdgeStore.open(tmp_path / "last", in_process=True) as last,
    ):
        yield first, middle, last


async def export(rig: Rig, collection: str = COLLECTION) -> list[pb.ExportCollectionResponse]:
    """Read an export."""
    call = rig.collections.ExportCollection(pb.ExportCollectionRequest(collection=collection), timeout=60)
    return [one async for one in call]


def replayed(parts: list[pb.ExportCollectionResponse], **start: Any) -> list[pb.ImportCollectionRequest]:
    """Turn an export into what imports it."""
    requests = []
    for part in parts:
        kind = part.WhichOneof("part")
        value = {kind: getattr(part, kind)}
        if kind == "header":
            value = {"start": pb.ImportStart(**{"collection": COLLECTION, "header": part.header, **start})}
        requests.append(pb.ImportCollectionRequest(**value))
    return requests


async def load(rig: Rig, requests: Any) -> pb.Collection:
    """Import."""
    return (await rig.collections.ImportCollection(iter(requests), timeout=60)).collection


async def names(rig: Rig) -> list[str]:
    """Return what collections there are."""
    return [one.name for one in (await rig.collections.ListCollections(pb.ListCollectionsRequest())).collections]


async def contents(store: Any) -> dict[Any, tuple[Document, bytes]]:
    """Return every document of the collection with the bits of its vector."""
    page = await store.scan(COLLECTION, after=None, limit=10_000, deadline=Deadline.after(60))
    assert page.next is None
    pairs = zip(page.documents, page.vectors, strict=True)
    return {one.id: (one, vector.tobytes()) for one, vector in pairs}


async def filled(rig: Rig, count: int = 300) -> None:
    """Make the collection with documents of all kinds of ids and payloads."""
    await rig.collections.CreateCollection(pb.CreateCollectionRequest(collection=COLLECTION, parameters=PARAMETERS))
    rng = np.random.default_rng(4)
    identifiers = [2**64 - 1, "550e8400-e29b-41d4-a716-446655440000", "text #1", *range(count - 3)]
    documents = [
        document(
            one,
            " ".join(rng.choice(WORDS, 5)),
            kind=str(index % 3),
            note=["Sea", f"number {index % 20}"],
            deep={"n": [1.5, None]},
        )
        for index, one in enumerate(identifiers)
    ]
    for begin in range(0, count, 100):
        answer = await rig.upsert(documents[begin : begin + 100])
        assert answer.stored.stored_count == len(documents[begin : begin + 100])


async def answers(rig: Rig) -> list[Any]:
    """Search in several ways."""
    note = pb.Filter(must=[pb.Condition(text_match=pb.TextMatch(key="note", text="sea 7"))])
    kind = pb.Filter(must=[pb.Condition(any_of=pb.AnyOf(key="kind"))])
    kind.must[0].any_of.values.add().string_value = "1"
    asked = [{}, {"filter": note}, {"filter": kind, "pool_size": 50, "top_k": 50}]
    found = [await rig.ask("alpha gamma", rerank=pb.RERANK_OFF, payload_fields=["*"], **each) for each in asked]
    return [list(one.hits) for one in found]


async def test_a_corpus_goes_to_a_server_and_back(stores: Any) -> None:
    """Embedded store -> Qdrant -> embedded store: ids, texts, payloads, every bit of every vector, and searches."""
    told, found, kept = [], [], []
    parts: list[Any] = []
    for index, store in enumerate(stores):
        async with open_rig(store) as rig:
            if index:
                told.append(await load(rig, replayed(parts)))
            else:
                await filled(rig)
            parts = await export(rig)
            found.append(await answers(rig))
            kept.append(await contents(store))
    assert kept[0] == kept[1] == kept[2]
    assert len(kept[0]) == 300
    assert found[0] == found[1] == found[2]
    assert all(found[0])
    assert [part.WhichOneof("part") for part in (parts[0], parts[-1])] == ["header", "footer"]
    for one in told:
        assert (one.name, one.document_count, one.passage_prefix) == (COLLECTION, 300, "passage: ")
        assert (one.parameters.hnsw_m, one.parameters.quantization) == (24, pb.QUANTIZATION_INT8)
        assert list(one.parameters.payload_indexes) == list(PARAMETERS.payload_indexes)


async def test_split_documents_stay_split(tmp_path: Path) -> None:
    """Parts go over with their parent and its text, so that they are still folded, replaced as one and shown whole."""
    async with open_rig() as rig:
        await rig.fill("alpha")
        parts = await export(rig)
    (stored,) = parts[1].documents.documents
    stored.document.MergeFrom(
        pb.Document(parent=pb.DocumentId(number=7), part=1, part_count=2, parent_text="alpha and more")
    )
    async with await EdgeStore.open(tmp_path, in_process=True) as store, open_rig(store) as rig:
        await load(rig, replayed(parts))
        again = await export(rig)
    assert again[1] == parts[1]


async def test_how_words_are_indexed_goes_over(stores: Any) -> None:
    """The new collection is found by words as the old one was, whatever store it is in."""
    lexical = pb.LexicalParameters(
        k1=1.25,
        b=0.5,
        average_words=7.5,
        tokenizer=pb.LEXICAL_TOKENIZER_MULTILINGUAL,
        language="english",
        stem=True,
        stop_words=True,
        extra_stop_words=["zeta"],
        fold_accents=True,
    )
    asked = pb.CreateCollectionRequest(collection=COLLECTION, parameters=pb.CollectionParameters(lexical=lexical))
    parts: list[pb.ExportCollectionResponse] = []
    for store in stores:
        async with open_rig(store) as rig:
            if parts:
                made = await load(rig, replayed(parts))
            else:
                made = (await rig.collections.CreateCollection(asked)).collection
                await rig.upsert([document(1, "Walking alphas"), document(2, "zeta the")])
            assert made.parameters.lexical == lexical
            parts = await export(rig)
            assert parts[0].header.parameters.lexical == lexical
            words = pb.Retrieval(mode=pb.RETRIEVAL_MODE_LEXICAL)
            hits = (await rig.ask("he walked", retrieval=words, rerank=pb.RERANK_OFF)).hits
            assert [hit.id.number for hit in hits] == [1]


async def test_messages_stay_under_every_clients_limit() -> None:
    """Documents of the largest size come in messages that a client with gRPC's own limit takes, and go back."""
    async with open_rig() as rig:
        await rig.fill()
        for one in range(0, 100, 20):
            await rig.upsert([document(one + extra, "alpha " * 10_900) for extra in range(20)])
        parts = await export(rig)
        assert sum(len(part.documents.documents) for part in parts) == 100
        assert 3 < len(parts) < 10
    async with open_rig() as rig:
        assert (await load(rig, replayed(parts))).document_count == 100


async def test_an_empty_collection_is_one_too() -> None:
    """A header and a footer make an empty collection."""
    async with open_rig() as rig:
        await rig.fill()
        parts = await export(rig)
        assert [part.WhichOneof("part") for part in parts] == ["header", "footer"]
        requests = replayed(parts, collection="d")
        assert (await load(rig, requests)).document_count == 0
        assert await names(rig) == [COLLECTION, "d"]


def _no_footer(requests: list[Any]) -> None:
    requests.pop()


def _no_start(requests: list[Any]) -> None:
    requests.pop(0)


def _nothing(requests: list[Any]) -> None:
    requests.clear()


def _lost(requests: list[Any]) -> None:
    requests.pop(1)


def _more_after_the_end(requests: list[Any]) -> None:
    requests.append(requests[1])


def _two_starts(requests: list[Any]) -> None:
    requests.insert(1, requests[0])


def _short_vector(requests: list[Any]) -> None:
    requests[1].documents.documents[1].vector = b"\0" * 60


def _not_finite(requests: list[Any]) -> None:
    requests[1].documents.documents[0].vector = np.full(16, np.nan, "<f4").tobytes()


def _no_id(requests: list[Any]) -> None:
    requests[1].documents.documents[0].document.ClearField("id")


def _one_id_twice(requests: list[Any]) -> None:
    one, other = requests[1].documents.documents
    other.document.id.CopyFrom(one.document.id)


def _empty_batch(requests: list[Any]) -> None:
    requests.insert(1, pb.ImportCollectionRequest(documents=pb.DocumentBatch()))


def _other_version(requests: list[Any]) -> None:
    requests[0].start.header.format_version = 2


def _no_digest(requests: list[Any]) -> None:
    requests[0].start.header.encoder.digest = ""


def _no_dimension(requests: list[Any]) -> None:
    requests[0].start.header.dimension = 0


def _bad_name(requests: list[Any]) -> None:
    requests[0].start.collection = ".x"


def _bad_parameter(requests: list[Any]) -> None:
    requests[0].start.header.parameters.hnsw_m = 1


def _bad_lexical(requests: list[Any]) -> None:
    requests[0].start.header.parameters.lexical.b = 2


def _bad_language(requests: list[Any]) -> None:
    requests[0].start.header.parameters.lexical.MergeFrom(pb.LexicalParameters(language="elvish", stem=True))


def _text_of_no_parent(requests: list[Any]) -> None:
    requests[1].documents.documents[1].document.parent_text = "whole"


def _text_of_a_second_part(requests: list[Any]) -> None:
    part = pb.Document(parent=pb.DocumentId(number=7), part=2, part_count=2, parent_text="whole")
    requests[1].documents.documents[0].document.MergeFrom(part)


def _large_parent_text(requests: list[Any]) -> None:
    part = pb.Document(parent=pb.DocumentId(number=7), part=1, part_count=2, parent_text="x" * 65_537)
    requests[1].documents.documents[0].document.MergeFrom(part)


@pytest.mark.parametrize(
    ("break_", "reason", "field"),
    [
        (_no_footer, "IMPORT_ORDER", "footer"),
        (_no_start, "IMPORT_ORDER", "start"),
        (_nothing, "IMPORT_ORDER", "start"),
        (_lost, "IMPORT_COUNT", "footer.document_count"),
        (_more_after_the_end, "IMPORT_ORDER", "footer"),
        (_two_starts, "IMPORT_ORDER", "part"),
        (_short_vector, "VECTOR_SIZE", "documents.documents[1].vector"),
        (_not_finite, "VECTOR_MALFORMED", "documents.documents[0].vector"),
        (_no_id, "ID_REQUIRED", "documents.documents[0].document.id"),
        (_one_id_twice, "IMPORT_COUNT", "documents"),
        (_empty_batch, "OUT_OF_RANGE", "documents.documents"),
        (_other_version, "FORMAT_VERSION", "start.header.format_version"),
        (_no_digest, "ENCODER_REQUIRED", "start.header.encoder.digest"),
        (_no_dimension, "OUT_OF_RANGE", "start.header.dimension"),
        (_bad_name, "COLLECTION_NAME", "start.collection"),
        (_bad_parameter, "OUT_OF_RANGE", "start.header.parameters.hnsw_m"),
        (_bad_lexical, "OUT_OF_RANGE", "start.header.parameters.lexical.b"),
        (_bad_language, "LANGUAGE_UNSUPPORTED", "parameters.lexical.language"),
        (_text_of_no_parent, "PARENT_TEXT", "documents.documents[1].document.parent_text"),
        (_text_of_a_second_part, "PARENT_TEXT", "documents.documents[0].document.parent_text"),
        (_large_parent_text, "TEXT_TOO_LARGE", "documents.documents[0].document.parent_text"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
async def test_a_broken_import_leaves_nothing_behind(stores: Any, break_: Any, reason: str, field: str) -> None:
    """Whatever is wrong is named as the caller's, nothing of it can be seen, and the name is free."""
    async with open_rig() as rig:
        await rig.fill("alpha", "beta")
        parts = await export(rig)
    for store in stores[:2]:
        async with open_rig(store) as rig:
            requests = replayed(parts)
            break_(requests)
            failed = await failure(load(rig, requests))
            assert (failed.code, failed.reason, failed.info["field"]) == (CODE.INVALID_ARGUMENT, reason, field)
            assert await names(rig) == []
            assert (await load(rig, replayed(parts))).document_count == 2


async def test_a_taken_name_keeps_what_it_has() -> None:
    """Importing over a collection is refused and changes nothing of it."""
    async with open_rig() as rig:
        await rig.fill("alpha", "beta")
        parts = await export(rig)
        await rig.upsert([document(3, "gamma")])
        failed = await failure(load(rig, replayed(parts)))
        assert (failed.code, failed.reason) == (CODE.ALREADY_EXISTS, "COLLECTION_EXISTS")
        described = await rig.collections.DescribeCollection(pb.DescribeCollectionRequest(collection=COLLECTION))
        assert described.collection.document_count == 3


async def test_a_caller_who_leaves_leaves_nothing() -> None:
    """An import that is cancelled half way is deleted, and the name is free again."""
    store = MemoryStore()
    async with open_rig(store) as rig:
        await rig.fill("alpha")
        parts = await export(rig)
        call = rig.collections.ImportCollection()
        for one in replayed(parts, collection="d")[:-1]:
            await call.write(one)
        async with asyncio.timeout(20):
            while "d" not in store._collections:
                await rig.ask()
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        async with asyncio.timeout(20):
            while "d" in store._collections:
                await rig.ask()
        assert await names(rig) == [COLLECTION]


async def test_a_caller_who_leaves_while_the_collection_is_made_leaves_nothing() -> None:
    """The server has made what nobody waits for any more, and the gateway deletes it."""
    parts = await _of_two()
    made, go_on = asyncio.Event(), asyncio.Event()

    async def late(_: Any, __: Any, answer: Any) -> Any:
        if server.calls[-1][0] != "Collections.Create":
            server.faults.append(late)
            return answer()
        result = answer()
        made.set()
        await go_on.wait()
        return result

    async with (
        stand_in() as server,
        await QdrantStore.open(QdrantTarget(host="127.0.0.1", port=server.port)) as store,
        open_rig(store) as rig,
    ):
        server.faults.append(late)
        call = rig.collections.ImportCollection()
        await call.write(replayed(parts)[0])
        await made.wait()
        call.cancel()
        go_on.set()
        await rig.counted(CODE.CANCELLED, "ImportCollection")
        await _swept(server, rig)
        assert (await load(rig, replayed(parts))).document_count == 2


@pytest.fixture
async def far() -> AsyncIterator[tuple[StandIn, Rig]]:
    """A Qdrant server and a gateway before it."""
    async with (
        stand_in() as server,
        await QdrantStore.open(QdrantTarget(host="127.0.0.1", port=server.port)) as store,
        open_rig(store) as rig,
    ):
        yield server, rig


async def _swept(server: StandIn, rig: Rig) -> None:
    """Wait until the server has no collection; none was ever seen."""
    async with asyncio.timeout(20):
        while server.shelves:
            assert await names(rig) == []


@pytest.mark.parametrize("code", [CODE.DEADLINE_EXCEEDED, CODE.CANCELLED])
async def test_a_collection_that_is_made_after_its_import_ended_goes(
    far: tuple[StandIn, Rig], caplog: pytest.LogCaptureFixture, code: Any
) -> None:
    """Where the server is done only after the gateway has looked, what it made is deleted and the name is free."""
    server, rig = far
    parts = await _of_two()
    unheard = Unheard(None if code is CODE.CANCELLED else code)
    server.faults_at["Collections.Create"].append(unheard)
    call = rig.collections.ImportCollection()
    await call.write(replayed(parts)[0])
    await unheard.begun.wait()
    if code is CODE.CANCELLED:
        call.cancel()
    await rig.counted(code, "ImportCollection")
    async with asyncio.timeout(20):
        while not any(method == "Collections.Get" for method, _ in server.calls):
            assert await names(rig) == []
    unheard.released.set()
    await unheard.done.wait()
    await _swept(server, rig)
    assert (await load(rig, replayed(parts))).document_count == 2
    assert "never retrieved" not in caplog.text


async def test_an_import_is_deleted_once_its_server_is_back(far: tuple[StandIn, Rig]) -> None:
    """A server that cannot be reached when the import fails, nor when it is to be deleted, keeps nothing of it."""
    server, rig = far
    parts = await _of_two()
    for method in ("Points.Upsert", "Points.Upsert", "Collections.Delete"):
        server.faults_at[method].append(fails(CODE.UNAVAILABLE))
    failed = await failure(load(rig, replayed(parts)))
    assert (failed.code, failed.reason) == (CODE.UNAVAILABLE, "STORE_UNAVAILABLE")
    await _swept(server, rig)
    assert (await load(rig, replayed(parts))).document_count == 2


@pytest.mark.parametrize("code", [CODE.UNAVAILABLE, CODE.DEADLINE_EXCEEDED])
async def test_an_import_whose_last_answer_is_lost_is_told_as_made(far: tuple[StandIn, Rig], code: Any) -> None:
    """Where a look shows that the collection can be found, the import has not failed."""
    server, rig = far
    server.faults_at["Collections.Update"].append(lost(code))
    made = await load(rig, replayed(await _of_two()))
    described = await rig.collections.DescribeCollection(pb.DescribeCollectionRequest(collection=COLLECTION))
    assert made == described.collection


async def test_an_import_that_nobody_can_look_at_stays_whole(far: tuple[StandIn, Rig]) -> None:
    """Where the last answer and the look are lost, the import fails with the first, and what can be found stays."""
    server, rig = far
    parts = await _of_two()

    async def last(request: Any, context: Any, answer: Any) -> Any:
        server.faults_at["Collections.Get"].extend([fails(CODE.UNAVAILABLE)] * 2)
        return await lost(CODE.DEADLINE_EXCEEDED)(request, context, answer)

    server.faults_at["Collections.Update"].append(last)
    failed = await failure(load(rig, replayed(parts)))
    assert failed.code is CODE.DEADLINE_EXCEEDED
    described = await rig.collections.DescribeCollection(pb.DescribeCollectionRequest(collection=COLLECTION))
    assert described.collection.document_count == 2


async def _end(call: Any, footer: pb.CollectionFooter) -> None:
    with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):  # it may have failed by now
        await call.write(pb.ImportCollectionRequest(footer=footer))
        await call.done_writing()


@pytest.mark.parametrize("footer", [None, 2, 3])
async def test_an_import_leaves_another_clients_collection_alone(stores: Any, footer: int | None) -> None:
    """Where another client drops what is being imported and takes the name, its documents stay, however that ends."""
    parts = await _of_two()
    for store in stores[:2]:
        async with open_rig(store) as rig:
            call = rig.collections.ImportCollection()
            for one in replayed(parts)[: 1 if footer is None else 2]:
                await call.write(one)
            async with asyncio.timeout(20):
                while not await _dropped(rig):
                    pass
            await rig.fill("precious")
            if footer is None:
                call.cancel()
                await rig.counted(CODE.CANCELLED, "ImportCollection")
            else:
                await _end(call, pb.CollectionFooter(document_count=footer))
                failed = await failure(call)
                assert (failed.code, failed.reason) in LOST[footer]
            assert [document.text for document, _ in (await contents(store)).values()] == ["precious"]


async def _dropped(rig: Rig) -> bool:
    try:
        await rig.collections.DropCollection(pb.DropCollectionRequest(collection=COLLECTION))
    except grpc.aio.AioRpcError as error:
        assert error.code() is CODE.NOT_FOUND  # noqa: PT017 - what is not there yet is asked for again
        return False
    return True


async def test_an_import_whose_engine_is_started_again_is_told_to_begin_again(tmp_path: Path) -> None:
    """What the engine swept when it came back is no collection that the caller named wrongly; another try works."""
    parts = await _of_two()
    async with await EdgeStore.open(tmp_path) as store, open_rig(store) as rig:
        call = rig.collections.ImportCollection()
        await call.write(replayed(parts)[0])
        async with asyncio.timeout(20):
            while not (tmp_path / COLLECTION).exists():
                assert await names(rig) == []
        assert await names(rig) == []  # the engine does one thing after the other: by now it is made
        store._root._process.kill()
        store._root._process.wait()
        with contextlib.suppress(grpc.aio.AioRpcError):  # the call that finds it dead
            await names(rig)
        assert await names(rig) == []
        await call.write(replayed(parts)[1])
        await _end(call, parts[-1].footer)
        failed = await failure(call)
        assert (failed.code, failed.reason) == (CODE.UNAVAILABLE, "IMPORT_LOST")
        assert (await load(rig, replayed(parts))).document_count == 2


class GatedStore(MemoryStore):
    """Lets the second page be read when told."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = 0
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def scan(self, name: str, **wanted: Any) -> Any:
        self.pages += 1
        if self.pages == 2:
            self.reached.set()
            await self.go_on.wait()
        return await super().scan(name, **wanted)


async def test_an_export_is_of_one_collection() -> None:
    """Where another one takes the name between two pages, the export ends with an error and without a footer."""
    store = GatedStore()
    async with open_rig(store) as rig:
        await rig.fill(*["old"] * 100)
        reading = asyncio.create_task(failure(export(rig)))
        await store.reached.wait()
        assert await _dropped(rig)
        await rig.fill(*["new"] * 100)
        store.go_on.set()
        failed = await reading
        assert (failed.code, failed.reason) == (CODE.UNAVAILABLE, "COLLECTION_REPLACED")


async def _of_two() -> list[pb.ExportCollectionResponse]:
    """Return an export of two documents."""
    async with open_rig() as rig:
        await rig.fill("alpha", "beta")
        return await export(rig)


async def test_a_server_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    """A batch that cannot be stored ends the import with its status, and the hidden collection goes."""
    async with open_rig() as rig:
        await rig.fill("alpha")
        parts = await export(rig)
    async with stand_in() as server, await QdrantStore.open(QdrantTarget(host="127.0.0.1", port=server.port)) as store:

        async def unless_upsert(request: Any, context: Any, answer: Any) -> Any:
            if server.calls[-1][0] == "Points.Upsert":
                return await fails(CODE.INTERNAL)(request, context, answer)
            server.faults.append(unless_upsert)
            return answer()

        async with open_rig(store) as rig:
            server.faults.append(unless_upsert)
            failed = await failure(load(rig, replayed(parts)))
            assert (failed.code, failed.reason) == (CODE.INTERNAL, "STORE_FAILED")
            assert server.shelves == {}
            assert (await load(rig, replayed(parts))).document_count == 1


async def test_a_cluster_comes_to_one_machine_when_told(tmp_path: Path) -> None:
    """Copies that the new store cannot keep refuse the import, until its own parameters are given."""
    async with open_rig() as rig:
        await rig.fill("alpha")
        parts = await export(rig)
    parts[0].header.parameters.replication_factor = 3
    async with await EdgeStore.open(tmp_path, in_process=True) as store, open_rig(store) as rig:
        failed = await failure(load(rig, replayed(parts)))
        assert (failed.code, failed.reason) == (CODE.INVALID_ARGUMENT, "PARAMETER_UNSUPPORTED")
        made = await load(rig, replayed(parts, parameters=pb.CollectionParameters(hnsw_m=8)))
        assert (made.document_count, made.parameters.hnsw_m, made.parameters.replication_factor) == (1, 8, 1)


async def test_an_export_of_nothing_is_not_found() -> None:
    """No header comes of a collection that does not exist."""
    async with open_rig() as rig:
        failed = await failure(_all(rig.collections.ExportCollection(pb.ExportCollectionRequest(collection="none"))))
        assert (failed.code, failed.reason) == (CODE.NOT_FOUND, "COLLECTION_NOT_FOUND")


async def _all(call: Any) -> list[Any]:
    return [one async for one in call]
