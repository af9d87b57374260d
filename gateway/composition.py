"""Characters that are written in two ways, with an accent of their own or composed with it, made one (NFC)."""

from unicodedata import combining, normalize

MAX_MARKS = 30
"""Marks in a row that are composed: no language has more (Unicode Standard Annex 15, Stream-Safe Text Format)."""


def composed(text: str) -> str:
    """Compose a text, unless marks pile up as in no language: sorting them takes the square of their number."""
    return text if _piles_up(text) else normalize("NFC", text)


def _piles_up(text: str) -> bool:
    # More than so many in a row are met by steps of that many; in nearly all texts no step meets any.
    if not any(map(combining, text[::MAX_MARKS])):
        return False
    marks = 0
    for character in text:
        marks = marks + 1 if combining(character) else 0
        if marks > MAX_MARKS:
            return True
    return False
