"""Score distributions: area, ROC and threshold by hand."""

import numpy as np
import pytest

from evaluation.abstention import area, best_threshold, roc

ANSWERABLE = np.array([0.9, 0.8, 0.6])
UNANSWERABLE = np.array([0.7, 0.5])


def test_the_area_counts_pairs() -> None:
    """Five of six pairs are in the right order; a tie is half of one; a constant score is chance (field failure 76)."""
    assert area(ANSWERABLE, UNANSWERABLE) == pytest.approx(5 / 6)
    assert area(np.array([0.5, 0.9]), np.array([0.5])) == pytest.approx(0.75)
    assert area(np.full(4, 0.3), np.full(3, 0.3)) == 0.5


def test_the_area_is_that_under_the_curve() -> None:
    """The trapezoids under the ROC points sum to the share of pairs."""
    generator = np.random.default_rng(2)
    good, bad = generator.normal(1, 1, 40).round(1), generator.normal(0, 1, 25).round(1)
    points = [(0.0, 0.0), *((false, true) for _, true, false in roc(good, bad))]
    xs, ys = zip(*points, strict=True)
    assert np.trapezoid(ys, xs) == pytest.approx(area(good, bad))


def test_the_curve_ends_with_everything_answered() -> None:
    """Thresholds fall, shares rise, and the lowest score answers all."""
    points = roc(ANSWERABLE, UNANSWERABLE)
    assert [threshold for threshold, _, _ in points] == [0.9, 0.8, 0.7, 0.6, 0.5]
    assert points[2] == (0.7, pytest.approx(2 / 3), 0.5)
    assert points[-1][1:] == (1.0, 1.0)


def test_the_threshold_of_the_best_balanced_accuracy() -> None:
    """At 0.75 two of three and two of two are right, which no other threshold reaches; of equals the lowest wins."""
    assert best_threshold(ANSWERABLE, UNANSWERABLE) == pytest.approx(0.75)
    assert best_threshold(np.array([0.9, 0.6]), np.array([0.8, 0.5])) == pytest.approx(0.55)
    assert best_threshold(np.array([0.9, 0.8]), np.array([0.2, 0.1])) == pytest.approx(0.5)


def test_scores_the_wrong_way_round_answer_everything() -> None:
    """Where no threshold is better than none, none abstains."""
    assert best_threshold(np.array([0.1, 0.2]), np.array([0.8, 0.9])) == pytest.approx(0.1)
