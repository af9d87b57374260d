"""What a server's Prometheus page says of a run: the difference of two, made by the instruments themselves."""

import pytest
from prometheus_client import generate_latest, start_http_server

from cli.loading import pages
from cli.loading.client import TARGETS
from serving.errors import Misconfigured
from serving.metrics import ServerMetrics

GATEWAY, ENCODER = TARGETS["search"], TARGETS["encode"]


def text(metrics: ServerMetrics) -> str:
    return generate_latest(metrics.registry).decode()


def count(metrics: ServerMetrics, code: str, calls: int, method: str = "Search") -> None:
    metrics.calls.labels(method, code).inc(calls)


def test_only_what_was_added_counts() -> None:
    """Calls before the run, and calls of other methods, are not of the run."""
    metrics = ServerMetrics("gateway")
    count(metrics, "OK", 5)
    before = pages.parse([text(metrics)])
    count(metrics, "OK", 3)
    count(metrics, "DEADLINE_EXCEEDED", 1)
    count(metrics, "OK", 7, "DescribeCollection")
    assert pages.parse([text(metrics)]).since(before).calls(GATEWAY) == {"OK": 3, "DEADLINE_EXCEEDED": 1}


def test_pages_of_several_processes_are_added_up() -> None:
    """Workers and replicas have a page each."""
    several = [ServerMetrics("gateway"), ServerMetrics("gateway")]
    for metrics in several:
        count(metrics, "OK", 4)
    assert pages.parse([text(metrics) for metrics in several]).calls(GATEWAY) == {"OK": 8}


def test_stages_are_those_of_the_run() -> None:
    """Means are exact, percentiles lie in their bucket; what came before is not in them."""
    metrics = ServerMetrics("gateway")
    metrics.observe_stage("rerank", {"total": 9_000_000_000})
    before = pages.parse([text(metrics)])
    for milliseconds in [20] * 94 + [400] * 6:
        metrics.observe_stage("rerank", {"total": milliseconds * 1_000_000})
    found = pages.parse([text(metrics)]).since(before).stages(GATEWAY)["rerank", "total"]
    assert (found.count, found.mean) == (100, pytest.approx(0.94 * 20 + 0.06 * 400))
    assert 10 < found.p50 < 25
    assert 250 < found.p95 < 500


def test_what_few_calls_have_is_nothing_in_the_others() -> None:
    """A part that is observed of one search in four is 0 in three, so that it adds up with the others."""
    metrics = ServerMetrics("gateway")
    for unaccounted in (0, 0, 0, 400_000_000):
        spans = {("all", "total"): 500_000_000, ("rerank", "network"): 0}
        metrics.observe_stages(spans | ({("rerank", "unaccounted"): unaccounted} if unaccounted else {}))
    found = pages.parse([text(metrics)]).stages(GATEWAY)["rerank", "unaccounted"]
    assert (found.count, found.mean) == (4, pytest.approx(100))
    assert found.p50 < 1
    assert 250 < found.p95 < 500


def test_a_stage_without_calls_has_no_figures() -> None:
    """Nothing is made up of a histogram that did not move."""
    metrics = ServerMetrics("gateway")
    metrics.observe_stage("rerank", {"total": 1_000_000})
    page = pages.parse([text(metrics)])
    assert page.since(page).stages(GATEWAY) == {}


def test_a_restart_during_the_run_is_no_figure() -> None:
    """Counters that went down cannot say what the run added."""
    old, new = ServerMetrics("gateway"), ServerMetrics("gateway")
    count(old, "OK", 5)
    count(new, "OK", 1)
    with pytest.raises(Misconfigured, match="started again"):
        pages.parse([text(new)]).since(pages.parse([text(old)]))


def test_quantiles_go_straight_through_a_bucket() -> None:
    """Half of the way through its observations is half of the way through the bucket; the last bound is the end."""
    buckets = {0.1: 10.0, 0.2: 30.0, float("inf"): 40.0}
    assert pages.quantile(buckets, 0.5) == pytest.approx(0.15)
    assert pages.quantile(buckets, 0.99) == pytest.approx(0.2)


async def test_a_page_of_another_server_is_refused() -> None:
    """The encoder's page cannot vouch for calls of the gateway."""
    metrics = ServerMetrics("encoder")
    metrics.calls.labels("Encode", "OK").inc()
    server, thread = start_http_server(0, addr="127.0.0.1", registry=metrics.registry)
    try:
        address = f"127.0.0.1:{server.server_port}"
        assert (await pages.fetch([address], ENCODER)).calls(ENCODER) == {"OK": 1}
        with pytest.raises(Misconfigured, match="not the gateway's"):
            await pages.fetch([address], GATEWAY)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    with pytest.raises(Misconfigured, match="no Prometheus page"):
        await pages.fetch([address], ENCODER)
