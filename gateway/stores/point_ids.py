"""Document ids as vector stores keep them: an unsigned 64-bit number or a UUID. Knows no engine."""

from typing import Any
from uuid import UUID, uuid5

from gateway.ports import DocumentId, Payload
from serving.errors import InvalidRequest

PointId = int | UUID

ID_KEY = "_twostage_id"
"""Payload key of the original id where that is text."""

NAMESPACE = UUID("6b1f5f0e-3a55-5c0c-9d0b-2f6f0a1c7e42")
"""Namespace of the UUIDv5 that stands for a text id. Changing it orphans every document stored under a text id."""

_ID_END = 2**64


def to_point_id(document_id: DocumentId, *, field: str = "id") -> PointId:
    """Return what a document is stored under: numbers and UUIDs as they are, other text as a UUIDv5.

    Args:
        document_id: As the caller has it.
        field: Names it in errors.

    Raises:
        InvalidRequest: `DOCUMENT_ID_RANGE`, the number is not an unsigned 64-bit one.
    """
    if isinstance(document_id, str):
        return uuid5(NAMESPACE, document_id)
    if isinstance(document_id, UUID):
        return document_id
    if isinstance(document_id, bool) or not 0 <= document_id < _ID_END:
        raise InvalidRequest("DOCUMENT_ID_RANGE", f"{document_id} is not within 0 and 2^64 - 1", field=field)
    return document_id


def to_document_id(point_id: Any, payload: Payload) -> DocumentId:
    """Return the id that the caller knows, given what the document is stored under and with."""
    original = payload.get(ID_KEY)
    if isinstance(point_id, UUID) and isinstance(original, str):
        return original
    return point_id if isinstance(point_id, int) else UUID(str(point_id))
