"""What goes into a vector store and what comes out of it, checked. Knows no engine.

A document is stored as one point. Its payload stays at the top level, so that filters find its keys; text and text id
lie beside it under keys of our own, which never leave this package.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.ids import sort_key
from gateway.part_ids import from_tagged, to_tagged
from gateway.ports import ANSWER_TOO_LARGE, Candidate, Document, Model, Part, Payload, Vector
from gateway.stores.point_ids import ID_KEY, to_document_id
from serving.errors import AlreadyExists, InferenceFailed, InvalidRequest, Misconfigured, NotFound, Unavailable

TEXT_KEY = "_twostage_text"
"""Payload key of the document's text."""

PARENT_TEXT_KEY = "_twostage_parent_text"
"""Payload key of the whole text of a split document, beside its first part. Read only where it is asked for."""

PART_KEY = "_twostage_part"
"""Payload key of what a part of a split document is a part of."""

RESERVED_PREFIX = "_twostage"
"""Payload keys that begin with this are ours."""

ALL_FIELDS = "*"
"""Stands for every payload key."""

MAX_PAYLOAD_DEPTH = 64
"""Objects and lists within one another. From 127 on, qdrant-edge 0.9.0 accepts a point that it can never read again,
and with it in the write-ahead log the whole collection no longer opens (measured)."""

MAX_TIED = 1_000
"""Most candidates that are read beyond a list whose last score goes on after it. One always is, to see whether it
does; further ones cost a second call, and where more than this are equal, the server chooses among them."""

