"""The Prometheus pages of three servers: what they count of a few searches, exactly, and what is documented of it."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from clients import client
from factories import encoder_settings, reranker_settings
from metric_pages import OPENMETRICS, Page, fetch, page_when
from model_rigs import EncoderRig, RerankerRig, Valve, open_encoder, open_reranker
from patience import Late, with_more_time
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from rigs import document, failure, health, request

from cli.addresses import free_ports
from gateway.app import open_app
from gateway.settings import GatewaySettings
from retrieval.encoder.v1 import encoder_pb2
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1.gateway_pb2_grpc import CollectionServiceStub, DocumentServiceStub, GatewayServiceStub
from retrieval.reranker.v1 import reranker_pb2
from serving.bundle import Bundle

DOCUMENTS = ("panda bear", "a river in the mountain", "tea " * 100)
"""The last one is longer than both models read."""
TRACE = "0af7651916cd43dd8448eb211c80319c"
SERVERS = ("encoder", "reranker", "gateway")
DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `((?:encoder|reranker|gateway|process)_\w+)` \|([^|]*)\|", re.MULTILINE)
"""A row of its tables: the name, then the labels."""


class System:
    """Tiny models behind a gateway, with a metrics port each."""

    def __init__(
        self, ports: dict[str, int], encoder: EncoderRig, reranker: RerankerRig, channel: grpc.aio.Channel
    ) -> None:
        self.ports, self.encoder, self.reranker = ports, encoder, reranker
        self._search = GatewayServiceStub(channel)
        self._documents = DocumentServiceStub(channel)
        self._collections = CollectionServiceStub(channel)

    async def index(self, *texts: str) -> None:
        """Store texts, cut where they are too long."""
        await self._collections.CreateCollection(pb.CreateCollectionRequest(collection="c"))
        documents = [document(number, text) for number, text in enumerate(texts, 1)]
        message = pb.UpsertDocumentsRequest(collection="c", documents=documents, truncate=True)
        (answer,) = [one async for one in self._documents.UpsertDocuments(iter([message]))]
        assert answer.stored.stored_count == len(texts)

    async def search(self, *, metadata: Any = None, **fields: Any) -> pb.SearchResponse:
        """Search for a panda."""
        return await self._search.Search(request("what is panda", include_pool=True, **fields), metadata=metadata)

    async def stream(self, **fields: Any) -> pb.SearchResponse:
        """Search for a panda, with the pool first; return the last answer."""
        message = pb.SearchStreamRequest(request=request("what is panda", include_pool=True, **fields))
        return [one async for one in self._search.SearchStream(message)][-1].final

    async def page(self, server: str, method: str, calls: int) -> Page:
        """Return a server's page once it counts so many calls of a method, and none that still runs."""
        return await page_when(
            self.ports[server],
            lambda page: (
                page.value(f"{server}_calls_total", method=method, code="OK") == calls
                and page.sum(f"{server}_calls_running") == 0
            ),
        )


@pytest.fixture
async def system(tiny_encoder: Bundle, tiny_reranker: Bundle, tmp_path: Path) -> AsyncIterator[System]:
    """Open the three servers."""
    ports = dict(zip(SERVERS, free_ports(len(SERVERS)), strict=True))
    async with AsyncExitStack() as stack:
        encoder = await stack.enter_async_context(
            open_encoder(encoder_settings(tiny_encoder, metrics_port=ports["encoder"], cache_mib=1))
        )
        reranker = await stack.enter_async_context(
            open_reranker(reranker_settings(tiny_reranker, metrics_port=ports["reranker"]))
        )
        settings = GatewaySettings(
            host="127.0.0.1",
            port=0,
            grace_s=1,
            store_path=tmp_path,
            metrics_port=ports["gateway"],
            encoder_target=f"127.0.0.1:{encoder.server.port}",
            reranker_target=f"127.0.0.1:{reranker.server.port}",
        )
        running = await stack.enter_async_context(open_app(settings))
        yield System(ports, encoder, reranker, await stack.enter_async_context(client(running.port)))


