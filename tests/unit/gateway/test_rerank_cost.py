"""How many passages are sent to a reranker of known speed; the clock is a number."""

import pytest

from gateway.rerank_cost import HEADROOM, MOST_CHARACTERS, STALE_S, Offer, RerankCost
from serving.batching import Priority

PER_CHARACTER_S = 0.0001


def offer(*lengths: int, priority: Priority = Priority.INTERACTIVE) -> Offer:
    return Offer(query="", passages=["x" * length for length in lengths], priority=priority)


class Reranker:
    """A reranker that takes 0.1 ms per character, and what the gateway knows of it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cost = RerankCost(lambda: self.now)

    def answers(self, sent: Offer, queue_s: float = 0.0) -> None:
        """Answer one call."""
        self.cost.answered(sent, total_s=queue_s + PER_CHARACTER_S * sent.characters()[-1], queue_s=queue_s)

    def learned(self) -> "Reranker":
        """Have answered calls of many shapes."""
        for lengths in [(100,), (1_000,), (100, 100), (1_000, 50, 7), (200,) * 10, (31,) * 20, (500, 700)] * 4:
            self.answers(offer(*lengths))
        return self


def test_all_are_sent_as_long_as_nothing_is_known() -> None:
    """A gateway that has just started does not degrade anything by guessing."""
    assert Reranker().cost.affordable(offer(*[1_000] * 20), 0.001, least=5) == 20


@pytest.mark.parametrize(("left", "count"), [(10.0, 20), (1.01, 8), (0.76, 6), (0.64, 5), (0.6, 0), (0.0, 0)])
def test_as_many_are_sent_as_fit_with_headroom(left: float, count: int) -> None:
    """A candidate of 0.1 s is predicted with a quarter more; fewer than the least are none at all."""
    assert pytest.approx(1.25) == HEADROOM
    assert Reranker().learned().cost.affordable(offer(*[1_000] * 20), left, least=5) == count


def test_short_passages_fit_where_long_ones_do_not() -> None:
    """What counts is characters, not passages."""
    cost = Reranker().learned().cost
    assert cost.affordable(offer(*[50] * 20), 0.2, least=1) == 20
    assert cost.affordable(offer(*[500] * 20), 0.2, least=1) == 3


def test_characters_that_the_reranker_cuts_off_do_not_count() -> None:
    """A passage of a megabyte is no more work than one that fills the limit."""
    assert offer(1_000_000, 10).characters() == [MOST_CHARACTERS, MOST_CHARACTERS + 10]


def test_waiting_counts_and_is_forgotten() -> None:
    """A queue of half a second is taken off the time that is left, and half as much of it a second later."""
    reranker = Reranker().learned()
    for _ in range(20):
        reranker.answers(offer(100), queue_s=0.5)
    many = offer(*[1_000] * 20)
    assert reranker.cost.affordable(many, 1.26, least=1) == 5
    reranker.now += 1
    assert reranker.cost.affordable(many, 1.26, least=1) == 7


def test_each_priority_waits_for_itself() -> None:
    """The long queue of a nightly job says nothing about people's."""
    reranker = Reranker().learned()
    for _ in range(20):
        reranker.answers(offer(100, priority=Priority.BULK), queue_s=30)
    assert reranker.cost.affordable(offer(*[100] * 5), 1, least=5) == 5
    assert reranker.cost.affordable(offer(*[100] * 5, priority=Priority.BULK), 1, least=5) == 0


def test_an_answer_that_did_not_come_is_learned_from() -> None:
    """After one late call the next ones with as little time are not sent into the same queue."""
    reranker = Reranker().learned()
    few = offer(*[100] * 5)
    assert reranker.cost.affordable(few, 0.5, least=5) == 5
    reranker.cost.late(few, waited_s=0.5)
    assert reranker.cost.affordable(few, 0.5, least=5) == 0
    assert reranker.cost.affordable(few, 1.0, least=5) == 5


def test_a_prediction_that_nothing_confirms_is_tried_out() -> None:
    """A speed learned from a bad moment does not forbid reranking for ever: once in a while the least is sent."""
    reranker = Reranker().learned()
    many = offer(*[1_000] * 20)
    assert reranker.cost.affordable(many, 0.1, least=5) == 0
    reranker.now += STALE_S
    assert [reranker.cost.affordable(many, 0.1, least=5) for _ in range(3)] == [5, 0, 0]
