"""What filters mean to Qdrant and to the engine embedded from it, before either's words. Knows no engine."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from gateway.filters import AnyOf, Condition, DateRange, Exists, Filter, HasId, Range, TextMatch
from gateway.parameters import IndexKind, PayloadIndex
from serving.errors import InvalidRequest

INT64 = range(-(2**63), 2**63)
"""The whole numbers that the engines compare; nothing they hold equals one beyond."""

_UNQUOTABLE = re.compile(r'["\\]')


def quoted(key: str) -> str:
    """Return one payload key as the engines' path notation takes it literally.

    Raises:
        InvalidRequest: `FILTER_MALFORMED`, the notation has no way to write it.
    """
    if _UNQUOTABLE.search(key):
        raise InvalidRequest("FILTER_MALFORMED", "a payload key with a quotation mark or backslash", field="filter")
    return f'"{key}"'


def payload_path(key: str) -> str:
    """Return a filter's dotted key in the engines' path notation.

    Raises:
        InvalidRequest: `FILTER_MALFORMED`, as `quoted`.
    """
    return ".".join(quoted(part) for part in key.split("."))


def include_paths(keys: Sequence[str] | None) -> Sequence[str] | None:
    """Return top-level payload keys as paths to read; None, which is everything, where one cannot be written."""
    try:
        return None if keys is None else [quoted(key) for key in keys]
    except InvalidRequest:
        return None  # the key is picked out of everything afterwards


def one_bound_a_side(wanted: Range | DateRange) -> dict[str, Any]:
    """Return the stricter bound of each side: of two, the engines' scan heeds both but their index only one."""
    bounds: dict[str, Any] = {}
    low: tuple[Any, Any] = (wanted.gt, wanted.gte)
    high: tuple[Any, Any] = (wanted.lt, wanted.lte)
    if low[0] is not None and (low[1] is None or low[0] >= low[1]):
        bounds["gt"] = low[0]
    elif low[1] is not None:
        bounds["gte"] = low[1]
    if high[0] is not None and (high[1] is None or high[0] <= high[1]):
        bounds["lt"] = high[0]
    elif high[1] is not None:
        bounds["lte"] = high[1]
    return bounds


def require_indexes(wanted: Filter, declared: Sequence[PayloadIndex]) -> None:
    """Check that a filter suits the declared indexes.

    Text is matched only at keys whose words are indexed: engines compare differently without. And numbers are not
    compared where dates are indexed, nor dates where numbers are: engines ask the index of the key all the same, which
    compares microseconds then.

    Raises:
        InvalidRequest: `TEXT_INDEX_REQUIRED` or `INDEX_MISMATCH`.
    """
    kinds = {one.key: one.kind for one in declared}
    for condition in leaves(wanted):
        kind = None if isinstance(condition, HasId) else kinds.get(condition.key)
        if isinstance(condition, TextMatch) and kind is not IndexKind.TEXT:
            raise InvalidRequest(
                "TEXT_INDEX_REQUIRED",
                "text_match of a key without a text index; declare it when the collection is created",
                field="filter",
            )
        if _compares_across(condition, kind):
            raise InvalidRequest(
                "INDEX_MISMATCH", "numbers at a key with an index of dates, or dates at one of numbers", field="filter"
            )


def leaves(wanted: Filter) -> Iterator[AnyOf | Range | DateRange | TextMatch | Exists | HasId]:
    """Return the conditions of a filter and of those in it."""
    for condition in (*wanted.must, *wanted.should, *wanted.must_not):
        if isinstance(condition, Filter):
            yield from leaves(condition)
        else:
            yield condition


def _compares_across(condition: Condition, kind: IndexKind | None) -> bool:
    if kind is IndexKind.FLOAT:
        return isinstance(condition, DateRange)
    numbers = isinstance(condition, AnyOf) and value_type(condition) is int
    return kind is IndexKind.DATETIME and (numbers or isinstance(condition, Range))


def value_type(wanted: AnyOf) -> type[str] | type[int] | type[bool]:
    """Return the one type of an AnyOf's values; str where there are none.

    Raises:
        InvalidRequest: `FILTER_MALFORMED`, they are of several types, or of another.
    """
    kinds: set[Any] = {type(one) for one in wanted.values} or {str}
    for kind in (str, int, bool):
        if kinds == {kind}:
            return kind
    raise InvalidRequest("FILTER_MALFORMED", "any_of takes all text, all whole numbers or truth values", field="filter")
