"""Measures against examples that were worked by hand."""

import math

import pytest

from evaluation.measures import (
    average_precision,
    dcg,
    hit,
    measure,
    ndcg,
    precision,
    recall,
    reciprocal_rank,
    score_run,
)
from serving.errors import InvalidRequest

THREE = {"a": 1, "b": 1, "c": 1}


def test_ranks_two_and_four_of_three_relevant() -> None:
    """The worked example of nDCG: two of three relevant documents at ranks 2 and 4."""
    ranked = ["x", "a", "y", "b", "z"]
    assert dcg([0, 1, 0, 1, 0]) == pytest.approx(1.0616, abs=5e-5)
    assert dcg([1, 1, 1]) == pytest.approx(2.1309, abs=5e-5)
    assert ndcg(ranked, THREE, 5) == pytest.approx(0.4982, abs=5e-5)
    assert recall(ranked, THREE, 5) == pytest.approx(2 / 3)
    assert recall(ranked, THREE, 3) == pytest.approx(1 / 3)
    assert precision(ranked, THREE, 5) == pytest.approx(0.4)
    assert average_precision(ranked, THREE) == pytest.approx((1 / 2 + 2 / 4) / 3)


def test_ranks_one_and_five_of_two_questions() -> None:
    """The worked example of MRR: (1 + 1/5) / 2 = 0.6; cut at 4, the second question has nothing."""
    run = {"p": ["a", "x"], "q": ["v", "w", "x", "y", "a"]}
    scores = score_run(run, {"p": {"a": 1}, "q": {"a": 1}}, [measure("MRR@5"), measure("MRR@4"), measure("MRR")])
    assert scores.mean("MRR@5") == pytest.approx(0.6)
    assert scores.mean("MRR@4") == pytest.approx(0.5)
    assert scores.mean("MRR") == pytest.approx(0.6)


def test_duplicates_never_raise_a_value() -> None:
    """A repeated document earns once and keeps its place (field failure 74)."""
    assert ndcg(["A", "A"], {"A": 1}, 2) == 1.0
    assert recall(["A", "A"], {"A": 1, "B": 1}, 2) == 0.5
    assert precision(["A", "A"], {"A": 1}, 2) == 0.5
    assert average_precision(["A", "A", "B"], {"A": 1, "B": 1}) == pytest.approx((1 + 2 / 3) / 2)
    assert ndcg(["A", "A", "B"], {"A": 1, "B": 1}, 2) == pytest.approx(1 / (1 + 1 / math.log2(3)))


def test_the_ideal_is_made_of_all_judgments() -> None:
    """One of three relevant documents at rank 1 is 0.4693 and not 1 (field failure 75)."""
    assert ndcg(["a"], THREE, 3) == pytest.approx(0.4693, abs=5e-5)


@pytest.mark.parametrize(("name", "value"), [("nDCG", 0.7967), ("nDCG_exp", 0.7098), ("nDCG_bin", 1.0)])
def test_gains_are_named(name: str, value: float) -> None:
    """Grades 1 and 3 in that order differ by the gain that the name says (field failure 75)."""
    assert measure(name).value(["low", "high"], {"low": 1, "high": 3}) == pytest.approx(value, abs=5e-5)


def test_list_order_is_the_order() -> None:
    """Places decide and nothing else: swapping two documents swaps their ranks, whatever they scored (76)."""
    assert reciprocal_rank(["x", "a"], {"a": 1}) == 0.5
    assert reciprocal_rank(["a", "x"], {"a": 1}) == 1.0


def test_unanswerable_questions_are_left_out_and_counted() -> None:
    """A question without relevant documents is in no mean, also one whose grades are all 0 (field failure 77)."""
    judgments = {"good": {"a": 1}, "none": {}, "zero": {"a": 0, "b": -1}}
    scores = score_run({"good": ["a"], "none": ["a"], "zero": ["a"]}, judgments, [measure("hit@1")])
    assert scores.mean("hit@1") == 1.0
    assert scores.skipped == ("none", "zero")


def test_missing_questions_count_as_zero() -> None:
    """A question that is judged and not in the run halves the mean of two (field failure 77)."""
    judgments = {"p": {"a": 1}, "q": {"a": 1}}
    scores = score_run({"p": ["a"], "stranger": ["a"]}, judgments, [measure(name) for name in ("nDCG@5", "P", "MAP")])
    assert [scores.mean(name) for name in ("nDCG@5", "P", "MAP")] == [0.5, 0.5, 0.5]
    assert scores.missing == ("q",)
    assert scores.unjudged == ("stranger",)


def test_a_bad_question_leaves_later_ones_alone() -> None:
    """Whatever stands before it, a question's own value is the same (field failure 77)."""
    judgments = {"none": {}, "missing": {"a": 1}, "good": {"a": 1}}
    scores = score_run({"good": ["x", "a"]}, judgments, [measure("MRR")])
    assert scores.values["MRR"] == {"missing": 0.0, "good": 0.5}


def test_a_document_that_is_the_question_is_dropped_by_flag_only() -> None:
    """Self matches stay unless they are asked to go (field failure 77)."""
    judgments, run = {"7": {"a": 1}}, {"7": [7, "a"]}
    assert score_run(run, judgments, [measure("MRR")]).mean("MRR") == 0.5
    assert score_run(run, judgments, [measure("MRR")], drop_same_id=True).mean("MRR") == 1.0


def test_precision_divides_by_k_however_short_the_list_is() -> None:
    """One good document in a list of one is a fifth of five places."""
    assert precision(["a"], {"a": 1}, 5) == pytest.approx(0.2)
    assert precision([], {"a": 1}) == 0.0
    assert hit([], {"a": 1}, 5) == 0.0


def test_no_answerable_question_is_a_mean_of_zero() -> None:
    """A data set in which nothing can be found gives 0 and no division by zero."""
    assert score_run({}, {"q": {}}, [measure("nDCG@5")]).mean("nDCG@5") == 0.0


@pytest.mark.parametrize("name", ["NDCG@5", "nDCG@0", "nDCG@", "recall@5", "", "nDCG@5 ", "MRR@-1"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    """A measure is never guessed."""
    with pytest.raises(InvalidRequest, match="there are Recall, P, hit"):
        measure(name)
