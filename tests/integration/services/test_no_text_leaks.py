"""What users write is neither logged nor repeated in errors, however a call fails."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from fakes import status
from google.protobuf import json_format, struct_pb2
from model_rigs import open_encoder, open_reranker
from rigs import Rig, document, failed_as, open_rig, request, stream_failure

from encoder_server.settings import EncoderSettings
from gateway.settings import GatewaySettings
from gateway.stores.edge import EdgeStore
from reranker_server.settings import RerankerSettings
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.bundle import Bundle

pytestmark = pytest.mark.timeout(60)
CODE = grpc.StatusCode
MARKER = "Zanzibar"
LONG = f"{MARKER} " * 9_000


@pytest.fixture
def everything(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log as it is by default."""
    caplog.set_level(logging.INFO)
    return caplog


async def told(call: Any) -> str:
    """Return everything that a caller is told of a failure: details, metadata and messages within a stream."""
    if hasattr(call, "__aiter__"):
        answers, failed = await stream_failure(call)
        return f"{answers} {failed}"
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return f"{failed_as(error)} {error.debug_error_string()} {error.trailing_metadata()}"
    assert isinstance(answer, pb.UpsertDocumentsResponse), "this call was to fail"
    assert answer.HasField("failure")
    return str(answer)


def condition(**kind: Any) -> pb.Filter:
    """Make a filter of one condition."""
    return pb.Filter(must=[pb.Condition(**kind)])


def searches() -> Iterator[pb.SearchRequest]:
    """Make searches that are refused for every reason that has to do with what they say."""
    yield request(LONG)
    yield request(MARKER, collection="none")
    yield request(MARKER, collection=f"{MARKER} with blanks")
    yield request(MARKER, pool_size=0)
    yield request(MARKER, top_k=999)
    yield request(MARKER, rerank=99)
    yield request(MARKER, payload_fields=[MARKER] * 999)
    yield request(MARKER, filter=condition(exists=pb.Exists(key=f"_twostage{MARKER}")))
    yield request(MARKER, filter=condition(exists=pb.Exists(key=f'"{MARKER}')))
    yield request(MARKER, filter=condition(text_match=pb.TextMatch(key=MARKER, text=MARKER)))
    yield request(MARKER, filter=condition(text_match=pb.TextMatch(key="k", text=LONG)))
    yield request(MARKER, filter=condition(range=pb.Range(key=MARKER)))
    mixed = [struct_pb2.Value(string_value=MARKER), struct_pb2.Value(number_value=1)]
    yield request(MARKER, filter=condition(any_of=pb.AnyOf(key=MARKER, values=mixed)))
    yield request(MARKER, filter=condition(any_of=pb.AnyOf(key="k", values=[struct_pb2.Value(string_value=LONG)])))
    yield request(MARKER, filter=condition(has_id=pb.HasId(ids=[pb.DocumentId(text=LONG)])))


def writes() -> Iterator[list[pb.Document]]:
    """Make documents that are refused."""
    yield [document(LONG, "alpha")]
    yield [document(MARKER, LONG)]
    yield [document(MARKER, MARKER), document(MARKER, MARKER)]
    yield [document(1, MARKER, **{f"_twostage{MARKER}": MARKER})]
    yield [document(1, MARKER, k=LONG)]
    yield [pb.Document(text=MARKER)]


async def test_no_refused_request_is_repeated(tmp_path: Path, everything: pytest.LogCaptureFixture) -> None:
    """Whatever is wrong with a request, its text, ids, keys, names and values are not in the answer nor in the log."""
    async with await EdgeStore.open(tmp_path / "store", in_process=True) as store, open_rig(store) as rig:
        await rig.fill("alpha")
        said = [await told(rig.search.Search(one)) for one in searches()]
        said += [
            await told(rig.search.SearchStream(pb.SearchStreamRequest(request=one)))
            for one in (request(LONG), request(MARKER, top_k=999))
        ]
        said += [await told(rig.upsert(documents)) for documents in writes()]
        said += [await told(_import(rig, name)) for name in (MARKER, "x")]
        for one in said:
            assert MARKER not in one, one
    assert MARKER not in everything.text


