"""A vector store in memory for tests of the gateway; passes the contract suite that the real ones pass."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import numpy as np

from gateway.ports import (
    AnyOf,
    Candidate,
    Collection,
    Condition,
    Document,
    DocumentId,
    Exists,
    Filter,
    Found,
    HasId,
    Model,
    Payload,
    Range,
    ServerTime,
    Vector,
)
from serving.deadline import Deadline
from serving.errors import AlreadyExists, InferenceFailed, InvalidRequest, Misconfigured, NotFound


@dataclass(slots=True)
class _Kept:
    dimension: int
    encoder: Model
    documents: dict[DocumentId, Document] = field(default_factory=dict)
    vectors: dict[DocumentId, Vector] = field(default_factory=dict)


class MemoryStore:
    """Keeps everything in dictionaries and compares every vector."""

    name = "memory"

    def __init__(self) -> None:
        self._collections: dict[str, _Kept] = {}

    async def create(self, name: str, *, dimension: int, encoder: Model, deadline: Deadline) -> Collection:
        deadline.require("create")
        if name in self._collections:
            raise AlreadyExists("COLLECTION_EXISTS", "there is a collection of that name", collection=name)
        self._collections[name] = _Kept(dimension=dimension, encoder=replace(encoder, device=""))
        return self._describe(name)

    async def describe(self, name: str, *, deadline: Deadline) -> Collection:
        deadline.require("describe")
        return self._describe(name)

    async def list(self, *, deadline: Deadline) -> Sequence[Collection]:
        deadline.require("list")
        return [self._describe(name) for name in sorted(self._collections)]

    async def drop(self, name: str, *, deadline: Deadline) -> None:
        deadline.require("drop")
        self._kept(name)
        del self._collections[name]

    async def upsert(
        self, name: str, documents: Sequence[Document], vectors: Sequence[Vector], *, deadline: Deadline
    ) -> None:
        deadline.require("upsert")
        kept = self._kept(name)
        for index, (document, vector) in enumerate(zip(documents, vectors, strict=True)):
            _check_id(document.id, f"documents[{index}].id")
            _check_payload(document.payload, f"documents[{index}].payload")
            _unit(vector, kept.dimension)
        for document, vector in zip(documents, vectors, strict=True):
            kept.documents[document.id] = document
            kept.vectors[document.id] = _unit(vector, kept.dimension)

    async def delete(self, name: str, ids: Sequence[DocumentId], *, deadline: Deadline) -> None:
        deadline.require("delete")
        kept = self._kept(name)
        for one in ids:
            kept.documents.pop(one, None)
            kept.vectors.pop(one, None)

    async def get(self, name: str, ids: Sequence[DocumentId], *, deadline: Deadline) -> Sequence[Document]:
        deadline.require("get")
        kept = self._kept(name)
        found = [kept.documents[one] for one in ids if one in kept.documents]
        return [replace(one, text=_usable(one.text) or "") for one in found]

    async def search(
        self,
        name: str,
        vector: Vector,
        *,
        encoder: Model,
        pool_size: int,
        filter: Filter | None,  # noqa: A002 - the port's word
        payload_fields: Sequence[str],
        deadline: Deadline,
    ) -> Found:
        deadline.require("search")
        kept = self._kept(name)
        if encoder.digest != kept.encoder.digest:
            raise Misconfigured("ENCODER_MISMATCH", f"{encoder.digest} is not the collection's {kept.encoder.digest}")
        query = _unit(vector, kept.dimension)
        pool = [
            Candidate(
                id=one.id,
                score=float(np.clip(kept.vectors[one.id] @ query, -1, 1)),
                text=_usable(one.text),
                payload={k: v for k, v in one.payload.items() if "*" in payload_fields or k in payload_fields},
            )
            for one in kept.documents.values()
            if filter is None or matches(filter, one.id, one.payload)
        ]
        pool.sort(key=lambda one: (-one.score, _order(one.id)))
        return Found(candidates=pool[:pool_size], time=ServerTime())

    async def aclose(self) -> None:
        self._collections.clear()

    def _kept(self, name: str) -> _Kept:
        if name not in self._collections:
            raise NotFound("COLLECTION_NOT_FOUND", "there is no collection of that name", collection=name)
        return self._collections[name]

    def _describe(self, name: str) -> Collection:
        kept = self._kept(name)
        return Collection(
            name=name,
            document_count=len(kept.documents),
            dimension=kept.dimension,
            encoder=kept.encoder,
            disk_bytes=0,
        )


def matches(wanted: Condition, document_id: DocumentId, payload: Payload) -> bool:
    """Evaluate a condition in plain Python: what the port's filters mean."""
    if isinstance(wanted, Filter):
        return (
            all(matches(one, document_id, payload) for one in wanted.must)
            and not any(matches(one, document_id, payload) for one in wanted.must_not)
            and (not wanted.should or any(matches(one, document_id, payload) for one in wanted.should))
        )
    if isinstance(wanted, HasId):
        return document_id in wanted.ids
    value = _lookup(payload, wanted.key)
    if isinstance(wanted, Exists):
        return value is not None and value != []
    elements = value if isinstance(value, list) else [value]
    if isinstance(wanted, AnyOf):
        return any(type(one) is type(other) and one == other for one in elements for other in wanted.values)
    return any(_within(wanted, one) for one in elements)


def _within(bounds: Range, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return (
        (bounds.gt is None or value > bounds.gt)
        and (bounds.gte is None or value >= bounds.gte)
        and (bounds.lt is None or value < bounds.lt)
        and (bounds.lte is None or value <= bounds.lte)
    )


def _lookup(payload: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(payload, dict) or part not in payload:
            return None
        payload = payload[part]
    return payload


def _usable(text: Any) -> str | None:
    return text if isinstance(text, str) and text.strip() else None


def _order(document_id: DocumentId) -> tuple[int, Any]:
    kinds: tuple[type, ...] = (int, UUID, str)
    return kinds.index(type(document_id)), document_id


def _check_id(document_id: DocumentId, where: str) -> None:
    if isinstance(document_id, int) and not 0 <= document_id < 2**64:
        raise InvalidRequest("DOCUMENT_ID_RANGE", f"{document_id} is out of range", field=where)


def _check_payload(payload: Payload, where: str) -> None:
    if any(key.startswith("_twostage") for key in payload):
        raise InvalidRequest("PAYLOAD_KEY_RESERVED", "a reserved key", field=where)


def _unit(vector: Vector, dimension: int) -> Any:
    numbers = np.asarray(vector, dtype=np.float64)
    if numbers.shape != (dimension,):
        raise Misconfigured("VECTOR_SIZE_MISMATCH", f"{numbers.size} dimensions, not {dimension}")
    if not np.isfinite(numbers).all():
        raise InferenceFailed("VECTOR_NOT_FINITE", "a number that is not finite")
    if not numbers.any():
        raise InferenceFailed("VECTOR_ZERO", "a vector of zeros")
    return numbers / np.linalg.norm(numbers)
