"""Documents that are split: what is stored in their place, what replaces it, and how it is searched."""

from typing import Any

import grpc
import pytest
from fakes import altered, status, word_vector
from rigs import COLLECTION, Rig, document, failure, open_rig
from store_fake import MemoryStore

from gateway import indexing, parts
from gateway.ports import Document, Found, Part
from gateway.stores.edge import EdgeStore
from retrieval.encoder.v1 import encoder_pb2
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.deadline import Deadline
from serving.errors import InvalidRequest, Unavailable

SPLIT = pb.OVERLONG_SPLIT
UUID = "00000000-0000-0000-0000-00000000000a"


@pytest.fixture(params=["memory", "edge"])
async def store(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """Both stores."""
    if request.param == "memory":
        yield MemoryStore()
        return
    async with await EdgeStore.open(tmp_path / "store", in_process=True) as edge:
        yield edge


def words(word: str, count: int) -> str:
    return " ".join([word] * count)


async def put(rig: Rig, *documents: pb.Document, overlong: Any = SPLIT) -> pb.Stored:
    answer = await rig.upsert(documents, overlong=overlong)
    assert answer.WhichOneof("outcome") == "stored", answer.failure
    return answer.stored


async def get(rig: Rig, *ids: int | str) -> dict[int | str, pb.Document]:
    wanted = [pb.DocumentId(number=one) if isinstance(one, int) else pb.DocumentId(text=one) for one in ids]
    answer = await rig.documents.GetDocuments(pb.GetDocumentsRequest(collection=COLLECTION, ids=wanted))
    return {one.id.number or one.id.text: one for one in answer.documents}


def deletion(*ids: int | str) -> pb.DeleteDocumentsRequest:
    return pb.DeleteDocumentsRequest(collection=COLLECTION, ids=[document(one, "").id for one in ids])


async def count(rig: Rig) -> int:
    answer = await rig.collections.DescribeCollection(pb.DescribeCollectionRequest(collection=COLLECTION))
    return answer.collection.document_count


async def test_a_long_document_is_stored_in_parts_that_say_what_they_are(store: Any) -> None:
    """Parts have ids of their own, parent, number, count and the payload; short neighbours stay whole."""
    async with open_rig(store) as rig:
        await rig.fill()
        long = words("alpha", 50) + " " + words("beta", 50) + " gamma"
        stored = await put(rig, document(7, long, lang="de"), document(8, "short"))
        assert (stored.stored_count, stored.split_count, stored.part_count) == (2, 1, 3)
        found = await get(rig, 7, "7#1", "7#2", "7#3", 8)
        assert list(found) == ["7#1", "7#2", "7#3", 8]
        assert [found[f"7#{n}"].text for n in (1, 2, 3)] == [words("alpha", 50), words("beta", 50), "gamma"]
        for number in (1, 2, 3):
            part = found[f"7#{number}"]
            assert (part.parent.number, part.part, part.part_count) == (7, number, 3)
            assert dict(part.payload) == {"lang": "de"}
        assert not found[8].HasField("parent")
        assert await count(rig) == 4


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"part_tokens": 16}, ["a " * 15 + "one.", "b two."]),
        ({"part_per_sentence": True}, ["a " * 15 + "one.", "b two."]),
        ({"part_per_sentence": True, "part_tokens": 20}, ["a " * 15 + "one.", "b two."]),
        ({}, []),
    ],
)
async def test_parts_are_as_large_as_was_said(fields: Any, parts: list[str]) -> None:
    """A size or a rule of parts splits also what the encoder would take whole; without either it stays whole."""
    async with open_rig() as rig:
        await rig.fill()
        answer = await rig.upsert([document(7, "a " * 15 + "one. b two.")], overlong=SPLIT, **fields)
        assert (answer.stored.stored_count, answer.stored.part_count) == (1, len(parts))
        found = await get(rig, 7, "7#1", "7#2", "7#3")
        assert [one.text for one in found.values() if one.HasField("parent")] == parts
        (asked,) = [one for one in rig.encoder.requests if isinstance(one, encoder_pb2.SplitRequest)]
        assert (asked.max_tokens, asked.per_sentence) == (
            fields.get("part_tokens", 0),
            fields.get("part_per_sentence", False),
        )


