"""A gateway with a writer of hypothetical passages, as it is put together: what is sent, used, and left out."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from chat_endpoint import Endpoint, completion
from clients import client
from fakes import FakeEncoder, FakeReranker, serve
from rigs import document

from gateway.app import open_app
from gateway.settings import GatewaySettings
from retrieval.encoder.v1 import encoder_pb2
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1.gateway_pb2_grpc import CollectionServiceStub, DocumentServiceStub, GatewayServiceStub

pytestmark = pytest.mark.timeout(60)
WRITTEN = pb.SearchRequest(
    query="alpha", collection="c", retrieval=pb.Retrieval(write_hypothetical_passages=True), pool_size=2
)


@asynccontextmanager
async def gateway(
    directory: Path, endpoint: Endpoint, **others: Any
) -> AsyncIterator[tuple[GatewayServiceStub, FakeEncoder]]:
    """Open a gateway whose writer is the endpoint unless others say otherwise, with two documents."""
    async with AsyncExitStack() as stack:
        encoder = FakeEncoder()
        ports = [await stack.enter_async_context(serve(fake)) for fake in (encoder, FakeReranker())]
        (directory / "key").write_text("writer-key")
        told: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": 0,
            "store_path": directory / "store",
            "encoder_target": f"dns:///127.0.0.1:{ports[0]}",
            "reranker_target": f"dns:///127.0.0.1:{ports[1]}",
            "writer_url": await stack.enter_async_context(endpoint.serving()),
            "writer_model": "m",
            "writer_api_key_file": directory / "key",
        }
        settings = GatewaySettings(**(told | others))
        running = await stack.enter_async_context(open_app(settings))
        channel = await stack.enter_async_context(client(running.port))
        await CollectionServiceStub(channel).CreateCollection(pb.CreateCollectionRequest(collection="c"))
        documents = [document(1, "alpha"), document(2, "beta")]
        message = pb.UpsertDocumentsRequest(collection="c", documents=documents)
        (stored,) = [one async for one in DocumentServiceStub(channel).UpsertDocuments(iter([message]))]
        assert stored.stored.stored_count == 2
        yield GatewayServiceStub(channel), encoder


async def test_what_is_written_is_encoded_as_a_passage(tmp_path: Path) -> None:
    """The endpoint gets the query and the key of the file; its passage is encoded, counted and timed."""
    endpoint = Endpoint(completion("beta"))
    async with gateway(tmp_path, endpoint) as (search, encoder):
        answer = await search.Search(WRITTEN, timeout=20)
    assert endpoint.bodies[0]["messages"][-1]["content"] == "alpha"
    assert "Bearer writer-key" in endpoint.heads[0]
    sent = [one for one in encoder.requests if isinstance(one, encoder_pb2.EncodeRequest)]
    (passage,) = [one for one in sent[-2:] if one.input_type == encoder_pb2.INPUT_TYPE_PASSAGE]
    assert (list(passage.texts), passage.priority) == (["beta"], encoder_pb2.PRIORITY_INTERACTIVE)
    assert answer.provenance.written_passage_count == 1
    assert answer.timings.write.total.ToNanoseconds() > 0
    assert not answer.HasField("degradation")


async def test_a_search_that_does_not_ask_sends_nothing(tmp_path: Path) -> None:
    """A writer that is set up is left alone by every search that does not ask for it."""
    endpoint = Endpoint(completion("beta"))
    async with gateway(tmp_path, endpoint) as (search, _):
        answer = await search.Search(pb.SearchRequest(query="alpha", collection="c"), timeout=20)
    assert endpoint.bodies == []
    assert answer.timings.write.total.ToNanoseconds() == 0


@pytest.mark.parametrize(
    ("endpoint", "cap_s", "reason"),
    [(Endpoint(status=500), 15, "WRITER_UNAVAILABLE"), (Endpoint(silent=True), 0.2, "DEADLINE_SPENT")],
    ids=["fails", "hangs"],
)
async def test_a_writer_that_fails_or_hangs_costs_no_search(
    tmp_path: Path, endpoint: Endpoint, cap_s: float, reason: str
) -> None:
    """The answer comes without its passages, reranked as usual, and says why."""
    async with gateway(tmp_path, endpoint, writer_cap_s=cap_s) as (search, _):
        answer = await search.Search(WRITTEN, timeout=20)
    assert [hit.id.number for hit in answer.hits] == [1, 2]
    assert answer.hits[0].HasField("logit")
    assert (answer.degradation.write_skipped_reason, answer.degradation.reason) == (reason, "")


async def test_an_address_that_the_client_refuses_costs_no_search(tmp_path: Path) -> None:
    """What is no host only to the client lets the gateway start, and searches go on without the writer."""
    async with gateway(tmp_path, Endpoint(), writer_url="http://xn--/v1") as (search, _):
        answer = await search.Search(WRITTEN, timeout=20)
    assert [hit.id.number for hit in answer.hits] == [1, 2]
    assert (answer.degradation.write_skipped_reason, answer.degradation.reason) == ("WRITER_UNAVAILABLE", "")