async def test_pages_count_what_was_done(system: System) -> None:
    """After three documents and three searches every counter of work, outcomes and quality has its exact value."""
    await system.index(*DOCUMENTS)
    whole = [await system.search(), await system.stream()]
    plain = await system.search(rerank=pb.RERANK_OFF, pool_size=2)

    encoder = await system.page("encoder", "Encode", 4)
    assert encoder.value("encoder_texts_total", input_type="passage") == 3
    assert encoder.value("encoder_truncated_texts_total", input_type="passage") == 1
    assert encoder.value("encoder_texts_total", input_type="query") == 3
    assert encoder.value("encoder_truncated_texts_total", input_type="query") == 0
    assert (encoder.value("encoder_cache_hits_total"), encoder.value("encoder_cache_misses_total")) == (2, 1)
    assert encoder.value("encoder_submissions_total", priority="bulk", outcome="computed") == 1
    assert encoder.value("encoder_submissions_total", priority="interactive", outcome="computed") == 1
    assert encoder.sum("encoder_submissions_total") == 2
    assert encoder.value("encoder_stage_seconds_count", stage="encode", part="total") == 4

    reranker = await system.page("reranker", "Rerank", 2)
    assert reranker.value("reranker_candidates_total") == 6
    assert reranker.value("reranker_truncated_candidates_total") == 2
    assert reranker.value("reranker_truncated_queries_total") == 0
    assert reranker.value("reranker_skipped_candidates_total") == 0
    assert reranker.value("reranker_submissions_total", priority="interactive", outcome="computed") == 2
    assert reranker.sum("reranker_submissions_total") == 2

    await system.page("gateway", "SearchStream", 1)
    gateway = await system.page("gateway", "Search", 2)
    for name, expected in {
        "pool_candidates": [3, 3, 2],
        "reranked_candidates": [3, 3],
        "top_retrieval_score": [max(0, one.pool[0].retrieval_score) for one in (*whole, plain)],
        "top_probability": [one.hits[0].probability for one in whole],
        "first_hit_retrieval_rank": [one.hits[0].retrieval_rank for one in whole],
    }.items():
        assert gateway.value(f"gateway_{name}_count") == len(expected), name
        assert gateway.value(f"gateway_{name}_sum") == pytest.approx(sum(expected), abs=1e-6), name
    assert gateway.value("gateway_text_missing_candidates_total") == 0
    assert gateway.sum("gateway_degradations_total") == 0
    assert gateway.value("gateway_stage_seconds_count", stage="rerank", part="total") == 3
    assert gateway.value("gateway_call_seconds_count", method="Search") == 2


async def test_the_reranker_counts_what_it_could_not_read_whole(system: System) -> None:
    """A blank candidate is skipped, a long query is cut in every pair and counts once; a refused call adds nothing."""
    await system.reranker.rerank("panda " * 100, "tea", "", "bear", skip_blank=True)
    await failure(system.reranker.rerank("panda", "tea", "", "bear"))
    page = await system.page("reranker", "Rerank", 1)
    names = ("candidates", "truncated_candidates", "truncated_queries", "skipped_candidates")
    assert [page.value(f"reranker_{name}_total") for name in names] == [3, 2, 1, 1]


async def test_the_page_tells_which_model_runs(system: System) -> None:
    """Id, revision, digest, precision and device are those that GetModel tells; there is one instance of it."""
    encoder = (await system.encoder.stub.GetModel(encoder_pb2.GetModelRequest())).model
    reranker = (await system.reranker.stub.GetModel(reranker_pb2.GetModelRequest())).model
    for server, model in (("encoder", encoder), ("reranker", reranker)):
        page = Page(await fetch(system.ports[server]))
        labels = {field.name: getattr(model, field.name) for field in model.DESCRIPTOR.fields}
        assert set(labels) == {"id", "revision", "digest", "precision", "device"}
        assert page.value(f"{server}_model_info", **labels) == 1
        assert page.value(f"{server}_device_instances") == 1


async def test_a_call_is_running_until_it_is_answered(system: System) -> None:
    """While its batch is held back a call counts as running, and as handed to nobody else."""
    valve, port = Valve(system.encoder.server), system.ports["encoder"]
    call = asyncio.ensure_future(system.encoder.encode("panda"))
    await valve.wait_entered()
    page = Page(await fetch(port))
    assert page.value("encoder_calls_running", method="Encode") == 1
    assert page.sum("encoder_submissions_total") == 0
    valve.opened.set()
    await call
    await system.page("encoder", "Encode", 1)


