"""Ids of parts: whose they are, whoever writes or deletes under them, and which collection one call is about."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from fakes import word_vector
from qdrant_stand_in import stand_in
from rigs import COLLECTION, Rig, document, failure, health, open_rig
from store_fake import MemoryStore

from gateway.ports import Document, DocumentId, Part, VectorStore
from gateway.stored_parts import READ_IDS_PER_CALL
from gateway.stores.edge import EdgeStore
from gateway.stores.qdrant import QdrantStore
from gateway.stores.qdrant_target import QdrantTarget
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.deadline import Deadline

SPLIT = pb.OVERLONG_SPLIT
LONG = "alpha " * 199 + "alpha"
"""Four parts."""


@pytest.fixture(params=["memory", "edge", "qdrant"])
async def store(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncIterator[VectorStore]:
    """Every store."""
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            yield MemoryStore()
        elif request.param == "edge":
            yield await stack.enter_async_context(await EdgeStore.open(tmp_path / "store", in_process=True))
        else:
            server = await stack.enter_async_context(stand_in())
            target = QdrantTarget(host="127.0.0.1", port=server.port)
            yield await stack.enter_async_context(await QdrantStore.open(target))


def soon() -> Deadline:
    return Deadline.after(60)


async def send(rig: Rig, *documents: pb.Document, collection: str = COLLECTION, overlong: Any = SPLIT) -> str:
    """Send one message; return why it was refused, with the field, or nothing."""
    message = pb.UpsertDocumentsRequest(collection=collection, documents=documents, overlong=overlong)
    (answer,) = [one async for one in rig.documents.UpsertDocuments(iter([message]))]
    return f"{answer.failure.reason} {answer.failure.message.split(':')[0]}".strip()


async def delete(rig: Rig, *ids: int | str, collection: str = COLLECTION) -> None:
    wanted = [document(one, "").id for one in ids]
    await rig.documents.DeleteDocuments(pb.DeleteDocumentsRequest(collection=collection, ids=wanted))


async def stored(store: VectorStore, collection: str = COLLECTION) -> dict[DocumentId, str]:
    """Return id and text of all that is stored."""
    page = await store.scan(collection, after=None, limit=1_000, deadline=soon())
    return {one.id: one.text for one in page.documents}


async def forget(store: VectorStore, *ids: DocumentId) -> None:
    """Delete as a gateway of an older version did that was given the ids of parts."""
    await store.delete(COLLECTION, ids, deadline=soon())


async def put_plain(store: VectorStore, *documents: Document) -> None:
    """Store past the gateway, as an older version or an import may have."""
    await store.upsert(COLLECTION, documents, [word_vector(one.text) for one in documents], deadline=soon())


# --- writing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlong", [pb.OVERLONG_REJECT, pb.OVERLONG_TRUNCATE, SPLIT])
@pytest.mark.parametrize("number", [1, 3])
async def test_a_document_never_replaces_a_part_of_another(store: Any, overlong: Any, number: int) -> None:
    """A URL with an anchor may have a part's id; its message is refused by its name and changes nothing."""
    async with open_rig(store) as rig:
        await rig.fill()
        assert not await send(rig, document("x", LONG))
        before = await stored(store)
        refused = await send(rig, document("y", "mine"), document(f"x#{number}", "mine"), overlong=overlong)
        assert refused == "ID_TAKEN documents[1].id"
        assert await stored(store) == before


async def test_a_document_that_is_split_takes_no_part_of_another_away(store: Any) -> None:
    """What goes in favour of its parts is its own, even where a part of another document has its id."""
    async with open_rig(store) as rig:
        await rig.fill()
        await send(rig, document("x", LONG))
        before = await stored(store)
        assert await send(rig, document("x#2", LONG)) == "ID_TAKEN documents[0].id"
        assert await stored(store) == before


async def test_what_only_looks_like_a_parts_id_is_a_document_as_any(store: Any) -> None:
    """Ids with '#' and a number are stored, replaced and deleted where no split document has them."""
    async with open_rig(store) as rig:
        await rig.fill()
        for text in ("alpha", "beta"):
            for overlong in (pb.OVERLONG_REJECT, SPLIT):
                assert not await send(rig, document("x#1", text), document("7#2", text), overlong=overlong)
        assert await stored(store) == {"x#1": "beta", "7#2": "beta"}
        await delete(rig, "x#1")
        assert await stored(store) == {"7#2": "beta"}


