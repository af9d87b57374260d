"""Collections, their parameters and their exports: messages to records and back."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from gateway.convert import document_message
from gateway.convert_lexical import lexical_message, lexical_of
from gateway.convert_values import MAX_TEXT_BYTES, check_range, id_of, known, model_message, payload_key, payload_of
from gateway.indexing import MAX_PARTS
from gateway.parameters import (
    DEFAULT_PARAMETERS,
    CollectionParameters,
    CollectionStatus,
    IndexKind,
    PayloadIndex,
    Quantization,
)
from gateway.ports import Collection, Document, Model, Part, Vector
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import InvalidRequest
from serving.limits import require_size

FORMAT_VERSION = 1
MAX_DIMENSION = 65_536
"""Qdrant's own limit."""
MAX_BATCH = 256
MAX_LABEL_CHARACTERS = 1_024
MAX_PAYLOAD_INDEXES = 32
Numbered: TypeAlias = Literal["hnsw_m", "hnsw_ef_construct", "shard_count", "replication_factor"]
LIMITS: Mapping[Numbered, tuple[int, int]] = {
    "hnsw_m": (4, 128),
    "hnsw_ef_construct": (8, 2_048),
    "shard_count": (1, 1_024),
    "replication_factor": (1, 16),
}
QUANTIZATIONS = {
    pb.QUANTIZATION_UNSPECIFIED: Quantization.NONE,
    pb.QUANTIZATION_NONE: Quantization.NONE,
    pb.QUANTIZATION_INT8: Quantization.INT8,
    pb.QUANTIZATION_BINARY: Quantization.BINARY,
}
INDEX_KINDS = {
    pb.PAYLOAD_INDEX_TYPE_KEYWORD: IndexKind.KEYWORD,
    pb.PAYLOAD_INDEX_TYPE_INTEGER: IndexKind.INTEGER,
    pb.PAYLOAD_INDEX_TYPE_FLOAT: IndexKind.FLOAT,
    pb.PAYLOAD_INDEX_TYPE_BOOL: IndexKind.BOOL,
    pb.PAYLOAD_INDEX_TYPE_DATETIME: IndexKind.DATETIME,
    pb.PAYLOAD_INDEX_TYPE_TEXT: IndexKind.TEXT,
}
STATUSES = {
    CollectionStatus.GREEN: pb.COLLECTION_STATUS_GREEN,
    CollectionStatus.YELLOW: pb.COLLECTION_STATUS_YELLOW,
    CollectionStatus.GREY: pb.COLLECTION_STATUS_GREY,
    CollectionStatus.RED: pb.COLLECTION_STATUS_RED,
    CollectionStatus.UNKNOWN: pb.COLLECTION_STATUS_UNSPECIFIED,
}


def parameters_of(message: pb.CollectionParameters, field: str = "parameters") -> CollectionParameters:
    """Read parameters, filling in defaults.

    Raises:
        InvalidRequest: One is out of range.
    """
    numbers: dict[Any, int] = {}
    for name, (smallest, largest) in LIMITS.items():
        numbers[name] = getattr(message if message.HasField(name) else DEFAULT_PARAMETERS, name)
        check_range(numbers[name], largest, f"{field}.{name}", smallest=smallest)
    quantization = known(QUANTIZATIONS, message.quantization, f"{field}.quantization")
    return CollectionParameters(
        **numbers,
        on_disk=message.on_disk,
        quantization=quantization,
        payload_indexes=_indexes_of(message.payload_indexes, f"{field}.payload_indexes"),
        lexical=lexical_of(message.lexical, f"{field}.lexical") if message.HasField("lexical") else None,
    )


def parameters_message(parameters: CollectionParameters) -> pb.CollectionParameters:
    """Write parameters, defaults included."""
    quantizations = {kind: value for value, kind in QUANTIZATIONS.items()}
    types = {kind: value for value, kind in INDEX_KINDS.items()}
    return pb.CollectionParameters(
        hnsw_m=parameters.hnsw_m,
        hnsw_ef_construct=parameters.hnsw_ef_construct,
        on_disk=parameters.on_disk,
        quantization=quantizations[parameters.quantization],
        shard_count=parameters.shard_count,
        replication_factor=parameters.replication_factor,
        payload_indexes=[pb.PayloadIndex(key=one.key, type=types[one.kind]) for one in parameters.payload_indexes],
        lexical=lexical_message(parameters.lexical) if parameters.lexical is not None else None,
    )


def collection_message(collection: Collection) -> pb.Collection:
    """Write a collection."""
    return pb.Collection(
        name=collection.name,
        document_count=collection.document_count,
        dimension=collection.dimension,
        encoder=model_message(collection.encoder),
        disk_bytes=collection.disk_bytes,
        passage_prefix=collection.passage_prefix,
        schema_version=collection.schema_version,
        status=STATUSES[collection.status],
        parameters=parameters_message(collection.parameters),
        aliases=collection.aliases,
    )


# --- exports -------------------------------------------------------------------------------------------------------


