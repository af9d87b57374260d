"""The rows of the slope chart."""

import pytest

from evaluation.figures import QuestionFigures
from evaluation.report import numbers
from evaluation.report.ranks import direction, place, ranks


def figures(name: str, before: int | None, after: int | None) -> QuestionFigures:
    """Return a question with only its ranks."""
    return QuestionFigures(
        id=name,
        query=name,
        lang="en",
        relevant=(1,),
        before={},
        after={},
        first_before=before,
        first_after=after,
        top_before=(),
        top_after=(),
    )


@pytest.mark.parametrize(
    ("rank", "name"),
    [
        (1, "1"),
        (10, "10"),
        (11, "11\N{EN DASH}15"),
        (15, "11\N{EN DASH}15"),
        (16, "16\N{EN DASH}20"),
        (51, "51\N{EN DASH}100"),
        (1_001, "over 1000"),
    ],
)
def test_deep_ranks_share_a_place(rank, name):
    """The first ten ranks stand alone, deeper ones in groups whose borders belong to the lower one."""
    assert place(rank) == name


def test_no_rank_has_a_place_of_its_own():
    """A question without a relevant document in its pool is shown and not dropped."""
    assert place(None) == numbers.NOT_FOUND


@pytest.mark.parametrize(
    ("before", "after", "way"),
    [(3, 1, "better"), (1, 3, "worse"), (2, 2, "same"), (None, 9, "better"), (9, None, "worse"), (None, None, "same")],
)
def test_no_rank_is_worse_than_any(before, after, way):
    """Lower is better, and not being there is worst."""
    assert direction(before, after) == way


def test_every_question_is_on_exactly_one_line():
    """Lines carry all questions, equal moves together, and the counts at both ends agree."""
    moves = {"a": (3, 1), "b": (3, 1), "c": (1, 1), "d": (None, None), "e": (12, 14), "f": (14, 12), "g": (1, 2)}
    found = ranks([figures(name, *move) for name, move in moves.items()])
    assert sorted(name for flow in found.flows for name in flow.questions) == sorted(moves)
    assert {flow.questions for flow in found.flows if flow.direction == "better"} == {("a", "b"), ("f",)}
    assert found.before == {"3": 2, "1": 2, "11\N{EN DASH}15": 2, numbers.NOT_FOUND: 1}
    assert found.after == {"1": 3, "11\N{EN DASH}15": 2, "2": 1, numbers.NOT_FOUND: 1}
    assert found.directions == {"better": 3, "same": 2, "worse": 2}
    assert {flow.before for flow in found.flows} | {flow.after for flow in found.flows} <= set(found.places)


def test_counts_within_the_first_ranks():
    """A question counts for every limit that its rank is within, before and after apart."""
    found = ranks([figures("a", 3, 1), figures("b", None, 4), figures("c", 11, 11)])
    assert found.within == ((1, 0, 1), (3, 1, 1), (5, 1, 2), (10, 1, 2))


def test_places_go_as_deep_as_the_ranks():
    """A pool of 20 has no places for rank 50, one of 60 has, and the last place is for what is not there."""
    shallow, deep = ranks([figures("a", 12, 1)]).places, ranks([figures("a", 55, 1)]).places
    assert shallow == (*map(str, range(1, 11)), "11\N{EN DASH}15", numbers.NOT_FOUND)
    assert deep[-3:] == ("31\N{EN DASH}50", "51\N{EN DASH}100", numbers.NOT_FOUND)


def test_without_questions_there_are_no_lines():
    """A split without answerable questions gives an empty chart and no fault."""
    assert ranks([]).flows == ()
