"""Splits a text into passages under a token limit: at sentence ends, with overlap. Pure; knows no tokenizer.

A text is first cut into atoms, the smallest parts that passages are made of: its sentences, and where one is over the
limit its lines, then its words, then stretches of characters. Neighbouring atoms then fill passages, and a passage
begins again with the last atoms of the one before it. Where every sentence is to be a passage, each is split as if it
were the whole text.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

# A full stop counts only before white space, which numbers and names of files do not have; scripts without white space
# have marks that need none. A blank line ends whatever stands before it. No run is scanned twice, however long it is.
SENTENCE_END = re.compile(
    r"""[.!?…।॥؟۔։።]["'»”’)\]]*+\s++|[。！？｡]++[」』”’）]*+\s*+|\n[^\S\n]*+\n\s*+"""  # noqa: RUF001 - meant
)
LINE_END = re.compile(r"\n\s*+")
WORD_END = re.compile(r"\s++")
CHARACTER_SHARE = 8
"""Stretches of characters are cut to an eighth of the limit, so that passages of them fill and overlap."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Measured:
    """How the tokenizer reads a text."""

    token_count: int
    """Tokens of its row, prefix and special tokens included."""
    blank: bool
    """Whether it has no visible character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A passage: characters `begin` to `end` of the text, without white space at either end."""

    begin: int
    end: int
    token_count: int


Measure = Callable[[Sequence[str]], Sequence[Measured]]


class Unsplittable(Exception):
    """A single character is over the limit."""


def split(text: str, measure: Measure, *, max_tokens: int, overlap_tokens: int) -> list[Piece]:
    """Split a text; one within the limit comes back whole.

    Args:
        text: With at least one visible character.
        measure: Reads texts as the model will.
        max_tokens: Most tokens of a passage's row.
        overlap_tokens: Most tokens that a passage takes over from the one before it, in whole atoms.

    Returns:
        In order. Every visible character is in at least one.

    Raises:
        Unsplittable: A character alone is over the limit.
    """
    whole, empty = measure([text, ""])
    if whole.token_count <= max_tokens:
        return [Piece(begin=0, end=len(text), token_count=whole.token_count)]
    splitter = _Splitter(text, measure, max_tokens, empty.token_count, (0, len(text)))
    return list(splitter.pieces(overlap_tokens))


def split_sentences(text: str, measure: Measure, *, max_tokens: int) -> list[Piece]:
    """Split a text into its sentences, and one over the limit as `split` does, without overlap.

    What has no letter, as the number of a list's item, belongs to the sentence after it; at the end, to the one before.

    Args:
        text: With at least one visible character.
        measure: Reads texts as the model will.
        max_tokens: Most tokens of a passage's row.

    Returns:
        In order. Every visible character is in exactly one.

    Raises:
        Unsplittable: A character alone is over the limit.
    """
    spans = [_stripped(text, *span) for span in sentences(text)]
    empty, *rows = measure(["", *(text[slice(*span)] for span in spans)])
    pieces: list[Piece] = []
    for (begin, end), row in zip(spans, rows, strict=True):
        if row.token_count > max_tokens:
            pieces += _Splitter(text, measure, max_tokens, empty.token_count, (begin, end)).pieces(overlap_tokens=0)
        elif not row.blank:
            pieces.append(Piece(begin=begin, end=end, token_count=row.token_count))
    return pieces


def sentences(text: str) -> list[Span]:
    """Return the sentences of a text, which together are all of it."""
    found: list[Span] = []
    begin = 0
    for span in _divided(text, (0, len(text)), SENTENCE_END):
        if any(map(str.isalpha, text[slice(*span)])):
            found.append((begin, span[1]))
            begin = span[1]
    if begin < len(text):
        begin = found.pop()[0] if found else 0
        found.append((begin, len(text)))
    return found


class _Splitter:
    """A span of a text on its way to passages."""

    def __init__(self, text: str, measure: Measure, max_tokens: int, row_tokens: int, span: Span) -> None:
        self._text = text
        self._measure = measure
        self._max_tokens = max_tokens
        self._row_tokens = row_tokens
        self._atoms = self._cut(span)

    def pieces(self, overlap_tokens: int) -> Iterator[Piece]:
        """Fill passages with atoms."""
        begin = end = 0
        while end < len(self._atoms):
            begin, end, piece = self._next(self._again_from(begin, end, overlap_tokens), end)
            if piece is not None:
                yield piece

    def _cut(self, span: Span) -> list[tuple[Span, int]]:
        """Cut the span into atoms that fit, each with the tokens that it adds to a row."""
        spans = [span]
        for ends in (SENTENCE_END, LINE_END, WORD_END):
            spans = [part for span, cost in self._costs(spans) for part in self._parts(span, cost, ends)]
        return self._stretches(spans)

    def _parts(self, span: Span, cost: int, ends: re.Pattern[str]) -> Iterator[Span]:
        if self._row_tokens + cost <= self._max_tokens:
            yield span
            return
        yield from _divided(self._text, span, ends)

    def _stretches(self, spans: Sequence[Span]) -> list[tuple[Span, int]]:
        """Halve what no word boundary can make fit."""
        room = self._max_tokens - self._row_tokens
        atoms = []
        waiting = [(span, cost, cost > room) for span, cost in reversed(self._costs(spans))]
        while waiting:
            span, cost, halved = waiting.pop()
            if not halved or cost <= room // CHARACTER_SHARE or (span[1] - span[0] == 1 and cost <= room):
                atoms.append((span, cost))
                continue
            if span[1] - span[0] == 1:
                raise Unsplittable
            middle = _middle(self._text, span)
            halves = self._costs([(span[0], middle), (middle, span[1])])
            waiting += [(half, cost, True) for half, cost in reversed(halves)]
        return atoms

    def _costs(self, spans: Sequence[Span]) -> list[tuple[Span, int]]:
        rows = self._measure([self._text[begin:end] for begin, end in spans])
        return [(span, max(0, row.token_count - self._row_tokens)) for span, row in zip(spans, rows, strict=True)]

    def _again_from(self, begin: int, end: int, overlap_tokens: int) -> int:
        """Return the first atom of the passage after that of atoms `begin` to `end`."""
        room, again = overlap_tokens, end
        while again > begin + 1 and self._atoms[again - 1][1] <= room:
            again -= 1
            room -= self._atoms[again][1]
        return again

    def _next(self, begin: int, reached: int) -> tuple[int, int, Piece | None]:
        """Return the longest passage from atom `begin` on, or from a later one where it would not go on past `reached`.

        What atoms cost does not quite add up in scripts without word boundaries, so the passage itself is measured.
        """
        end = self._filled(begin)
        while True:
            if end <= reached:
                begin += 1
                end = self._filled(begin)
                continue
            span = _stripped(self._text, self._atoms[begin][0][0], self._atoms[end - 1][0][1])
            (row,) = self._measure([self._text[slice(*span)]])
            if row.token_count <= self._max_tokens or end - begin == 1:
                whole = Piece(begin=span[0], end=span[1], token_count=row.token_count)
                return begin, end, None if row.blank else whole
            end -= 1

    def _filled(self, begin: int) -> int:
        """Return the atom after the last one that fits by cost; at least one does."""
        room, end = self._max_tokens - self._row_tokens, begin
        while end < len(self._atoms) and (end == begin or self._atoms[end][1] <= room):
            room -= self._atoms[end][1]
            end += 1
        return end


def _divided(text: str, span: Span, ends: re.Pattern[str]) -> Iterator[Span]:
    begin = span[0]
    for match in ends.finditer(text, *span):
        if match.end() < span[1] and not _goes_on(text, match):
            yield begin, match.end()
            begin = match.end()
    yield begin, span[1]


def _goes_on(text: str, match: re.Match[str]) -> bool:
    """Tell whether a full stop ends an abbreviation and not a sentence: a small letter follows."""
    return text[match.start()] == "." and text[match.end()].islower()


def _middle(text: str, span: Span) -> int:
    """Return where to halve a span of at least two characters, not before a mark that combines with the one before."""
    begin, end = span
    middle = (begin + end) // 2
    moved = middle
    while moved > begin + 1 and unicodedata.combining(text[moved]):
        moved -= 1
    return middle if unicodedata.combining(text[moved]) else moved


def _stripped(text: str, begin: int, end: int) -> Span:
    part = text[begin:end]
    begin += len(part) - len(part.lstrip())
    return begin, max(begin, begin + len(part.strip()))
