"""A vector store in memory for tests of the gateway; passes the contract suite that the real ones pass."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import numpy as np
from bm25_by_hand import bm25

from gateway.filters import AnyOf, Condition, DateRange, Exists, Filter, HasId, Range, TextMatch
from gateway.parameters import DEFAULT_PARAMETERS, CollectionParameters
from gateway.ports import (
    Candidate,
    Collection,
    Cursor,
    DenseQuery,
    Document,
    DocumentId,
    Found,
    ListQuery,
    Model,
    Page,
    Payload,
    RankedList,
    ServerTime,
    Vector,
)
from gateway.precisions import note_precision
from gateway.stores.conditions import require_indexes
from gateway.stores.lexical import require_supported
from gateway.stores.records import lexical_index_required, require_encoder
from serving.deadline import Deadline
from serving.errors import AlreadyExists, InferenceFailed, InvalidRequest, Misconfigured, NotFound, Unavailable

INSTANT = re.compile(r"\d{4}-\d\d-\d\d([Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)?)?")


@dataclass(slots=True)
class _Kept:
    dimension: int
    encoder: Model
    passage_prefix: str
    parameters: CollectionParameters
    hidden: bool
    incarnation: str
    documents: dict[DocumentId, Document] = field(default_factory=dict)
    vectors: dict[DocumentId, Vector] = field(default_factory=dict)

    def matching(self, wanted: Filter | None) -> list[DocumentId]:
        if wanted is None:
            return list(self.documents)
        require_indexes(wanted, self.parameters.payload_indexes)
        return [one.id for one in self.documents.values() if matches(wanted, one.id, one.payload)]

    def scores(
        self, name: str, query: ListQuery, found: Sequence[DocumentId], counted: Sequence[DocumentId]
    ) -> dict[DocumentId, float]:
        if isinstance(query, DenseQuery):
            unit = _unit(query.vector, self.dimension)
            return {one: float(np.clip(self.vectors[one] @ unit, -1, 1)) for one in found}
        if self.parameters.lexical is None:
            raise lexical_index_required(name)
        texts = {one: self.documents[one].text for one in found}
        scores = bm25(query.text, texts, self.parameters.lexical, [self.documents[one].text for one in counted])
        return {one: float(np.float32(score)) for one, score in scores.items()}

    def candidate(
        self, document_id: DocumentId, score: float, payload_fields: Sequence[str], *, with_vector: bool
    ) -> Candidate:
        document = self.documents[document_id]
        return Candidate(
            id=document_id,
            score=score,
            text=_usable(document.text),
            payload={k: v for k, v in document.payload.items() if "*" in payload_fields or k in payload_fields},
            part=document.part,
            vector=np.asarray(self.vectors[document_id], np.float32) if with_vector else None,
        )


class MemoryStore:
    """Keeps everything in dictionaries and compares every vector."""

    name = "memory"

    def __init__(self) -> None:
        self._collections: dict[str, _Kept] = {}
        self._aliases: dict[str, str] = {}

    async def create(
        self,
        name: str,
        *,
        dimension: int,
        encoder: Model,
        passage_prefix: str = "",
        parameters: CollectionParameters = DEFAULT_PARAMETERS,
        hidden: bool = False,
        incarnation: str = "",
        deadline: Deadline,
    ) -> Collection:
        deadline.require("create")
        require_supported(parameters.lexical)
        if name in self._collections or name in self._aliases:
            raise _exists(name)
        encoder = replace(encoder, device="")
        self._collections[name] = _Kept(
            dimension, encoder, passage_prefix, parameters, hidden, incarnation or uuid4().hex
        )
        return self._describe(name)

    async def reveal(self, name: str, *, incarnation: str, document_count: int, deadline: Deadline) -> Collection:
        deadline.require("reveal")
        kept = self._import(name, incarnation)
        if len(kept.documents) != document_count:
            raise InferenceFailed("COUNT_MISMATCH", f"{len(kept.documents)} documents, not {document_count}")
        kept.hidden = False
        return self._describe(name)

    async def describe(self, name: str, *, deadline: Deadline) -> Collection:
        deadline.require("describe")
        self._kept(name)
        return self._describe(self._aliases.get(name, name))

    async def list(self, *, deadline: Deadline) -> Sequence[Collection]:
        deadline.require("list")
        return [self._describe(name) for name, kept in sorted(self._collections.items()) if not kept.hidden]

    async def drop(
        self, name: str, *, with_aliases: bool = False, incarnation: str | None = None, deadline: Deadline
    ) -> None:
        deadline.require("drop")
        if incarnation is not None:
            self._import(name, incarnation)
        if name in self._aliases:
            raise InvalidRequest("NAME_IS_ALIAS", "it is an alias", field="collection")
        self._own(name)
        if self._pointing(name) and not with_aliases:
            raise Misconfigured("COLLECTION_ALIASED", f"{name} is found as {self._pointing(name)}")
        self._aliases = {alias: target for alias, target in self._aliases.items() if target != name}
        del self._collections[name]

    async def assign_alias(self, alias: str, collection: str, *, deadline: Deadline) -> None:
        deadline.require("assign_alias")
        if self._own(collection).hidden:
            raise _not_found(collection)
        if alias in self._collections:
            raise _exists(alias)
        self._aliases[alias] = collection

    async def delete_alias(self, alias: str, *, deadline: Deadline) -> None:
        deadline.require("delete_alias")
        if alias not in self._aliases:
            raise NotFound("ALIAS_NOT_FOUND", "there is no alias of that name", alias=alias)
        del self._aliases[alias]

    async def scan(
        self,
        name: str,
        *,
        after: Cursor | None,
        limit: int,
        filter: Filter | None = None,  # noqa: A002 - the port's word
        incarnation: str | None = None,
        deadline: Deadline,
    ) -> Page:
        deadline.require("scan")
        kept = self._kept(name)
        if incarnation not in (None, kept.incarnation):
            raise Unavailable("COLLECTION_REPLACED", "it is another one by now")
        start = 0 if after is None else int(after)
        ids = kept.matching(filter)
        some = ids[start : start + limit]
        documents = [replace(kept.documents[one], text=_usable(kept.documents[one].text) or "") for one in some]
        vectors = [np.asarray(kept.vectors[one], np.float32) for one in some]
        following = start + limit if start + limit < len(ids) else None
        return Page(documents=documents, vectors=vectors, next=following)

    async def count(self, name: str, *, filter: Filter | None = None, deadline: Deadline) -> int:  # noqa: A002
        deadline.require("count")
        return len(self._kept(name).matching(filter))

    async def upsert(
        self,
        name: str,
        documents: Sequence[Document],
        vectors: Sequence[Vector],
        *,
        incarnation: str | None = None,
        deadline: Deadline,
    ) -> None:
        deadline.require("upsert")
        kept = self._kept(name) if incarnation is None else self._import(name, incarnation)
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

    async def get(
        self, name: str, ids: Sequence[DocumentId], *, with_parent_texts: bool = False, deadline: Deadline
    ) -> Sequence[Document]:
        deadline.require("get")
        kept = self._kept(name)
        found = [kept.documents[one] for one in ids if one in kept.documents]
        whole = found if with_parent_texts else [replace(one, parent_text=None) for one in found]
        return [replace(one, text=_usable(one.text) or "") for one in whole]

    async def search(
        self,
        name: str,
        queries: Sequence[ListQuery],
        *,
        encoder: Model | None,
        limit: int,
        filter: Filter | None,  # noqa: A002 - the port's word
        corpus: Filter | None = None,
        payload_fields: Sequence[str],
        with_vectors: bool = False,
        deadline: Deadline,
    ) -> Found:
        deadline.require("search")
        kept = self._kept(name)
        require_encoder(name, kept.encoder, encoder)
        if encoder is not None:
            note_precision(self._aliases.get(name, name), kept.encoder, encoder)
        found, counted = kept.matching(filter), kept.matching(corpus)
        lists = []
        for scores in [kept.scores(name, query, found, counted) for query in queries]:
            best = sorted(scores, key=lambda one: (-scores[one], _order(one)))[:limit]
            pool = [kept.candidate(one, scores[one], payload_fields, with_vector=with_vectors) for one in best]
            lists.append(RankedList(candidates=pool))
        return Found(lists=lists, collection=self._aliases.get(name, name), time=ServerTime())

    async def aclose(self) -> None:
        self._collections.clear()

    def _kept(self, name: str) -> _Kept:
        kept = self._own(self._aliases.get(name, name))
        if kept.hidden:
            raise _not_found(name)
        return kept

    def _import(self, name: str, incarnation: str) -> _Kept:
        kept = self._collections.get(name)
        if kept is None or not kept.hidden or kept.incarnation != incarnation:
            raise Unavailable("IMPORT_LOST", "it is gone")
        return kept

    def _own(self, name: str) -> _Kept:
        if name not in self._collections:
            raise _not_found(name)
        return self._collections[name]

    def _pointing(self, name: str) -> Sequence[str]:
        return sorted(alias for alias, target in self._aliases.items() if target == name)

    def _describe(self, name: str) -> Collection:
        kept = self._own(name)
        return Collection(
            name=name,
            document_count=len(kept.documents),
            dimension=kept.dimension,
            encoder=kept.encoder,
            passage_prefix=kept.passage_prefix,
            parameters=kept.parameters,
            aliases=self._pointing(name),
            incarnation=kept.incarnation,
        )


def _exists(name: str) -> AlreadyExists:
    return AlreadyExists("COLLECTION_EXISTS", "there is a collection of that name", collection=name)


def _not_found(name: str) -> NotFound:
    return NotFound("COLLECTION_NOT_FOUND", "there is no collection of that name", collection=name)


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
    if isinstance(wanted, TextMatch):
        stored = " ".join(one for one in elements if isinstance(one, str))
        return bool(words_of(wanted.text)) and words_of(wanted.text) <= words_of(stored)
    comparable = instant_of if isinstance(wanted, DateRange) else _number_of
    return any(_within(wanted, comparable(one)) for one in elements)


def words_of(text: str) -> set[str]:
    """Return the words of a text as TextMatch compares them."""
    return set(re.findall(r"[^\W_]+", text.lower()))


def instant_of(value: Any) -> datetime | None:
    """Return the instant that a payload value is, as DateRange compares it."""
    if not isinstance(value, str) or not INSTANT.fullmatch(value):
        return None
    try:
        read = datetime.fromisoformat(value.upper())
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def _number_of(value: Any) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else value


def _within(bounds: Range | DateRange, value: Any) -> bool:
    return value is not None and (
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
    length = np.linalg.norm(numbers)
    return numbers if abs(length - 1) < 2e-7 else np.asarray(numbers / length, np.float32).astype(np.float64)
