"""Conditions on documents, as callers and scopes state them. Knows no engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the ports speak of filters
    from gateway.ports import DocumentId


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyOf:
    """The payload value at `key` (for a list: any element) equals one of `values`: all str, all int, or one bool."""

    key: str
    values: Sequence[str] | Sequence[int] | Sequence[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The payload number at `key` (for a list: any element) lies within the bounds."""

    key: str
    gt: float | None = None
    gte: float | None = None
    lt: float | None = None
    lte: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DateRange:
    """The payload text at `key` (for a list: any element) is an instant within the bounds.

    Instants are RFC 3339; without an offset they are UTC, and a date alone is its first moment. Compared to the
    microsecond. Bounds are aware.
    """

    key: str
    gt: datetime | None = None
    gte: datetime | None = None
    lt: datetime | None = None
    lte: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMatch:
    """Every word of `text` is in the payload text at `key` (for a list: in its elements taken together).

    A word is a longest run of letters and digits, compared whole and in lower case; order does not matter. The
    collection needs a text index of the key: without one the stores compare differently.
    """

    key: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exists:
    """The payload has a value at `key` that is neither null nor an empty list."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HasId:
    """The document is one of these."""

    ids: Sequence["DocumentId"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """All of `must`, none of `must_not` and, where there are any, at least one of `should`."""

    must: Sequence["Condition"] = ()
    should: Sequence["Condition"] = ()
    must_not: Sequence["Condition"] = ()


Condition = AnyOf | Range | DateRange | TextMatch | Exists | HasId | Filter
