"""Protobuf messages to the gateway's own records and back; every check that needs no backend is here."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from google.protobuf import struct_pb2

from gateway.ids import MAX_TEXT_BYTES as MAX_ID_BYTES
from gateway.ids import parse_text
from gateway.indexing import Overlong
from gateway.pipeline import Hit, RerankMode, Result, SearchQuery
from gateway.ports import (
    AnyOf,
    Collection,
    Condition,
    Document,
    DocumentId,
    Exists,
    Filter,
    HasId,
    Model,
    Part,
    Payload,
    Range,
)
from gateway.timings import SearchTime, StageTime
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import InvalidRequest
from serving.timing import to_duration

DEFAULT_POOL_SIZE = 20
MAX_POOL_SIZE = 200
DEFAULT_TOP_K = 5
MAX_TEXT_BYTES = 65_536
MAX_PAYLOAD_BYTES = 65_536
MAX_IDS = 1_000
MAX_DOCUMENTS = 256
MAX_CONDITIONS = 64
MAX_DEPTH = 4
MAX_VALUES = 256
# Beyond this a double no longer tells neighbouring whole numbers apart.
MAX_EXACT = 2**53
RESERVED_PREFIX = "_twostage"
COLLECTION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

RERANK_MODES = {
    pb.RERANK_UNSPECIFIED: RerankMode.REQUIRED,
    pb.RERANK_REQUIRED: RerankMode.REQUIRED,
    pb.RERANK_BEST_EFFORT: RerankMode.BEST_EFFORT,
    pb.RERANK_OFF: RerankMode.OFF,
}

OVERLONGS = {
    pb.OVERLONG_UNSPECIFIED: Overlong.REJECT,
    pb.OVERLONG_REJECT: Overlong.REJECT,
    pb.OVERLONG_TRUNCATE: Overlong.TRUNCATE,
    pb.OVERLONG_SPLIT: Overlong.SPLIT,
}

# --- requests ------------------------------------------------------------------------------------------------------


def search_of(request: pb.SearchRequest) -> SearchQuery:
    """Read a search.

    Raises:
        InvalidRequest: A field is out of range.
    """
    check_text(request.query, "query")
    pool_size = request.pool_size if request.HasField("pool_size") else DEFAULT_POOL_SIZE
    _check_range(pool_size, MAX_POOL_SIZE, "pool_size")
    top_k = request.top_k if request.HasField("top_k") else min(DEFAULT_TOP_K, pool_size)
    _check_range(top_k, pool_size, "top_k")
    if request.rerank not in RERANK_MODES:
        raise InvalidRequest("ENUM_UNKNOWN", f"no such value: {request.rerank}", field="rerank")
    return SearchQuery(
        query=request.query,
        collection=collection_name(request.collection),
        pool_size=pool_size,
        top_k=top_k,
        filter=filter_of(request.filter) if request.HasField("filter") else None,
        rerank=RERANK_MODES[request.rerank],
        payload_fields=tuple(request.payload_fields),
        fold_to_parent=request.fold_to_parent,
    )


def collection_name(name: str) -> str:
    """Check a collection's name, which is also a directory's."""
    if not COLLECTION_NAME.fullmatch(name):
        raise InvalidRequest("COLLECTION_NAME", "1 to 128 of a-z A-Z 0-9 . _ - are wanted", field="collection")
    return name


def documents_of(messages: Sequence[pb.Document]) -> list[Document]:
    """Read documents that are to be stored."""
    if not 1 <= len(messages) <= MAX_DOCUMENTS:
        raise InvalidRequest("DOCUMENT_COUNT", f"{len(messages)}, 1 to {MAX_DOCUMENTS} are wanted", field="documents")
    documents = [_document_of(message, f"documents[{index}]") for index, message in enumerate(messages)]
    seen: set[DocumentId] = set()
    for index, document in enumerate(documents):
        if document.id in seen:
            raise InvalidRequest("ID_DUPLICATE", "the id occurs twice in this message", field=f"documents[{index}].id")
        seen.add(document.id)
    return documents


def overlong_of(message: pb.UpsertDocumentsRequest) -> Overlong:
    """Read what is to become of texts over the token limit."""
    if message.overlong not in OVERLONGS:
        raise InvalidRequest("ENUM_UNKNOWN", f"no such value: {message.overlong}", field="overlong")
    if message.overlong == pb.OVERLONG_UNSPECIFIED and message.truncate:
        return Overlong.TRUNCATE
    return OVERLONGS[message.overlong]


def ids_of(messages: Sequence[pb.DocumentId], field: str = "ids") -> list[DocumentId]:
    """Read a list of identifiers."""
    if not 1 <= len(messages) <= MAX_IDS:
        raise InvalidRequest("ID_COUNT", f"{len(messages)}, 1 to {MAX_IDS} are wanted", field=field)
    return [id_of(message, f"{field}[{index}]") for index, message in enumerate(messages)]


def id_of(message: pb.DocumentId, field: str) -> DocumentId:
    """Read an identifier."""
    kind = message.WhichOneof("kind")
    if kind is None:
        raise InvalidRequest("ID_REQUIRED", "number or text is required", field=field)
    if kind == "number":
        return message.number
    size = len(message.text.encode("utf-8", "replace"))
    if not 1 <= size <= MAX_ID_BYTES:
        raise InvalidRequest("ID_SIZE", f"{size} bytes, 1 to {MAX_ID_BYTES} are wanted", field=field)
    return parse_text(message.text)


def check_text(text: str, field: str) -> None:
    """Check what can be checked of a text without its tokens; whether it is blank is the encoder's to say."""
    size = len(text.encode("utf-8", "replace"))
    if size > MAX_TEXT_BYTES:
        raise InvalidRequest("TEXT_TOO_LARGE", f"{size} bytes, the limit is {MAX_TEXT_BYTES}", field=field)
    if not text.strip():
        raise InvalidRequest("TEXT_BLANK", "no visible character", field=field)


