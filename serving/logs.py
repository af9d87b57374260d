"""Logging set-up: one line per event on standard error, as text or JSON. User text is never logged.

Every record that is made while a call is handled names the call and its trace.
"""

import logging
import sys
import time
from collections.abc import Callable

from pythonjsonlogger.json import JsonFormatter

from serving import tracing
from serving.hang_ups import hush_hang_ups

TEXT = "%(asctime)s %(levelname)-7s %(message)s"
JSON = "%(levelname)s %(name)s %(message)s"
NAMES = {"levelname": "level", "name": "logger", "exc_info": "exception"}

OTEL = "opentelemetry"
SELDOM_S = 60.0
"""How often OpenTelemetry may say the same: without a collector it would with every attempt to send."""


class CallFilter(logging.Filter):
    """Puts request_id, trace_id and span_id on a record, each where there is one."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        vars(record).update(tracing.ids())
        return True


class SeldomFilter(logging.Filter):
    """Holds back what OpenTelemetry has said lately.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Let a record pass unless the same was said less than `SELDOM_S` ago."""
        if not record.name.startswith(f"{OTEL}."):
            return True
        now, what = self._clock(), (record.name, str(record.msg))
        last = self._said.get(what)
        if last is not None and now - last < SELDOM_S:
            return False
        self._said[what] = now
        return True


class TextFormatter(logging.Formatter):
    """Writes the id of the call, where there is one, at the end of the line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Write a record's own line, above a stack trace."""
        line = super().formatMessage(record)
        own = vars(record).get("request_id")
        return f"{line} id={own}" if own else line


def set_up(service: str, *, form: str, level: str) -> None:
    """Send all logging of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_json(service) if form == "json" else TextFormatter(TEXT, "%H:%M:%S"))
    handler.addFilter(CallFilter())
    handler.addFilter(SeldomFilter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    hush_hang_ups()
    # What it warns of is what callers send as tracestate, word by word.
    logging.getLogger(f"{OTEL}.trace").setLevel(logging.ERROR)
    # And here the headers of OTEL_EXPORTER_OTLP_HEADERS that are malformed, which hold keys.
    logging.getLogger(f"{OTEL}.util.re").setLevel(logging.ERROR)
    # Every request with its URL, which may hold a password, and what is sent and answered.
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _json(service: str) -> logging.Formatter:
    """Make what writes a record as one object on one line, with the time in ISO 8601, UTC."""
    return JsonFormatter(JSON, static_fields={"service": service}, rename_fields=NAMES, timestamp=True)
