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
            params=pb.CollectionParams(
                vectors_config=request.vectors_config,
                sparse_vectors_config=request.sparse_vectors_config if request.sparse_vectors_config.map else None,
            ),
            hnsw_config=request.hnsw_config,
            quantization_config=request.quantization_config if request.HasField("quantization_config") else None,
            metadata=request.metadata,
        )
        self.config.params.shard_number = request.shard_number
        self.config.params.replication_factor = request.replication_factor
        self.config.params.write_consistency_factor = request.write_consistency_factor
        self.status = pb.CollectionStatus.Green
        self.counts_corpora = True
        """Whether it knows the corpus of a query by words; a server before 1.19 does not, and says nothing."""
        params = edge.EdgeVectorParams(size=self.size, distance=edge.Distance.Cosine)
        assert all(one.modifier == pb.Modifier.Idf for one in request.sparse_vectors_config.map.values())
        words = edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf)
        config = edge.EdgeConfig(
            vectors=params,
            sparse_vectors=dict.fromkeys(request.sparse_vectors_config.map, words) or None,
            wal_enabled=False,
        )
        path.mkdir()
        self._shard = edge.EdgeShard.create(str(path), config)

    def close(self) -> None:
        self._shard.close()

    def count(self, request: pb.CountPoints | None = None) -> int:
        chosen = engine_filter(request.filter) if request is not None and request.HasField("filter") else None
        return self._shard.count(edge.CountRequest(exact=True, filter=chosen))

    def upsert(self, points: Any) -> None:
        made = [edge.Point(engine_id(one.id), self._vectors(one.vectors), from_payload(one.payload)) for one in points]
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
                id=server_id(one.id), payload=to_payload(one.payload or {}), vectors=server_vectors(one.vector)
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
                query=edge.Query.Nearest(self._vector(request.query.nearest), using=request.using or None),
                filter=engine_filter(request.filter) if request.HasField("filter") else None,
                params=self._params(request),
                with_payload=engine_selector(request.with_payload),
                with_vector=request.with_vectors.enable,
            )
        )
        return [
            pb.ScoredPoint(
                id=server_id(one.id),
                score=one.score,
                payload=to_payload(one.payload or {}),
                vectors=server_vectors(one.vector),
            )
            for one in found
        ]

    def _params(self, request: pb.QueryPoints) -> edge.SearchParams:
        if not self.counts_corpora or not request.params.HasField("idf"):
            return edge.SearchParams()
        return edge.SearchParams(idf=edge.IdfParams(corpus=engine_filter(request.params.idf.corpus)))

    def _vectors(self, vectors: pb.Vectors) -> Any:
        if vectors.HasField("vector"):
            return self._vector(vectors.vector)
        return {name: self._vector(one) for name, one in vectors.vectors.vectors.items()}

    def _vector(self, vector: Any) -> Any:
        if vector.HasField("sparse"):
            return edge.SparseVector(list(vector.sparse.indices), list(vector.sparse.values))
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


def server_vectors(vectors: Any) -> pb.VectorsOutput | None:
    """Write a point's vectors as the server does: one without a name alone, or several by their names."""
    if vectors is None:
        return None
    if isinstance(vectors, list):
        return pb.VectorsOutput(vector=_output(vectors))
    named = {name: _output(one) for name, one in vectors.items()}
    return pb.VectorsOutput(vectors=pb.NamedVectorsOutput(vectors=named))


def _output(vector: Any) -> pb.VectorOutput:
    if isinstance(vector, edge.SparseVector):
        return pb.VectorOutput(sparse=pb.SparseVector(indices=vector.indices, values=vector.values))
    return pb.VectorOutput(dense=pb.DenseVector(data=vector))


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
    if wanted.WhichOneof("selector_options") == "exclude":
        return edge.PayloadSelector.Exclude(list(wanted.exclude.fields))
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
