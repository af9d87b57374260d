"""Filters in the words of qdrant-edge."""

import re
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import qdrant_edge as edge

from gateway.ports import AnyOf, Condition, Exists, Filter, HasId, Range
from gateway.stores.point_ids import to_point_id
from serving.errors import InvalidRequest

_INT64 = range(-(2**63), 2**63)
_UNQUOTABLE = re.compile(r'["\\]')


def to_engine_filter(wanted: Filter) -> edge.Filter:
    """Translate a filter.

    Raises:
        InvalidRequest: `FILTER_MALFORMED`, a key holds a quotation mark or backslash, or an AnyOf mixes types;
            `DOCUMENT_ID_RANGE`, an id is no unsigned 64-bit number.
    """
    return edge.Filter(
        must=[_condition(one) for one in wanted.must],
        should=[_condition(one) for one in wanted.should],
        must_not=[_condition(one) for one in wanted.must_not],
    )


def quoted(key: str) -> str:
    """Return one payload key as the engine's path notation takes it literally.

    Raises:
        InvalidRequest: `FILTER_MALFORMED`, the notation has no way to write it.
    """
    if _UNQUOTABLE.search(key):
        raise InvalidRequest("FILTER_MALFORMED", "a payload key with a quotation mark or backslash", field="filter")
    return f'"{key}"'


def _condition(wanted: Condition) -> Any:
    if isinstance(wanted, Filter):
        return to_engine_filter(wanted)
    if isinstance(wanted, HasId):
        return edge.HasIdCondition({to_point_id(one) for one in wanted.ids})
    if isinstance(wanted, Exists):
        return edge.Filter(must_not=[edge.IsEmptyCondition(_path(wanted.key))])
    if isinstance(wanted, Range):
        bounds = edge.RangeFloat(gt=wanted.gt, gte=wanted.gte, lt=wanted.lt, lte=wanted.lte)
        return edge.FieldCondition(_path(wanted.key), range=bounds)
    return _any_of(wanted)


def _any_of(wanted: AnyOf) -> Any:
    path = _path(wanted.key)
    values: Sequence[Any] = wanted.values
    if values and all(isinstance(one, bool) for one in values):
        matches = [edge.MatchValue(_engine_bool(one)) for one in values]
        return edge.Filter(should=[edge.FieldCondition(path, match=match) for match in matches])
    if all(isinstance(one, str) for one in values):
        return edge.FieldCondition(path, match=edge.MatchAny(list(values)))
    if all(isinstance(one, int) and not isinstance(one, bool) for one in values):
        # The engine compares signed 64-bit numbers; nothing it holds equals one beyond.
        return edge.FieldCondition(path, match=edge.MatchAny([one for one in values if one in _INT64]))
    raise InvalidRequest("FILTER_MALFORMED", "any_of takes all text, all whole numbers or truth values", field="filter")


def _engine_bool(value: bool) -> bool:  # noqa: FBT001 - the value itself
    # The binding tries int before bool and Python's True is an int, so that True would match 1 and never true.
    return cast("bool", np.bool_(value))


def _path(key: str) -> str:
    return ".".join(quoted(part) for part in key.split("."))