def header_message(collection: Collection) -> pb.CollectionHeader:
    """Write the header of an export."""
    return pb.CollectionHeader(
        format_version=FORMAT_VERSION,
        collection=collection.name,
        dimension=collection.dimension,
        encoder=model_message(collection.encoder),
        passage_prefix=collection.passage_prefix,
        parameters=parameters_message(collection.parameters),
    )


def header_of(message: pb.CollectionHeader, field: str = "start.header") -> tuple[int, Model]:
    """Read dimension and encoder of an export.

    Raises:
        InvalidRequest: It is no header of this version.
    """
    if message.format_version != FORMAT_VERSION:
        raise InvalidRequest(
            "FORMAT_VERSION", f"{message.format_version}, {FORMAT_VERSION} is wanted", field=f"{field}.format_version"
        )
    check_range(message.dimension, MAX_DIMENSION, f"{field}.dimension")
    encoder = message.encoder
    labels = (encoder.id, encoder.revision, encoder.digest, encoder.precision, message.passage_prefix)
    if any(len(label) > MAX_LABEL_CHARACTERS for label in labels):
        wanted = f"a text over {MAX_LABEL_CHARACTERS} characters"
        raise InvalidRequest("HEADER_SIZE", wanted, field=f"{field}.encoder or passage_prefix")
    if not encoder.digest:
        raise InvalidRequest("ENCODER_REQUIRED", "the encoder's digest is required", field=f"{field}.encoder.digest")
    model = Model(id=encoder.id, revision=encoder.revision, digest=encoder.digest, precision=encoder.precision)
    return message.dimension, model


def stored_message(document: Document, vector: Vector) -> pb.StoredDocument:
    """Write a document of an export, with what only an export tells of it."""
    message = document_message(document)
    if document.parent_text is not None:
        message.parent_text = document.parent_text
    return pb.StoredDocument(document=message, vector=np.asarray(vector, "<f4").tobytes())


def stored_of(
    messages: Sequence[pb.StoredDocument], dimension: int, field: str = "documents.documents"
) -> tuple[Sequence[Document], Sequence[Vector]]:
    """Read a batch of an export.

    Raises:
        InvalidRequest: It is empty or too long, or a document or a vector is malformed; the field names it.
    """
    check_range(len(messages), MAX_BATCH, field)
    documents = [_document_of(one.document, f"{field}[{index}].document") for index, one in enumerate(messages)]
    vectors = [_vector_of(one.vector, dimension, f"{field}[{index}].vector") for index, one in enumerate(messages)]
    return documents, vectors


def _document_of(message: pb.Document, field: str) -> Document:
    require_size(message.text, MAX_TEXT_BYTES, field=f"{field}.text")
    part = _part_of(message, field) if message.HasField("parent") else None
    if message.parent_text:
        require_size(message.parent_text, MAX_TEXT_BYTES, field=f"{field}.parent_text")
        if part is None or part.number != 1:
            raise InvalidRequest(
                "PARENT_TEXT", "only the first part of a document has it", field=f"{field}.parent_text"
            )
    return Document(
        id=id_of(message.id, f"{field}.id"),
        text=message.text,
        payload=payload_of(message.payload, f"{field}.payload"),
        part=part,
        parent_text=message.parent_text or None,
    )


def _part_of(message: pb.Document, field: str) -> Part:
    parent = id_of(message.parent, f"{field}.parent")
    # Whoever deletes the parent later counts to this number.
    check_range(message.part_count, MAX_PARTS, f"{field}.part_count")
    check_range(message.part, message.part_count, f"{field}.part")
    return Part(parent=parent, number=message.part, count=message.part_count)


def _vector_of(packed: bytes, dimension: int, field: str) -> Vector:
    if len(packed) != 4 * dimension:
        raise InvalidRequest("VECTOR_SIZE", f"{len(packed)} bytes, {4 * dimension} are wanted", field=field)
    vector: npt.NDArray[np.float32] = np.frombuffer(packed, "<f4").astype(np.float32)
    if not np.isfinite(vector).all() or not vector.any():
        raise InvalidRequest("VECTOR_MALFORMED", "not finite, or without length", field=field)
    return vector


def _indexes_of(messages: Sequence[pb.PayloadIndex], field: str) -> Sequence[PayloadIndex]:
    if len(messages) > MAX_PAYLOAD_INDEXES:
        raise InvalidRequest("INDEX_COUNT", f"{len(messages)}, at most {MAX_PAYLOAD_INDEXES} are allowed", field=field)
    indexes = [_index_of(message, f"{field}[{number}]") for number, message in enumerate(messages)]
    if len({one.key for one in indexes}) < len(indexes):
        raise InvalidRequest("INDEX_DUPLICATE", "a key occurs twice", field=field)
    return tuple(indexes)


def _index_of(message: pb.PayloadIndex, field: str) -> PayloadIndex:
    kind = known(INDEX_KINDS, message.type, f"{field}.type")
    key = payload_key(message.key, f"{field}.key")
    if '"' in key or "\\" in key:
        raise InvalidRequest("KEY", "a key without quotation marks and backslashes is wanted", field=f"{field}.key")
    return PayloadIndex(key=key, kind=kind)
