"""Spans of real servers, as a collector gets them: whose they are, what they are under, and when there are none.

A server sends what is left when it ends, so all spans are there once its context is left.
"""

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import Authority
from clients import client
from factories import encoder_settings, reranker_settings
from model_rigs import QUERY, EncoderRig, RerankerRig, Valve, encode_request, open_encoder, open_reranker
from opentelemetry.sdk.trace import TracerProvider
from otlp_collector import Collector, Span, open_collector
from prometheus_client.openmetrics.exposition import generate_latest
from rigs import document, failure, free_port, health, open_rig, request

from gateway import app
from gateway.settings import GatewaySettings
from retrieval.encoder.v1 import encoder_pb2
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1.gateway_pb2_grpc import CollectionServiceStub, DocumentServiceStub, GatewayServiceStub
from serving import logs, tracing, tracing_setup
from serving.bundle import Bundle
from serving.errors import Misconfigured
from serving.metrics import ServerMetrics
from serving.timing import from_duration

pytestmark = pytest.mark.timeout(60)

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)
UNSAMPLED = (("traceparent", f"00-{TRACE}-{PARENT}-00"),)
SEARCH, ENCODE, RERANK = "GatewayService/Search", "EncoderService/Encode", "RerankerService/Rerank"
PARTS = ("tokenize", "queue", "compute")
PASSED_ON = ("x-request-id", "traceparent", "tracestate")
TEXTS = ("panda bear", "tea river", "mountain paper")


