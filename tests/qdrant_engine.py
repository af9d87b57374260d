"""What a Qdrant server does with its collections, done by the engine embedded from it: requests in, answers out."""

import math
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import qdrant_edge as edge
from qdrant_client import grpc as pb


class Refused(Exception):
    """A request that the server calls invalid."""


class Shelf:
    """One collection: an engine's shard, and the configuration that it was made with."""

    def __init__(self, path: Path, request: pb.CreateCollection) -> None:
        self.size = request.vectors_config.params.size
        self.config = pb.CollectionConfig(
            params=pb.CollectionParams(vectors_config=request.vectors_config),
            hnsw_config=request.hnsw_config,
            quantization_config=request.quantization_config if request.HasField("quantization_config") else None,
            metadata=request.metadata,
        )
        self.config.params.shard_number = request.shard_number
        self.config.params.replication_factor = request.replication_factor
        self.config.params.write_consistency_factor = request.write_consistency_factor
        self.status = pb.CollectionStatus.Green
        params = edge.EdgeVectorParams(size=self.size, distance=edge.Distance.Cosine)
        path.mkdir()
        self._shard = edge.EdgeShard.create(str(path), edge.EdgeConfig(vectors=params, wal_enabled=False))

    def close(self) -> None:
        self._shard.close()

    def count(self, request: pb.CountPoints | None = None) -> int:
        chosen = engine_filter(request.filter) if request is not None and request.HasField("filter") else None
        return self._shard.count(edge.CountRequest(exact=True, filter=chosen))

    def upsert(self, points: Any) -> None:
        made = [
            edge.Point(engine_id(one.id), self._vector(one.vectors.vector), from_payload(one.payload)) for one in points
        ]
        self._shard.update(edge.UpdateOperation.upsert_points(made))

    def index(self, request: pb.CreateFieldIndexCollection) -> None:
        self._shard.update(edge.UpdateOperation.create_field_index(request.field_name, engine_index(request)))

    def indexed(self) -> set[str]:
        return set(self._shard.info().payload_schema)

    def scroll(self, request: pb.ScrollPoints) -> pb.ScrollResponse:
        offset = engine_id(request.offset) if request.HasField("offset") else None
        chosen = engine_filter(request.filter) if request.HasField("filter") else None
        wanted = edge.ScrollRequest(
            offset=offset, limit=request.limit, filter=chosen, with_payload=True, with_vector=True
        )
        found, following = self._shard.scroll(wanted)
        points = [
            pb.RetrievedPoint(
                id=server_id(one.id),
                payload=to_payload(one.payload or {}),
                vectors=pb.VectorsOutput(vector=pb.VectorOutput(dense=pb.DenseVector(data=one.vector))),
            )
            for one in found
        ]
        return pb.ScrollResponse(
            result=points, next_page_offset=None if following is None else server_id(following), time=1e-4
        )

    def delete(self, ids: Any) -> None:
        self._shard.update(edge.UpdateOperation.delete_points([engine_id(one) for one in ids]))

    def get(self, request: pb.GetPoints) -> list[pb.RetrievedPoint]:
        ids = [engine_id(one) for one in request.ids]
        found = self._shard.retrieve(ids, with_payload=engine_selector(request.with_payload), with_vector=False)
        return [pb.RetrievedPoint(id=server_id(one.id), payload=to_payload(one.payload or {})) for one in found]

    def query(self, request: pb.QueryPoints) -> list[pb.ScoredPoint]:
        found = self._shard.query(
            edge.QueryRequest(
                limit=request.limit,
                query=edge.Query.Nearest(self._vector(request.query.nearest)),
                filter=engine_filter(request.filter) if request.HasField("filter") else None,
                with_payload=engine_selector(request.with_payload),
                with_vector=request.with_vectors.enable,
            )
        )
        return [
            pb.ScoredPoint(id=server_id(one.id), score=one.score, payload=to_payload(one.payload or {}))
            for one in found
        ]

    def _vector(self, vector: Any) -> list[float]:
        numbers = list(vector.dense.data)
        if len(numbers) != self.size:
            raise Refused(f"Wrong input: Vector dimension error: expected dim: {self.size}, got {len(numbers)}")
        return numbers


def engine_id(point_id: pb.PointId) -> int | UUID:
    """Read a point's id as the server does."""
    return point_id.num if point_id.WhichOneof("point_id_options") == "num" else UUID(point_id.uuid)


