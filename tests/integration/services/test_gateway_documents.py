"""Documents and collections over gRPC: streams of messages, each stored whole or not at all.

Numbers in brackets are those of field failures.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from fakes import ENCODER_DIGEST, status, word_vector
from rigs import COLLECTION, Rig, document, failure, health, numbers, open_rig, stream_failure
from store_fake import MemoryStore

from gateway.ports import Document, DocumentId
from gateway.stored_parts import READ_IDS_PER_CALL
from gateway.stores.edge import EdgeStore
from retrieval.encoder.v1 import encoder_pb2
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.deadline import Deadline

CODE = grpc.StatusCode


@pytest.fixture(params=["memory", "edge"])
async def store(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """Both stores: what holds for the one has to hold for the other."""
    if request.param == "memory":
        yield MemoryStore()
        return
    async with await EdgeStore.open(tmp_path / "store", in_process=True) as edge:
        yield edge


def message(sequence: int, *documents: pb.Document, **fields: Any) -> pb.UpsertDocumentsRequest:
    """Make a message of a stream."""
    return pb.UpsertDocumentsRequest(
        **{"sequence": sequence, "collection": COLLECTION, "documents": documents, **fields}
    )


async def count(rig: Rig) -> int:
    """Return how many documents are stored."""
    answer = await rig.collections.DescribeCollection(pb.DescribeCollectionRequest(collection=COLLECTION))
    return answer.collection.document_count


async def got(rig: Rig, *ids: int) -> list[int]:
    """Return which of the documents exist, in the order of the answer."""
    wanted = [pb.DocumentId(number=one) for one in ids]
    answer = await rig.documents.GetDocuments(pb.GetDocumentsRequest(collection=COLLECTION, ids=wanted))
    return [one.id.number for one in answer.documents]


async def test_every_message_is_answered_in_order(store: Any) -> None:
    """Forty messages, several at work at once, are answered one by one in their order, all stored."""
    async with open_rig(store) as rig:
        await rig.fill()
        sent = [message(-one, document(2 * one, "alpha"), document(2 * one + 1, "beta")) for one in range(40)]
        answers = [one async for one in rig.documents.UpsertDocuments(iter(sent))]
        assert [one.sequence for one in answers] == [-one for one in range(40)]
        assert all(one.stored.stored_count == 2 for one in answers)
        assert await count(rig) == 80


async def test_a_wrong_message_stores_nothing_and_leaves_the_others_alone(store: Any) -> None:
    """One bad document refuses its message whole; the messages around it are stored (23)."""
    async with open_rig(store) as rig:
        await rig.fill()
        sent = [
            message(1, document(1, "alpha")),
            message(2, document(2, "alpha"), document(3, " ")),
            message(3, document(4, "alpha"), document(4, "beta")),
            message(4, collection="none", documents=[document(5, "alpha")]),
            message(5, document(6, "alpha", _twostage_text="mine")),
            message(6),
            message(7, document(7, "alpha")),
        ]
        answers = [one async for one in rig.documents.UpsertDocuments(iter(sent))]
        assert [(one.sequence, one.failure.code, one.failure.reason) for one in answers] == [
            (1, 0, ""),
            (2, 3, "TEXT_BLANK"),
            (3, 3, "ID_DUPLICATE"),
            (4, 5, "COLLECTION_NOT_FOUND"),
            (5, 3, "PAYLOAD_KEY_RESERVED"),
            (6, 3, "DOCUMENT_COUNT"),
            (7, 0, ""),
        ]
        assert answers[1].failure.message.startswith("documents[1].text: ")
        assert await got(rig, 1, 2, 3, 4, 5, 6, 7) == [1, 7]


async def test_what_the_encoder_refuses_is_named_as_the_callers_document() -> None:
    """`texts[1]` of the encoder is `documents[1].text` to the caller, and nothing of the message is stored."""
    async with open_rig() as rig:
        await rig.fill()
        rig.encoder.script.append(
            status(CODE.INVALID_ARGUMENT, "TEXT_TOO_LONG", field="texts[1]", message="600 tokens, the limit is 512")
        )
        answer = await rig.upsert([document(1, "alpha"), document(2, "beta")])
        assert (answer.failure.code, answer.failure.reason) == (3, "TEXT_TOO_LONG")
        assert answer.failure.message == "documents[1].text: 600 tokens, the limit is 512"
        assert await count(rig) == 0


async def test_an_encoder_that_fails_once_fails_one_message() -> None:
    """A failure of ours is reported with its code in the message's answer, and the stream goes on."""
    async with open_rig() as rig:
        await rig.fill()
        rig.encoder.script.append(status(CODE.INTERNAL))
        sent = [message(one, document(one, "alpha")) for one in range(3)]
        answers = [one async for one in rig.documents.UpsertDocuments(iter(sent))]
        assert sorted(one.failure.code for one in answers) == [0, 0, 13]
        (failed,) = [one.failure for one in answers if one.HasField("failure")]
        assert failed.reason == "ENCODER_FAILED"
        assert "backend" not in failed.message
        assert await count(rig) == 2


