"""How long the reranker takes, learned from its answers, and how much of a pool fits into the time that is left.

The gateway does not know tokens, so work is counted in characters. The waiting at the reranker changes with its load
and is kept apart from the work itself: it follows the latest answers, and is forgotten where none come.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from serving.batching import Priority
from serving.cost import CostModel

MOST_CHARACTERS = 2_048
"""Of a pair: about as many as fill the reranker's 512 tokens; what is longer is cut there and costs no more."""
HEADROOM = 1.25
"""What a prediction is multiplied with: one candidate too many, and the work on all of them is lost."""
HALF_LIFE_S = 1.0
"""In this time a waiting that no answer confirms counts half."""
STALE_S = 10.0
"""A prediction that nothing has confirmed for so long is tried out instead of believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What could be sent to the reranker."""

    query: str
    passages: Sequence[str]
    """Best first."""
    priority: Priority

    def characters(self) -> list[int]:
        """Return the characters of the first pair, the first two, and so on."""
        return list(accumulate(min(MOST_CHARACTERS, len(self.query) + len(passage)) for passage in self.passages))


class RerankCost:
    """The reranker's speed and waiting, as its answers tell them. For one thread.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._model = CostModel()
        self._waits: dict[Priority, tuple[float, float]] = {}  # seconds, and when that was so
        self._heard = float("-inf")

    def affordable(self, offer: Offer, left_s: float, *, least: int) -> int:
        """Return how many of the first passages are predicted to be scored in time.

        Args:
            offer: The passages.
            left_s: Seconds until the answer has to be there.
            least: Fewer than this are of no use.

        Returns:
            All, where nothing is known yet; `least` to all; or 0.
        """
        wait, cost = self._wait(offer.priority), self._model.cost
        seconds = (wait + cost.seconds(size, count) for count, size in enumerate(offer.characters(), 1))
        fitting = sum(HEADROOM * predicted <= left_s for predicted in seconds)
        if fitting >= least:
            return fitting
        if self._clock() - self._heard < STALE_S:
            return 0
        self._heard = self._clock()
        return least

    def answered(self, sent: Offer, *, total_s: float, queue_s: float) -> None:
        """Learn from an answer: all of its time, and how much of that was waiting for the device."""
        self._heard = self._clock()
        self._waits[sent.priority] = ((self._wait(sent.priority) + queue_s) / 2, self._heard)
        self._model.observe(sent.characters()[-1], len(sent.passages), total_s - queue_s)

    def late(self, sent: Offer, *, waited_s: float) -> None:
        """Learn from an answer that did not come in time: what it took beyond its cost was waiting, or more."""
        self._heard = self._clock()
        self._waits[sent.priority] = (max(self._wait(sent.priority), self.beyond(sent, waited_s)), self._heard)

    def beyond(self, offer: Offer, seconds: float) -> float:
        """Return what of so many seconds is not the work on these passages."""
        return max(0.0, seconds - self._model.cost.seconds(offer.characters()[-1], len(offer.passages)))

    def _wait(self, priority: Priority) -> float:
        seconds, at = self._waits.get(priority, (0.0, 0.0))
        return seconds * math.exp2((at - self._clock()) / HALF_LIFE_S)
