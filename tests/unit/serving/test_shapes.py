"""Shapes of batches: few on a GPU, exact on a CPU."""

from hypothesis import given
from hypothesis import strategies as st

from serving.shapes import padded_rows, padded_tokens, warm_shapes

ROWS, TOKENS, LIMIT = 64, 16_384, 512


@given(rows=st.integers(1, 200), tokens=st.integers(1, 512))
def test_a_cpu_computes_the_batch_as_it_is(rows: int, tokens: int):
    """On a CPU nothing is rounded up, so nothing is computed for nothing."""
    assert (padded_rows(rows, "cpu"), padded_tokens(tokens, "cpu", LIMIT)) == (rows, tokens)


@given(longest=st.integers(1, 8192), limit=st.integers(8, 8192))
def test_lengths_are_rounded_up_within_the_limit(longest: int, limit: int):
    """A row always fits, is padded by less than 64 tokens, and never beyond the position table."""
    tokens = padded_tokens(longest, "cuda", limit)
    assert longest <= tokens < longest + 64
    assert tokens <= max(limit, longest)


@given(count=st.integers(1, 512))
def test_rows_are_rounded_up(count: int):
    """At most a batch of 5 becomes one of 8; above that less than 8 rows are added."""
    rows = padded_rows(count, "cuda")
    assert count <= rows < count + 8
    assert rows <= 2 * count


def test_the_steps_are_fine_where_rows_are_short():
    """The rounding of a length is small against the length."""
    assert [padded_tokens(n, "cuda", 8192) for n in (1, 8, 9, 64, 65, 500, 513, 600)] == [
        8,
        8,
        16,
        64,
        96,
        512,
        576,
        640,
    ]
    assert [padded_rows(n, "tensorrt") for n in (1, 2, 3, 5, 8, 9, 17, 64)] == [1, 2, 4, 8, 8, 16, 24, 64]


def test_a_gpu_sees_few_shapes():
    """Whatever lengths and row counts come, the arena sees a bounded number of shapes (field failure 44)."""
    shapes = {(padded_rows(r, "cuda"), padded_tokens(t, "cuda", LIMIT)) for r in range(1, 65) for t in range(1, 513)}
    assert len(shapes) == 11 * 22


@given(longest=st.integers(1, LIMIT))
def test_every_length_is_warm(longest: int):
    """Before serving, each padded length is run with one row and with the most that a batch may have (case 57)."""
    shapes = list(warm_shapes("cuda", limit=LIMIT, max_rows=ROWS, max_batch_tokens=TOKENS))
    tokens = padded_tokens(longest, "cuda", LIMIT)
    most = padded_rows(min(ROWS, TOKENS // tokens), "cuda")
    assert {(1, tokens), (most, tokens)} <= set(shapes)


def test_the_largest_shape_is_warmed_first():
    """Memory that does not suffice shows at once, and a budget below one row still means one row."""
    shapes = list(warm_shapes("cuda", limit=LIMIT, max_rows=ROWS, max_batch_tokens=TOKENS))
    assert shapes[0] == (32, 512)
    assert len(shapes) == len(set(shapes)) == 44
    assert set(warm_shapes("cuda", limit=16, max_rows=4, max_batch_tokens=8)) == {(1, 16), (1, 8)}


def test_a_cpu_needs_no_warming():
    """A CPU is as fast at a new shape as at a known one, so none is run."""
    assert list(warm_shapes("cpu", limit=LIMIT, max_rows=ROWS, max_batch_tokens=TOKENS)) == []
