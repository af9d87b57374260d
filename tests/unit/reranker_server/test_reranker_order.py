"""The order that logits make, and the probability that is shown beside them.

Numbers in brackets are those of field failures.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker_server.model import order, sigmoid

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)
IDS = st.one_of(st.text(max_size=4), st.integers(0, 30).map(str))


def ids_in_order(*entries: tuple[float, str]) -> list[str]:
    """Order (logit, id) entries and return the ids."""
    positions = order([logit for logit, _ in entries], [identifier for _, identifier in entries])
    return [entries[position][1] for position in positions]


def test_the_highest_logit_is_first() -> None:
    """The order is that of raw logits, negative ones included."""
    assert ids_in_order((-1.5, "a"), (3.0, "b"), (-2.0, "c"), (0.0, "d")) == ["b", "d", "a", "c"]


def test_equal_logits_are_ordered_by_id() -> None:
    """Numbers as numbers, so that 10 comes after 9, then text by code point; what is no plain number is text."""
    ids = ["b", "10", "", "9", "a", "-1", "1.5", "\u0663", "007", "7", "Z"]
    assert ids_in_order(*((1.0, one) for one in ids)) == [
        "007",
        "7",
        "9",
        "10",
        "",
        "-1",
        "1.5",
        "Z",
        "a",
        "b",
        "\u0663",
    ]


def test_equal_ids_are_ordered_by_position() -> None:
    """Ids need not be unique: the request's order decides last (76)."""
    assert order([1.0, 1.0, 2.0, 1.0], ["x", "x", "x", "x"]) == [2, 0, 1, 3]


def test_saturated_logits_keep_their_order() -> None:
    """17 and 20 are both shown as 1.0 by a float, and 20 is first all the same (field failure 21)."""
    assert ids_in_order((17.0, "1"), (20.0, "2")) == ["2", "1"]


def test_long_numeric_ids_do_not_fail() -> None:
    """An id of 512 digits, the longest there may be, is a number like any other."""
    assert ids_in_order((0.0, "9" * 512), (0.0, "8" * 512)) == ["8" * 512, "9" * 512]


@given(entries=st.lists(st.tuples(FINITE, IDS), max_size=12), data=st.data())
def test_the_order_does_not_depend_on_the_order_given(entries: list[tuple[float, str]], data: st.DataObject) -> None:
    """Every position comes once, and shuffled candidates give the same ranking of (logit, id)."""
    positions = order([logit for logit, _ in entries], [identifier for _, identifier in entries])
    assert sorted(positions) == list(range(len(entries)))
    shuffled = data.draw(st.permutations(entries))
    again = order([logit for logit, _ in shuffled], [identifier for _, identifier in shuffled])
    assert [entries[position] for position in positions] == [shuffled[position] for position in again]


@pytest.mark.parametrize(
    ("logit", "probability"),
    [(-8.1875, 0.000278), (5.26, 0.994833), (math.log(3), 0.75)],
)
def test_the_probability_is_the_logistic_function(logit: float, probability: float) -> None:
    """The values known for the reference pairs come out (field failure 20)."""
    assert sigmoid(logit) == pytest.approx(probability, abs=1e-5)


def test_the_probability_of_zero_is_exactly_a_half() -> None:
    """A logit of 0 is 0.5 to the last bit (field failure 20)."""
    assert sigmoid(0.0) == 0.5


@pytest.mark.parametrize(("logit", "probability"), [(-800.0, 0.0), (800.0, 1.0), (-3e38, 0.0), (3e38, 1.0)])
def test_extreme_logits_do_not_overflow(logit: float, probability: float) -> None:
    """The form taken never raises an exponent that overflows (field failure 20)."""
    assert sigmoid(logit) == probability


@given(first=FINITE, second=FINITE)
def test_the_probability_never_contradicts_the_order(first: float, second: float) -> None:
    """A higher logit has no lower probability, and both lie between 0 and 1."""
    low, high = sorted((first, second))
    assert 0.0 <= sigmoid(low) <= sigmoid(high) <= 1.0