class WatchedStore(MemoryStore):
    """Counts what is read by id, and does something before one of those reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[Sequence[DocumentId]] = []
        self.hooks: dict[int, Callable[[], Awaitable[None]]] = {}

    async def get(self, name: str, ids: Sequence[DocumentId], **rest: Any) -> Sequence[Document]:
        self.reads.append(ids)
        if hook := self.hooks.pop(len(self.reads), None):
            await hook()
        return await super().get(name, ids, **rest)


async def test_documents_whose_ids_are_no_parts_cost_no_read() -> None:
    """Only where an id ends as a part's does is it looked up; a message that splits, or a deletion, reads once."""
    store = WatchedStore()
    async with open_rig(store) as rig:
        await rig.fill()
        await send(rig, document(1, "alpha"), document("x", "alpha"), document("x#", "alpha"), overlong=0)
        assert store.reads == []
        await send(rig, document(1, "alpha"), document("y#7", "alpha"), overlong=0)
        assert store.reads == [["y#7"]]
        await send(rig, document(1, "alpha"), document("x", "alpha"))
        await delete(rig, 1, "x")
        assert store.reads[1:] == [["1#1", "1#2", "x#1", "x#2"]] * 2


async def test_messages_at_once_do_not_take_each_others_ids() -> None:
    """Of a stream that splits a document while one with a part's id comes, the later one is refused."""
    opened = asyncio.Event()
    store = MemoryStore()
    async with open_rig(store) as rig:
        await rig.fill()

        async def watched(request: Any, _context: Any, answer: Any) -> Any:
            if any("alpha" in text for text in request.texts):
                for _ in range(20):
                    await health(rig.channel)  # the other would have been stored by now
                opened.set()
            return answer

        rig.encoder.always = watched
        sent = [
            pb.UpsertDocumentsRequest(collection=COLLECTION, documents=[one], overlong=overlong)
            for one, overlong in ((document("x", LONG), SPLIT), (document("x#2", "mine"), 0))
        ]
        answers = [one async for one in rig.documents.UpsertDocuments(iter(sent))]
        assert opened.is_set()
        assert [one.failure.reason for one in answers] == ["", "ID_TAKEN"]
        assert list(await stored(store)) == ["x#1", "x#2", "x#3", "x#4"]


# --- deleting ------------------------------------------------------------------------------------------------------


async def test_a_part_is_not_deleted_alone(store: Any) -> None:
    """The id of a hit that is a part is refused by its place, and nothing of the call is deleted."""
    async with open_rig(store) as rig:
        await rig.fill()
        await send(rig, document("x", LONG), document("y", "other"))
        before = await stored(store)
        failed = await failure(delete(rig, "y", "x#3"))
        assert (failed.code, failed.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "ID_IS_PART")
        assert failed.info["field"] == "ids[1]"
        assert await stored(store) == before


async def test_parts_that_are_named_with_their_document_go_with_it(store: Any) -> None:
    """Whoever names all that was found deletes it, and again is no error."""
    async with open_rig(store) as rig:
        await rig.fill()
        await send(rig, document("x", LONG), document("y", "other"))
        for _ in range(2):
            await delete(rig, "x#2", "x", "x#1")
            assert list(await stored(store)) == ["y"]


@pytest.mark.parametrize("gone", [["x#1"], ["x#2"], ["x#1", "x#3"], ["x#2", "x#3", "x#4"]])
@pytest.mark.parametrize("then", ["delete", "again"])
async def test_a_document_takes_all_its_parts_away_where_some_are_missing(
    store: Any, gone: list[str], then: str
) -> None:
    """What an older version let callers delete is no reason to leave the rest behind."""
    async with open_rig(store) as rig:
        await rig.fill()
        await send(rig, document("x", LONG))
        await forget(store, *gone)
        if then == "delete":
            await delete(rig, "x")
        else:
            assert not await send(rig, document("x", "short"))
        assert list(await stored(store)) == (["x"] if then == "again" else [])


async def test_a_part_that_was_found_leads_to_the_others() -> None:
    """Where the first two parts are gone, the id of any hit beside its document's deletes all."""
    store = MemoryStore()
    async with open_rig(store) as rig:
        await rig.fill()
        await send(rig, document("x", LONG))
        await forget(store, "x#1", "x#2")
        await delete(rig, "x", "x#3")
        assert not await stored(store)


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_document_in_a_parts_place_outlives_the_parts(store: Any, number: int) -> None:
    """An older version let a document replace a part: it is its caller's, whatever becomes of the other one."""
    async with open_rig(store) as rig:
        await rig.fill()
        await send(rig, document("x", LONG))
        await put_plain(store, Document(id=f"x#{number}", text="mine"))
        assert not await send(rig, document("x", "short"))
        assert await stored(store) == {"x": "short", f"x#{number}": "mine"}
        await delete(rig, "x")
        assert await stored(store) == {f"x#{number}": "mine"}