@pytest.mark.parametrize("overlong", [0, pb.OVERLONG_REJECT, pb.OVERLONG_TRUNCATE])
@pytest.mark.parametrize("fields", [{"part_tokens": 16}, {"part_per_sentence": True}])
async def test_what_parts_are_is_only_said_where_texts_are_split(fields: Any, overlong: Any) -> None:
    """Under any other rule nothing would come of it, so it is refused by its field."""
    async with open_rig() as rig:
        await rig.fill()
        failed = (await rig.upsert([document(1, "alpha")], overlong=overlong, **fields)).failure
        assert (failed.code, failed.reason, failed.message.split(":")[0]) == (3, "SPLIT_REQUIRED", *fields)


async def test_a_size_that_the_encoder_refuses_is_the_callers() -> None:
    """`max_tokens` of the encoder is `part_tokens` to the caller, and nothing is stored."""
    async with open_rig() as rig:
        await rig.fill()
        refused = status(
            grpc.StatusCode.INVALID_ARGUMENT, "OUT_OF_RANGE", field="max_tokens", message="15, 16 to 512 is wanted"
        )
        rig.encoder.script.append(refused)
        failed = (await rig.upsert([document(1, "alpha")], overlong=SPLIT, part_tokens=15)).failure
        assert (failed.code, failed.reason) == (3, "OUT_OF_RANGE")
        assert failed.message == "part_tokens: 15, 16 to 512 is wanted"
        assert await count(rig) == 0


async def test_an_encoder_that_knows_no_size_stores_nothing() -> None:
    """Parts over the size that was asked for, as an encoder of an older version makes them, are its failure."""
    async with open_rig() as rig:
        await rig.fill()
        rig.encoder.script.append(altered(lambda answer: setattr(answer.texts[0].passages[0], "token_count", 17)))
        failed = (await rig.upsert([document(1, words("alpha", 30))], overlong=SPLIT, part_tokens=16)).failure
        assert (failed.code, failed.reason, await count(rig)) == (13, "ENCODER_FAILED", 0)


async def test_the_whole_text_is_kept_once_and_told_to_nobody_who_gets_documents(store: Any) -> None:
    """The first part holds the text of its document, also when that changes; GetDocuments does not tell it."""
    async with open_rig(store) as rig:
        await rig.fill()
        for text in (words("alpha", 160), words("beta", 60)):
            await put(rig, document(1, text), document(2, "short"))
            ids = ["1#1", "1#2", "1#3", 2]
            kept = await store.get(COLLECTION, ids, with_parent_texts=True, deadline=Deadline.after(20))
            assert {one.id: one.parent_text for one in kept if one.parent_text is not None} == {"1#1": text}
            assert not any(one.parent_text for one in (await get(rig, *ids)).values())


