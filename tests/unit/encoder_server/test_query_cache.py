"""Which vectors of queries are kept, for how long, and what they are said to take."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoder_server.cache import ENTRY_BYTES, CountedCache, Encoded, Key, QueryCache
from serving.metrics import ServerMetrics

ROOMY = 10**9
DIGEST = "sha256:" + "e" * 64


def key(text: str, *, model: str = f"{DIGEST} fp32", prefix: str = "query: ") -> Key:
    """Make a key, of the same model and role unless said otherwise."""
    return Key(model, prefix, text)


def entry(size: int = 32, *, truncated: bool = False) -> Encoded:
    """Make an entry with a vector of so many bytes."""
    return Encoded(packed=bytes(size), token_count=5, truncated=truncated)


def texts(cache: QueryCache, *asked: str) -> list[str]:
    """Return which of some texts are known, asking for them in order."""
    return [text for text in asked if cache.get(key(text), truncate=False)]


def test_what_was_not_asked_for_longest_leaves_first() -> None:
    """A look-up counts as use, and so does keeping the same text again."""
    cache = QueryCache(ROOMY, max_entries=3)
    for text in ("a", "b", "c"):
        cache.put(key(text), entry())
    assert texts(cache, "a") == ["a"]
    cache.put(key("b"), entry())
    cache.put(key("d"), entry())
    assert texts(cache, "a", "b", "c", "d") == ["a", "b", "d"]
    assert len(cache) == 3


def test_a_text_that_was_cut_is_unknown_to_who_refuses_cutting() -> None:
    """The same entry is found where cutting is allowed, and a whole text by both."""
    cache = QueryCache(ROOMY)
    cache.put(key("long"), entry(truncated=True))
    cache.put(key("short"), entry())
    assert cache.get(key("long"), truncate=False) is None
    assert cache.get(key("long"), truncate=True) == entry(truncated=True)
    assert cache.get(key("short"), truncate=False) == cache.get(key("short"), truncate=True) == entry()


@pytest.mark.parametrize(
    "other",
    [
        key("panda", model="sha256:" + "f" * 64 + " fp32"),
        key("panda", model=f"{DIGEST} int8"),
        key("panda", prefix="passage: "),
        key("Panda"),
        key("panda "),
    ],
)
def test_another_model_role_or_text_is_another_vector(other: Key) -> None:
    """Digest, precision, prefix and every character of the text are part of the key."""
    cache = QueryCache(ROOMY)
    cache.put(key("panda"), entry())
    assert cache.get(other, truncate=True) is None


def test_memory_is_text_and_vector_and_an_entrys_share() -> None:
    """What is reported is the sum over the entries, whatever the text's script, and falls when one leaves."""
    cache = QueryCache(ROOMY, max_entries=2)
    expected = []
    for text in ("a" * 100, "\u718a" * 100, "\U0001f43c" * 100):
        cache.put(key(text), entry(1_536))
        expected.append(sys.getsizeof(text) + sys.getsizeof(bytes(1_536)) + ENTRY_BYTES)
    assert cache.size_bytes == sum(expected[1:])


def test_one_that_is_larger_than_all_the_room_pushes_nothing_out() -> None:
    """It is not kept, and what was kept stays."""
    cache = QueryCache(2_000)
    cache.put(key("a"), entry())
    cache.put(key("b" * 2_000), entry())
    assert texts(cache, "a", "b" * 2_000) == ["a"]


@given(
    st.lists(st.tuples(st.text(max_size=40), st.integers(0, 400), st.booleans()), max_size=60),
    st.integers(0, 3_000),
    st.integers(1, 6),
)
def test_the_bounds_hold_whatever_is_kept(puts: list[tuple[str, int, bool]], max_bytes: int, max_entries: int) -> None:
    """After every step neither bound is exceeded, an empty cache takes nothing, and the latest that fits is there."""
    cache = QueryCache(max_bytes, max_entries)
    for text, size, truncated in puts:
        cache.put(key(text), entry(size, truncated=truncated))
        assert cache.size_bytes <= max_bytes
        assert len(cache) <= max_entries
        assert (cache.size_bytes == 0) == (len(cache) == 0)
        if sys.getsizeof(text) + sys.getsizeof(bytes(size)) + ENTRY_BYTES <= max_bytes:
            assert cache.get(key(text), truncate=True) == entry(size, truncated=truncated)


def test_hits_misses_and_bytes_are_metrics() -> None:
    """Every text counts once, and the gauge is what the entries take."""
    metrics = ServerMetrics("encoder")
    cache = CountedCache(ROOMY, metrics)
    assert cache.find("m", "q ", ["a", "b"], truncate=False) == {}
    cache.keep("m", "q ", [("b", entry())])
    assert cache.find("m", "q ", ["a", "b", "b"], truncate=False) == {1: entry(), 2: entry()}
    values = {
        name: metrics.registry.get_sample_value(f"encoder_cache_{name}") for name in ("hits_total", "misses_total")
    }
    assert values == {"hits_total": 2, "misses_total": 3}
    expected = sys.getsizeof("b") + sys.getsizeof(bytes(32)) + ENTRY_BYTES
    assert metrics.registry.get_sample_value("encoder_cache_bytes") == expected