async def test_a_part_under_an_id_that_is_no_parts_can_be_deleted() -> None:
    """What an import forged belongs to nobody else, so it can be replaced and deleted."""
    store = MemoryStore()
    async with open_rig(store) as rig:
        await rig.fill()
        for one in ("x#1", "x#2"):
            await put_plain(store, Document(id=one, text="t", part=Part(parent="y", number=1, count=2)))
        assert not await send(rig, document("x#1", "mine"))
        await delete(rig, "x#2")
        assert await stored(store) == {"x#1": "mine"}


async def test_a_document_of_many_parts_is_deleted_whole() -> None:
    """More parts than are read at once go, and the neighbour stays."""
    store = MemoryStore()
    async with open_rig(store) as rig:
        await rig.fill()
        await send(rig, document("x", "a " * (50 * (READ_IDS_PER_CALL + 20))), document("y", "other"))
        assert len(await stored(store)) > READ_IDS_PER_CALL
        await delete(rig, "x")
        assert list(await stored(store)) == ["y"]


# --- one collection ------------------------------------------------------------------------------------------------


async def two_versions(rig: Rig, store: WatchedStore, *documents: pb.Document) -> Callable[[], Awaitable[None]]:
    """Make v1 and v2 of the same documents, v1 behind the alias; return what points the alias at v2."""
    for name in ("v1", "v2"):
        await rig.collections.CreateCollection(pb.CreateCollectionRequest(collection=name))
        assert not await send(rig, *documents, collection=name)
    await store.assign_alias(COLLECTION, "v1", deadline=soon())
    store.reads.clear()

    async def move() -> None:
        await store.assign_alias(COLLECTION, "v2", deadline=soon())

    return move


@pytest.mark.parametrize("read", [1, 2])
async def test_a_deletion_is_about_one_collection(read: int) -> None:
    """Wherever its alias is pointed elsewhere, all of the one collection's parts go and none of the other's."""
    store = WatchedStore()
    async with open_rig(store) as rig:
        store.hooks[read] = await two_versions(rig, store, document("x", LONG), document("y", "other"))
        await delete(rig, "x")
        assert not store.hooks
        assert list(await stored(store, "v1")) == ["y"]
        assert len(await stored(store, "v2")) == 5


async def test_documents_are_got_from_one_collection() -> None:
    """More ids than are read at once are answered from the collection that the alias pointed at."""
    store = WatchedStore()
    async with open_rig(store) as rig:
        some = [document(one, "alpha") for one in range(200)]
        move = await two_versions(rig, store, *some)
        for name, text in (("v1", "old"), ("v2", "new")):
            documents = [Document(id=one, text=text) for one in range(400)]
            await store.upsert(name, documents, [word_vector(text)] * 400, deadline=soon())
        store.hooks[2] = move
        ids = [pb.DocumentId(number=one) for one in range(400)]
        answer = await rig.documents.GetDocuments(pb.GetDocumentsRequest(collection=COLLECTION, ids=ids))
        assert not store.hooks
        assert {one.text for one in answer.documents} == {"old"}
        assert len(answer.documents) == 400


async def test_a_missing_collection_is_named_as_the_caller_named_it() -> None:
    """Deleting from, or reading of, what is not there says so under the name of the call."""
    async with open_rig() as rig:
        ids = [pb.DocumentId(number=one) for one in range(READ_IDS_PER_CALL + 1)]
        for call in (
            rig.documents.DeleteDocuments(pb.DeleteDocumentsRequest(collection="none", ids=ids[:1])),
            rig.documents.GetDocuments(pb.GetDocumentsRequest(collection="none", ids=ids)),
        ):
            failed = await failure(call)
            assert (failed.code, failed.reason) == (grpc.StatusCode.NOT_FOUND, "COLLECTION_NOT_FOUND")
            assert failed.info["collection"] == "none"


async def test_calls_by_two_names_of_a_collection_wait_for_each_other() -> None:
    """A deletion under the collection's own name comes after the message that splits the document under its alias."""
    store = MemoryStore()
    async with open_rig(store) as rig:
        await rig.collections.CreateCollection(pb.CreateCollectionRequest(collection="v1"))
        await store.assign_alias(COLLECTION, "v1", deadline=soon())
        deleting: list[asyncio.Task[None]] = []

        async def watched(_request: Any, _context: Any, answer: Any) -> Any:
            if not deleting:
                deleting.append(asyncio.create_task(delete(rig, "x", collection="v1")))
                for _ in range(20):
                    await health(rig.channel)  # it would have found nothing to delete by now
            return answer

        rig.encoder.always = watched
        assert not await send(rig, document("x", LONG), overlong=SPLIT)
        await deleting[0]
        assert not await stored(store)