async def test_truncation_is_passed_on_and_counted() -> None:
    """`truncate` reaches the encoder, cut texts are counted, and the whole text is what is stored."""

    async def cut(request: Any, _context: Any, answer: Any) -> Any:
        assert request.overlong == encoder_pb2.OVERLONG_TRUNCATE
        answer.embeddings[1].truncated = True
        return answer

    async with open_rig() as rig:
        await rig.fill()
        rig.encoder.script.append(cut)
        answer = await rig.upsert([document(1, "alpha"), document(2, "beta " * 1_000)], truncate=True)
        assert (answer.stored.stored_count, answer.stored.truncated_count) == (2, 1)
        await rig.upsert([document(3, "gamma")])
        assert rig.encoder.requests[-1].overlong == encoder_pb2.OVERLONG_REJECT
        wanted = [pb.DocumentId(number=2)]
        stored = await rig.documents.GetDocuments(pb.GetDocumentsRequest(collection=COLLECTION, ids=wanted))
        assert stored.documents[0].text == "beta " * 1_000


async def test_texts_are_encoded_as_passages() -> None:
    """A document is a passage to the encoder and a search is a query (12)."""
    async with open_rig() as rig:
        await rig.fill("alpha")
        await rig.ask()
        kinds = [one.input_type for one in rig.encoder.requests if isinstance(one, encoder_pb2.EncodeRequest)]
        assert kinds == [encoder_pb2.INPUT_TYPE_PASSAGE, encoder_pb2.INPUT_TYPE_QUERY]


async def test_a_document_is_replaced_by_its_id(store: Any) -> None:
    """An id that exists is overwritten, text and payload alike, and the count stays."""
    async with open_rig(store) as rig:
        await rig.fill()
        await rig.upsert([document(1, "alpha", a=1)])
        await rig.upsert([document(1, "beta", b=2)])
        wanted = [pb.DocumentId(number=1)]
        answer = await rig.documents.GetDocuments(pb.GetDocumentsRequest(collection=COLLECTION, ids=wanted))
        assert answer.documents[0] == document(1, "beta", b=2)
        assert await count(rig) == 1


async def test_documents_are_got_in_order_and_deleted_for_good(store: Any) -> None:
    """Documents come in the order asked for; deleting twice, or what never was, is no error."""
    async with open_rig(store) as rig:
        await rig.fill("alpha", "beta", "gamma")
        assert await got(rig, 3, 99, 1) == [3, 1]
        gone = pb.DeleteDocumentsRequest(
            collection=COLLECTION, ids=[pb.DocumentId(number=2), pb.DocumentId(text="never")]
        )
        await rig.documents.DeleteDocuments(gone)
        await rig.documents.DeleteDocuments(gone)
        assert await got(rig, 1, 2, 3) == [1, 3]
        assert 2 not in numbers((await rig.ask()).hits)


async def test_documents_that_no_client_could_receive_are_refused() -> None:
    """An answer over what clients accept is INVALID_ARGUMENT with advice, not the client's own failure (14)."""
    async with open_rig() as rig:
        await rig.fill()
        await rig.upsert([document(one, "x" * 60_000) for one in range(80)])
        ids = [pb.DocumentId(number=one) for one in range(80)]
        failed = await failure(rig.documents.GetDocuments(pb.GetDocumentsRequest(collection=COLLECTION, ids=ids)))
        assert (failed.code, failed.reason, failed.info["field"]) == (
            CODE.INVALID_ARGUMENT,
            "ANSWER_TOO_LARGE",
            "ids",
        )
        assert len(await got(rig, *range(60))) == 60


