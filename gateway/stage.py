"""One stage of a search: measured, traced, and named in whatever goes wrong in it."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import Span

from gateway.timings import SearchTimer
from serving import tracing
from serving.errors import DeadlineSpent, NotReady, Overloaded, ServiceError, Unavailable


@contextmanager
def stage(name: str, timer: SearchTimer) -> Iterator[Span]:
    """Measure a stage, put its name on whatever goes wrong in it, and yield its span."""
    with timer.stage(name), tracing.stage(name) as span:
        try:
            yield span
        except ServiceError as error:
            error.metadata["stage"] = name
            if isinstance(error, (DeadlineSpent, Unavailable, NotReady, Overloaded)):
                error.message = f"{name}: {error.message}"
            raise
