"""Logging set-up: one line per event on standard error, as text or JSON. User text is never logged."""

import logging
import sys

from pythonjsonlogger.json import JsonFormatter

TEXT = "%(asctime)s %(levelname)-7s %(message)s"
JSON = "%(asctime)s %(levelname)s %(name)s %(message)s"


def set_up(service: str, *, form: str, level: str) -> None:
    """Send all logging of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter(JSON, static_fields={"service": service})
        if form == "json"
        else logging.Formatter(TEXT, "%H:%M:%S")
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
