"""What a server tells of itself in numbers."""

import pytest

from serving.batcher import BatchReport
from serving.metrics import BatchMetrics, ServerMetrics, tell_model


def test_a_batch_is_recorded_with_its_padding():
    """Eight tokens in ten places, two rows, half a second; the queue is read when somebody looks."""
    metrics = ServerMetrics("encoder")
    waiting = [3, 40]
    batches = BatchMetrics(metrics)
    batches.watch(waiting_rows=lambda: waiting[0], waiting_tokens=lambda: waiting[1], oldest_age=lambda: 1.5)
    batches.observe(BatchReport(row_count=2, token_count=8, padded_token_count=10, seconds=0.5))
    value = metrics.registry.get_sample_value
    assert value("encoder_batch_rows_sum") == 2
    assert value("encoder_batch_tokens_total", {"kind": "real"}) == 8
    assert value("encoder_batch_tokens_total", {"kind": "padding"}) == 2
    assert value("encoder_batch_padding_ratio_sum") == pytest.approx(0.2)
    assert value("encoder_device_busy_seconds_total") == 0.5
    assert (value("encoder_waiting_rows"), value("encoder_waiting_tokens")) == (3, 40)
    assert value("encoder_oldest_waiting_seconds") == 1.5
    waiting[0] = 0
    assert value("encoder_waiting_rows") == 0


def test_the_parts_of_a_stage_are_recorded_in_seconds():
    """Nanoseconds in, seconds out, one series per part (field failure 73)."""
    metrics = ServerMetrics("gateway")
    metrics.observe_stage("encode", {"total": 1_500_000_000, "queue": 250_000_000})
    value = metrics.registry.get_sample_value
    assert value("gateway_stage_seconds_sum", {"stage": "encode", "part": "total"}) == 1.5
    assert value("gateway_stage_seconds_sum", {"stage": "encode", "part": "queue"}) == 0.25


def test_durations_carry_the_trace_of_their_call():
    """Each bucket keeps the trace of its latest duration that had one (field failure 73)."""
    traces = iter([{"trace_id": "one"}, {"trace_id": "two"}, None])
    metrics = ServerMetrics("gateway", exemplar=lambda: next(traces))
    metrics.observe_call("Search", 0.2)
    metrics.observe_stages({("encode", "total"): 1_000_000, ("search", "total"): 20_000_000})
    metrics.observe_stage("rerank", {"total": 1_000_000})
    found = {
        (sample.name, sample.labels.get("stage"), sample.labels["le"]): sample.exemplar.labels["trace_id"]
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.exemplar
    }
    assert found == {
        ("gateway_call_seconds_bucket", None, "0.25"): "one",
        ("gateway_stage_seconds_bucket", "encode", "0.001"): "two",
        ("gateway_stage_seconds_bucket", "search", "0.025"): "two",
    }


def test_a_model_is_told_once_it_is_there():
    """Before that neither a model nor an instance of it is on the page."""
    metrics = ServerMetrics("reranker")
    value, reference = metrics.registry.get_sample_value, {"id": "m", "digest": "sha256:7", "precision": "int8"}
    assert (value("reranker_model_info", reference), value("reranker_device_instances")) == (None, None)
    tell_model(metrics, reference, instances=3)
    assert (value("reranker_model_info", reference), value("reranker_device_instances")) == (1, 3)


def test_two_servers_of_one_process_do_not_share_instruments():
    """Each has a registry of its own unless given one."""
    first, second = ServerMetrics("encoder"), ServerMetrics("encoder")
    first.calls.labels("Encode", "OK").inc()
    assert second.registry.get_sample_value("encoder_calls_total", {"method": "Encode", "code": "OK"}) is None


def test_no_metrics_port_means_no_page():
    """Port 0 opens nothing, and closing nothing is fine."""
    ServerMetrics("encoder").serve(0)()