def traceparent(trace: int) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a caller with a trace of its own."""
    return (("traceparent", f"00-{trace:032x}-{trace:016x}-01"),)


class Stack:
    """All three servers."""

    def __init__(self, encoder: EncoderRig, reranker: RerankerRig, channel: grpc.aio.Channel) -> None:
        self.encoder, self.reranker = encoder, reranker
        self.gateway: Any = GatewayServiceStub(channel)
        self.documents: Any = DocumentServiceStub(channel)
        self.collections: Any = CollectionServiceStub(channel)

    async def fill(self) -> None:
        """Store the texts."""
        await self.collections.CreateCollection(pb.CreateCollectionRequest(collection="c"), metadata=UNSAMPLED)
        documents = [document(number, text) for number, text in enumerate(TEXTS)]
        messages = iter([pb.UpsertDocumentsRequest(collection="c", documents=documents)])
        answers = [one async for one in self.documents.UpsertDocuments(messages, metadata=UNSAMPLED)]
        assert [one.stored.stored_count for one in answers] == [len(TEXTS)]


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    """A collector that answers."""
    async with open_collector() as opened:
        yield opened


@asynccontextmanager
async def open_stack(
    tiny_encoder: Bundle, tiny_reranker: Bundle, store_path: Path, **settings: Any
) -> AsyncIterator[Stack]:
    """Open the three servers with the same settings, and store the texts without leaving a trace."""
    async with AsyncExitStack() as exits:
        encoder = await exits.enter_async_context(open_encoder(encoder_settings(tiny_encoder, **settings)))
        reranker = await exits.enter_async_context(open_reranker(reranker_settings(tiny_reranker, **settings)))
        told = GatewaySettings(
            host="127.0.0.1",
            port=0,
            encoder_target=f"127.0.0.1:{encoder.server.port}",
            reranker_target=f"127.0.0.1:{reranker.server.port}",
            store_path=store_path,
            **settings,
        )
        gateway = await exits.enter_async_context(app.open_app(told))
        stack = Stack(encoder, reranker, await exits.enter_async_context(client(gateway.port)))
        await stack.fill()
        yield stack


def total(spans: Sequence[Span]) -> int:
    """Return how long spans took together."""
    return sum(span.length for span in spans)


# --- one search ----------------------------------------------------------------------------------------------------


async def test_one_search_is_one_trace_over_all_servers(
    tiny_encoder: Bundle, tiny_reranker: Bundle, tmp_path: Path, collector: Collector
) -> None:
    """Stages are under the search, servers under their stage, parts under their server, in times that fit."""
    async with open_stack(tiny_encoder, tiny_reranker, tmp_path / "s", otlp_endpoint=collector.endpoint) as stack:
        answer = await stack.gateway.Search(request("panda bear"), metadata=(("x-request-id", "my-search"),))
    search = collector.one(SEARCH, "gateway")
    assert search.parent == ""
    assert {span.trace for span in collector.spans if span.name != "batch"} == {search.trace}
    assert search.attributes == {
        "rpc.system": "grpc",
        "rpc.service": "retrieval.gateway.v1.GatewayService",
        "rpc.method": "Search",
        "rpc.grpc.status_code": 0,
        "twostage.request_id": "my-search",
    }
    stages = [collector.one(name, "gateway") for name in ("encode", "search", "rerank")]
    assert [stage.parent for stage in stages] == [search.id] * 3
    assert search.begin <= stages[0].begin
    assert all(one.end <= other.begin for one, other in pairwise(stages))
    assert stages[-1].end <= search.end
    assert total(stages) <= search.length
    assert stages[1].attributes == {"twostage.pool_size": 20, "twostage.candidates": 3, "twostage.lists": 1}
    assert stages[2].attributes == {"twostage.candidates": 3, "twostage.reranked": 3}
    for stage, name, service in ((stages[0], ENCODE, "encoder"), (stages[2], RERANK, "reranker")):
        server = collector.one(name, service)
        assert server.parent == stage.id
        assert server.attributes["twostage.request_id"] == "my-search"
        told = getattr(answer.timings, stage.name)
        for part in PARTS:
            spans = collector.named(part, service)
            assert {span.parent for span in spans} <= {server.id}
            assert total(spans) // 1000 * 1000 == from_duration(getattr(told, part))


async def test_a_span_tells_no_text_no_document_and_no_key(
    tiny_encoder: Bundle, tiny_reranker: Bundle, tmp_path: Path, collector: Collector
) -> None:
    """Neither the query nor a passage is in any attribute, also of a search that fails."""
    async with open_stack(tiny_encoder, tiny_reranker, tmp_path / "s", otlp_endpoint=collector.endpoint) as stack:
        await stack.gateway.Search(request("panda bear"))
        await failure(stack.gateway.Search(request("poison")))
    told = " ".join(str(value) for span in collector.spans for value in span.attributes.values())
    assert not [word for text in (*TEXTS, "poison") for word in text.split() if word in told]


async def test_a_stage_that_fails_says_why(
    tiny_encoder: Bundle, tiny_reranker: Bundle, tmp_path: Path, collector: Collector
) -> None:
    """A vector that is not finite fails its compute span, both servers and the stage between them, each by name."""
    async with open_stack(tiny_encoder, tiny_reranker, tmp_path / "s", otlp_endpoint=collector.endpoint) as stack:
        failed = await failure(stack.gateway.Search(request("poison")))
    assert failed.code is grpc.StatusCode.INTERNAL
    told = {
        name: (span.failed, span.attributes["error.type"])
        for name in ("compute", ENCODE, "encode", SEARCH)
        for span in collector.named(name)
        if span.attributes.get("error.type")
    }
    assert told == {
        "compute": (True, "NON_FINITE"),
        ENCODE: (True, "NON_FINITE"),
        "encode": (True, "ENCODER_FAILED"),
        SEARCH: (True, "ENCODER_FAILED"),
    }
    assert collector.one(SEARCH).attributes["rpc.grpc.status_code"] == grpc.StatusCode.INTERNAL.value[0]
    assert collector.named("search", "gateway") == []


async def test_a_refusal_of_a_wrong_request_is_no_failure_of_the_server(
    tiny_encoder: Bundle, collector: Collector
) -> None:
    """INVALID_ARGUMENT has its code and its reason, and is no error."""
    async with open_encoder(encoder_settings(tiny_encoder, otlp_endpoint=collector.endpoint)) as rig:
        await failure(rig.encode(" "))
    span = collector.one(ENCODE)
    assert (span.failed, span.attributes["error.type"]) == (False, "TEXT_BLANK")
    assert span.attributes["rpc.grpc.status_code"] == grpc.StatusCode.INVALID_ARGUMENT.value[0]


# --- batches -------------------------------------------------------------------------------------------------------


async def test_a_batch_of_two_traces_is_linked_with_both(tiny_encoder: Bundle, collector: Collector) -> None:
    """Two requests that were computed together link to one batch, and it to both; it has a trace of its own."""
    async with open_encoder(encoder_settings(tiny_encoder, otlp_endpoint=collector.endpoint)) as rig:
        valve = Valve(rig.server)
        first = rig.stub.Encode(encode_request("panda"), metadata=UNSAMPLED)
        await valve.wait_entered()
        calls = [
            rig.stub.Encode(encode_request(*texts), metadata=traceparent(number))
            for number, texts in ((1, ["panda"]), (2, ["tea", "river"]))
        ]
        await rig.waiting(3)
        valve.opened.set()
        await asyncio.gather(first, *calls)
    batch, servers = collector.one("batch"), collector.named(ENCODE)
    assert [server.parent for server in servers] == [f"{1:016x}", f"{2:016x}"]
    assert batch.parent == ""
    assert batch.trace not in {server.trace for server in servers}
    assert sorted(batch.links) == sorted(server.id for server in servers)
    assert batch.attributes["twostage.rows"] == 3
    assert batch.attributes["twostage.tokens"] <= batch.attributes["twostage.padded_tokens"]
    computes = collector.named("compute")
    assert sorted(one.parent for one in computes) == sorted(server.id for server in servers)
    assert [(one.links, one.begin, one.end) for one in computes] == [([batch.id], batch.begin, batch.end)] * 2


async def test_a_request_over_several_batches_has_a_part_for_each(tiny_encoder: Bundle, collector: Collector) -> None:
    """Five rows in batches of two are three compute spans with a batch each, which add up to what the answer says."""
    settings = encoder_settings(tiny_encoder, otlp_endpoint=collector.endpoint, max_batch_rows=2)
    async with open_encoder(settings) as rig:
        answer = await rig.encode("panda", "tea", "river", "bear", "paper")
    computes, queues = collector.named("compute"), collector.named("queue")
    assert len(computes) == 3
    assert sorted(one.links[0] for one in computes) == sorted(one.id for one in collector.named("batch"))
    assert total(computes) == from_duration(answer.timings.compute)
    assert total(queues) == from_duration(answer.timings.queue)


async def test_a_request_that_is_refused_or_left_says_why(tiny_encoder: Bundle, collector: Collector) -> None:
    """A full queue and a caller who leaves are queue spans with the reason."""
    settings = encoder_settings(tiny_encoder, otlp_endpoint=collector.endpoint, max_waiting_tokens=8)
    async with open_encoder(settings) as rig:
        valve = Valve(rig.server)
        first = rig.encode("panda")
        await valve.wait_entered()
        waiting = rig.encode("panda bear")
        await rig.waiting(1)
        refused = await failure(rig.encode("tea river mountain paper"))
        waiting.cancel()
        await rig.waiting(0)
        valve.opened.set()
        await first
    assert refused.reason == "QUEUE_FULL"
    reasons = {span.attributes["error.type"] for span in collector.named("queue") if span.failed}
    assert reasons == {"QUEUE_FULL", "CANCELLED"}
    ends = {span.attributes.get("error.type") for span in collector.named(ENCODE)}
    assert ends == {"QUEUE_FULL", "CANCELLED", None}


async def test_a_row_that_the_engine_cannot_compute_says_why(tiny_encoder: Bundle, collector: Collector) -> None:
    """An exception of the engine is a compute span with the reason."""
    async with open_encoder(encoder_settings(tiny_encoder, otlp_endpoint=collector.endpoint)) as rig:
        await failure(rig.encode("crash"))
    compute = collector.one("compute")
    assert (compute.failed, compute.attributes["error.type"]) == (True, "INFERENCE_FAILED")
    assert abs(compute.begin - collector.one(ENCODE).begin) < 60e9


# --- streams -------------------------------------------------------------------------------------------------------


async def test_streams_have_spans(
    tiny_encoder: Bundle,
    tiny_reranker: Bundle,
    tmp_path: Path,
    collector: Collector,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A stream is one call with the parts of all its messages; one that is left ends; no context is ever lost."""
    async with open_stack(tiny_encoder, tiny_reranker, tmp_path / "s", otlp_endpoint=collector.endpoint) as stack:
        messages = [
            encoder_pb2.EncodeStreamRequest(sequence=number, request=encode_request(text))
            for number, text in enumerate(TEXTS)
        ]
        assert len([one async for one in stack.encoder.stub.EncodeStream(iter(messages))]) == 3
        asked = pb.SearchStreamRequest(request=request("panda bear"))
        assert len([one async for one in stack.gateway.SearchStream(asked)]) == 2
        valve = Valve(stack.reranker.server)
        left = stack.gateway.SearchStream(asked)
        await left.read()
        await valve.wait_entered()
        left.cancel()
        while stack.reranker.server.engine.batcher._open:  # the cancellation is on its way through two servers
            await health(stack.reranker.channel)
        valve.opened.set()
    stream = collector.one("EncodeStream")
    assert [span.parent for span in collector.named("compute", "encoder")].count(stream.id) == 3
    whole, broken = collector.named("SearchStream")
    assert (whole.attributes["rpc.grpc.status_code"], broken.attributes["error.type"]) == (0, "CANCELLED")
    reranks = collector.named("rerank", "gateway")
    assert [(span.parent, span.attributes.get("error.type")) for span in reranks] == [
        (whole.id, None), (broken.id, "CANCELLED"),
    ]  # fmt: skip
    assert [one.message for one in caplog.records if one.name.startswith("opentelemetry")] == []


