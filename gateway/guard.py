"""Calls to one backend behind its circuit breaker, and the state of all circuits as metrics."""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from prometheus_client import Counter, Gauge

from gateway.breaker import Breaker, BreakerPolicy
from gateway.channels import call
from serving.errors import DeadlineSpent, ServiceError, Unavailable
from serving.metrics import ServerMetrics
from serving.tracing import outgoing

T = TypeVar("T")


class Guard:
    """Makes the calls to one backend, and refuses them at once while it does not answer.

    Args:
        peer: "encoder" or "reranker", as messages name it.
        policy: When the circuit opens.
        refused: Told of every call that was refused.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        peer: str,
        policy: BreakerPolicy | None = None,
        refused: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._peer = peer
        self._policy = policy or BreakerPolicy()
        self._refused = refused
        self._clock = clock
        self.breaker = Breaker(self._policy)

    async def ask(self, method: Callable[..., Awaitable[T]], request: object, *, timeout_s: float) -> T:
        """Call a method of a stub, under the id and in the trace of the call being handled; raises as `call`."""
        return await self.call(
            lambda: method(request, timeout=timeout_s, metadata=outgoing()),
            timeout_s=timeout_s,
        )

    async def call(self, send: Callable[[], Awaitable[T]], *, timeout_s: float) -> T:
        """Make a call.

        Args:
            send: Sends it; only where it is let through.
            timeout_s: How long it may take.

        Raises:
            Unavailable: The circuit is open; nothing was sent.
            ServiceError: Whatever the server or the channel reports, in our terms.
        """
        passed = self.breaker.admit(self._clock())
        if passed is None:
            raise self._closed_door()
        told = False
        try:
            answer = await call(self._peer, send())
        except ServiceError as error:
            told = not isinstance(error, DeadlineSpent) or timeout_s >= self._policy.patience_s
            if told and isinstance(error, (Unavailable, DeadlineSpent)):
                self.breaker.failed(passed, self._clock())
            elif told:
                self.breaker.answered(passed)
            raise
        else:
            told = True
            self.breaker.answered(passed)
            return answer
        finally:
            if not told:  # too little time, or our own caller left
                self.breaker.untold(passed, self._clock())

    def _closed_door(self) -> Unavailable:
        self._refused()
        wait_s = self.breaker.wait_s(self._clock())
        return Unavailable(
            f"{self._peer.upper()}_UNAVAILABLE",
            f"the {self._peer} has not answered lately; it is tried again in {wait_s:.1f} s",
            retry_after_s=wait_s,
        )


class Guards:
    """Makes the guards of a gateway, with one policy and their state as metrics.

    Args:
        policy: When circuits open.
        metrics: Where the instruments are.
    """

    def __init__(self, policy: BreakerPolicy, metrics: ServerMetrics) -> None:
        self._policy = policy
        service, registry = metrics.service, metrics.registry
        self._states = Gauge(
            f"{service}_circuit_state", "0 closed, 1 half open, 2 open.", ["backend"], registry=registry
        )
        self._refusals = Counter(
            f"{service}_circuit_refusals", "Calls refused by an open circuit.", ["backend"], registry=registry
        )

    def guard(self, peer: str) -> Guard:
        """Make the guard of a backend."""
        guard = Guard(peer, self._policy, self._refusals.labels(peer).inc)
        self._states.labels(peer).set_function(lambda: guard.breaker.state)
        return guard
