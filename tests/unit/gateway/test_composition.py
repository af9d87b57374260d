"""Composing characters, and the texts that are left as they are."""

from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.composition import MAX_MARKS, composed

BELOW, ABOVE = "\N{COMBINING DOT BELOW}", "\N{COMBINING ACUTE ACCENT}"


@given(st.text(alphabet=st.sampled_from(f"aeй{BELOW}{ABOVE}\u1100\u1161\u0915\u094d"), max_size=MAX_MARKS))
def test_what_people_write_is_composed(text: str) -> None:
    """A text that cannot have a pile of marks is what NFC makes of it."""
    assert composed(text) == normalize("NFC", text)


@pytest.mark.parametrize("before", range(2 * MAX_MARKS))
def test_marks_that_pile_up_stay_as_they_are(before: int) -> None:
    """Wherever a pile begins it is seen: one mark more than the limit leaves the text alone, the limit does not."""
    for count, left_alone in ((MAX_MARKS, False), (MAX_MARKS + 1, True)):
        text = "x" * before + (ABOVE + BELOW) * (count // 2) + ABOVE * (count % 2) + "e" + ABOVE
        assert (composed(text) == text) is left_alone
