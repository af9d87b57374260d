"""Where the time of one search went: measured here, told the same in message, trailing metadata and metrics.

All numbers are nanoseconds on the monotonic clock, in whole microseconds, so that trailing metadata loses nothing. Two
sums hold exactly, by construction: the parts of a stage are its total, and write + dense + rerank + other is the total
of the search.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from gateway.ports import ServerTime

MICROSECOND = 1_000
STAGES = ("write", "encode", "search", "rerank")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """One stage: what its server says, and the rest under one of two names."""

    total: int = 0
    network: int = 0
    """The rest where every call of the stage was answered."""
    queue: int = 0
    tokenize: int = 0
    compute: int = 0
    unaccounted: int = 0
    """The rest where one was not: waiting that nobody tells of is in it, so that it is no sign of a slow network."""

    @classmethod
    def of(cls, total: int, server: ServerTime, *, accounted: bool = True) -> "StageTime":
        """Split a measured total by what the stage's server says; `accounted` is that it says so of every call.

        A server that claims more than was measured here has another clock; it is then believed part by part until the
        total is used up, so that the sum stays exact.
        """
        total = _whole(total)
        compute = min(_whole(server.compute), total)
        queue = min(_whole(server.queue), total - compute)
        tokenize = min(_whole(server.tokenize), total - compute - queue)
        rest = total - compute - queue - tokenize
        network, unaccounted = (rest, 0) if accounted else (0, rest)
        return cls(
            total=total, network=network, queue=queue, tokenize=tokenize, compute=compute, unaccounted=unaccounted
        )

    def parts(self) -> Mapping[str, int]:
        """All spans by name; `unaccounted`, which few searches have, only where there is some."""
        lost = {"unaccounted": self.unaccounted} if self.unaccounted else {}
        return {
            "total": self.total,
            "network": self.network,
            "queue": self.queue,
            "tokenize": self.tokenize,
            "compute": self.compute,
            **lost,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTime:
    """One search."""

    total: int
    encode: StageTime
    search: StageTime
    rerank: StageTime
    write: StageTime = StageTime()

    @property
    def dense(self) -> int:
        """Encode and search together."""
        return self.encode.total + self.search.total

    @property
    def other(self) -> int:
        """The gateway's own work."""
        return self.total - self.write.total - self.dense - self.rerank.total

    def stages(self) -> Mapping[str, StageTime]:
        """The stages by name; writing, which few searches do, only where it was done."""
        written = {"write": self.write} if self.write.total else {}
        return {**written, "encode": self.encode, "search": self.search, "rerank": self.rerank}

    def spans(self) -> Mapping[tuple[str, str], int]:
        """Every number by (stage, part); the sums are under the stages "all" and "dense"."""
        parts = {(stage, part): ns for stage, span in self.stages().items() for part, ns in span.parts().items()}
        return {**parts, ("dense", "total"): self.dense, ("all", "other"): self.other, ("all", "total"): self.total}

    def trailers(self) -> tuple[tuple[str, str], ...]:
        """Every number as trailing metadata, in microseconds."""
        return tuple(
            (f"twostage-{stage}-{part}-us", str(ns // MICROSECOND)) for (stage, part), ns in self.spans().items()
        )


class SearchTimer:
    """Collects the stages of one search as they end, in failure too."""

    def __init__(self) -> None:
        self._begun = time.monotonic_ns()
        self._stages = dict.fromkeys(STAGES, StageTime())
        self._server: ServerTime | None = None
        self._accounted = True
        self._stopped: SearchTime | None = None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a stage; `server_said` inside it splits it up. Nobody accounts for what failed, or said nothing."""
        begun, self._server, self._accounted = time.monotonic_ns(), None, True
        try:
            yield
        except BaseException:
            self.unaccounted()
            raise
        finally:
            total = time.monotonic_ns() - begun
            accounted = self._accounted and self._server is not None
            self._stages[name] = StageTime.of(total, self._server or ServerTime(), accounted=accounted)

    def server_said(self, server: ServerTime) -> None:
        """Note what the stage's server says of its time."""
        self._server = server

    def unaccounted(self) -> None:
        """Note that a call of the stage has ended without telling where its time went, though the stage may go on."""
        self._accounted = False

    def read(self) -> SearchTime:
        """Return the time so far, or up to the stop."""
        if self._stopped is not None:
            return self._stopped
        total = _whole(time.monotonic_ns() - self._begun)
        return SearchTime(total=total, **self._stages)

    def stop(self) -> SearchTime:
        """Return the time up to the first stop: what message, trailing metadata and metrics all tell."""
        self._stopped = self.read()
        return self._stopped


def _whole(nanoseconds: int) -> int:
    """Round down to whole microseconds; a negative span, which only a broken server reports, is none."""
    return max(0, nanoseconds // MICROSECOND * MICROSECOND)
