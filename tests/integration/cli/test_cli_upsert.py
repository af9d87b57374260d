"""Indexing against a gateway that misbehaves on purpose."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import grpc
import pytest

from cli import upsert
from cli.calls import CallFailed
from cli.index import index_lines
from cli.lines import Fields
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1 import gateway_pb2_grpc as pb_grpc


class FakeGateway(pb_grpc.DocumentServiceServicer, pb_grpc.CollectionServiceServicer):
    """Stores texts by id, refuses messages with the text "bad", and can lose or refuse everything.

    It breaks streams at messages of some numbers, counted over all streams from 1: these are stored and not answered.
    """

    def __init__(
        self,
        *,
        loses: frozenset[int] = frozenset(),
        code: grpc.StatusCode | None = None,
        breaks: frozenset[int] = frozenset(),
    ) -> None:
        self.stored: dict[int, str] = {}
        self.message_sizes: list[int] = []
        self.stream_count = 0
        self._loses = loses
        self._code = code
        self._breaks = breaks

    async def UpsertDocuments(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.UpsertDocumentsRequest], context: Any
    ) -> AsyncIterator[pb.UpsertDocumentsResponse]:
        self.stream_count += 1
        async for message in request_iterator:
            self.message_sizes.append(len(message.documents))
            if len(self.message_sizes) in self._breaks:
                self._answer(message)
                # What grpc.aio makes of a stream that ends while a message is written: no trailing metadata.
                await context.abort(grpc.StatusCode.INTERNAL, "Internal error from Core")
            yield self._answer(message)

    def _answer(self, message: pb.UpsertDocumentsRequest) -> pb.UpsertDocumentsResponse:
        texts = [document.text for document in message.documents]
        code = grpc.StatusCode.INVALID_ARGUMENT if "bad" in texts else self._code
        if code is not None:
            field = f"documents[{texts.index('bad')}].text" if "bad" in texts else "documents"
            failure = pb.Failure(code=code.value[0], reason="NOT_SO", message=f"{field}: not so")
            return pb.UpsertDocumentsResponse(sequence=message.sequence, failure=failure)
        for document in message.documents:
            if document.id.number not in self._loses:
                self.stored[document.id.number] = document.text
        return pb.UpsertDocumentsResponse(
            sequence=message.sequence, stored=pb.Stored(stored_count=len(message.documents))
        )

    async def DescribeCollection(  # noqa: N802
        self, request: pb.DescribeCollectionRequest, context: object
    ) -> pb.DescribeCollectionResponse:
        return pb.DescribeCollectionResponse(collection=pb.Collection(name="c", document_count=len(self.stored)))


@asynccontextmanager
async def serving(gateway: FakeGateway) -> AsyncIterator[str]:
    server = grpc.aio.server()
    pb_grpc.add_DocumentServiceServicer_to_server(gateway, server)
    pb_grpc.add_CollectionServiceServicer_to_server(gateway, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def lines(texts: Sequence[str]) -> BytesIO:
    return BytesIO("".join(f'{{"id": {number}, "text": "{text}"}}\n' for number, text in enumerate(texts)).encode())


async def test_one_bad_document_does_not_take_its_neighbours_along() -> None:
    """A refused message is sent again document by document, and only the bad one is missing, by its line."""
    gateway = FakeGateway()
    texts = ["good"] * 150
    texts[70] = "bad"
    async with serving(gateway) as address:
        indexed = await index_lines(address, "c", lines(texts), Fields())
    assert sorted(gateway.stored) == [number for number in range(150) if number != 70]
    assert [(refused.number, refused.message) for refused in indexed.outcome.refused] == [(71, "text: not so")]
    assert (indexed.outcome.stored_count, indexed.missing_count, indexed.complete) == (149, 0, False)


async def test_messages_hold_at_most_64_documents() -> None:
    """Documents travel in messages of a bounded size."""
    gateway = FakeGateway()
    async with serving(gateway) as address:
        await index_lines(address, "c", lines(["good"] * 150), Fields())
    assert gateway.message_sizes == [64, 64, 22]


async def test_acknowledged_documents_that_are_gone_are_a_gap() -> None:
    """Field failure 68: the loader counts, and says how many acknowledged documents are not there."""
    gateway = FakeGateway(loses=frozenset({3, 4}))
    async with serving(gateway) as address:
        indexed = await index_lines(address, "c", lines(["good"] * 10), Fields())
    assert (indexed.outcome.stored_count, indexed.document_count, indexed.missing_count) == (10, 8, 2)
    assert not indexed.complete


async def test_a_gateway_that_cannot_store_ends_the_run() -> None:
    """An error that no single document has caused stops at once instead of failing every line on its own."""
    gateway = FakeGateway(code=grpc.StatusCode.UNAVAILABLE)
    async with serving(gateway) as address:
        with pytest.raises(CallFailed) as caught:
            await index_lines(address, "c", lines(["good"] * 10_000), Fields())
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_SO")
    assert len(gateway.message_sizes) <= upsert.MESSAGES_IN_FLIGHT + 1


async def test_a_long_run_takes_several_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers close old connections, so a stream whose time is over is ended and another one goes on."""
    monkeypatch.setattr(upsert, "STREAM_S", 1e-6)
    gateway = FakeGateway()
    async with serving(gateway) as address:
        indexed = await index_lines(address, "c", lines(["good"] * 200), Fields())
    assert gateway.stream_count > 1
    assert (len(gateway.stored), indexed.complete) == (200, True)


async def test_a_stream_that_ends_without_the_servers_word_is_begun_again() -> None:
    """Where gRPC's client lost the reason for which a stream ended, what was not answered is sent again on another."""
    gateway = FakeGateway(breaks=frozenset({2, 4}))
    async with serving(gateway) as address:
        indexed = await index_lines(address, "c", lines(["good"] * 640), Fields())
    assert gateway.stream_count == 3
    assert sorted(gateway.stored) == list(range(640))
    assert (indexed.outcome.stored_count, indexed.complete) == (640, True)


async def test_streams_that_all_end_without_a_word_end_the_run() -> None:
    """Three in a row are an error, so that a gateway that breaks every stream is not asked for ever."""
    gateway = FakeGateway(breaks=frozenset(range(1, 100)))
    async with serving(gateway) as address:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await index_lines(address, "c", lines(["good"] * 10), Fields())
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert gateway.stream_count == upsert.MOST_BROKEN
