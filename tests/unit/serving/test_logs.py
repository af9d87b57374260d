"""Log lines: one per event, with the call and the trace that they were made in."""

import json
import logging
from collections.abc import Callable, Iterator
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Any

import pytest
from chat_endpoint import Endpoint, completion
from opentelemetry.util.re import parse_env_headers

from gateway.writer import ChatWriter
from serving import logs, tracing
from serving.deadline import Deadline

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(autouse=True)
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


def in_call(log: Callable[[], None], *, traced: bool) -> None:
    """Log as the handler of a call does."""

    def handler() -> None:
        tracing.request_id.set("find-me")
        metadata = (("traceparent", f"00-{TRACE}-{PARENT}-00"),) if traced else ()
        tracing.begin(None, "/a.B/C", metadata, 0)
        log()

    copy_context().run(handler)


def records(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return what was written, every line of which has to be an object."""
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def fail() -> None:
    """Log an exception."""
    try:
        int("two\nlines")
    except ValueError:
        logging.getLogger("serving").exception("failed")


def test_text_is_one_line_per_event_on_standard_error(capsys: pytest.CaptureFixture[str]):
    """Time, level, message; below the level nothing, and no id outside of calls."""
    logs.set_up("encoder", form="text", level="INFO")
    logging.getLogger("serving").info("listening on %d", 7)
    logging.getLogger("serving").debug("not this")
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.endswith("INFO    listening on 7")


def test_text_names_the_call(capsys: pytest.CaptureFixture[str]):
    """The id is at the end of the line, above a stack trace."""
    logs.set_up("encoder", form="text", level="INFO")
    in_call(fail, traced=True)
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.endswith("ERROR   failed id=find-me")
    assert rest[-1].startswith("ValueError: ")


def test_json_names_its_service(capsys: pytest.CaptureFixture[str]):
    """Every line is an object with service, level, logger, message and the time in UTC, and no ids outside of calls."""
    logs.set_up("reranker", form="json", level="INFO")
    logging.getLogger("serving.calls").warning("full")
    (record,) = records(capsys)
    said = datetime.fromisoformat(record.pop("timestamp"))
    assert said.tzinfo == UTC
    assert abs((datetime.now(UTC) - said).total_seconds()) < 3600
    assert record == {"service": "reranker", "level": "WARNING", "logger": "serving.calls", "message": "full"}


@pytest.mark.parametrize("traced", [False, True])
def test_json_names_call_and_trace(capsys: pytest.CaptureFixture[str], *, traced: bool):
    """A record made in a call has its id, and its trace where it came with one, though no spans are kept."""
    logs.set_up("gateway", form="json", level="INFO")
    in_call(lambda: logging.getLogger("x").info("done"), traced=traced)
    (record,) = records(capsys)
    assert record["request_id"] == "find-me"
    expected = {"trace_id": TRACE, "span_id": PARENT} if traced else {}
    assert {name: record[name] for name in ("trace_id", "span_id") if name in record} == expected


def test_json_holds_an_exception_on_one_line(capsys: pytest.CaptureFixture[str]):
    """A stack trace is a field of its record."""
    logs.set_up("gateway", form="json", level="INFO")
    in_call(fail, traced=True)
    (record,) = records(capsys)
    assert record["exception"].startswith("Traceback (most recent call last):\n")
    assert record["request_id"] == "find-me"


def test_opentelemetry_says_the_same_thing_seldom():
    """The same again is held back for a while; other words, and our own, are not."""
    now = [100.0]
    passes = logs.SeldomFilter(clock=lambda: now[0]).filter

    def record(name: str, message: str) -> logging.LogRecord:
        return logging.LogRecord(name, logging.WARNING, __file__, 1, message, (), None)

    otel = "opentelemetry.exporter.otlp"
    assert [passes(record(otel, "away")), passes(record(otel, "away")), passes(record(otel, "no"))] == [
        True, False, True,
    ]  # fmt: skip
    assert [passes(record("serving", "away")) for _ in range(2)] == [True, True]
    now[0] += logs.SELDOM_S
    assert passes(record(otel, "away"))


def test_what_callers_send_as_tracestate_is_not_logged(capsys: pytest.CaptureFixture[str]):
    """OpenTelemetry's warning about a malformed tracestate holds it word by word."""
    logs.set_up("gateway", form="text", level="INFO")
    metadata = (("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "private words"))
    copy_context().run(tracing.begin, None, "/a.B/C", metadata, 0)
    assert capsys.readouterr().err == ""


def test_a_malformed_header_for_the_collector_is_not_logged(capsys: pytest.CaptureFixture[str]):
    """OpenTelemetry's warning about it holds the key that is to be sent."""
    logs.set_up("gateway", form="text", level="DEBUG")
    assert parse_env_headers("authorization: Bearer private", liberal=True) == {}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
async def test_what_is_sent_over_http_is_not_logged(capsys: pytest.CaptureFixture[str], level: str):
    """Neither URLs, which may hold passwords, nor headers, which hold keys, are in the log at any level."""
    logs.set_up("gateway", form="text", level=level)
    async with Endpoint(completion("a")).serving() as url:
        host = url.removeprefix("http://")
        async with ChatWriter(f"http://user:private@{host}", "m", key=lambda: "private") as writer:
            assert await writer.write("why?", deadline=Deadline.after(10)) == ["a"]
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "private" in line or host in line or "request" in line.lower()] == []