async def test_a_message_of_too_many_parts_is_refused_before_all_of_it_is_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a small message can become is bounded: nothing is encoded or stored, and the encoder is asked no further."""
    monkeypatch.setattr(indexing, "MAX_PARTS", 40)
    async with open_rig() as rig:
        await rig.fill()
        documents = [document(one, words("alpha", 48)) for one in range(64)]
        answer = await rig.upsert(documents, overlong=SPLIT, part_tokens=16)
        assert (answer.failure.code, answer.failure.reason) == (3, "TOO_MANY_PARTS")
        assert [type(one) for one in rig.encoder.requests[-1:]] == [encoder_pb2.SplitRequest]
        assert len([one for one in rig.encoder.requests if isinstance(one, encoder_pb2.SplitRequest)]) == 1
        assert await count(rig) == 0
        assert (await put(rig, *documents[:13])).stored_count == 13


async def test_a_text_that_cannot_be_split_is_named_by_its_place_in_the_message() -> None:
    """Texts are split a few at a time, and a later one is still called by its own number."""
    async with open_rig() as rig:
        await rig.fill()
        refused = status(grpc.StatusCode.INVALID_ARGUMENT, "TEXT_BLANK", field="texts[1]", message="no character")
        rig.encoder.script += [altered(lambda _: None), refused]
        answer = await rig.upsert([document(one, "alpha") for one in range(20)], overlong=SPLIT)
        assert answer.failure.message == "documents[17].text: no character"


@pytest.mark.parametrize(
    ("identifier", "first"), [(12, "12#1"), ("12", "text:12#1"), ("a", "a#1"), (UUID, f"{UUID}#1")]
)
async def test_parts_know_their_parent_whatever_kind_of_id_it_has(identifier: int | str, first: str) -> None:
    """Numbers, UUIDs and texts come back as they were, and no two documents share a part's id."""
    async with open_rig() as rig:
        await rig.fill()
        await put(rig, document(identifier, words("alpha", 60)))
        part = (await get(rig, first))[first]
        assert (part.parent.number or part.parent.text) == identifier


async def test_a_document_that_changes_leaves_nothing_of_itself_behind(store: Any) -> None:
    """Whole, in many parts, in fewer and whole again: the collection holds what the last message said."""
    async with open_rig(store) as rig:
        await rig.fill()
        sizes = []
        for size in (3, 160, 60, 3):
            await put(rig, document(1, words("alpha", size)), document(2, "other"))
            sizes.append(await count(rig))
        assert sizes == [2, 5, 3, 2]
        assert list(await get(rig, 1, "1#1", "1#2")) == [1]


async def test_deleting_a_document_deletes_its_parts(store: Any) -> None:
    """The id that the caller knows is enough."""
    async with open_rig(store) as rig:
        await rig.fill()
        await put(rig, document(1, words("alpha", 160)), document(2, "other"))
        await rig.documents.DeleteDocuments(deletion(1))
        assert (await count(rig), list(await get(rig, 2))) == (1, [2])


async def test_a_part_never_replaces_a_document_of_the_callers(store: Any) -> None:
    """A document that happens to have a part's id refuses the message, before anything is stored or deleted."""
    async with open_rig(store) as rig:
        await rig.fill()
        await put(rig, document("1#2", "mine"))
        answer = await rig.upsert([document(2, "other"), document(1, words("alpha", 60))], overlong=SPLIT)
        assert (answer.failure.code, answer.failure.reason) == (3, "ID_TAKEN")
        assert answer.failure.message.startswith("documents[1].id: ")
        same = await rig.upsert([document(1, words("alpha", 60)), document("1#1", "mine")], overlong=SPLIT)
        assert same.failure.reason == "ID_DUPLICATE"
        assert (await count(rig), (await get(rig, "1#2"))["1#2"].text) == (1, "mine")


async def test_a_failed_encoding_changes_nothing(store: Any) -> None:
    """The old parts go only once the new ones can be stored."""
    async with open_rig(store) as rig:
        await rig.fill()
        await put(rig, document(1, words("alpha", 160)))
        asked = len(rig.encoder.requests)

        async def step(request: Any, context: Any, answer: Any) -> Any:
            fails = status(grpc.StatusCode.INTERNAL) if isinstance(request, encoder_pb2.EncodeRequest) else None
            return await fails(request, context, answer) if fails else answer

        rig.encoder.always = step
        answer = await rig.upsert([document(1, "short")], overlong=SPLIT)
        assert answer.failure.code == 13
        assert len(rig.encoder.requests) > asked
        assert await count(rig) == 4


class BrokenStore(MemoryStore):
    """Does what it is asked so many times more, and then fails."""

    writes = deletes = 1_000

    async def upsert(self, *arguments: Any, **rest: Any) -> None:
        self.writes -= 1
        if self.writes < 0:
            raise InvalidRequest("BATCH_TOO_LARGE", "too large for it", field="documents")
        await super().upsert(*arguments, **rest)

    async def delete(self, *arguments: Any, **rest: Any) -> None:
        self.deletes -= 1
        if self.deletes < 0:
            raise Unavailable("STORE_DOWN", "down")
        await super().delete(*arguments, **rest)