class CountingStore(MemoryStore):
    """Counts the documents that are read by id."""

    read = 0

    async def get(self, name: str, ids: Sequence[DocumentId], **rest: Any) -> Sequence[Document]:
        self.read += len(ids)
        return await super().get(name, ids, **rest)


async def test_what_no_client_could_receive_is_not_read_to_its_end() -> None:
    """Of a thousand large documents no more are read than it takes to refuse them (14)."""
    store = CountingStore()
    async with open_rig(store) as rig:
        await rig.fill()
        large = [Document(id=one, text="x" * 60_000) for one in range(1_000)]
        await store.upsert(COLLECTION, large, [word_vector("x")] * len(large), deadline=Deadline.after(20))
        ids = [pb.DocumentId(number=one.id) for one in large]
        failed = await failure(rig.documents.GetDocuments(pb.GetDocumentsRequest(collection=COLLECTION, ids=ids)))
        assert failed.reason == "ANSWER_TOO_LARGE"
        assert store.read == READ_IDS_PER_CALL


async def test_more_documents_than_are_read_at_once_come_in_order(store: Any) -> None:
    """A thousand ids are answered as a few are: in their order, without what is missing."""
    async with open_rig(store) as rig:
        await rig.fill()
        for begin in range(0, 750, 250):
            await rig.upsert([document(one, "alpha") for one in range(begin, begin + 250)])
        assert await got(rig, *range(999, -1, -1)) == list(range(749, -1, -1))


async def test_the_largest_legal_message_is_stored() -> None:
    """256 documents of 65,536 bytes pass every limit on the way to the encoder and to the store (14)."""
    async with open_rig() as rig:
        await rig.fill()
        answer = await rig.upsert([document(one, "x" * 65_536) for one in range(256)])
        assert answer.stored.stored_count == 256


async def test_collections_are_made_described_listed_and_dropped(store: Any) -> None:
    """A collection carries the encoder it was made with, without its device, and is gone once dropped."""
    async with open_rig(store) as rig:
        made = await rig.collections.CreateCollection(pb.CreateCollectionRequest(collection="b"))
        await rig.collections.CreateCollection(pb.CreateCollectionRequest(collection="a"))
        reference = pb.ModelReference(id="fake-encoder", revision="1", digest=ENCODER_DIGEST, precision="fp32")
        assert made.collection.encoder == reference
        assert (made.collection.dimension, made.collection.document_count) == (16, 0)
        listed = await rig.collections.ListCollections(pb.ListCollectionsRequest())
        assert [one.name for one in listed.collections] == ["a", "b"]
        await rig.collections.DropCollection(pb.DropCollectionRequest(collection="a"))
        failed = await failure(rig.collections.DescribeCollection(pb.DescribeCollectionRequest(collection="a")))
        assert failed.code is CODE.NOT_FOUND
        listed = await rig.collections.ListCollections(pb.ListCollectionsRequest())
        assert [one.name for one in listed.collections] == ["b"]


async def test_a_collection_is_not_made_without_its_encoder() -> None:
    """Where the encoder cannot be reached, the collection is not half made."""
    async with open_rig() as rig:
        rig.encoder.always = status(CODE.UNAVAILABLE)
        call = rig.collections.CreateCollection(pb.CreateCollectionRequest(collection=COLLECTION))
        failed = await failure(call)
        assert (failed.code, failed.reason) == (CODE.UNAVAILABLE, "ENCODER_UNAVAILABLE")
        listed = await rig.collections.ListCollections(pb.ListCollectionsRequest())
        assert not listed.collections


async def test_a_message_that_is_no_message_ends_the_stream_after_the_answers_before_it() -> None:
    """What cannot be parsed has no sequence to answer: the stream fails, and what came before is answered (41)."""
    async with open_rig() as rig:
        await rig.fill()
        raw = rig.channel.stream_stream("/retrieval.gateway.v1.DocumentService/UpsertDocuments")
        good = message(7, document(1, "alpha")).SerializeToString()
        answers, failed = await stream_failure(raw(iter([good, b"\x12\x02\xff\xfe"])))
        assert [pb.UpsertDocumentsResponse.FromString(one).sequence for one in answers] == [7]
        assert (failed.code, failed.reason) == (CODE.INVALID_ARGUMENT, "REQUEST_MALFORMED")


