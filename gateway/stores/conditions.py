"""What filters mean to Qdrant and to the engine embedded from it, before either's words. Knows no engine."""

import re
from collections.abc import Sequence
from typing import Any

from gateway.ports import AnyOf, Range
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


def one_bound_a_side(wanted: Range) -> dict[str, float]:
    """Return the stricter bound of each side: of two, the engines' scan heeds both but their index only one."""
    bounds: dict[str, float] = {}
    if wanted.gt is not None and (wanted.gte is None or wanted.gt >= wanted.gte):
        bounds["gt"] = wanted.gt
    elif wanted.gte is not None:
        bounds["gte"] = wanted.gte
    if wanted.lt is not None and (wanted.lte is None or wanted.lt <= wanted.lte):
        bounds["lt"] = wanted.lt
    elif wanted.lte is not None:
        bounds["lte"] = wanted.lte
    return bounds


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
