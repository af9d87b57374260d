"""One stage of a search: measured, and named in whatever goes wrong in it."""

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.timings import SearchTimer
from serving.errors import DeadlineSpent, NotReady, Overloaded, ServiceError, Unavailable


@contextmanager
def stage(name: str, timer: SearchTimer) -> Iterator[None]:
    """Measure a stage and put its name on whatever goes wrong in it."""
    with timer.stage(name):
        try:
            yield
        except ServiceError as error:
            error.metadata["stage"] = name
            if isinstance(error, (DeadlineSpent, Unavailable, NotReady, Overloaded)):
                error.message = f"{name}: {error.message}"
            raise
