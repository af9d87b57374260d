"""What is logged where a connection breaks while a stream's answers are being written."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from probe_service import ProbeSettings

from serving.hang_ups import GRPC_LOGGER, RAISED, hush_hang_ups
from serving.metrics import ServerMetrics
from serving.server import open_server

pytestmark = pytest.mark.slow
SERVICE = "big.v1.BigService"
ANSWER = b"x" * 100_000
"""So much that flow control holds the next one back until the caller has read."""
TRIES = 30
LEAVES = f"""
import os, sys, grpc
channels = [grpc.insecure_channel(sys.argv[1], [("grpc.use_local_subchannel_pool", 1)]) for _ in range(8)]
calls = [channel.unary_stream("/{SERVICE}/Send")(b"") for channel in channels]
for call in calls:
    next(call)
os._exit(0)
"""
"""A caller that is gone in the middle of eight answers, without a word."""


async def send(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
    """Answer without end."""
    while True:
        yield ANSWER


def add(server: grpc.aio.Server) -> None:
    """Add the service."""
    handlers = {"Send": grpc.unary_stream_rpc_method_handler(send)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


@contextmanager
def listening(raw: list[logging.LogRecord]) -> Iterator[None]:
    """Note what gRPC logs before the filter drops some of it; undo both."""
    logger = logging.getLogger(GRPC_LOGGER)
    before = logger.filters[:]

    def note(record: logging.LogRecord) -> bool:
        raw.append(record)
        return True

    logger.filters[:] = [note]
    try:
        yield
    finally:
        logger.filters[:] = before


async def test_a_caller_that_is_suddenly_gone_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """The stack trace of a message that gRPC could not send does not reach the log; the call counts as CANCELLED."""
    raw: list[logging.LogRecord] = []
    metrics = ServerMetrics("probe")
    with listening(raw):
        hush_hang_ups()
        async with open_server(ProbeSettings(), metrics, {SERVICE: add}) as running:
            for _ in range(TRIES):
                arguments = ("-c", LEAVES, f"127.0.0.1:{running.port}")
                await (await asyncio.create_subprocess_exec(sys.executable, *arguments)).wait()
                if any(record.levelno == logging.ERROR for record in raw):
                    break
    assert any(record.getMessage().startswith(RAISED) for record in raw)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    cancelled = metrics.registry.get_sample_value("probe_calls_total", {"method": "Send", "code": "CANCELLED"})
    assert cancelled is not None


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (f"{RAISED}[/a/B]", 'Failed "execute_batch": (<grpc._cython.cygrpc.ReceiveMessageOperation object at 0x7f>,)'),
        (f"{RAISED}[/a/B]", "Failed grpc_call_start_batch: 8"),
        ("Unexpected [ValueError] raised by servicer method [/a/B]", "no"),
        ("something else", 'Failed "execute_batch": (<grpc._cython.cygrpc.SendMessageOperation object at 0x7f>,)'),
    ],
)
def test_whatever_else_grpc_logs_comes_through(message: str, error: str, caplog: pytest.LogCaptureFixture) -> None:
    """Other failures, and other lines about the same one, are written as before, with their stack traces."""
    with listening([]):
        hush_hang_ups()
        logging.getLogger(GRPC_LOGGER).error(message, exc_info=RuntimeError(error))
        logging.getLogger(GRPC_LOGGER).warning("Aborting method [/a/B] due to server stop.")
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert caplog.records[0].exc_info is not None