UNIT_TOLERANCE = 2e-7
"""How far a length of 1 may be off: three times what rounding to float32 leaves, and within the 1e-6 in which the
engines leave a vector as it is. So a vector that was stored once is stored again bit for bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadLimits:
    """What a store can hold of a payload."""

    depth: int = MAX_PAYLOAD_DEPTH
    """Objects and lists within one another."""
    integers: range = range(-(2**63), 2**64)
    """Whole numbers that come back as they were."""


DEFAULT_LIMITS = PayloadLimits()


def unit_vector(vector: Vector, dimension: int) -> list[float]:
    """Check a vector and scale it to length 1; one that has it already keeps every bit.

    Scaled here, because the engine squares in float32: 1e30 overflows there and is stored as a vector of zeros.

    Args:
        vector: float32 [dimension].
        dimension: What the collection holds.

    Returns:
        The numbers as a list, which the binding reads faster than an array (16 us against 23 us for 384).

    Raises:
        Misconfigured: `VECTOR_SIZE_MISMATCH`.
        InferenceFailed: `VECTOR_NOT_FINITE`, or `VECTOR_ZERO` where it has no length.
    """
    numbers = np.asarray(vector, dtype=np.float64)
    if numbers.shape != (dimension,):
        raise Misconfigured(
            "VECTOR_SIZE_MISMATCH",
            f"the vector has {numbers.size} dimensions, the collection {dimension}; "
            "serve the encoder that the collection was made with, or index again into a new collection",
            actual=str(numbers.size),
            expected=str(dimension),
        )
    if not np.isfinite(numbers).all():
        raise InferenceFailed("VECTOR_NOT_FINITE", "the encoder gave a vector with a number that is not finite")
    length = float(np.linalg.norm(numbers))
    if length == 0.0:
        raise InferenceFailed("VECTOR_ZERO", "the encoder gave a vector of zeros")
    if abs(length - 1.0) <= UNIT_TOLERANCE:
        length = 1.0
    scaled: list[float] = (numbers / length).astype(np.float32).tolist()
    return scaled


def stored_payload(document: Document, *, field: str, limits: PayloadLimits = DEFAULT_LIMITS) -> dict[str, Any]:
    """Return the payload a document is stored with.

    Args:
        document: The document.
        field: Names it in errors, for example `documents[3]`.
        limits: What the store can hold.

    Raises:
        InvalidRequest: `PAYLOAD_KEY_RESERVED`, or `PAYLOAD_MALFORMED` where a value is no JSON or nested too deep.
    """
    where = f"{field}.payload"
    if any(isinstance(key, str) and key.startswith(RESERVED_PREFIX) for key in document.payload):
        raise InvalidRequest(
            "PAYLOAD_KEY_RESERVED", f"keys that begin with {RESERVED_PREFIX} are reserved", field=where
        )
    _check_json(document.payload, limits, depth=0, field=where)
    payload = {**document.payload, TEXT_KEY: document.text}
    if isinstance(document.id, str):
        payload[ID_KEY] = document.id
    if document.part is not None:
        part = document.part
        payload[PART_KEY] = {"parent": to_tagged(part.parent), "number": part.number, "count": part.count}
    if document.parent_text is not None:
        payload[PARENT_TEXT_KEY] = document.parent_text
    return payload


def payload_keys(payload_fields: Sequence[str]) -> Sequence[str] | None:
    """Return the payload keys to read for a search for the fields asked for; None is all but `PARENT_TEXT_KEY`."""
    return None if ALL_FIELDS in payload_fields else (*payload_fields, TEXT_KEY, ID_KEY, PART_KEY)


def to_candidate(
    point_id: Any, score: float, stored: Payload, payload_fields: Sequence[str], vector: Vector | None = None
) -> Candidate:
    """Turn a point that was found into a candidate.

    Args:
        point_id: What the document is stored under.
        score: Cosine similarity or BM25, as the engine has it.
        stored: Its stored payload, or the part of it that `payload_keys` asks for.
        payload_fields: Payload keys to keep; "*" keeps all.
        vector: float32 [dimension]; None where it was not asked for.

    Raises:
        InferenceFailed: `SCORE_NOT_FINITE`.
    """
    return Candidate(
        id=to_document_id(point_id, stored),
        score=finite(score),
        text=_usable_text(stored),
        payload=_select(stored, payload_fields),
        part=_part(stored),
        vector=vector,
    )


def finite(score: float) -> float:
    """Return a score that is one.

    Raises:
        InferenceFailed: `SCORE_NOT_FINITE`.
    """
    if not math.isfinite(score):
        raise InferenceFailed("SCORE_NOT_FINITE", "the vector store gave a score that is not finite")
    return score


def cosine(score: float) -> float:
    """Return a cosine similarity that rounding has not carried past 1; what is not finite stays as it is."""
    return min(1.0, max(-1.0, score)) if math.isfinite(score) else score


def rank(candidate: Candidate) -> tuple[float, tuple[int, int, str]]:
    """Return the sort key of a pool: highest score first, equal scores by id."""
    return (-candidate.score, sort_key(candidate.id))


def require_encoder(collection: str, made_with: Model, encoder: Model | None) -> None:
    """Check that queries' vectors come from the encoder that made the documents' vectors; None is that of no vectors.

    Args:
        collection: The name that was asked for; behind an alias the own name is not every caller's to know.
        made_with: The encoder of the documents.
        encoder: That of the queries.

    Raises:
        Misconfigured: `ENCODER_MISMATCH`.
    """
    if encoder is not None and encoder.digest != made_with.digest:
        raise Misconfigured(
            "ENCODER_MISMATCH",
            f"collection {collection} was made with {_label(made_with)}, the encoder serves {_label(encoder)}; "
            "serve that encoder or index into a new collection",
            collection=made_with.digest,
            encoder=encoder.digest,
        )


def lexical_index_required(collection: str) -> Misconfigured:
    """Return the error of a search by words in a collection, as it was asked for, that has no index of them."""
    return Misconfigured(
        "LEXICAL_INDEX_REQUIRED",
        f"collection {collection} was made without `lexical`; search it by vectors, "
        "or index again into a collection that is made with it",
        collection=collection,
    )


def collection_not_found(name: str) -> NotFound:
    """Return the error of a name that no collection has."""
    return NotFound("COLLECTION_NOT_FOUND", "there is no collection of that name", collection=name)


def collection_exists(name: str) -> AlreadyExists:
    """Return the error of a name that is taken."""
    return AlreadyExists("COLLECTION_EXISTS", "there is a collection or alias of that name", collection=name)


def answer_too_large() -> InferenceFailed:
    """Return the error of what is more than one message of a store holds."""
    return InferenceFailed(ANSWER_TOO_LARGE, "a message of the vector store is too large")


def import_lost() -> Unavailable:
    """Return the error of an import whose collection is gone, or is another one by now."""
    return Unavailable(
        "IMPORT_LOST", "what was being imported was dropped, or lost in a restart of the vector store; import it again"
    )


def require_incarnation(found: str, wanted: str | None) -> None:
    """Check that a collection is the one that was meant, and not another that was made under its name.

    Raises:
        Unavailable: `COLLECTION_REPLACED`.
    """
    if wanted is not None and found != wanted:
        raise Unavailable("COLLECTION_REPLACED", "the collection was dropped and made again meanwhile; begin again")


def require_no_aliases(name: str, target: str, aliases: Sequence[str]) -> None:
    """Check that a collection may be dropped.

    Args:
        name: What was asked for.
        target: The collection that it stands for.
        aliases: Those that forbid it.

    Raises:
        InvalidRequest: `NAME_IS_ALIAS`.
        Misconfigured: `COLLECTION_ALIASED`.
    """
    if target != name:
        raise InvalidRequest(
            "NAME_IS_ALIAS", f"it is an alias of {target}; name that, or delete it", field="collection"
        )
    if aliases:
        raise Misconfigured(
            "COLLECTION_ALIASED",
            f"collection {name} is found as {', '.join(aliases)}; point that elsewhere first, or drop it as well",
            collection=name,
            aliases=",".join(aliases),
        )


def require_count(stored: int, wanted: int) -> None:
    """Check that a collection holds what was written into it.

    Raises:
        InferenceFailed: `COUNT_MISMATCH`.
    """
    if stored != wanted:
        raise InferenceFailed("COUNT_MISMATCH", f"{stored} documents are stored where {wanted} were written")


def to_document(point_id: Any, stored: Payload) -> Document:
    """Turn a stored point back into the document it was."""
    text = _usable_text(stored) or ""
    parent_text = stored.get(PARENT_TEXT_KEY)
    return Document(
        id=to_document_id(point_id, stored),
        text=text,
        payload=_select(stored, (ALL_FIELDS,)),
        part=_part(stored),
        parent_text=parent_text if isinstance(parent_text, str) else None,
    )


def _label(model: Model) -> str:
    return f"{model.id} ({model.digest[:19]})"


def _part(stored: Payload) -> Part | None:
    match stored.get(PART_KEY):
        case {"parent": str(parent), "number": int(number), "count": int(count)}:
            return Part(parent=from_tagged(parent), number=number, count=count)
        case _:
            return None


def _usable_text(stored: Payload) -> str | None:
    text = stored.get(TEXT_KEY)
    return text if isinstance(text, str) and text.strip() else None


def _select(stored: Payload, payload_fields: Sequence[str]) -> dict[str, Any]:
    everything = ALL_FIELDS in payload_fields
    return {
        key: value
        for key, value in stored.items()
        if not key.startswith(RESERVED_PREFIX) and (everything or key in payload_fields)
    }


def _check_json(value: Any, limits: PayloadLimits, *, depth: int, field: str) -> None:
    if depth > limits.depth:
        raise InvalidRequest("PAYLOAD_MALFORMED", f"nested deeper than {limits.depth}", field=field)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise InvalidRequest("PAYLOAD_MALFORMED", "a key is not text", field=field)
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            _check_json(inner, limits, depth=depth + 1, field=field)
    elif not _plain(value, limits):
        raise InvalidRequest("PAYLOAD_MALFORMED", f"a {type(value).__name__} that cannot be stored", field=field)


def _plain(value: Any, limits: PayloadLimits) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return value in limits.integers
    return value is None or isinstance(value, str)
