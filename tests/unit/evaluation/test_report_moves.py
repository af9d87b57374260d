"""The questions that changed most."""

import pytest
from report_factories import Ask, run

from evaluation.phases.evaluate import evaluated
from evaluation.quality import quality
from evaluation.records import Candidates, Reranked
from evaluation.report.moves import PASSAGES, Moves, moves


def moved(candidates: Candidates, reranked: Reranked) -> Moves:
    """Return the moves of a run by nDCG@5."""
    return moves(candidates, reranked, evaluated(candidates, reranked).quality.questions, "nDCG@5")


def test_the_largest_changes_come_first_and_no_more_than_ten():
    """The ten largest gains are shown, the rank deciding between equals, and the others are counted."""
    asked = [Ask(id=f"Q{before:02}", before=before, after=1) for before in range(1, 15)]
    found = moved(*run(asked))
    assert found.better_count == 13
    assert [move.question.id for move in found.best] == [f"Q{before:02}" for before in range(14, 4, -1)]
    assert found.worst == ()
    assert found.worse_count == 0


def test_better_and_worse_are_kept_apart():
    """A question that stays is in neither list, and a loss is in the list of losses with its negative change."""
    found = moved(*run([Ask(id="up", before=4), Ask(id="same"), Ask(id="down", after=2)]))
    assert [move.question.id for move in found.best] == ["up"]
    assert [move.question.id for move in found.worst] == ["down"]
    assert found.worst[0].change == pytest.approx(-0.369, abs=1e-3)


def test_a_change_below_the_cut_off_counts_by_its_rank():
    """nDCG@5 does not see rank 15 become 7; the question is still among those that got better, after those it sees."""
    found = moved(*run([Ask(id="deep", before=15, after=7), Ask(id="seen", before=2, after=1)]))
    assert [(move.question.id, move.change > 0) for move in found.best] == [("seen", True), ("deep", False)]


def test_the_documents_that_moved_are_shown_with_both_ranks():
    """The relevant document and the top of both orders are there in reranked order, each with where it came from."""
    (move,) = moved(*run([Ask(id="up", before=17, after=2)])).best
    assert [(passage.before, passage.after, passage.relevant) for passage in move.passages] == [
        (1, 1, False),
        (17, 2, True),
        (2, 3, False),
        (3, 4, False),
    ]
    assert move.passages[1].text == Ask(id="").answer
    assert move.absent_count == 0


def test_a_lost_reranking_is_shown_with_its_error():
    """A question that was not reranked is a loss with the reason, and its documents have no rank afterwards."""
    candidates, reranked = run([Ask(id="kept"), Ask(id="lost")])
    kept = tuple(pool for pool in reranked.questions if pool.id == "kept")
    lost = reranked.model_copy(update={"questions": kept, "failed": {"lost": "UNAVAILABLE: reranker"}})
    (move,) = moved(candidates, lost).worst
    assert move.error == "UNAVAILABLE: reranker"
    assert {passage.after for passage in move.passages} == {None}
    assert [passage.before for passage in move.passages] == [1, 2, 3]


def test_there_is_a_limit_to_the_documents_of_a_question():
    """A question with very many relevant documents shows relevant ones first and no more than fit."""
    candidates, reranked = run([Ask(id="up", before=9)])
    pool = candidates.questions[0]
    wide = pool.model_copy(update={"relevant": tuple(candidate.id for candidate in pool.candidates[5:])})
    every = candidates.model_copy(update={"questions": (wide,)})
    found = moves(every, reranked, quality(every, reranked).questions, "nDCG@5")
    (move,) = (*found.best, *found.worst)
    assert len(move.passages) == PASSAGES
    assert all(passage.relevant for passage in move.passages)