async def test_a_long_stream_is_traced_at_its_beginning_only(
    tiny_encoder: Bundle, tiny_reranker: Bundle, tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a call has its share of spans it gets no more, and neither do the calls that it makes."""
    monkeypatch.setattr(tracing, "MAX_SPANS", 5)
    async with open_stack(tiny_encoder, tiny_reranker, tmp_path / "s", otlp_endpoint=collector.endpoint) as stack:
        messages = [pb.UpsertDocumentsRequest(collection="c", documents=[document(n, "tea")]) for n in range(9)]
        assert len([one async for one in stack.documents.UpsertDocuments(iter(messages))]) == 9
    assert 1 <= len(collector.named(ENCODE)) <= 5
    assert len(collector.named("DocumentService/UpsertDocuments")) == 1


# --- callers' traces -----------------------------------------------------------------------------------------------


async def test_a_callers_trace_is_gone_on_with(
    tiny_encoder: Bundle, tiny_reranker: Bundle, tmp_path: Path, collector: Collector
) -> None:
    """A sampled caller's span is the parent whatever our own share; an unsampled one's has no spans anywhere."""
    settings = {"otlp_endpoint": collector.endpoint, "trace_share": 0}
    async with open_stack(tiny_encoder, tiny_reranker, tmp_path / "s", **settings) as stack:
        await stack.gateway.Search(request(), metadata=SAMPLED)
        await stack.gateway.Search(request(), metadata=UNSAMPLED)
        await stack.gateway.Search(request())
    search = collector.one(SEARCH)
    assert (search.trace, search.parent) == (TRACE, PARENT)
    assert {span.trace for span in collector.spans if span.name != "batch"} == {TRACE}
    assert {span.service for span in collector.spans} == {"gateway", "encoder", "reranker"}
    assert len(collector.named("batch")) == 2, "a batch is kept for its calls' sake"


@pytest.mark.parametrize(
    "metadata",
    [
        (("traceparent", "nonsense"),),
        (("traceparent", ""),),
        (("traceparent", f"00-{'0' * 32}-{PARENT}-01"),),
        (("traceparent", f"ff-{TRACE}-{PARENT}-01"),),
        (("traceparent", f"00-{TRACE.upper()}-{PARENT}-01"),),
        (("traceparent", "0" * 4000),),
        (*SAMPLED, ("tracestate", "=,=;" * 20), ("tracestate", "x" * 3000)),
    ],
)
async def test_what_is_no_trace_context_changes_nothing(
    tiny_encoder: Bundle, collector: Collector, metadata: Any
) -> None:
    """A malformed traceparent is as none, a malformed tracestate is dropped; the call is answered."""
    async with open_encoder(encoder_settings(tiny_encoder, otlp_endpoint=collector.endpoint)) as rig:
        assert len((await rig.stub.Encode(encode_request("panda"), metadata=metadata)).embeddings) == 1
    whole = len(metadata) == 3
    assert (collector.one(ENCODE).parent == PARENT) is whole


# --- without a collector -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ((), {}),
        (SAMPLED, dict(SAMPLED)),
        ((*UNSAMPLED, ("tracestate", "a=1,b=2")), {**dict(UNSAMPLED), "tracestate": "a=1,b=2"}),
        ((*SAMPLED, ("tracestate", "a=" + "1" * 600)), dict(SAMPLED)),
        ((("traceparent", "nonsense"), ("tracestate", "a=1")), {}),
    ],
)
async def test_a_gateway_without_spans_passes_on_what_it_was_given(metadata: Any, expected: dict[str, str]) -> None:
    """Encoder and reranker are called under the caller's request id and in its trace, as it came."""
    seen: list[dict[str, str]] = []

    async def note(request: Any, context: Any, answer: Any) -> Any:
        seen.append({key: value for key, value in context.invocation_metadata() if key in PASSED_ON})
        return answer

    async with open_rig() as rig:
        await rig.fill("alpha", "beta")
        rig.encoder.always = rig.reranker.always = note
        await rig.search.Search(request(), metadata=(*metadata, ("x-request-id", "my-search")))
    assert seen == [{"x-request-id": "my-search", **expected}] * 2


async def test_logs_of_two_servers_are_joined_by_the_callers_ids(
    tiny_encoder: Bundle, tiny_reranker: Bundle, tmp_path: Path
) -> None:
    """What an encoder logs of a search has the id and the trace that the gateway's line has."""
    noted: list[dict[str, str]] = []

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            noted.append({name: vars(record).get(name, "") for name in ("request_id", "trace_id")})

    calls = logging.getLogger("serving.calls")
    handler = Noting()
    handler.addFilter(logs.CallFilter())
    calls.addHandler(handler)
    try:
        async with open_stack(tiny_encoder, tiny_reranker, tmp_path / "s") as stack:
            noted.clear()
            call = stack.gateway.Search(request("poison"), metadata=(*SAMPLED, ("x-request-id", "my-search")))
            assert (await failure(call)).code is grpc.StatusCode.INTERNAL
    finally:
        calls.removeHandler(handler)
    assert noted == [{"request_id": "my-search", "trace_id": TRACE}] * 2


def test_the_sdk_is_not_even_imported_where_no_spans_are_made() -> None:
    """Servers without an endpoint know the API of OpenTelemetry alone."""
    code = "import sys, encoder_server.app, reranker_server.app, gateway.app; print('opentelemetry.sdk' in sys.modules)"
    run = subprocess.run((sys.executable, "-c", code), check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "False"


# --- how spans are sent --------------------------------------------------------------------------------------------


async def test_a_server_says_who_it_is_in_ways_that_its_environment_may_overrule(
    tiny_encoder: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every server is an instance of its own; OpenTelemetry's variables for names, attributes and headers count."""
    async with open_collector() as collector:
        settings = encoder_settings(tiny_encoder, otlp_endpoint=collector.endpoint)
        async with open_encoder(settings) as first, open_encoder(settings) as second:
            await first.encode("panda")
            await second.encode("panda")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "search-encoder")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.version=7,team=search")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x")
        async with open_encoder(settings) as third:
            await third.encode("panda")
    resources = [span.resource for span in collector.named(ENCODE)]
    assert [resource["service.name"] for resource in resources] == ["twostage-encoder"] * 2 + ["search-encoder"]
    assert len({resource["service.instance.id"] for resource in resources}) == 3
    assert (resources[2]["service.version"], resources[2]["team"]) == ("7", "search")
    assert collector.metadata["authorization"] == "Bearer x"


async def test_spans_go_over_tls_where_the_endpoint_says_so(
    tiny_encoder: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """https:// checks the collector's certificate with the authority that OpenTelemetry's variable names."""
    authority = Authority.make(tmp_path, "authority")
    pair = authority.sign("collector")
    credentials = grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.cert.read_bytes())])
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(authority.cert))
    async with open_collector(credentials) as collector:
        settings = encoder_settings(tiny_encoder, otlp_endpoint=collector.endpoint)
        async with open_encoder(settings) as rig:
            await rig.encode("panda")
    assert collector.endpoint.startswith("https://")
    assert collector.one(ENCODE).service == "encoder"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip", "zip"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "100", "max_export_batch_size"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096", "max_export_batch_size"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "abc", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"),
    ],
)
async def test_a_variable_that_opentelemetry_cannot_read_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    """An operator hears of it at once in one line, and not when spans are missed."""
    monkeypatch.setenv(name, value)
    with pytest.raises(Misconfigured, match=said) as caught:
        async with tracing_setup.open_tracer("encoder", "http://127.0.0.1:4317", 1):
            pass
    assert caught.value.reason == "TRACING"


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"])
@pytest.mark.parametrize(
    "value",
    [
        "authorization: Bearer SECRET",
        "SECRET",
        "team=search,authorization: Bearer SECRET",
        "authorization=Bearer%20SECRET%0Ax",
        "a!b=SECRET",
        "key-bin=SECRET",
    ],
)
async def test_headers_that_cannot_be_sent_stop_the_start(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """The variable is named and its value is not: it holds a key."""
    monkeypatch.setenv(name, value)
    with pytest.raises(Misconfigured, match=name) as caught:
        async with tracing_setup.open_tracer("encoder", "http://127.0.0.1:4317", 1):
            pass
    assert "SECRET" not in caught.value.message


@pytest.mark.parametrize(
    ("endpoint", "warned"),
    [
        ("http://192.0.2.1:4317", True),
        ("https://192.0.2.1:4317", False),
        ("http://localhost:4317/", False),
        ("http://[::1]:4317", False),
    ],
)
async def test_a_key_for_the_collector_that_can_be_overheard_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, endpoint: str, *, warned: bool
) -> None:
    """Headers in plaintext to another machine are one warning that does not hold them."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20SECRET, team=search,")
    async with tracing_setup.open_tracer("encoder", endpoint, 1):
        pass
    expected = f"OTEL_EXPORTER_OTLP_HEADERS go to {endpoint} in the clear; TLS is off"
    assert [one.getMessage() for one in caplog.records] == [expected] * warned


class Broken:
    """A tracer that fails to begin some spans.

    Args:
        tracer: Begins the others.
        names: Which fail.
    """

    def __init__(self, tracer: Any, names: Sequence[str]) -> None:
        self._tracer, self._names = tracer, names

    def start_span(self, name: str, *args: Any, **options: Any) -> Any:
        """Begin a span or fail."""
        if name.rpartition("/")[2] in self._names:
            raise ZeroDivisionError
        return self._tracer.start_span(name, *args, **options)


@pytest.mark.parametrize("names", [["Encode"], ["batch"], ["tokenize", "queue", "compute"]])
async def test_a_fault_of_tracing_fails_no_call(
    tiny_encoder: Bundle,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    names: list[str],
) -> None:
    """Whichever span cannot be begun, it is logged, and the call is answered."""
    real = TracerProvider.get_tracer
    monkeypatch.setattr(TracerProvider, "get_tracer", lambda *args: Broken(real(*args), names))
    async with open_encoder(encoder_settings(tiny_encoder, otlp_endpoint=collector.endpoint)) as rig:
        assert len((await rig.encode("panda")).embeddings) == 1
    assert {one.getMessage() for one in caplog.records if one.levelno == logging.ERROR} == {"a span is lost"}
    assert not {span.name.rpartition("/")[2] for span in collector.spans} & set(names)


# --- collectors that are not there ---------------------------------------------------------------------------------


async def test_a_collector_that_hangs_stops_nobody(
    tiny_encoder: Bundle,
    tiny_reranker: Bundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Searches are answered while it is being waited for, and the servers end."""
    monkeypatch.setattr(tracing_setup, "FLUSH_S", 0.2)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    async with open_collector(hanging=True) as collector:
        async with open_stack(tiny_encoder, tiny_reranker, tmp_path / "s", otlp_endpoint=collector.endpoint) as stack:
            await stack.gateway.Search(request())
            await collector.asked.wait()
            assert len((await stack.gateway.Search(request())).hits) == 3
        assert collector.spans == []
    assert [one.message for one in caplog.records].count("the collector does not answer, the last spans are lost") == 3


