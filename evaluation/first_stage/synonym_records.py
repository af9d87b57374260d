"""synonyms.json: what a file of synonyms gained and lost."""

from collections.abc import Mapping

from evaluation.figures import Change, Frozen, Interval
from evaluation.records import Record

SYNONYMS = "synonyms.json"


class Move(Frozen):
    """The first relevant document of one question, without and with synonyms."""

    question: str
    before: int | None
    """Its rank, from 1; null where none is in the pool."""
    after: int | None


class Entry(Frozen):
    """One entry by itself."""

    number: int
    """In the file, from 1."""
    text: str
    fired: tuple[str, ...]
    """Questions that it changes."""
    moves: Mapping[str, tuple[Move, ...]]
    """Side, "lexical" or "dense", to those questions."""


class Side(Frozen):
    """One list under the whole file, over all answerable questions of the split."""

    before: Mapping[str, Interval]
    after: Mapping[str, Interval]
    changes: tuple[Change, ...]
    moves: tuple[Move, ...]
    """Of the questions in which the file fires; empty on test, where single questions are nobody's business."""


class WholeFile(Frozen):
    """All entries together."""

    fired: tuple[str, ...]
    sides: Mapping[str, Side]


class SynonymStudy(Record):
    """synonyms.json."""

    file_digest: str
    split: str
    question_count: int
    """Answerable questions of the split."""
    whole: WholeFile
    entries: tuple[Entry, ...]
    """Empty on test."""
