"""Filters in the words of qdrant-edge."""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any, cast

import numpy as np
import qdrant_edge as edge

from gateway.filters import AnyOf, Condition, DateRange, Exists, Filter, HasId, Range, TextMatch
from gateway.parameters import IndexKind
from gateway.stores.conditions import INT64, leaves, one_bound_a_side, payload_path, value_type
from gateway.stores.point_ids import to_point_id

MAX_NUMBERS_INDEXED = 16
"""Whole numbers in an AnyOf, up to which the index of numbers is used."""


_SCHEMA_TYPES = {
    IndexKind.KEYWORD: edge.PayloadSchemaType.Keyword,
    IndexKind.FLOAT: edge.PayloadSchemaType.Float,
    IndexKind.BOOL: edge.PayloadSchemaType.Bool,
    IndexKind.DATETIME: edge.PayloadSchemaType.Datetime,
}


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


def to_engine_index(kind: IndexKind) -> Any:
    """Return what the engine makes for a declared index.

    An index of integers serves equality alone, for its ranges would forget fractions. Words are those of the port.
    """
    if kind is IndexKind.INTEGER:
        return edge.IntegerIndexParams(lookup=True, range=False)
    if kind is IndexKind.TEXT:
        return edge.TextIndexParams(tokenizer=edge.TokenizerType.Word, lowercase=True)
    return _SCHEMA_TYPES[kind]


def useful_indexes(wanted: Filter) -> Mapping[str, edge.PayloadSchemaType]:
    """Return the payload indexes that would serve a filter: kind by path, as the engine lists it.

    Only kinds that never change an answer, as the property test shows: an index of integers would make ranges forget
    fractions.
    """
    found: dict[str, edge.PayloadSchemaType] = {}
    for condition in leaves(wanted):
        if isinstance(condition, Range):
            found.setdefault(listed_path(condition.key), edge.PayloadSchemaType.Float)
        elif isinstance(condition, AnyOf) and condition.values and not isinstance(condition.values[0], bool):
            text = isinstance(condition.values[0], str)
            kind = edge.PayloadSchemaType.Keyword if text else edge.PayloadSchemaType.Float
            found.setdefault(listed_path(condition.key), kind)
    return found


def served(path: str, kind: edge.PayloadSchemaType) -> edge.Filter:
    """Return the filter of the documents that make an index at a path worth its while.

    That is those with a number for an index of numbers, and those with a value that is none for one of texts.
    """
    numbers = edge.FieldCondition(path, range=edge.RangeFloat(gte=-sys.float_info.max))
    if kind == edge.PayloadSchemaType.Float:
        return edge.Filter(must=[numbers])
    return edge.Filter(must_not=[edge.IsEmptyCondition(path), numbers])


def dated_paths(wanted: Filter) -> set[str]:
    """Return the paths, as the engine lists them, at which an index of numbers would compare dates with numbers."""
    return {listed_path(one.key) for one in leaves(wanted) if isinstance(one, DateRange)}


def _condition(wanted: Condition) -> Any:
    if isinstance(wanted, Filter):
        return to_engine_filter(wanted)
    if isinstance(wanted, HasId):
        return edge.HasIdCondition({to_point_id(one) for one in wanted.ids})
    if isinstance(wanted, Exists):
        return edge.Filter(must_not=[edge.IsEmptyCondition(payload_path(wanted.key))])
    if isinstance(wanted, TextMatch):
        return edge.FieldCondition(payload_path(wanted.key), match=edge.MatchText(wanted.text))
    if isinstance(wanted, Range | DateRange):
        return _range(wanted)
    return _any_of(wanted)


def _range(wanted: Range | DateRange) -> Any:
    bounds = one_bound_a_side(wanted)
    if isinstance(wanted, Range):
        return edge.FieldCondition(payload_path(wanted.key), range=edge.RangeFloat(**bounds))
    texts = {name: bound.astimezone(UTC).isoformat() for name, bound in bounds.items()}
    return edge.FieldCondition(payload_path(wanted.key), range=edge.RangeDateTime(**texts))


def _any_of(wanted: AnyOf) -> Any:
    path, kind = payload_path(wanted.key), value_type(wanted)
    values: Sequence[Any] = wanted.values
    if kind is bool:
        matches = [edge.MatchValue(_engine_bool(one)) for one in values]
        return edge.Filter(should=[edge.FieldCondition(path, match=match) for match in matches])
    if kind is str:
        return edge.FieldCondition(path, match=edge.MatchAny(list(values)))
    return _any_number(path, values)


def _any_number(path: str, values: Sequence[int]) -> Any:
    exact = edge.FieldCondition(path, match=edge.MatchAny([one for one in values if one in INT64]))
    if len(values) > MAX_NUMBERS_INDEXED:
        return exact
    # The ranges say nothing more, but the index of numbers serves them and leaves little to compare.
    near = [edge.FieldCondition(path, range=edge.RangeFloat(gte=float(one), lte=float(one))) for one in values]
    return edge.Filter(must=[exact, edge.Filter(should=[*near])]) if near else exact


def _engine_bool(value: bool) -> bool:  # noqa: FBT001 - the value itself
    # The binding tries int before bool and Python's True is an int, so that True would match 1 and never true.
    return cast("bool", np.bool_(value))


def listed_path(key: str) -> str:
    """Return a key's path as the engine lists it."""
    return edge.IsEmptyCondition(payload_path(key)).key