async def test_a_collector_that_is_not_there_stops_nobody(
    tiny_encoder: Bundle, tiny_reranker: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same where nobody listens."""
    monkeypatch.setattr(tracing_setup, "FLUSH_S", 0.2)
    endpoint = f"http://127.0.0.1:{free_port()}"
    async with open_stack(tiny_encoder, tiny_reranker, tmp_path / "s", otlp_endpoint=endpoint) as stack:
        assert len((await stack.gateway.Search(request())).hits) == 3


# --- metrics -------------------------------------------------------------------------------------------------------


async def test_a_duration_names_its_trace_as_an_exemplar(
    tiny_encoder: Bundle, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Call and stage histograms lead to a sampled trace, and have no exemplar without one."""
    pages = []
    made: list[ServerMetrics] = []
    real = ServerMetrics.__init__

    def noted(self: ServerMetrics, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(ServerMetrics, "__init__", noted)
    async with open_encoder(encoder_settings(tiny_encoder, otlp_endpoint=collector.endpoint)) as rig:
        for metadata in (UNSAMPLED, SAMPLED):
            await rig.stub.Encode(encode_request("panda", input_type=QUERY), metadata=metadata)
            pages.append(generate_latest(made[0].registry).decode())
    named = [
        {line.partition("_seconds_bucket")[0] for line in page.splitlines() if f'trace_id="{TRACE}"' in line}
        for page in pages
    ]
    assert named[0] == set()
    assert named[1] >= {"encoder_stage"}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing below a warning is kept, and a collector that is there is waited for on a machine that is busy, too."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(tracing_setup, "FLUSH_S", 60)
