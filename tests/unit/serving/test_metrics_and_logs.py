"""What a server tells of itself: instruments and log lines."""

import json
import logging
from collections.abc import Iterator

import pytest

from serving import logs
from serving.batcher import BatchReport
from serving.metrics import BatchMetrics, ServerMetrics


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


def test_two_servers_of_one_process_do_not_share_instruments():
    """Each has a registry of its own unless given one."""
    first, second = ServerMetrics("encoder"), ServerMetrics("encoder")
    first.calls.labels("Encode", "OK").inc()
    assert second.registry.get_sample_value("encoder_calls_total", {"method": "Encode", "code": "OK"}) is None


def test_no_metrics_port_means_no_page():
    """Port 0 opens nothing, and closing nothing is fine."""
    ServerMetrics("encoder").serve(0)()


@pytest.fixture
def root_logger() -> Iterator[None]:
    """Put the root logger back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)


@pytest.mark.usefixtures("root_logger")
def test_text_logs_are_one_line_per_event_on_standard_error(capsys: pytest.CaptureFixture[str]):
    """Time, level, message; below the level nothing."""
    logs.set_up("encoder", form="text", level="INFO")
    logging.getLogger("serving").info("listening on %d", 7)
    logging.getLogger("serving").debug("not this")
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.endswith("INFO    listening on 7")


@pytest.mark.usefixtures("root_logger")
def test_json_logs_name_their_service(capsys: pytest.CaptureFixture[str]):
    """Every line is a JSON object with service, level, logger and message."""
    logs.set_up("reranker", form="json", level="INFO")
    logging.getLogger("serving.calls").warning("full")
    record = json.loads(capsys.readouterr().err)
    assert (record["service"], record["levelname"], record["name"], record["message"]) == (
        "reranker", "WARNING", "serving.calls", "full",
    )  # fmt: skip
