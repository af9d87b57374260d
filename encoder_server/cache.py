"""Vectors of queries that were asked before: a bounded memory, off unless an operator gives it room.

A vector depends on the model, on what stands in front of the text, and on the text; nothing else is looked at. A text
that was cut is known only to whoever allows cutting, so a hit never accepts what computing would refuse.
"""

import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prometheus_client import Counter, Gauge

from serving.metrics import ServerMetrics

MAX_ENTRIES = 250_000
"""Bounds the memory also where texts are short and vectors small, of which the estimate knows least."""
# What an entry takes beside its text and its vector: key, record, places in the table. 218 to 250 bytes by tracemalloc
# with 1,000 to 100,000 entries; the rest is the allocator's rounding.
ENTRY_BYTES = 288


class Encoded(NamedTuple):
    """One text's vector, and how the text was read."""

    packed: bytes
    """`dimension` little-endian binary32 numbers."""
    token_count: int
    truncated: bool


class Key(NamedTuple):
    """What a vector depends on."""

    model: str
    """Digest and precision of the model."""
    prefix: str
    """What is put in front of the text."""
    text: str


class QueryCache:
    """The vectors of the latest queries; what was not asked for longest leaves first. For one thread.

    Args:
        max_bytes: Most memory by estimate, where Python's own objects are counted.
        max_entries: Most vectors.
    """

    def __init__(self, max_bytes: int, max_entries: int = MAX_ENTRIES) -> None:
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: OrderedDict[Key, Encoded] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        """Vectors kept."""
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """Memory taken, by estimate."""
        return self._bytes

    def get(self, key: Key, *, truncate: bool) -> Encoded | None:
        """Return what is known of a text; what was cut is not known to those who do not allow that."""
        entry = self._entries.get(key)
        if entry is None or (entry.truncated and not truncate):
            return None
        self._entries.move_to_end(key)
        return entry

    def put(self, key: Key, entry: Encoded) -> None:
        """Keep a vector, and forget others until the bounds hold; one larger than all the room is not kept."""
        size = _size(key, entry)
        if size > self._max_bytes:
            return
        self._forget(key)
        self._entries[key] = entry
        self._bytes += size
        while self._bytes > self._max_bytes or len(self._entries) > self._max_entries:
            self._forget(next(iter(self._entries)))

    def _forget(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= _size(key, entry)


class CountedCache:
    """A query cache whose hits, misses and size are metrics; the texts of one request are looked up together.

    Args:
        max_bytes: Most memory.
        metrics: Where the instruments are.
    """

    def __init__(self, max_bytes: int, metrics: ServerMetrics) -> None:
        self._cache = QueryCache(max_bytes)
        service, registry = metrics.service, metrics.registry
        self._hits = Counter(f"{service}_cache_hits", "Queries whose vector was kept.", registry=registry)
        self._misses = Counter(f"{service}_cache_misses", "Queries whose vector was not kept.", registry=registry)
        size = Gauge(f"{service}_cache_bytes", "Estimated memory of the kept vectors.", registry=registry)
        size.set_function(lambda: self._cache.size_bytes)

    def find(self, model: str, prefix: str, texts: Sequence[str], *, truncate: bool) -> dict[int, Encoded]:
        """Return what is known of texts, by their positions."""
        looked_up = (self._cache.get(Key(model, prefix, text), truncate=truncate) for text in texts)
        found = {index: entry for index, entry in enumerate(looked_up) if entry is not None}
        self._hits.inc(len(found))
        self._misses.inc(len(texts) - len(found))
        return found

    def keep(self, model: str, prefix: str, encoded: Iterable[tuple[str, Encoded]]) -> None:
        """Keep the vectors of texts."""
        for text, entry in encoded:
            self._cache.put(Key(model, prefix, text), entry)


def _size(key: Key, entry: Encoded) -> int:
    """Return the bytes of a text and its vector; model and prefix are the same objects in every key."""
    return sys.getsizeof(key.text) + sys.getsizeof(entry.packed) + ENTRY_BYTES