async def test_a_fast_sender_is_slowed_down() -> None:
    """Three messages are at work at once and no more, however many were sent (15)."""
    opened, three = asyncio.Event(), asyncio.Event()
    most = now = 0

    async def watched(_request: Any, _context: Any, answer: Any) -> Any:
        nonlocal most, now
        now += 1
        most = max(most, now)
        if now == 3:
            three.set()
        await opened.wait()
        now -= 1
        return answer

    async with open_rig() as rig:
        await rig.fill()
        rig.encoder.always = watched
        call = rig.documents.UpsertDocuments(iter([message(one, document(one, "alpha")) for one in range(50)]))
        await asyncio.wait_for(three.wait(), 20)
        for _ in range(20):
            await health(rig.channel)  # a fourth would have come by now
        opened.set()
        assert len([one async for one in call]) == 50
        assert most == 3


async def test_messages_of_one_id_are_stored_in_their_order() -> None:
    """However long the first takes, the last is what stays; others do not wait for it."""
    opened = asyncio.Event()

    async with open_rig() as rig:
        await rig.fill()
        seen: list[str] = []

        async def watched(request: Any, _context: Any, answer: Any) -> Any:
            seen.extend(request.texts)
            if "slow" in request.texts:
                await opened.wait()
            if "other" in request.texts:
                for _ in range(20):
                    await health(rig.channel)  # the last would have been stored by now
                opened.set()
            return answer

        rig.encoder.always = watched
        sent = [message(1, document(1, "slow")), message(2, document(1, "last")), message(3, document(2, "other"))]
        answers = [one async for one in rig.documents.UpsertDocuments(iter(sent))]
        assert [one.sequence for one in answers if one.HasField("stored")] == [1, 2, 3]
        assert sorted(seen[:2]) == ["other", "slow"]
        wanted = [pb.DocumentId(number=1)]
        answer = await rig.documents.GetDocuments(pb.GetDocumentsRequest(collection=COLLECTION, ids=wanted))
        assert [one.text for one in answer.documents] == ["last"]


@pytest.mark.parametrize("kind", ["list", "object"])
async def test_the_deepest_payload_can_be_exported_and_imported(kind: str, store: Any) -> None:
    """A payload at the limit of depth makes the whole way; one level more is refused, so it cannot spoil an export."""

    def nested(levels: int) -> Any:
        inner: Any = 1
        for _ in range(levels):
            inner = [inner] if kind == "list" else {"k": inner}
        return inner

    async with open_rig(store) as rig:
        await rig.fill()
        assert (await rig.upsert([document(1, "alpha", k=nested(30))])).failure.reason == "PAYLOAD_MALFORMED"
        assert (await rig.upsert([document(1, "alpha", k=nested(29))])).stored.stored_count == 1
        header, *batches, footer = [
            one async for one in rig.collections.ExportCollection(pb.ExportCollectionRequest(collection=COLLECTION))
        ]
        parts = [
            pb.ImportCollectionRequest(start=pb.ImportStart(collection="copy", header=header.header)),
            *(pb.ImportCollectionRequest(documents=one.documents) for one in batches),
            pb.ImportCollectionRequest(footer=footer.footer),
        ]
        assert (await rig.collections.ImportCollection(iter(parts))).collection.document_count == 1


async def test_a_sender_that_leaves_stops_the_work() -> None:
    """Cancelling a stream cancels what is at work, and the next stream is fine (2)."""
    async with open_rig() as rig:
        await rig.fill()
        cancelled = asyncio.Event()
        begun = asyncio.Event()

        async def hang(_request: Any, _context: Any, _answer: Any) -> Any:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        rig.encoder.script.append(hang)
        call = rig.documents.UpsertDocuments(iter([message(1, document(1, "alpha"))]))
        await asyncio.wait_for(begun.wait(), 20)
        call.cancel()
        await asyncio.wait_for(cancelled.wait(), 20)
        assert (await rig.upsert([document(2, "alpha")])).stored.stored_count == 1
        assert await got(rig, 1, 2) == [2]