@pytest.mark.parametrize(("before", "after"), [(3, 160), (160, 60), (160, 3)])
async def test_a_message_that_the_store_refuses_loses_nothing(before: int, after: int) -> None:
    """What was stored under the id is there as it was, whole or in parts."""
    store = BrokenStore()
    async with open_rig(store) as rig:
        await rig.fill()
        await put(rig, document(1, words("alpha", before)))
        ids = [1, *(f"1#{number}" for number in range(1, 5))]
        kept = await get(rig, *ids)
        store.writes = 0
        answer = await rig.upsert([document(1, words("beta", after))], overlong=SPLIT)
        assert answer.failure.reason == "BATCH_TOO_LARGE"
        assert await get(rig, *ids) == kept


@pytest.mark.parametrize("deleted", range(5))
@pytest.mark.parametrize(("after", "left"), [(60, 2), (3, 1)])
@pytest.mark.parametrize("then", ["again", "delete"])
async def test_an_interrupted_replacement_is_made_good(
    deleted: int, after: int, left: int, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the old parts stopped being deleted, the same message again, or DeleteDocuments, removes the rest."""
    monkeypatch.setattr(indexing, "IDS_PER_CALL", 1)
    store = BrokenStore()
    async with open_rig(store) as rig:
        await rig.fill()
        await put(rig, document(1, words("alpha", 260)), document(2, "other"))
        store.deletes = deleted
        changed = document(1, words("beta", after))
        await rig.upsert([changed], overlong=SPLIT)
        store.deletes = 1_000
        if then == "again":
            await put(rig, changed)
        else:
            await rig.documents.DeleteDocuments(deletion(1))
        assert await count(rig) == 1 + (left if then == "again" else 0)


@pytest.mark.parametrize("deleted", range(5))
async def test_an_interrupted_deletion_is_made_good(deleted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stopped, the same call again removes the rest."""
    monkeypatch.setattr(indexing, "IDS_PER_CALL", 1)
    store = BrokenStore()
    async with open_rig(store) as rig:
        await rig.fill()
        await put(rig, document(1, words("alpha", 260)))
        store.deletes = deleted
        assert (await failure(rig.documents.DeleteDocuments(deletion(1)))).reason == "STORE_DOWN"
        store.deletes = 1_000
        await rig.documents.DeleteDocuments(deletion(1))
        assert await count(rig) == 0


async def test_an_old_parts_id_is_free_for_a_document_of_the_same_message(store: Any) -> None:
    """What a message writes is not deleted as something old."""
    async with open_rig(store) as rig:
        await rig.fill()
        await put(rig, document(1, words("alpha", 160)))
        await put(rig, document(1, "short"), document("1#2", "mine"))
        assert (await count(rig), list(await get(rig, 1, "1#2"))) == (2, [1, "1#2"])


async def test_parts_of_messages_at_once_do_not_mix() -> None:
    """Two messages of one stream about one document leave the parts of the later one, and those can be deleted."""
    async with open_rig() as rig:
        await rig.fill()
        sent = [
            pb.UpsertDocumentsRequest(collection=COLLECTION, documents=[document(1, text)], overlong=SPLIT)
            for text in (words("alpha", 1_000), words("beta", 60))
        ]
        answers = [one async for one in rig.documents.UpsertDocuments(iter(sent))]
        assert [one.stored.part_count for one in answers] == [20, 2]
        assert await count(rig) == 2
        await rig.documents.DeleteDocuments(deletion(1))
        assert await count(rig) == 0


async def test_payloads_are_multiplied_by_parts_up_to_a_limit(store: Any) -> None:
    """A small message that becomes more than 32 MiB is refused before it is encoded; what it would replace stays."""
    async with open_rig(store) as rig:
        await rig.fill()
        await put(rig, document(1, "short"))
        asked = len(rig.encoder.requests)
        large = document(1, words("a", 9_000), big="p" * 60_000)
        answer = await rig.upsert([large], overlong=SPLIT, part_tokens=16)
        assert (answer.failure.code, answer.failure.reason) == (3, "BATCH_TOO_LARGE")
        assert [type(one) for one in rig.encoder.requests[asked:]] == [encoder_pb2.SplitRequest]
        assert (await count(rig), list(await get(rig, 1))) == (1, [1])


async def test_the_limit_of_bytes_counts_texts_and_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parts of 299 and 59 bytes with 14 bytes of payload each are 386; what stays whole does not count."""
    async with open_rig() as rig:
        await rig.fill()
        sent = [document(1, words("alpha", 60), lang="de"), document(2, "short", lang="de")]
        monkeypatch.setattr(parts, "MAX_PARTS_BYTES", 385)
        assert (await rig.upsert(sent, overlong=SPLIT)).failure.message.startswith("documents: 386 bytes")
        monkeypatch.setattr(parts, "MAX_PARTS_BYTES", 386)
        assert (await put(rig, *sent)).part_count == 2


async def test_parts_that_an_import_forged_delete_nothing_of_others() -> None:
    """A part that claims another parent, or more parts than the parent's id has room for, is no reason to fail."""
    store = MemoryStore()
    long = "x" * 510
    async with open_rig(store) as rig:
        await rig.fill()
        await put(rig, document("y", words("alpha", 60)))
        forged = [
            Document(id="x#1", text="t", part=Part(parent="y", number=1, count=2)),
            Document(id=f"{long}#1", text="t", part=Part(parent=long, number=1, count=16)),
        ]
        await store.upsert(COLLECTION, forged, [word_vector("t")] * 2, deadline=Deadline.after(20))
        await rig.documents.DeleteDocuments(deletion("x", long))
        assert list(await get(rig, "y#1", "y#2", "x#1", f"{long}#1")) == ["y#1", "y#2", "x#1"]


async def test_more_parts_than_the_encoder_takes_at_once_are_stored() -> None:
    """The parts of one message go to the encoder in several calls."""
    async with open_rig() as rig:
        await rig.fill()
        stored = await put(rig, *(document(one, words(f"w{one}", 500)) for one in range(40)))
        assert (stored.split_count, stored.part_count, await count(rig)) == (40, 400, 400)


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: answer.ClearField("texts"),
        lambda answer: answer.texts[0].ClearField("passages"),
        lambda answer: setattr(answer.texts[0].passages[0], "end", 10_000),
        lambda answer: setattr(answer.texts[0].passages[0], "end", 1),
    ],
    ids=["no text", "no passage", "beyond the text", "within a character"],
)
async def test_an_encoder_that_splits_wrongly_stores_nothing(change: Any) -> None:
    """Passages that are none are the encoder's failure, not lost text."""
    async with open_rig() as rig:
        await rig.fill()
        rig.encoder.script.append(altered(change))
        answer = await rig.upsert([document(1, "äöü alpha")], overlong=SPLIT)
        assert (answer.failure.code, answer.failure.reason, await count(rig)) == (13, "ENCODER_FAILED", 0)


