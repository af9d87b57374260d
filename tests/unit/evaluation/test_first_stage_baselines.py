"""The two baselines on cases that can be computed by hand, and the weight that is chosen on dev."""

import numpy as np
import pytest

from evaluation.first_stage import weight
from evaluation.first_stage.baselines import cosines, lsa, top
from evaluation.first_stage.options import DENSE, OPTIONS, chosen
from evaluation.measures import Judged, Ranking
from serving.errors import InvalidRequest, Misconfigured


def test_lsa_finds_a_text_without_the_querys_word() -> None:
    """By hand: the largest singular value is of the block of "aa" and "bb", so "aa" is on the same ray as "bb" alone.

    The three texts of that block have cosine 1, the one outside it has no length in the space, and neither has a query
    of unknown words.
    """
    found = lsa(["aa bb", "aa bb", "bb", "cc"], ["aa", "cc", "dd"], 1)
    assert found == pytest.approx(np.array([[1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]), abs=1e-9)


def test_lsa_with_all_but_one_component_keeps_blocks_apart() -> None:
    """By hand: with the second block's value as well, "cc" finds its own text and nothing of the first block."""
    found = lsa(["aa bb", "aa bb", "bb", "cc", "cc"], ["aa", "cc"], 2)
    assert found == pytest.approx(np.array([[1, 1, 1, 0, 0], [0, 0, 0, 1, 1]]), abs=1e-9)


def test_lsa_needs_more_texts_than_components() -> None:
    """A corpus that is too small is refused with its size, and not silently given fewer components."""
    with pytest.raises(Misconfigured, match="12 components need more than 2 texts and words") as refused:
        lsa(["aa bb", "cc"], ["aa"], 12)
    assert refused.value.reason == "CORPUS_TOO_SMALL"


def test_exact_search_is_the_dot_product() -> None:
    """Rows of length 1 are compared as they are; others by their direction; one without length is 0 to all."""
    found = cosines([[1.0, 0.0], [0.0, 0.0]], [[0.6, 0.8], [0.0, 2.0], [-1.0, 0.0]])
    assert found == pytest.approx(np.array([[0.6, 0.0, -1.0], [0, 0, 0]]))


def test_the_best_are_taken_and_what_scores_nothing_is_not_found() -> None:
    """Highest first, equal ones in their order, none of score 0, and no more than asked for."""
    assert top([0.2, 0.9, 0.0, 0.9, -0.1], ["a", "b", "c", "d", "e"], 3) == [("b", 0.9), ("d", 0.9), ("a", 0.2)]
    assert top([0.0, 0.0], [1, 2], 5) == []


JUDGMENTS: dict[str, Judged] = {"d1": {1: 1}, "d2": {2: 1}, "nothing": {}}


def runs(**orders: tuple[Ranking, Ranking]) -> dict[float, dict[str, Ranking]]:
    return {float(name[1:]) / 10: {"d1": first, "d2": second} for name, (first, second) in orders.items()}


def test_the_weight_of_the_best_dev_run_is_taken() -> None:
    """The mean reciprocal rank decides; every weight that was tried is told, and how many questions there were."""
    found = weight.choose(runs(w1=((2, 1), (2, 1)), w5=((2, 1), (1, 2)), w9=((1, 2), (2, 1))), JUDGMENTS)
    assert (found.value, found.question_count) == (0.9, 2)
    assert found.tried == {"0.1": 0.75, "0.5": 0.5, "0.9": 1.0}


def test_of_equal_weights_the_more_even_one_is_taken() -> None:
    """Nothing speaks for an extreme that gains nothing; at equal distance the lower one."""
    same: tuple[Ranking, Ranking] = ((1, 2), (2, 1))
    assert weight.choose(runs(w1=same, w3=same, w9=same), JUDGMENTS).value == 0.3
    assert weight.choose(runs(w3=same, w7=same), JUDGMENTS).value == 0.3


def test_without_dev_questions_the_weight_is_even() -> None:
    """Nothing is chosen where there is nothing to choose on, and the record says that nothing was tried."""
    found = weight.choose({}, {})
    assert (found.value, found.tried, found.question_count) == (0.5, {}, 0)


def test_options_are_found_by_name_and_dense_is_always_there() -> None:
    """None named are all; an unknown one is refused with those that there are."""
    assert [option.name for option in chosen(["rrf"])] == [DENSE, "rrf"]
    assert len(chosen(())) == len(OPTIONS)
    with pytest.raises(InvalidRequest, match="there is no 'colbert'; there are dense, lexical"):
        chosen(["colbert"])
