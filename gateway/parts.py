"""What is stored in place of a split document, how large it may get, and what it leaves behind. Knows no store."""

import json
from collections.abc import Iterator, Mapping, Sequence

from gateway.part_ids import part_id
from gateway.ports import Document, DocumentId, Part
from serving.errors import InvalidRequest

MAX_PARTS_BYTES = 32 * 2**20
"""Texts and payloads of all parts of a message, since every part has its document's payload. A Qdrant server takes no
more at once."""


def parts_of(document: Document, passages: Sequence[str], field: str) -> list[Document]:
    """Return what is stored in place of a document: itself where it is one passage, or its parts.

    Raises:
        InvalidRequest: `ID_SIZE`, its id leaves no room; `field` names it.
    """
    if len(passages) == 1:
        return [document]
    return [
        Document(
            id=part_id(document.id, number, field=field),
            text=passage,
            payload=document.payload,
            part=Part(parent=document.id, number=number, count=len(passages)),
            parent_text=document.text if number == 1 else None,
        )
        for number, passage in enumerate(passages, 1)
    ]


def require_bytes(documents: Sequence[Document], split: Sequence[Sequence[str]]) -> None:
    """Check what documents become once each of their parts has the whole payload.

    Raises:
        InvalidRequest: `BATCH_TOO_LARGE`.
    """
    size = 0
    for document, passages in zip(documents, split, strict=True):
        if len(passages) > 1:
            payload = len(json.dumps(document.payload, ensure_ascii=False).encode("utf-8", "replace"))
            size += sum(len(passage.encode("utf-8", "replace")) + payload for passage in passages)
    if size > MAX_PARTS_BYTES:
        message = (
            f"{size} bytes of parts with their payloads, the limit is {MAX_PARTS_BYTES}; send fewer documents at once, "
            "larger parts, or smaller payloads"
        )
        raise InvalidRequest("BATCH_TOO_LARGE", message, field="documents")


def stale_ids(
    groups: Sequence[Sequence[Document]],
    documents: Sequence[Document],
    parts: Mapping[DocumentId, Sequence[DocumentId]],
) -> Iterator[DocumentId]:
    """Yield ids of what was stored for these documents and is not replaced.

    Args:
        groups: What is stored now in place of each document.
        documents: The documents.
        parts: The ids of the parts that each had before.
    """
    written = {entry.id for group in groups for entry in group}
    for document in documents:
        for one in (document.id, *parts.get(document.id, ())):
            if one not in written:
                yield one


def id_field(index: int) -> str:
    """Return the name of a document's id in errors."""
    return f"documents[{index}].id"
