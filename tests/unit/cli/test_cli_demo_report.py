"""The demo's questions and figures."""

import pytest

from cli.demo_questions import IDS, find_data, read_questions
from cli.demo_report import reciprocal_rank


def test_the_ten_questions_can_all_be_answered() -> None:
    """Every question of the demo is in the file and has a relevant document."""
    questions = read_questions(find_data(None))
    assert [question.id for question in questions] == list(IDS)
    assert len(questions) == 10
    assert all(question.relevant for question in questions)


@pytest.mark.parametrize(
    ("ids", "expected"), [([7, 1, 2], 1.0), ([1, 7, 8], 0.5), ([1, 2, 3, 4, 5, 7], 0.0), ([], 0.0), (["7"], 0.0)]
)
def test_reciprocal_rank(ids: list[int | str], expected: float) -> None:
    """The first relevant document counts, down to the depth, and text is no number."""
    assert reciprocal_rank(ids, frozenset({7, 8}), 5) == expected
