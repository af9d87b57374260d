"""How much one caller may ask for: calls per second, and calls at the same time. Pure: the time is handed in."""

from dataclasses import dataclass

from serving.errors import Overloaded

CALL_RETRY_S = 0.1
"""When to try again where too many calls are running; nobody knows when one of them ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """What a caller may ask for; None is no limit."""

    requests_per_s: float | None = None
    """Calls per second in the long run; every further message of a stream of requests counts as one."""
    burst: int | None = None
    """Calls that may come at once after a pause; default is what one second brings, at least 1."""
    max_calls: int | None = None
    """Calls that run at the same time."""

    @property
    def capacity(self) -> float:
        """Tokens of a full bucket."""
        return float(self.burst or max(1.0, self.requests_per_s or 0.0))


NO_LIMITS = CallLimits()


class Usage:
    """What one caller uses now: a token bucket and a count of running calls. For one thread.

    Limits are handed in with every question, so that they may change under a caller.
    """

    def __init__(self) -> None:
        self.running = 0
        self._tokens: float | None = None
        self._at = 0.0

    def admit(self, limits: CallLimits, now: float) -> None:
        """Count a call in, until `leave`.

        Args:
            limits: Of this caller.
            now: Monotonic seconds.

        Raises:
            Overloaded: `TOO_MANY_CALLS` or `RATE_LIMITED`; the call is not counted.
        """
        if limits.max_calls is not None and self.running >= limits.max_calls:
            message = f"{limits.max_calls} calls with this key are running, which is its limit"
            raise Overloaded("TOO_MANY_CALLS", message, retry_after_s=CALL_RETRY_S)
        wait = self.take(limits, now)
        if wait > 0:
            message = f"more than {limits.requests_per_s:g} requests per second with this key"
            raise Overloaded("RATE_LIMITED", message, retry_after_s=wait)
        self.running += 1

    def leave(self) -> None:
        """Count a call out that was admitted."""
        self.running -= 1

    def take(self, limits: CallLimits, now: float) -> float:
        """Take a token.

        Returns:
            0 where there was one, else the seconds until there is one; nothing is taken then.
        """
        if limits.requests_per_s is None:
            return 0.0
        before = limits.capacity if self._tokens is None else self._tokens
        tokens = min(limits.capacity, before + (now - self._at) * limits.requests_per_s)
        self._at = now
        if tokens >= 1:
            self._tokens = tokens - 1
            return 0.0
        self._tokens = tokens
        return (1 - tokens) / limits.requests_per_s
