"""Real servers, real E5, the demo reranker and the embedded store: the gateway's answer is what its parts say.

Numbers in brackets are those of field failures.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest
import pytest_asyncio
from clients import client
from factories import encoder_settings, reranker_settings
from model_rigs import PASSAGE, QUERY, EncoderRig, RerankerRig, open_encoder, open_reranker
from rigs import document, numbers

from gateway.app import open_app
from gateway.settings import GatewaySettings
from retrieval.encoder.v1 import encoder_pb2
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1.gateway_pb2_grpc import CollectionServiceStub, DocumentServiceStub, GatewayServiceStub
from retrieval.reranker.v1 import reranker_pb2
from serving.bundle import Bundle

# One loop for the module: loading both models takes as long as everything else.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

DOCUMENTS = Path(__file__).parents[3] / "data" / "helpcentre" / "documents.jsonl"
COUNT = 24
CUT = encoder_pb2.OVERLONG_TRUNCATE
# Questions of data/helpcentre whose relevant documents are all among the first 24.
QUESTIONS = {
    "My phone's digits are refused every time even though I type them correctly.": {9},
    "Temo che qualcuno abbia copiato il mio foglio di codici: come ne ottengo di nuovi?": {7},
    "Sono entrato con il pulsante di Microsoft ed \u00e8 tutto vuoto: dove sono finite le mie cartelle?": {21},
}


class Stack:
    """All three servers."""

    def __init__(self, encoder: EncoderRig, reranker: RerankerRig, channel: grpc.aio.Channel) -> None:
        self.encoder, self.reranker = encoder, reranker
        self.search = GatewayServiceStub(channel).Search
        self.documents = DocumentServiceStub(channel)
        self.collections = CollectionServiceStub(channel)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """The first documents of the help centre."""
    with DOCUMENTS.open(encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file][:COUNT]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(demo_bundles: Path, tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> AsyncIterator[Stack]:
    """Open everything and index the documents under their numbers."""
    async with AsyncExitStack() as exits:
        encoder = await exits.enter_async_context(
            open_encoder(encoder_settings(Bundle(demo_bundles / "encoder"), threads=2))
        )
        reranker = await exits.enter_async_context(
            open_reranker(reranker_settings(Bundle(demo_bundles / "reranker"), threads=2))
        )
        settings = GatewaySettings(
            host="127.0.0.1",
            port=0,
            encoder_target=f"127.0.0.1:{encoder.server.port}",
            reranker_target=f"127.0.0.1:{reranker.server.port}",
            store_path=tmp_path_factory.mktemp("store"),
        )
        gateway = await exits.enter_async_context(open_app(settings))
        opened = Stack(encoder, reranker, await exits.enter_async_context(client(gateway.port)))
        await opened.collections.CreateCollection(pb.CreateCollectionRequest(collection="c"))
        messages = [
            pb.UpsertDocumentsRequest(
                collection="c",
                truncate=True,  # one of the documents has more than 512 tokens
                documents=[document(number, texts[number]) for number in range(first, first + 8)],
            )
            for first in range(0, COUNT, 8)
        ]
        answers = [answer async for answer in opened.documents.UpsertDocuments(iter(messages))]
        assert [(answer.failure.reason, answer.stored.stored_count) for answer in answers] == [("", 8)] * 3
        yield opened


async def test_the_gateway_says_what_its_parts_say(stack: Stack, texts: list[str]) -> None:
    """Pool and order are those of brute force over the servers' own vectors and logits, for every question."""
    passages = await stack.encoder.vectors(*texts, input_type=PASSAGE, overlong=CUT)
    for question, relevant in QUESTIONS.items():
        answer = await stack.search(
            pb.SearchRequest(query=question, collection="c", pool_size=6, include_pool=True), timeout=60
        )
        (query,) = await stack.encoder.vectors(question, input_type=QUERY)
        scores = passages @ query
        assert numbers(answer.pool) == list(np.argsort(-scores, kind="stable")[:6])
        for hit in answer.pool:
            assert hit.retrieval_score == pytest.approx(scores[hit.id.number], abs=1e-5)
            assert hit.text == texts[hit.id.number]
        direct = await stack.reranker.rerank(question, *(texts[one] for one in numbers(answer.pool)), deadline_s=120)
        logits = {int(answer.pool[one.index].id.number): one.logit for one in direct.ranked}
        for hit in answer.pool:
            assert hit.logit == pytest.approx(logits[hit.id.number], abs=1e-4)
        assert numbers(answer.hits) == sorted(logits, key=lambda number: (-logits[number], number))[:5]
        assert relevant <= set(numbers(answer.hits)[:3])


