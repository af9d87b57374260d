"""What a gateway has learned of a reranker that takes 10 s per candidate, so that no machine is too slow for a test."""

from gateway.rerank_cost import Offer, RerankCost
from serving.batching import Priority

SECONDS = 10.0
HEADROOM = 1.25
SHAPES = [(1, 10), (2, 100), (3, 1), (5, 40), (8, 2), (1, 500), (4, 80), (7, 9)]
"""Candidates and their characters: enough kinds that only the number of candidates explains the time."""


def learned() -> RerankCost:
    """Make the knowledge."""
    cost = RerankCost(lambda: 0.0)
    for count, length in SHAPES * 4:
        offer = Offer(query="q", passages=["x" * length] * count, priority=Priority.INTERACTIVE)
        cost.answered(offer, total_s=SECONDS * count, queue_s=0)
    return cost


def time_for(count: int) -> float:
    """Return the seconds in which so many candidates are predicted to fit, and half of another one."""
    return (count + 0.5) * HEADROOM * SECONDS
