"""A text mapping in the binary form that the tokenizers library calls "Precompiled". Knows no vocabulary.

The form is u32 n, then n bytes of a double-array trie over the keys' UTF-8 bytes, then the targets, each ended by a NUL
byte. A trie unit is 32 bits: a label (bits 0-7), "a key ends here" (bit 8), and from bit 10 the offset to the children:
the child with label c of the unit at p lies at p ^ offset ^ c. The child with label 0 holds the target's position
instead and has bit 31 set. Source: the reader in the crate spm_precompiled; the units are the darts-clone library's.
"""

import heapq
import struct
from collections import deque
from collections.abc import Mapping

import numpy as np

ENDS = 1 << 8
LEAF = 1 << 31
OFFSET_SHIFT = 10
OFFSET_LIMIT = 1 << 21
PAGE = 256

Trie = dict[int, "Trie | int"]


def precompile(mapping: Mapping[str, str]) -> bytes:
    """Return the mapping in binary form.

    Args:
        mapping: From texts that are not empty and hold no NUL to texts that hold no NUL.
    """
    targets = bytearray()
    positions = {}
    for target in sorted(set(mapping.values())):
        positions[target] = len(targets)
        targets += target.encode() + b"\0"
    units = _DoubleArray(_trie({key: positions[target] for key, target in mapping.items()})).units
    trie = np.array(units, "<u4").tobytes()
    return struct.pack("<I", len(trie)) + trie + bytes(targets)


def _trie(values: Mapping[str, int]) -> Trie:
    root: Trie = {}
    for key, value in values.items():
        node = root
        for byte in key.encode():
            child = node.setdefault(byte, {})
            assert isinstance(child, dict)  # noqa: S101 - only label 0 holds a number, and no key has one
            node = child
        node[0] = value
    return root


class _DoubleArray:
    """Places a trie's nodes, breadth first, each child block at the lowest place that is free."""

    def __init__(self, root: Trie) -> None:
        self.units: list[int] = []
        self._taken = bytearray()
        self._bases: set[int] = set()
        self._free: list[int] = []
        self._grow()
        self._take(0)
        waiting = deque([(root, 0)])
        while waiting:
            waiting.extend(self._place(*waiting.popleft()))

    def _place(self, node: Trie, at: int) -> list[tuple[Trie, int]]:
        labels = sorted(node)
        base = self._base(labels)
        offset = at ^ base
        assert offset < OFFSET_LIMIT  # noqa: S101 - two million units are far more than Unicode's mappings need
        self.units[at] |= offset << OFFSET_SHIFT | (ENDS if 0 in node else 0)
        children = []
        for label in labels:
            child, place = node[label], base ^ label
            self._take(place)
            if isinstance(child, dict):
                self.units[place] = label
                children.append((child, place))
            else:
                self.units[place] = child | LEAF
        return children

    def _base(self, labels: list[int]) -> int:
        """Find a base, used by no other node, at which every label's place is free."""
        skipped = []
        while True:
            if not self._free:
                self._grow()
            place = heapq.heappop(self._free)
            if self._taken[place]:
                continue
            skipped.append(place)
            base = place ^ labels[0]
            if base and base not in self._bases and not any(self._taken[base ^ label] for label in labels):
                break
        for place in skipped:
            heapq.heappush(self._free, place)
        self._bases.add(base)
        return base

    def _take(self, place: int) -> None:
        self._taken[place] = 1

    def _grow(self) -> None:
        start = len(self.units)
        self.units.extend([0] * PAGE)
        self._taken.extend(bytes(PAGE))
        for place in range(start, start + PAGE):
            heapq.heappush(self._free, place)
