"""When a backend that does not answer is left alone, and when it is tried again. Pure: told the time, does no I/O.

A circuit opens after so many failures in a row, in which no call at all was answered, be it one that was sent later;
while one of several replicas still answers it stays closed, and gRPC's own retry hides the others. While it is open,
calls are refused; after a pause one call goes through and tells whether there is an answer again. Pauses double up to a
limit.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

JITTER = 0.25
"""Part of a pause that is left to chance, so that several gateways do not try together."""


class CircuitState(IntEnum):
    """How a circuit is; the numbers are those of the metric."""

    CLOSED = 0
    HALF_OPEN = 1
    """A probe is under way; all other calls are refused."""
    OPEN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """When a circuit opens, and for how long."""

    failures: int = 5
    """In a row."""
    first_pause_s: float = 0.5
    """Time before the first probe; never longer than the longest pause."""
    max_pause_s: float = 2.0
    """Longest time between two probes."""
    patience_s: float = 1.0
    """A call that was given less time than this and got no answer says nothing about the backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Leave to make one call; handed back with its outcome."""

    era: int
    """How often the circuit had opened or closed: outcomes of an era that is over do not open it."""
    answers: int = 0
    """How many answers had come by then: where more came before the call failed, the backend was there all the time."""
    probe: bool = False


class Breaker:
    """The circuit of one backend. For one thread.

    Every pass that `admit` gives has to come back exactly once, by `answered`, `failed` or `untold`.

    Args:
        policy: When it opens.
        chance: A random number from 0 to 1, for the length of a pause.
    """

    def __init__(self, policy: BreakerPolicy, chance: Callable[[], float] = random.random) -> None:
        self._policy = policy
        self._chance = chance
        self._failures = self._answers = 0
        self._first_pause_s = min(policy.first_pause_s, policy.max_pause_s)
        self._pause_s = self._first_pause_s
        self._probe_at: float | None = None  # None while the circuit is closed
        self._era = 0
        self._probing = False

    @property
    def state(self) -> CircuitState:
        """How the circuit is now."""
        if self._probe_at is None:
            return CircuitState.CLOSED
        return CircuitState.HALF_OPEN if self._probing else CircuitState.OPEN

    def admit(self, now: float) -> Pass | None:
        """Let a call through, or not.

        A probe that has lasted for a whole pause is given up for lost: the next call is a probe, too.
        """
        if self._probe_at is None:
            return Pass(era=self._era, answers=self._answers)
        if now < self._probe_at:
            return None
        self._probing, self._probe_at = True, now + self._pause_s
        return Pass(era=self._era, answers=self._answers, probe=True)

    def wait_s(self, now: float) -> float:
        """Return the seconds until a call can be let through."""
        return 0.0 if self._probe_at is None else max(0.0, self._probe_at - now)

    def answered(self, _passed: Pass) -> None:
        """Note that the backend answered, be it with an error of its own; that closes the circuit."""
        self._answers += 1
        self._failures, self._pause_s = 0, self._first_pause_s
        if self._probe_at is not None:
            self._probe_at, self._probing = None, False
            self._era += 1

    def failed(self, passed: Pass, now: float) -> None:
        """Note that no answer came; it counts where none came to any other call meanwhile either."""
        if passed.era != self._era:
            return
        if passed.probe:
            self._probing = False
            self._rest(now)
            return
        if passed.answers != self._answers:
            return
        self._failures += 1
        if self._failures >= self._policy.failures:
            self._era += 1
            self._rest(now)

    def untold(self, passed: Pass, now: float) -> None:
        """Note that a call ended without saying anything about the backend; the next one may try."""
        if passed.probe and passed.era == self._era:
            self._probing, self._probe_at = False, now

    def _rest(self, now: float) -> None:
        """Let nothing through for a pause; the next one is longer."""
        self._probe_at = now + self._pause_s * (1 - JITTER * self._chance())
        self._pause_s = min(2 * self._pause_s, self._policy.max_pause_s)
