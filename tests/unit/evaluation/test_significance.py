"""Differences: what they are, whether they mean anything, and what is said of them."""

import itertools

import numpy as np
import pytest

from evaluation.significance import compare, interval, randomization_p


def values(*numbers: float) -> dict[str, float]:
    return {f"q{position}": number for position, number in enumerate(numbers)}


def test_randomization_is_exact_on_few_questions() -> None:
    """The p-value is the share of all sign combinations whose mean is as extreme, both tails."""
    differences = [0.5, 0.25, -0.1, 0.4, 0.3]
    observed = abs(np.mean(differences))
    signs = itertools.product((1, -1), repeat=len(differences))
    extreme = [abs(np.mean(np.multiply(differences, sign))) >= observed - 1e-12 for sign in signs]
    assert randomization_p(differences) == pytest.approx(np.mean(extreme))


def test_questions_that_do_not_differ_change_nothing() -> None:
    """The sign of zero says nothing: any number of ties leaves the p-value as it is."""
    assert randomization_p([0.5, 0.25, 0.4, *[0.0] * 40]) == randomization_p([0.5, 0.25, 0.4])
    assert randomization_p([0.0] * 10) == 1.0
    assert randomization_p([1.0]) == 1.0


def test_equal_values_give_equal_figures() -> None:
    """A resampling starts from a fixed seed; another seed gives another interval."""
    sample = np.random.default_rng(3).random(60).tolist()
    assert interval(sample) == interval(sample)
    assert interval(sample) != interval(sample, seed=1)


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    """Over samples of a known mean, about 95 % of the intervals hold it."""
    generator = np.random.default_rng(5)
    samples = [generator.random(60).tolist() for _ in range(200)]
    covered = sum(found.low <= 0.5 <= found.high for found in map(interval, samples))
    assert 178 <= covered <= 199


def test_one_answer_of_fifteen_is_within_noise() -> None:
    """With 15 questions one more hit moves hit@1 by 6.7 points, and the sentence says that this is noise."""
    before = values(*[1.0] * 10, *[0.0] * 5)
    after = {**before, "q10": 1.0}
    change = compare("hit@1", before, after)
    assert change.difference == pytest.approx(0.066667)
    assert not change.significant
    assert (change.wins, change.losses, change.tie_count) == (("q10",), (), 14)
    assert "within noise; one question can move it by up to 0.067" in change.sentence
    assert change.sentence.startswith("hit@1 rises by 0.067")


def test_a_difference_everywhere_is_significant() -> None:
    """Forty better questions are no noise, and nothing says so."""
    change = compare("MRR@5", values(*[0.5] * 40), values(*[0.9] * 40))
    assert change.significant
    assert (change.low, change.high) == (pytest.approx(0.4), pytest.approx(0.4))
    assert "noise" not in change.sentence


def test_a_fall_is_called_one() -> None:
    """Direction is that of after against before."""
    change = compare("MRR@5", values(*[0.9] * 20), values(*[0.5] * 20))
    assert change.difference == pytest.approx(-0.4)
    assert change.sentence.startswith("MRR@5 falls by 0.400")
    assert len(change.losses) == 20


def test_the_largest_change_comes_first() -> None:
    """Wins and losses are ordered by size, then by id."""
    change = compare("MRR@5", values(0, 0, 0, 1, 1), values(0.2, 0.9, 0.2, 0.5, 0.1))
    assert change.wins == ("q1", "q0", "q2")
    assert change.losses == ("q4", "q3")


def test_no_difference_at_all_is_said_shortly() -> None:
    """Two equal runs are the same on all questions."""
    change = compare("Recall@20", values(1, 1, 1), values(1, 1, 1))
    assert change.sentence == "Recall@20 is the same on 3 questions."
    assert change.p_value == 1.0


def test_one_question_and_none_have_no_spread() -> None:
    """A single value is its own interval; no value is zero."""
    assert interval([0.25]).low == interval([0.25]).high == 0.25
    assert compare("MRR@5", {}, {}).sentence == "MRR@5: no question to compare."


def test_other_questions_cannot_be_compared() -> None:
    """A pair has two sides."""
    with pytest.raises(ValueError, match="same questions"):
        compare("MRR@5", {"a": 1.0}, {"b": 1.0})