async def test_provenance_is_what_the_servers_tell(stack: Stack) -> None:
    """Both models of an answer, and the collection's, carry the digests that GetModel shows."""
    encoder = (await stack.encoder.stub.GetModel(encoder_pb2.GetModelRequest())).model
    reranker = (await stack.reranker.stub.GetModel(reranker_pb2.GetModelRequest())).model
    answer = await stack.search(pb.SearchRequest(query=next(iter(QUESTIONS)), collection="c", pool_size=2), timeout=60)
    for shown, told in ((answer.provenance.encoder, encoder), (answer.provenance.reranker, reranker)):
        assert shown.SerializeToString(deterministic=True) == told.SerializeToString(deterministic=True)
        assert shown.digest.startswith("sha256:")
    assert answer.provenance.encoder.digest != answer.provenance.reranker.digest
    assert answer.provenance.store == "qdrant-edge"
    described = await stack.collections.DescribeCollection(pb.DescribeCollectionRequest(collection="c"))
    assert described.collection.encoder.digest == encoder.digest
    assert (described.collection.document_count, described.collection.dimension) == (COUNT, 384)


async def test_searches_at_the_same_time_answer_as_alone(stack: Stack) -> None:
    """Concurrent searches share batches in both servers and keep their own answers (3, 11)."""
    requests = [pb.SearchRequest(query=question, collection="c", pool_size=3) for question in QUESTIONS]
    alone = [await stack.search(request, timeout=60) for request in requests]
    together = await asyncio.gather(*(stack.search(request, timeout=60) for request in requests))
    for one, other in zip(together, alone, strict=True):
        assert numbers(one.hits) == numbers(other.hits)
        assert [hit.logit for hit in one.hits] == pytest.approx([hit.logit for hit in other.hits], abs=1e-4)


async def test_real_vectors_do_not_depend_on_their_batch(stack: Stack, texts: list[str]) -> None:
    """E5's vector of a text alone and beside a text of 512 tokens differ by at most 1e-5 (field failures 3 and 11)."""
    long = " ".join(texts)
    (alone,) = await stack.encoder.vectors(texts[0])
    beside = await stack.encoder.vectors(texts[0], long, "?", overlong=CUT)
    assert np.abs(alone - beside[0]).max() <= 1e-5
    assert np.linalg.norm(beside, axis=1) == pytest.approx(1, abs=1e-5)


async def test_real_roles_and_prefixes(stack: Stack) -> None:
    """A question as query and as passage has different vectors, and a prefix of its own is one more (12)."""
    (query,) = await stack.encoder.vectors("where is my invoice", input_type=QUERY)
    (passage,) = await stack.encoder.vectors("where is my invoice", input_type=PASSAGE)
    (twice,) = await stack.encoder.vectors("query: where is my invoice", input_type=QUERY)
    assert query @ passage < 0.9999
    assert query @ twice < 0.9999


async def test_the_real_limit_is_512_tokens(stack: Stack, texts: list[str]) -> None:
    """A query over the limit is the caller's fault by its own name; a passage is cut when that is wanted (24, 32)."""
    long = " ".join(texts)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stack.search(pb.SearchRequest(query=long, collection="c"), timeout=60)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (caught.value.details() or "").startswith("query: ")
    messages = [
        pb.UpsertDocumentsRequest(collection="c", documents=[document(100, long)], truncate=truncate)
        for truncate in (False, True)
    ]
    refused, stored = [answer async for answer in stack.documents.UpsertDocuments(iter(messages))]
    assert refused.failure.reason == "TEXT_TOO_LONG"
    assert (stored.stored.stored_count, stored.stored.truncated_count) == (1, 1)
    answer = await stack.search(pb.SearchRequest(query=long[:80], collection="c", pool_size=8, top_k=8), timeout=60)
    assert {hit.id.number for hit in answer.hits if hit.truncated} >= {100}
    gone = pb.DeleteDocumentsRequest(collection="c", ids=[pb.DocumentId(number=100)])
    await stack.documents.DeleteDocuments(gone)