async def test_submissions_to_a_real_server_end_in_one_word_each(system: System) -> None:
    """Computed, failed, left, late, and a stream's message in line: each call is one outcome under its priority."""
    encoder = system.encoder
    await encoder.encode("panda")
    await failure(encoder.encode("tea poison"))
    message = encoder_pb2.EncodeStreamRequest(
        request=encoder_pb2.EncodeRequest(texts=["river"], input_type=encoder_pb2.INPUT_TYPE_PASSAGE)
    )
    assert len([one async for one in encoder.stub.EncodeStream(iter([message]))]) == 1
    valve = Valve(encoder.server)
    first = asyncio.ensure_future(encoder.encode("first"))
    await valve.wait_entered()
    left = encoder.encode("left")
    await encoder.waiting(1)
    left.cancel()
    await encoder.waiting(0)

    def ended(page: Page, outcome: str, priority: str = "interactive") -> float | None:
        return page.value("encoder_submissions_total", priority=priority, outcome=outcome)

    async def late(seconds: float) -> float:
        failed = await failure(encoder.encode("late", deadline_s=seconds))
        assert failed.code is grpc.StatusCode.DEADLINE_EXCEEDED
        await health(encoder.channel)  # the server has begun all that came before
        page = await page_when(
            system.ports["encoder"], lambda page: page.value("encoder_calls_running", method="Encode") == 1
        )
        if not ended(page, "expired"):
            raise Late
        return ended(page, "deadline_unreachable") or 0  # a try that came with hardly any time

    unreachable = await with_more_time(late)
    valve.opened.set()
    await first
    page = await page_when(
        system.ports["encoder"], lambda page: page.sum("encoder_submissions_total") == 6 + unreachable
    )
    words = ("computed", "failed", "abandoned", "expired")
    assert [ended(page, word) for word in words] == [2, 1, 1, 1]
    assert ended(page, "computed", "bulk") == 1


async def test_durations_name_the_trace_where_openmetrics_is_asked_for(system: System) -> None:
    """Buckets of a sampled trace carry its id on all three servers; the plain page, and other traces, carry none."""
    await system.index(*DOCUMENTS)
    await system.search(metadata=[("traceparent", f"00-{'1' * 32}-{'2' * 16}-00")])
    for server in SERVERS:
        assert "trace_id" not in await fetch(system.ports[server], OPENMETRICS)
    await system.search(metadata=[("traceparent", f"00-{TRACE}-{'2' * 16}-01")])
    await system.page("gateway", "Search", 2)
    for server, stage in (("encoder", "encode"), ("reranker", "rerank"), ("gateway", "all")):
        families = {one.name: one for one in await _open_metrics(system.ports[server], f"{server}_call_seconds")}
        for name, labels in ((f"{server}_call_seconds", {}), (f"{server}_stage_seconds", {"stage": stage})):
            traces = {
                sample.exemplar.labels["trace_id"]
                for sample in families[name].samples
                if sample.exemplar and labels.items() <= sample.labels.items()
            }
            assert traces == {TRACE}, name
        plain = await fetch(system.ports[server])
        assert "trace_id" not in plain
        assert "# EOF" not in plain


async def _open_metrics(port: int, name: str) -> list[Any]:
    """Read a page in OpenMetrics form, by its strict rules, once a histogram of it has an exemplar."""
    async with asyncio.timeout(20):
        while not re.search(rf"^{name}_bucket.* # {{", text := await fetch(port, OPENMETRICS), re.MULTILINE):
            pass
    return list(text_string_to_metric_families(text))


async def test_every_metric_is_documented_and_every_documented_one_exists(system: System) -> None:
    """The tables of docs/metrics.md name what the three pages show, and its labels, and nothing else."""
    await system.index(*DOCUMENTS)
    await system.search()
    pages = [Page(await fetch(system.ports[server])) for server in SERVERS]
    shown = {name: labels for page in pages for name, labels in _instruments(page).items()}
    rows = ROW.findall(DOCUMENT.read_text(encoding="utf-8"))
    documented = {name: set(re.findall(r"\w+", labels)) for name, labels in rows}
    assert len(rows) == len(documented)
    assert shown.keys() == documented.keys()
    for name, labels in shown.items():
        assert labels is None or labels == documented[name], name


def _instruments(page: Page) -> dict[str, set[str] | None]:
    """Return the label names of everything on a page; None where nothing was counted yet."""
    found: dict[str, set[str] | None] = {}
    for family in page.families:
        if not family.name.endswith("_created"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found[name] = set(family.samples[0].labels) - {"le"} if family.samples else None
    return found
