"""How a search's time is split over its stages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.budget import Reserves, StageCaps, reserves

CAPS = StageCaps(encode=1, search=1, rerank=1, margin=0.1, search_share=0.2, rerank_share=0.5)
share = st.floats(0, 0.4)


def test_the_first_stage_leaves_the_reranker_its_share_where_it_is_required() -> None:
    """Of 1.1 s with a margin of 0.1 s encoding may take 0.3 s and the search another 0.2 s."""
    kept = reserves(1.1, CAPS, rerank_required=True)
    assert (kept.encode, kept.search, kept.rerank) == pytest.approx((0.8, 0.6, 0.1))


def test_a_reranking_that_may_be_left_out_has_no_share() -> None:
    """A late pool is worth more than none: only the search and the answer have something kept for them."""
    kept = reserves(1.1, CAPS, rerank_required=False)
    assert (kept.encode, kept.search, kept.rerank) == pytest.approx((0.3, 0.1, 0.1))


def test_less_time_than_the_margin_leaves_every_stage_nothing() -> None:
    """All stages end where the margin begins, which is over: none of them is sent anything."""
    assert reserves(0.05, CAPS, rerank_required=True) == Reserves(write=0.1, encode=0.1, search=0.1, rerank=0.1)


def test_writing_takes_half_of_the_time_and_what_encoding_may_have_at_most() -> None:
    """Of 1.1 s with a margin of 0.1 s it leaves 0.5 s to the rest, and never less than encoding leaves."""
    assert reserves(1.1, CAPS, rerank_required=False).write == pytest.approx(0.6)
    assert reserves(1.1, CAPS, rerank_required=True).write == pytest.approx(0.8)


@given(st.floats(0, 1e5), st.floats(0, 1), share, share, st.booleans())
def test_stages_end_in_order_and_encoding_always_has_time(
    left: float,
    margin: float,
    search_share: float,
    rerank_share: float,
    required: bool,  # noqa: FBT001 - given by name
) -> None:
    """Whatever the shares, encode ends before search and search before rerank, and encoding has a fifth at least."""
    caps = StageCaps(encode=1, search=1, rerank=1, margin=margin, search_share=search_share, rerank_share=rerank_share)
    kept = reserves(left, caps, rerank_required=required)
    assert kept.write >= kept.encode >= kept.search >= kept.rerank == margin
    assert left <= margin or left - kept.encode >= 0.19 * (left - margin)