def _import(rig: Rig, name: str) -> Any:
    encoder = pb.ModelReference(id=MARKER, revision=MARKER, digest="d", precision="fp32")
    header = pb.CollectionHeader(format_version=1, dimension=16, encoder=encoder, passage_prefix=MARKER)
    start = pb.ImportCollectionRequest(start=pb.ImportStart(collection=name, header=header))
    bad = pb.StoredDocument(document=document(MARKER, MARKER, k=MARKER), vector=b"\0" * 64)
    documents = pb.ImportCollectionRequest(documents=pb.DocumentBatch(documents=[bad]))
    return rig.collections.ImportCollection(iter([start, documents]))


@pytest.mark.parametrize("code", [one for one in CODE if one is not CODE.OK], ids=lambda code: code.name)
async def test_no_failure_of_a_backend_repeats_what_it_was_sent(
    code: grpc.StatusCode, everything: pytest.LogCaptureFixture
) -> None:
    """Even where a model server puts the text into its own words, the gateway does not pass it on."""
    async with open_rig() as rig:
        await rig.fill(f"{MARKER} of a passage")
        rig.encoder.always = status(code, message=f"cannot read {MARKER}")
        said = [await told(rig.ask(MARKER, deadline_s=5))]
        said.append(await told(rig.upsert([document(2, MARKER)])) if code is not CODE.RESOURCE_EXHAUSTED else "")
        rig.encoder.always = _sensible
        rig.reranker.always = status(code, message=f"cannot read {MARKER}")
        said.append(await told(rig.ask(MARKER, deadline_s=5)))
        assert not any(MARKER in one for one in said), said
    assert MARKER not in everything.text


async def _sensible(_request: Any, _context: Any, answer: Any) -> Any:
    return answer


async def test_no_failure_of_the_store_repeats_what_it_was_sent(
    tmp_path: Path, everything: pytest.LogCaptureFixture
) -> None:
    """An engine that fails says why in the log, without the documents."""
    async with await EdgeStore.open(tmp_path / "store", in_process=True) as store, open_rig(store) as rig:
        await rig.fill(MARKER)
        await store.aclose()
        said = [await told(rig.ask(MARKER)), await told(rig.upsert([document(2, MARKER, k=MARKER)]))]
        assert not any(MARKER in one for one in said), said
    assert MARKER not in everything.text


@pytest.mark.parametrize("word", ["poison", "crash"])
async def test_no_failure_of_a_model_shows_the_text(
    word: str, tiny_encoder: Bundle, tiny_reranker: Bundle, everything: pytest.LogCaptureFixture
) -> None:
    """Where the engine breaks on a text, encoder and reranker log a trace without it."""
    served = {"host": "127.0.0.1", "port": 0, "device": "cpu", "threads": 1}
    async with (
        open_encoder(EncoderSettings(bundle=tiny_encoder.path, **served)) as encoder,
        open_reranker(RerankerSettings(bundle=tiny_reranker.path, **served)) as reranker,
    ):
        said = [
            await told(encoder.encode(f"{MARKER} {word}")),
            await told(encoder.encode(MARKER, " ")),
            await told(encoder.encode(f"{MARKER} " * 200)),
            await told(encoder.encode("x" * 70_000 + MARKER)),
            await told(reranker.rerank(MARKER, f"{MARKER} {word}")),
            await told(reranker.rerank(" ", MARKER)),
            await told(reranker.rerank(MARKER, "x" * 70_000 + MARKER)),
        ]
        assert not any(MARKER in one for one in said), said
    assert MARKER not in everything.text


def test_secrets_are_not_in_a_settings_repr() -> None:
    """Whoever prints or dumps the settings prints no key."""
    settings = GatewaySettings(qdrant_api_key=MARKER)  # type: ignore[arg-type]
    assert MARKER not in f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"


def test_the_marker_would_be_seen() -> None:
    """The messages above do hold it: a request that is printed shows the marker."""
    assert all(MARKER in json_format.MessageToJson(one) for one in searches())
