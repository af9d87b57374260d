"""Priorities on the wire: what each call means where it says nothing, and that the gateway hands on what it is told."""

from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from factories import encoder_settings, reranker_settings
from model_rigs import ModelRig, encode_request, open_encoder, open_reranker
from rigs import document, failure, open_rig

from retrieval.encoder.v1 import encoder_pb2
from retrieval.gateway.v1 import gateway_pb2
from retrieval.reranker.v1 import reranker_pb2
from serving.batching import Priority
from serving.bundle import Bundle

TOLD = [
    (encoder_pb2.PRIORITY_INTERACTIVE, Priority.INTERACTIVE),
    (encoder_pb2.PRIORITY_BULK, Priority.BULK),
]


class Noting:
    """Stands before a batcher and notes with which priority rows come."""

    def __init__(self, rig: ModelRig) -> None:
        self.priorities: list[Priority] = []
        batcher = rig.server.engine.batcher
        self._submit, batcher.submit = batcher.submit, self.submit  # type: ignore[method-assign]

    async def submit(self, rows: Sequence[Any], deadline: Any, *, priority: Priority, wait: bool = False) -> Any:
        self.priorities.append(priority)
        return await self._submit(rows, deadline, priority=priority, wait=wait)


def unknown(failed: Any) -> bool:
    """Tell whether a call was refused for a priority that does not exist."""
    return (failed.code, failed.reason, failed.info["field"]) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "ENUM_UNKNOWN",
        "priority",
    )


async def test_texts_come_with_the_priority_of_their_request(tiny_encoder: Bundle) -> None:
    """Encode without one is interactive, a stream's message is bulk, and both are what they say where they do."""
    async with open_encoder(encoder_settings(tiny_encoder)) as encoder:
        noting = Noting(encoder)
        for value, _ in [(encoder_pb2.PRIORITY_UNSPECIFIED, None), *TOLD]:
            await encoder.encode("tea", priority=value)
        assert noting.priorities == [Priority.INTERACTIVE, *(expected for _, expected in TOLD)]
        noting.priorities.clear()
        for value, _ in [(encoder_pb2.PRIORITY_UNSPECIFIED, None), *TOLD]:
            message = encoder_pb2.EncodeStreamRequest(request=encode_request("tea", priority=value))
            assert [one.WhichOneof("outcome") async for one in encoder.stub.EncodeStream(iter([message]))] == [
                "response"
            ]
        assert noting.priorities == [Priority.BULK, *(expected for _, expected in TOLD)]


async def test_a_priority_that_does_not_exist_is_refused_by_the_encoder(tiny_encoder: Bundle) -> None:
    """Of a call and of a stream's message alike."""
    async with open_encoder(encoder_settings(tiny_encoder)) as encoder:
        assert unknown(await failure(encoder.encode("tea", priority=9)))
        message = encoder_pb2.EncodeStreamRequest(request=encode_request("tea", priority=9))
        (answer,) = [one async for one in encoder.stub.EncodeStream(iter([message]))]
        assert (answer.failure.code, answer.failure.reason) == (3, "ENUM_UNKNOWN")


async def test_pairs_come_with_the_priority_of_their_request(tiny_reranker: Bundle) -> None:
    """Rerank without one is interactive, and one that does not exist is refused, also where there is nothing to do."""
    async with open_reranker(reranker_settings(tiny_reranker)) as reranker:
        noting = Noting(reranker)
        for value, _ in [(reranker_pb2.PRIORITY_UNSPECIFIED, None), *TOLD]:
            await reranker.rerank("panda", "tea", priority=value)
        assert noting.priorities == [Priority.INTERACTIVE, *(expected for _, expected in TOLD)]
        assert unknown(await failure(reranker.rerank("panda", "tea", priority=9)))
        assert unknown(await failure(reranker.rerank("panda", priority=9)))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (gateway_pb2.PRIORITY_UNSPECIFIED, encoder_pb2.PRIORITY_INTERACTIVE),
        (gateway_pb2.PRIORITY_INTERACTIVE, encoder_pb2.PRIORITY_INTERACTIVE),
        (gateway_pb2.PRIORITY_BULK, encoder_pb2.PRIORITY_BULK),
    ],
)
async def test_a_search_hands_its_priority_to_both_stages(told: Any, expected: int) -> None:
    """Encoder and reranker are told what the gateway was told, interactive where that was nothing; streamed too."""
    async with open_rig() as rig:
        await rig.fill("alpha beta", "gamma")
        for stage in (rig.encoder, rig.reranker):
            stage.requests.clear()
        await rig.ask("alpha", priority=told)
        request = gateway_pb2.SearchRequest(query="alpha", collection="c", priority=told)
        stream = rig.search.SearchStream(gateway_pb2.SearchStreamRequest(request=request), timeout=20)
        assert len([one async for one in stream]) == 2
        assert [one.priority for one in rig.encoder.requests] == [expected, expected]
        assert [one.priority for one in rig.reranker.requests] == [expected, expected]


async def test_a_search_with_a_priority_that_does_not_exist_is_refused() -> None:
    """Nothing is asked of anybody."""
    async with open_rig() as rig:
        await rig.fill("alpha")
        rig.encoder.requests.clear()
        assert unknown(await failure(rig.ask("alpha", priority=9)))
        assert rig.encoder.requests == []


@pytest.mark.parametrize("overlong", [gateway_pb2.OVERLONG_REJECT, gateway_pb2.OVERLONG_SPLIT])
async def test_documents_are_encoded_in_bulk(overlong: Any) -> None:
    """Whatever an indexer sends, its texts do not go before a search's."""
    async with open_rig() as rig:
        await rig.fill()
        rig.encoder.requests.clear()
        assert (await rig.upsert([document(1, "alpha " * 70)], overlong=overlong)).stored.stored_count == 1
        encodes = [one for one in rig.encoder.requests if isinstance(one, encoder_pb2.EncodeRequest)]
        assert [one.priority for one in encodes] == [encoder_pb2.PRIORITY_BULK]