def filter_of(message: pb.Filter, field: str = "filter", depth: int = 1) -> Filter:
    """Read a filter."""
    clauses = (("must", message.must), ("should", message.should), ("must_not", message.must_not))
    if depth > MAX_DEPTH:
        raise InvalidRequest("FILTER_DEPTH", f"nested more than {MAX_DEPTH} deep", field=field)
    if depth == 1 and _condition_count(message) > MAX_CONDITIONS:
        raise InvalidRequest("FILTER_SIZE", f"more than {MAX_CONDITIONS} conditions", field=field)
    read = {
        name: [_condition_of(condition, f"{field}.{name}[{i}]", depth) for i, condition in enumerate(conditions)]
        for name, conditions in clauses
    }
    return Filter(**read)


def _condition_count(message: pb.Filter) -> int:
    """Count the conditions of a filter and of those in it."""
    conditions = [*message.must, *message.should, *message.must_not]
    return len(conditions) + sum(_condition_count(one.filter) for one in conditions if one.HasField("filter"))


def _condition_of(message: pb.Condition, field: str, depth: int) -> Condition:
    match message.WhichOneof("kind"):
        case "any_of":
            return _any_of(message.any_of, field)
        case "range":
            return _range_of(message.range, field)
        case "exists":
            return Exists(key=_key(message.exists.key, field))
        case "has_id":
            return HasId(ids=ids_of(message.has_id.ids, f"{field}.has_id.ids"))
        case "filter":
            return filter_of(message.filter, field, depth + 1)
        case _:
            raise InvalidRequest("CONDITION_REQUIRED", "a condition without a kind", field=field)


def _any_of(message: pb.AnyOf, field: str) -> AnyOf:
    values = [_plain(value, f"{field}.values") for value in message.values]
    kinds = {type(value) for value in values}
    one_kind = kinds in ({str}, {int}) or (kinds == {bool} and len(values) == 1)
    if not one_kind or len(values) > MAX_VALUES:
        wanted = f"1 to {MAX_VALUES} values, all text or all whole numbers, or one truth value, are wanted"
        raise InvalidRequest("VALUES", wanted, field=f"{field}.values")
    return AnyOf(key=_key(message.key, field), values=values)


def _range_of(message: pb.Range, field: str) -> Range:
    bounds = {name: getattr(message, name) for name in ("gt", "gte", "lt", "lte") if message.HasField(name)}
    if not bounds:
        raise InvalidRequest("RANGE_EMPTY", "at least one bound is required", field=field)
    if not all(map(math.isfinite, bounds.values())):
        raise InvalidRequest("RANGE_BOUND", "a bound is not finite", field=field)
    return Range(key=_key(message.key, field), **bounds)


def _key(key: str, field: str) -> str:
    if not key or key.startswith(RESERVED_PREFIX):
        raise InvalidRequest("KEY", "a payload key of the caller's is required", field=f"{field}.key")
    return key


def _document_of(message: pb.Document, field: str) -> Document:
    check_text(message.text, f"{field}.text")
    return Document(
        id=id_of(message.id, f"{field}.id"),
        text=message.text,
        payload=_payload_of(message.payload, f"{field}.payload"),
    )


def _payload_of(message: struct_pb2.Struct, field: str) -> Payload:
    if message.ByteSize() > MAX_PAYLOAD_BYTES:
        raise InvalidRequest("PAYLOAD_TOO_LARGE", f"more than {MAX_PAYLOAD_BYTES} bytes", field=field)
    if any(key.startswith(RESERVED_PREFIX) for key in message.fields):
        raise InvalidRequest("PAYLOAD_KEY_RESERVED", f"keys that begin with {RESERVED_PREFIX} are taken", field=field)
    return {key: _plain(value, field) for key, value in message.fields.items()}


