"""Ids and payloads in the words of Qdrant's gRPC interface, and back."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from qdrant_client import grpc as pb

from gateway.stores.conditions import INT64, include_paths, quoted
from gateway.stores.point_ids import PointId
from gateway.stores.records import PARENT_TEXT_KEY, PayloadLimits, payload_keys
from serving.errors import InferenceFailed

LIMITS = PayloadLimits(depth=30, integers=INT64)
"""Payload numbers travel as signed 64-bit ones. An object takes three messages within one another, and the server
reads no more than 100."""

# A bool is an int, so that it comes first.
_SCALARS: Sequence[tuple[type, str]] = (
    (bool, "bool_value"),
    (int, "integer_value"),
    (float, "double_value"),
    (str, "string_value"),
)


def to_pb_id(point_id: PointId) -> pb.PointId:
    """Return an id as it is sent."""
    return pb.PointId(uuid=str(point_id)) if isinstance(point_id, UUID) else pb.PointId(num=point_id)


def from_pb_id(point_id: pb.PointId) -> PointId:
    """Return an id as it was sent.

    Raises:
        InferenceFailed: `STORE_FAILED`, it is none.
    """
    kind = point_id.WhichOneof("point_id_options")
    if kind == "num":
        return point_id.num
    try:
        return UUID(point_id.uuid)
    except ValueError as error:
        raise InferenceFailed("STORE_FAILED", "the vector store gave a point without an id") from error


def to_pb_value(value: Any) -> pb.Value:
    """Return a JSON value as it is sent."""
    if value is None:
        return pb.Value(null_value=pb.NullValue.NULL_VALUE)
    scalar = next((field for kind, field in _SCALARS if isinstance(value, kind)), None)
    if scalar is not None:
        fields: dict[str, Any] = {scalar: value}
        return pb.Value(**fields)
    if isinstance(value, Mapping):
        return pb.Value(struct_value=pb.Struct(fields=to_pb_payload(value)))
    return pb.Value(list_value=pb.ListValue(values=[to_pb_value(one) for one in value]))


def from_pb_value(value: pb.Value) -> Any:
    """Return a JSON value as it was sent."""
    kind = value.WhichOneof("kind")
    if kind is None or kind == "null_value":
        return None
    if kind == "struct_value":
        return from_pb_payload(value.struct_value.fields)
    if kind == "list_value":
        return [from_pb_value(one) for one in value.list_value.values]
    return getattr(value, kind)


def to_pb_payload(payload: Mapping[str, Any]) -> dict[str, pb.Value]:
    """Return a payload as it is sent."""
    return {key: to_pb_value(value) for key, value in payload.items()}


def from_pb_payload(payload: Mapping[str, pb.Value]) -> dict[str, Any]:
    """Return a payload as it was sent."""
    return {key: from_pb_value(value) for key, value in payload.items()}


def selector(payload_fields: Sequence[str]) -> pb.WithPayloadSelector:
    """Return what asks for no more of the payload than is needed."""
    paths = include_paths(payload_keys(payload_fields))
    if paths is None:
        return pb.WithPayloadSelector(exclude=pb.PayloadExcludeSelector(fields=[quoted(PARENT_TEXT_KEY)]))
    return pb.WithPayloadSelector(include=pb.PayloadIncludeSelector(fields=paths))
