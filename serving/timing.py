"""Where the time of one call went inside a model server. One record, told in message, trailing metadata and metrics.

Spans of the trace have the same times, taken once.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from serving import tracing

Trailers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTime:
    """Whole nanoseconds on the monotonic clock; the parts do not overlap and add up to at most `total`."""

    total: int
    tokenize: int = 0
    queue: int = 0
    compute: int = 0

    def parts(self) -> Mapping[str, int]:
        """All spans by name."""
        return {"total": self.total, "tokenize": self.tokenize, "queue": self.queue, "compute": self.compute}

    def durations(self) -> Mapping[str, Duration]:
        """All spans by name, as messages carry them."""
        return {part: to_duration(nanoseconds) for part, nanoseconds in self.parts().items()}

    def trailers(self) -> Trailers:
        """All spans as trailing metadata, in microseconds.

        Keys are lower case and values ASCII: anything else turns an OK answer into INTERNAL.
        """
        return tuple((f"twostage-{part}-us", str(nanoseconds // 1000)) for part, nanoseconds in self.parts().items())


def to_duration(nanoseconds: int) -> Duration:
    """Return whole, non-negative nanoseconds as a protobuf Duration, exactly."""
    return Duration(seconds=nanoseconds // 10**9, nanos=nanoseconds % 10**9)


def from_duration(duration: Duration) -> int:
    """Return a protobuf Duration as whole nanoseconds, exactly."""
    return duration.seconds * 10**9 + duration.nanos


class Stopwatch:
    """Measures consecutive spans from its creation."""

    def __init__(self) -> None:
        self._begun = self._last = time.monotonic_ns()

    def lap(self, name: str) -> int:
        """Return the nanoseconds since the last lap, or since the creation; `name` is that of the lap's span."""
        last, self._last = self._last, time.monotonic_ns()
        tracing.record(tracing.kept(), name, (last, self._last))
        return self._last - last

    def total(self) -> int:
        """Return the nanoseconds since the creation."""
        return time.monotonic_ns() - self._begun
