"""What the gateway asks of its three neighbours, and the records they exchange. Knows no transport and no engine.

Every method takes a `Deadline` and raises members of `serving.errors` only. All durations are whole nanoseconds on a
monotonic clock, so that sums are exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

import numpy as np
import numpy.typing as npt

from serving.deadline import Deadline

Vector = npt.NDArray[np.float32]
Payload = Mapping[str, Any]
DocumentId = int | UUID | str
"""An unsigned 64-bit number, a UUID, or any other text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Which model, exactly."""

    id: str
    revision: str
    digest: str
    precision: str
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTime:
    """What a stage's server says of its own time, in nanoseconds."""

    queue: int = 0
    tokenize: int = 0
    compute: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Vectors of texts, in order."""

    vectors: Sequence[Vector]
    truncated: Sequence[bool]
    model: Model
    time: ServerTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A document of the pool."""

    id: DocumentId
    score: float
    """Cosine similarity, -1 to 1."""
    text: str | None
    """None where the stored document has no usable text."""
    payload: Payload = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A pool in retrieval order: highest score first, equal scores by id (numbers, UUIDs, then text)."""

    candidates: Sequence[Candidate]
    time: ServerTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The reranker's word on one passage."""

    logit: float
    probability: float
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranked:
    """The outcome of one rerank."""

    scores: Sequence[Scored | None]
    """One per passage, in the order of the passages; None where a passage turned out to have no visible character."""
    model: Model
    time: ServerTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document as the caller knows it."""

    id: DocumentId
    text: str
    payload: Payload = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """A collection and the encoder it belongs to."""

    name: str
    document_count: int
    dimension: int
    encoder: Model
    disk_bytes: int = 0


# --- filters -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyOf:
    """The payload value at `key` (for a list: any element) equals one of `values`: all str, all int, or one bool."""

    key: str
    values: Sequence[str] | Sequence[int] | Sequence[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The payload number at `key` (for a list: any element) lies within the bounds."""

    key: str
    gt: float | None = None
    gte: float | None = None
    lt: float | None = None
    lte: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exists:
    """The payload has a value at `key` that is neither null nor an empty list."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HasId:
    """The document is one of these."""

    ids: Sequence[DocumentId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """All of `must`, none of `must_not` and, where there are any, at least one of `should`."""

    must: Sequence["Condition"] = ()
    should: Sequence["Condition"] = ()
    must_not: Sequence["Condition"] = ()


Condition = AnyOf | Range | Exists | HasId | Filter


# --- ports ---------------------------------------------------------------------------------------------------------


class Encoder(Protocol):
    """Text to vectors."""

    async def encode_query(self, query: str, *, deadline: Deadline) -> Encoded:
        """Encode one query; a query over the token limit is InvalidRequest."""

    async def encode_passages(self, texts: Sequence[str], *, truncate: bool, deadline: Deadline) -> Encoded:
        """Encode passages, all or none."""

    async def model(self, *, deadline: Deadline) -> tuple[Model, int]:
        """Return the model being served and its dimension."""


class Reranker(Protocol):
    """Query and passages to scores."""

    async def rerank(self, query: str, passages: Sequence[str], *, deadline: Deadline) -> Reranked:
        """Score every passage; pairs over the limit are cut longest first and reported."""


class VectorStore(Protocol):
    """Collections of documents with one vector each; every method may be called concurrently.

    Methods that name a collection raise NotFound (`COLLECTION_NOT_FOUND`) where there is none.
    """

    name: str
    """"qdrant-edge" or "qdrant", as provenance shows it."""

    async def create(self, name: str, *, dimension: int, encoder: Model, deadline: Deadline) -> Collection:
        """Create an empty collection; AlreadyExists (`COLLECTION_EXISTS`) where the name is taken."""

    async def describe(self, name: str, *, deadline: Deadline) -> Collection:
        """Return one collection, its documents counted exactly."""

    async def list(self, *, deadline: Deadline) -> Sequence[Collection]:
        """Return all collections, by name."""

    async def drop(self, name: str, *, deadline: Deadline) -> None:
        """Delete a collection and its documents."""

    async def upsert(
        self, name: str, documents: Sequence[Document], vectors: Sequence[Vector], *, deadline: Deadline
    ) -> None:
        """Store documents durably, replacing those whose id exists; all or none.

        Misconfigured (`VECTOR_SIZE_MISMATCH`) where a vector has not the collection's dimension.
        """

    async def delete(self, name: str, ids: Sequence[DocumentId], *, deadline: Deadline) -> None:
        """Delete documents; ids that do not exist are no error."""

    async def get(self, name: str, ids: Sequence[DocumentId], *, deadline: Deadline) -> Sequence[Document]:
        """Return the documents that exist, in the order asked for; a missing text is returned as ""."""

    async def search(  # noqa: PLR0913 - a query has so many parts
        self,
        name: str,
        vector: Vector,
        *,
        encoder: Model,
        pool_size: int,
        filter: Filter | None,  # noqa: A002 - the field's word
        payload_fields: Sequence[str],
        deadline: Deadline,
    ) -> Found:
        """Return the `pool_size` nearest documents under the filter.

        `payload_fields` are the payload keys to bring along; ("*",) brings all. Misconfigured
        (`ENCODER_MISMATCH`) where the collection was made with an encoder of another digest, and
        (`VECTOR_SIZE_MISMATCH`) where the vector has another dimension. InferenceFailed where it is not finite or has
        no length.
        """

    async def aclose(self) -> None:
        """Write everything down and release it."""
