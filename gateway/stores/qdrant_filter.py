"""Filters in the words of Qdrant's gRPC interface."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from qdrant_client import grpc as pb

from gateway.filters import AnyOf, Condition, DateRange, Exists, Filter, HasId, Range, TextMatch
from gateway.stores.conditions import INT64, one_bound_a_side, payload_path, value_type
from gateway.stores.point_ids import to_point_id
from gateway.stores.qdrant_values import to_pb_id


def to_qdrant_filter(wanted: Filter) -> pb.Filter:
    """Translate a filter.

    Raises:
        InvalidRequest: `FILTER_MALFORMED`, a key holds a quotation mark or backslash, or an AnyOf mixes types;
            `DOCUMENT_ID_RANGE`, an id is no unsigned 64-bit number.
    """
    return pb.Filter(
        must=[_condition(one) for one in wanted.must],
        should=[_condition(one) for one in wanted.should],
        must_not=[_condition(one) for one in wanted.must_not],
    )


def _condition(wanted: Condition) -> pb.Condition:
    if isinstance(wanted, Filter):
        return pb.Condition(filter=to_qdrant_filter(wanted))
    if isinstance(wanted, HasId):
        return pb.Condition(has_id=pb.HasIdCondition(has_id=[to_pb_id(to_point_id(one)) for one in wanted.ids]))
    if isinstance(wanted, Exists):
        empty = pb.IsEmptyCondition(key=payload_path(wanted.key))
        return pb.Condition(filter=pb.Filter(must_not=[pb.Condition(is_empty=empty)]))
    if isinstance(wanted, Range | DateRange):
        return _range(wanted)
    if isinstance(wanted, TextMatch):
        return _field(wanted.key, match=pb.Match(text=wanted.text))
    return _any_of(wanted)


def _any_of(wanted: AnyOf) -> pb.Condition:
    kind = value_type(wanted)
    values: Sequence[Any] = wanted.values
    if kind is bool:
        matches = [_field(wanted.key, match=pb.Match(boolean=one)) for one in values]
        return pb.Condition(filter=pb.Filter(should=matches))
    if kind is str:
        return _field(wanted.key, match=pb.Match(keywords=pb.RepeatedStrings(strings=values)))
    within = [one for one in values if one in INT64]
    return _field(wanted.key, match=pb.Match(integers=pb.RepeatedIntegers(integers=within)))


def _range(wanted: Range | DateRange) -> pb.Condition:
    bounds = one_bound_a_side(wanted)
    if isinstance(wanted, Range):
        return _field(wanted.key, range=pb.Range(**bounds))
    instants = {name: _timestamp(bound) for name, bound in bounds.items()}
    return _field(wanted.key, datetime_range=pb.DatetimeRange(**instants))


def _timestamp(instant: datetime) -> Timestamp:
    made = Timestamp()
    made.FromDatetime(instant.astimezone(UTC))
    return made


def _field(key: str, **what: Any) -> pb.Condition:
    return pb.Condition(field=pb.FieldCondition(key=payload_path(key), **what))