def server_id(point_id: Any) -> pb.PointId:
    """Write a point's id as the server does."""
    return pb.PointId(num=point_id) if isinstance(point_id, int) else pb.PointId(uuid=str(point_id))


def engine_index(request: pb.CreateFieldIndexCollection) -> Any:
    """Read which index is wanted."""
    params = request.field_index_params
    match request.field_type:
        case pb.FieldType.FieldTypeInteger:
            wanted = params.integer_index_params
            return edge.IntegerIndexParams(lookup=wanted.lookup, range=wanted.range)
        case pb.FieldType.FieldTypeText:
            assert params.text_index_params.tokenizer == pb.TokenizerType.Word
            lowercase = params.text_index_params.lowercase
            return edge.TextIndexParams(tokenizer=edge.TokenizerType.Word, lowercase=lowercase)
        case kind:
            return getattr(edge.PayloadSchemaType, pb.FieldType.Name(kind).removeprefix("FieldType"))


def engine_selector(wanted: pb.WithPayloadSelector) -> Any:
    """Read which part of the payload is wanted."""
    if wanted.WhichOneof("selector_options") == "include":
        return edge.PayloadSelector.Include(list(wanted.include.fields))
    return wanted.enable


def engine_filter(wanted: pb.Filter) -> edge.Filter:
    """Read a filter as the server does."""
    return edge.Filter(
        must=[_condition(one) for one in wanted.must],
        should=[_condition(one) for one in wanted.should],
        must_not=[_condition(one) for one in wanted.must_not],
    )


def from_payload(payload: Any) -> dict[str, Any]:
    """Read a payload as the server does."""
    return {key: _from_value(value) for key, value in payload.items()}


def to_payload(payload: dict[str, Any]) -> dict[str, pb.Value]:
    """Write a payload as the server does."""
    return {key: _to_value(value) for key, value in payload.items()}


def _condition(wanted: pb.Condition) -> Any:
    match wanted.WhichOneof("condition_one_of"):
        case "filter":
            return engine_filter(wanted.filter)
        case "has_id":
            return edge.HasIdCondition({engine_id(one) for one in wanted.has_id.has_id})
        case "is_empty":
            return edge.IsEmptyCondition(wanted.is_empty.key)
        case "field" if wanted.field.HasField("range"):
            bounds = {name.name: value for name, value in wanted.field.range.ListFields()}
            return edge.FieldCondition(wanted.field.key, range=edge.RangeFloat(**bounds))
        case "field" if wanted.field.HasField("datetime_range"):
            instants = {one.name: value.ToJsonString() for one, value in wanted.field.datetime_range.ListFields()}
            return edge.FieldCondition(wanted.field.key, range=edge.RangeDateTime(**instants))
        case "field" if wanted.field.HasField("match"):
            return edge.FieldCondition(wanted.field.key, match=_match(wanted.field.match))
        case other:
            raise Refused(f"a condition that this stand-in does not know: {other}")


def _match(wanted: pb.Match) -> Any:
    match wanted.WhichOneof("match_value"):
        case "boolean":
            return edge.MatchValue(np.bool_(wanted.boolean))  # the binding takes True for 1
        case "text":
            return edge.MatchText(wanted.text)
        case "keywords":
            return edge.MatchAny(list(wanted.keywords.strings))
        case "integers":
            return edge.MatchAny(list(wanted.integers.integers))
        case other:
            raise Refused(f"a match that this stand-in does not know: {other}")


def _from_value(value: pb.Value) -> Any:
    match value.WhichOneof("kind"):
        case None | "null_value":
            return None
        case "struct_value":
            return from_payload(value.struct_value.fields)
        case "list_value":
            return [_from_value(one) for one in value.list_value.values]
        case "double_value" if not math.isfinite(value.double_value):
            raise Refused("cannot convert to json number")
        case kind:
            return getattr(value, kind)


def _to_value(value: Any) -> pb.Value:
    made = pb.Value()
    match value:
        case None:
            made.null_value = pb.NullValue.NULL_VALUE
        case bool():
            made.bool_value = value
        case int() if -(2**63) <= value < 2**63:
            made.integer_value = value
        case int() | float():
            made.double_value = value
        case str():
            made.string_value = value
        case dict():
            made.struct_value.CopyFrom(pb.Struct(fields=to_payload(value)))
        case _:
            made.list_value.CopyFrom(pb.ListValue(values=[_to_value(one) for one in value]))
    return made