def _plain(value: struct_pb2.Value, field: str) -> Any:
    """Read a JSON value, giving whole numbers back their type: protobuf knows only doubles."""
    match value.WhichOneof("kind"):
        case "number_value":
            return _number(value.number_value, field)
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return {key: _plain(inner, field) for key, inner in value.struct_value.fields.items()}
        case "list_value":
            return [_plain(inner, field) for inner in value.list_value.values]
        case _:
            return None


def _number(value: float, field: str) -> int | float:
    if not math.isfinite(value):
        raise InvalidRequest("NUMBER_NOT_FINITE", "a number is not finite", field=field)
    return int(value) if value.is_integer() and abs(value) <= MAX_EXACT else value


def _check_range(value: int, largest: int, field: str) -> None:
    if not 1 <= value <= largest:
        raise InvalidRequest("OUT_OF_RANGE", f"{value}, 1 to {largest} is wanted", field=field)


# --- answers -------------------------------------------------------------------------------------------------------


def wants_text(request: pb.SearchRequest) -> bool:
    """Tell whether hits carry their text: yes unless the caller said no."""
    return request.include_text if request.HasField("include_text") else True


def response_of(result: Result, request: pb.SearchRequest, *, store: str) -> pb.SearchResponse:
    """Write the answer to a search, but for its timings."""
    with_text = wants_text(request)
    response = pb.SearchResponse(
        hits=[_hit(hit, with_text=with_text) for hit in result.hits],
        pool=[_hit(hit, with_text=with_text) for hit in result.pool] if request.include_pool else (),
        provenance=pb.Provenance(
            encoder=model_message(result.encoder),
            reranker=model_message(result.reranker) if result.reranker else None,
            collection=request.collection,
            store=store,
        ),
    )
    if result.skipped_reason or result.text_missing_count:
        response.degradation.rerank_skipped_reason = result.skipped_reason
        response.degradation.text_missing_count = result.text_missing_count
    return response


def answer_bytes(hits: Iterable[Hit], *, with_text: bool) -> int:
    """Estimate how large hits are in an answer: their text and payload."""
    return sum(
        (len((hit.candidate.text or "").encode("utf-8", "replace")) if with_text else 0)
        + struct_of(hit.candidate.payload).ByteSize()
        for hit in hits
    )


def document_message(document: Document) -> pb.Document:
    """Write a document."""
    return pb.Document(
        id=id_message(document.id),
        text=document.text,
        payload=struct_of(document.payload),
        **_part_fields(document.part),
    )


def collection_message(collection: Collection) -> pb.Collection:
    """Write a collection."""
    return pb.Collection(
        name=collection.name,
        document_count=collection.document_count,
        dimension=collection.dimension,
        encoder=model_message(collection.encoder),
        disk_bytes=collection.disk_bytes,
    )


def id_message(identifier: DocumentId) -> pb.DocumentId:
    """Write an identifier."""
    if isinstance(identifier, int):
        return pb.DocumentId(number=identifier)
    return pb.DocumentId(text=str(identifier) if isinstance(identifier, UUID) else identifier)


def model_message(model: Model) -> pb.ModelReference:
    """Write a model reference."""
    return pb.ModelReference(
        id=model.id, revision=model.revision, digest=model.digest, precision=model.precision, device=model.device
    )


def struct_of(payload: Mapping[str, Any]) -> struct_pb2.Struct:
    """Write a payload."""
    struct = struct_pb2.Struct()
    struct.update(payload)
    return struct


def _hit(hit: Hit, *, with_text: bool) -> pb.Hit:
    candidate, scored = hit.candidate, hit.scored
    return pb.Hit(
        id=id_message(candidate.id),
        retrieval_rank=hit.retrieval_rank,
        retrieval_score=candidate.score,
        rerank_rank=hit.rerank_rank,
        logit=scored.logit if scored else None,
        probability=scored.probability if scored else None,
        truncated=scored.truncated if scored else False,
        text_missing=hit.text_missing,
        text=candidate.text if with_text else None,
        payload=struct_of(candidate.payload) if candidate.payload else None,
        **_part_fields(candidate.part),
    )


def _part_fields(part: Part | None) -> dict[str, Any]:
    if part is None:
        return {}
    return {"parent": id_message(part.parent), "part": part.number, "part_count": part.count}


def timings_message(time: SearchTime) -> pb.Timings:
    """Write where the time went."""
    return pb.Timings(
        total=to_duration(time.total),
        dense=to_duration(time.dense),
        encode=_stage(time.encode),
        search=_stage(time.search),
        rerank=_stage(time.rerank),
        other=to_duration(time.other),
    )


def _stage(stage: StageTime) -> pb.StageTiming:
    return pb.StageTiming(**{part: to_duration(nanoseconds) for part, nanoseconds in stage.parts().items()})
