"""What the harness asks of everything that it measures."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.peers.load import Outcome
from benchmarks.peers.workload import Request

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What a server's device was given since it started."""

    tokens: float
    padding: float


class Target(Protocol):
    """A server that can be started, asked and stopped."""

    name: str

    async def start(self) -> float:
        """Start and wait until it answers; return the seconds that took.

        Raises:
            NotServing: It does not.
        """
        ...

    async def answer(self, request: Request) -> FloatArray:
        """Return float32 [texts, dimension] of an encoder, float32 [texts] of a reranker, in the order of the texts."""
        ...

    async def call(self, request: Request, timeout_s: float) -> Outcome:
        """Make one call and read its answer whole; say what became of it."""
        ...

    async def computed(self) -> Computed | None:
        """Return what was computed so far, where the server tells."""
        ...

    def resident_mib(self) -> float:
        """Return the memory of all its processes."""
        ...

    def cpu_s(self) -> float:
        """Return the processor time that all its processes have used."""
        ...

    def pause(self) -> None:
        """Stop it where it is, so that it takes no time from another that is measured."""
        ...

    def resume(self) -> None:
        """Let it go on."""
        ...

    async def stop(self) -> None:
        """End it."""
        ...