async def test_what_becomes_of_long_texts_is_one_of_three(store: Any) -> None:
    """`overlong` wins over `truncate`, which alone still means to cut; anything else is refused."""
    async with open_rig(store) as rig:
        await rig.fill()
        for fields, wanted in (
            ({}, encoder_pb2.OVERLONG_REJECT),
            ({"truncate": True}, encoder_pb2.OVERLONG_TRUNCATE),
            ({"overlong": pb.OVERLONG_TRUNCATE}, encoder_pb2.OVERLONG_TRUNCATE),
            ({"truncate": True, "overlong": pb.OVERLONG_REJECT}, encoder_pb2.OVERLONG_REJECT),
        ):
            await rig.upsert([document(1, "alpha")], **fields)
            assert rig.encoder.requests[-1].overlong == wanted
        answer = await rig.upsert([document(1, "alpha")], overlong=9)
        assert answer.failure.reason == "ENUM_UNKNOWN"


async def test_folded_hits_are_documents(store: Any) -> None:
    """Of each document the nearest part stands in the pool, and as many documents as asked for are found behind."""
    async with open_rig(store) as rig:
        await rig.fill()
        await put(rig, document(1, words("beta", 50) + " " + words("alpha", 200)), document(2, "alpha beta"))
        await put(rig, document(3, "beta gamma delta"))
        plain = await rig.ask(pool_size=3, top_k=3, include_pool=True)
        assert [hit.id.text for hit in plain.pool] == ["1#2", "1#3", "1#4"]
        folded = await rig.ask(pool_size=3, top_k=3, include_pool=True, fold_to_parent=True)
        assert [hit.id.text or hit.id.number for hit in folded.pool] == ["1#2", 2, 3]
        assert [hit.retrieval_rank for hit in folded.pool] == [1, 2, 3]
        best = folded.pool[0]
        assert (best.parent.number, best.part, best.part_count) == (1, 2, 5)
        assert not folded.pool[1].HasField("parent")
        assert len(folded.hits) == 3
        spent = folded.timings
        whole = spent.dense.ToNanoseconds() + spent.rerank.total.ToNanoseconds() + spent.other.ToNanoseconds()
        assert whole == spent.total.ToNanoseconds()


