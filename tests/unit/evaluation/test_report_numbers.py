"""How the report writes numbers."""

import pytest

from evaluation.report import numbers


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.0, "0.00"),
        (5.7, "5.70"),
        (9.996, "10.0"),
        (48.92, "48.9"),
        (99.96, "100"),
        (1204.4, "1,204"),
        (-0.25, "\N{MINUS SIGN}0.25"),
    ],
)
def test_milliseconds_have_three_digits(value, written):
    """Milliseconds keep three digits, also where rounding gains one."""
    assert numbers.ms(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.1337, "+0.134"), (-0.5, "\N{MINUS SIGN}0.500"), (0.0, "0.000"), (-0.0002, "0.000"), (0.0004, "0.000")],
)
def test_a_difference_that_rounds_to_nothing_has_no_sign(value, written):
    """Differences carry a sign, and one that is written as 0.000 claims no direction."""
    assert numbers.signed(value) == written


@pytest.mark.parametrize(
    ("share", "written"), [(0.0, "0 %"), (0.004, "< 1 %"), (0.005, "< 1 %"), (0.84, "84 %"), (1.0, "100 %")]
)
def test_a_share_that_is_there_is_not_written_as_nothing(share, written):
    """A stage that took time does not look as if it took none."""
    assert numbers.percent(share) == written


def test_intervals_never_mix_dash_and_minus():
    """An interval is written with a dash, and in words where a minus would stand beside it."""
    assert numbers.span(0.5, 1.0) == "0.500\N{EN DASH}1.000"
    assert numbers.span(-2.0, -1.0) == "\N{MINUS SIGN}2.000 to \N{MINUS SIGN}1.000"
    assert numbers.signed_span(-0.1, 0.2) == "\N{MINUS SIGN}0.100 to +0.200"


def test_small_p_values_are_bounded():
    """A resampling cannot tell p-values below a thousandth apart, and the report does not pretend to."""
    assert [numbers.p(0.0001), numbers.p(0.001), numbers.p(0.25)] == ["< 0.001", "0.001", "0.250"]


def test_counts_agree_with_their_nouns():
    """One question, two questions; irregular plurals are given."""
    assert [numbers.count(1, "question"), numbers.count(2_000, "question"), numbers.count(0, "query", "queries")] == [
        "1 question",
        "2,000 questions",
        "0 queries",
    ]


def test_long_lists_say_how_many_are_left():
    """A list of names is cut and says so."""
    assert numbers.listed(["a", "b"], 2) == "a, b"
    assert numbers.listed(["a", "b", "c", "d"], 2) == "a, b and 2 more"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("one two three", "one two three"),
        ("one two three four", "one two three…"),
        ("  spread \n out\ttext ", "spread out text"),
        ("x" * 20, "x" * 15 + "…"),
        ("茶" * 20, "茶" * 15 + "…"),
    ],
)
def test_texts_are_cut_between_words(text, written):
    """A long text is cut between words where it has any, and marked."""
    assert numbers.clipped(text, 15) == written
