"""Filters of messages to the store's records."""

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Literal

from google.protobuf.timestamp_pb2 import Timestamp

from gateway.convert_values import ids_of, payload_key, plain
from gateway.filters import AnyOf, Condition, DateRange, Exists, Filter, HasId, Range, TextMatch
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import InvalidRequest

MAX_CONDITIONS = 64
MAX_DEPTH = 4
MAX_VALUES = 256
MAX_VALUE_CHARACTERS = 1_024
MAX_MATCH_BYTES = 1_024
BOUNDS: tuple[Literal["gt", "gte", "lt", "lte"], ...] = ("gt", "gte", "lt", "lte")


def filter_of(message: pb.Filter, field: str = "filter", depth: int = 1) -> Filter:
    """Read a filter."""
    clauses = (("must", message.must), ("should", message.should), ("must_not", message.must_not))
    if depth > MAX_DEPTH:
        raise InvalidRequest("FILTER_DEPTH", f"nested more than {MAX_DEPTH} deep", field=field)
    if depth == 1 and _condition_count(message, MAX_CONDITIONS) > MAX_CONDITIONS:
        raise InvalidRequest("FILTER_SIZE", f"more than {MAX_CONDITIONS} conditions", field=field)
    read = {
        name: [_condition_of(condition, f"{field}.{name}[{i}]", depth) for i, condition in enumerate(conditions)]
        for name, conditions in clauses
    }
    return Filter(**read)


def _condition_count(message: pb.Filter, most: int) -> int:
    """Count the conditions of a filter and of those in it, until there are more than `most`.

    A message may hold millions of empty ones.
    """
    clauses = (message.must, message.should, message.must_not)
    count = sum(map(len, clauses))
    if count <= most:
        for one in chain.from_iterable(clauses):
            if one.HasField("filter") and count <= most:
                count += _condition_count(one.filter, most - count)
    return count


def _condition_of(message: pb.Condition, field: str, depth: int) -> Condition:
    kind = message.WhichOneof("kind")
    if kind is None:
        raise InvalidRequest("CONDITION_REQUIRED", "a condition without a kind", field=field)
    if kind == "filter":
        return filter_of(message.filter, field, depth + 1)
    return _READERS[kind](getattr(message, kind), field)


def _exists_of(message: pb.Exists, field: str) -> Exists:
    return Exists(key=payload_key(message.key, f"{field}.key"))


def _has_id_of(message: pb.HasId, field: str) -> HasId:
    return HasId(ids=ids_of(message.ids, f"{field}.has_id.ids"))


def _any_of(message: pb.AnyOf, field: str) -> AnyOf:
    # One more than is allowed shows that there are too many.
    values = [plain(value, f"{field}.values") for value in message.values[: MAX_VALUES + 1]]
    kinds = {type(value) for value in values}
    if any(isinstance(one, str) and len(one) > MAX_VALUE_CHARACTERS for one in values):
        raise InvalidRequest("VALUES", f"a text over {MAX_VALUE_CHARACTERS} characters", field=f"{field}.values")
    one_kind = kinds in ({str}, {int}) or (kinds == {bool} and len(values) == 1)
    if not one_kind or len(values) > MAX_VALUES:
        wanted = f"1 to {MAX_VALUES} values, all text or all whole numbers, or one truth value, are wanted"
        raise InvalidRequest("VALUES", wanted, field=f"{field}.values")
    return AnyOf(key=payload_key(message.key, f"{field}.key"), values=values)


def _range_of(message: pb.Range, field: str) -> Range:
    bounds = {name: getattr(message, name) for name in BOUNDS if message.HasField(name)}
    if not bounds:
        raise InvalidRequest("RANGE_EMPTY", "at least one bound is required", field=field)
    if not all(map(math.isfinite, bounds.values())):
        raise InvalidRequest("RANGE_BOUND", "a bound is not finite", field=field)
    return Range(key=payload_key(message.key, f"{field}.key"), **bounds)


def _date_range_of(message: pb.DateRange, field: str) -> DateRange:
    bounds = {name: _instant(getattr(message, name), field) for name in BOUNDS if message.HasField(name)}
    if not bounds:
        raise InvalidRequest("RANGE_EMPTY", "at least one bound is required", field=field)
    return DateRange(key=payload_key(message.key, f"{field}.key"), **bounds)


def _instant(message: Timestamp, field: str) -> datetime:
    if message.nanos % 1_000:
        raise InvalidRequest("RANGE_BOUND", "a bound is finer than a microsecond", field=field)
    try:
        return message.ToDatetime(UTC)
    except (OverflowError, ValueError) as error:
        raise InvalidRequest("RANGE_BOUND", "a bound is not within the years 1 to 9999", field=field) from error


def _text_match_of(message: pb.TextMatch, field: str) -> TextMatch:
    size = len(message.text.encode("utf-8", "replace"))
    if size > MAX_MATCH_BYTES or not any(map(str.isalnum, message.text)):
        wanted = f"{size} bytes, 1 to {MAX_MATCH_BYTES} with a letter or digit are wanted"
        raise InvalidRequest("TEXT_MATCH", wanted, field=f"{field}.text")
    return TextMatch(key=payload_key(message.key, f"{field}.key"), text=message.text)


_READERS: Mapping[str, Callable[[Any, str], Condition]] = {
    "any_of": _any_of,
    "range": _range_of,
    "date_range": _date_range_of,
    "text_match": _text_match_of,
    "exists": _exists_of,
    "has_id": _has_id_of,
}