class SwitchingStore(MemoryStore):
    """Points an alias elsewhere after a search has found something and before anything else is read."""

    def __init__(self) -> None:
        super().__init__()
        self.next: tuple[str, str] | None = None

    async def search(self, *args: Any, **kwargs: Any) -> Found:
        found = await super().search(*args, **kwargs)
        if self.next is not None:
            await self.assign_alias(*self.next, deadline=kwargs["deadline"])
        return found


async def test_whole_texts_are_of_the_collection_that_was_searched() -> None:
    """A hit has part, score and text of one collection, where its alias is pointed at another meanwhile too."""
    store = SwitchingStore()
    async with open_rig(store) as rig:
        for name, word in (("v2", "gamma"), ("v1", "alpha")):
            await rig.collections.CreateCollection(pb.CreateCollectionRequest(collection=name))
            await store.assign_alias(COLLECTION, name, deadline=Deadline.after(60))
            await put(rig, document(1, words(word, 120)))
        store.next = (COLLECTION, "v2")
        found = await rig.ask(fold_to_parent=True, return_parent=True, rerank_parent=True)
        assert [hit.text for hit in found.hits] == [words("alpha", 120)]
        store.next = None
        assert [hit.text for hit in (await rig.ask(fold_to_parent=True, return_parent=True)).hits] == [
            words("gamma", 120)
        ]


async def test_a_folded_pool_gives_up_reading_after_a_bound() -> None:
    """One document of more parts than are read does not make a search read the whole collection."""
    async with open_rig() as rig:
        await rig.fill()
        await put(rig, document(1, words("alpha", 50 * 200)))
        await put(rig, document(2, "beta"))
        found = await rig.ask(pool_size=2, top_k=2, fold_to_parent=True)
        assert [hit.parent.number for hit in found.hits] == [1]
        found = await rig.ask(pool_size=20, top_k=2, fold_to_parent=True)
        assert [hit.parent.number or hit.id.number for hit in found.hits] == [1, 2]


async def test_parts_cannot_be_forged() -> None:
    """What a caller says about parents in an upsert is not believed."""
    async with open_rig() as rig:
        await rig.fill()
        forged = document(5, "alpha")
        forged.parent.number, forged.part, forged.part_count = 9, 1, 1
        await put(rig, forged)
        assert not (await get(rig, 5))[5].HasField("parent")
        failed = await failure(rig.ask(filter=pb.Filter(must=[pb.Condition(exists=pb.Exists(key="_twostage_part"))])))
        assert failed.code is grpc.StatusCode.INVALID_ARGUMENT
