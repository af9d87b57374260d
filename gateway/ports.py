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

from gateway.filters import Filter
from gateway.parameters import DEFAULT_PARAMETERS, CollectionParameters, CollectionStatus
from serving.batching import Priority
from serving.deadline import Deadline

Vector = npt.NDArray[np.float32]
Payload = Mapping[str, Any]
DocumentId = int | UUID | str
"""An unsigned 64-bit number, a UUID, or any other text."""
ANSWER_TOO_LARGE = "STORE_ANSWER_TOO_LARGE"
"""Reason of an InferenceFailed: what was asked of a store is more than one message holds."""
Cursor = int | UUID
"""Where a scan goes on; only the store that gave it knows what it means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Which model, exactly."""

    id: str
    revision: str
    digest: str
    precision: str
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderInfo:
    """What an encoder server says of itself."""

    model: Model
    dimension: int
    passage_prefix: str = ""
    """What it puts in front of every passage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTime:
    """What a stage's server says of its own time, in nanoseconds."""

    queue: int = 0
    tokenize: int = 0
    compute: int = 0

    def plus(self, other: "ServerTime") -> "ServerTime":
        """Return the time of both."""
        return ServerTime(
            queue=self.queue + other.queue,
            tokenize=self.tokenize + other.tokenize,
            compute=self.compute + other.compute,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Vectors of texts, in order."""

    vectors: Sequence[Vector]
    truncated: Sequence[bool]
    model: Model
    time: ServerTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Which part of a split document a stored one is."""

    parent: DocumentId
    number: int
    """From 1."""
    count: int
    """Parts of the parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A document of the pool."""

    id: DocumentId
    score: float
    """Of a list: cosine similarity, -1 to 1, or BM25. Of several lists: their fusion."""
    text: str | None
    """None where the stored document has no usable text."""
    payload: Payload = field(default_factory=dict)
    part: Part | None = None
    """None where it is whole."""
    vector: Vector | None = None
    """float32 [dimension] of length 1; only where it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseQuery:
    """Asks for the documents whose vectors are nearest."""

    vector: Vector
    """float32 [dimension], of any length but 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LexicalQuery:
    """Asks for the documents with the words of a text, by BM25; each word counts once."""

    text: str


ListQuery = DenseQuery | LexicalQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedList:
    """What a store finds for one query: highest score first, equal scores by id (numbers, UUIDs, then text)."""

    candidates: Sequence[Candidate]
    compute: int = 0
    """Nanoseconds in the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a store finds."""

    lists: Sequence[RankedList]
    """One per query, in order."""
    collection: str
    """The own name of what was searched, never an alias: by it the rest of what was found is read."""
    time: ServerTime
    """Of all of them together, as long as they took and not as much as they computed."""


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
    part: Part | None = None
    """None where it is whole."""
    parent_text: str | None = None
    """The whole text of the document that was split, kept with its first part; None elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some stored documents with their vectors, in the store's own order."""

    documents: Sequence[Document]
    vectors: Sequence[Vector]
    """float32 [dimension] each, of length 1, bit for bit as the store holds them."""
    next: Cursor | None
    """Where to go on; None where nothing is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """A collection and the encoder it belongs to."""

    name: str
    """Its own name, never an alias."""
    document_count: int
    dimension: int
    encoder: Model
    disk_bytes: int = 0
    passage_prefix: str = ""
    """What the encoder put in front of every passage."""
    schema_version: int = 1
    """Of the layout in which documents are stored."""
    status: CollectionStatus = CollectionStatus.GREEN
    parameters: CollectionParameters = DEFAULT_PARAMETERS
    aliases: Sequence[str] = ()
    """Other names under which it is found, sorted."""
    incarnation: str = ""
    """Tells it from one that had its name before or will have it; empty where an older gateway made it."""


# --- ports ---------------------------------------------------------------------------------------------------------


class Encoder(Protocol):
    """Text to vectors."""

    async def encode_queries(
        self, queries: Sequence[str], *, priority: Priority = Priority.INTERACTIVE, deadline: Deadline
    ) -> Encoded:
        """Encode queries, all or none; one over the token limit is InvalidRequest of the field `texts[i]`."""

    async def encode_passages(
        self, texts: Sequence[str], *, truncate: bool, priority: Priority = Priority.BULK, deadline: Deadline
    ) -> Encoded:
        """Encode passages, all or none; bulk work by default: they are to be stored, and nobody waits for one."""

    async def split(
        self, texts: Sequence[str], *, max_tokens: int | None = None, per_sentence: bool = False, deadline: Deadline
    ) -> Sequence[Sequence[str]]:
        """Split each text into passages of at most `max_tokens`, by default the limit; one within them stays whole."""

    async def info(self, *, deadline: Deadline) -> EncoderInfo:
        """Return the model being served, its dimension and its prefix."""


class Reranker(Protocol):
    """Query and passages to scores."""

    async def rerank(
        self, query: str, passages: Sequence[str], *, priority: Priority = Priority.INTERACTIVE, deadline: Deadline
    ) -> Reranked:
        """Score every passage; pairs over the limit are cut longest first and reported."""


class Writer(Protocol):
    """Queries to passages that an answer might look like."""

    async def write(self, query: str, *, deadline: Deadline) -> Sequence[str]:
        """Return such passages, at least one, none blank."""


class VectorStore(Protocol):
    """Collections of documents with one vector each; every method may be called concurrently.

    Methods that name a collection raise NotFound (`COLLECTION_NOT_FOUND`) where there is none. Except where said
    otherwise the name may be an alias, and each call is about one collection entirely, whatever becomes of the alias
    meanwhile. A hidden collection is found by `drop`, and by `upsert` and `reveal` with its incarnation only.

    Where `upsert`, `reveal` and `drop` are given an incarnation, they are about the hidden collection of the name and
    incarnation, never about another one of that name: Unavailable (`IMPORT_LOST`) where there is none.
    """

    name: str
    """"qdrant-edge" or "qdrant", as provenance shows it."""

    async def create(  # noqa: PLR0913 - a collection has so many parts
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
        """Create an empty collection; its incarnation is drawn where none is given.

        Where it fails, nothing that is not whole can be found, and what was made goes, at the latest a while after.

        Raises:
            AlreadyExists: `COLLECTION_EXISTS`, the name is a collection's, hidden ones included, or an alias.
            InvalidRequest: `PARAMETER_UNSUPPORTED`, the store cannot keep a promise of the parameters.
        """

    async def reveal(self, name: str, *, incarnation: str, document_count: int, deadline: Deadline) -> Collection:
        """Let a hidden collection be found, at once and whole.

        Raises:
            InferenceFailed: `COUNT_MISMATCH`, it does not hold exactly so many documents; it stays hidden.
        """

    async def describe(self, name: str, *, deadline: Deadline) -> Collection:
        """Return one collection, its documents counted exactly."""

    async def list(self, *, deadline: Deadline) -> Sequence[Collection]:
        """Return all collections, by name."""

    async def drop(
        self, name: str, *, with_aliases: bool = False, incarnation: str | None = None, deadline: Deadline
    ) -> None:
        """Delete a collection, its documents and its aliases.

        Raises:
            Misconfigured: `COLLECTION_ALIASED`, it has aliases and `with_aliases` is not set.
            InvalidRequest: `NAME_IS_ALIAS`.
        """

    async def assign_alias(self, alias: str, collection: str, *, deadline: Deadline) -> None:
        """Point an alias at a collection, in one step where it points at another.

        Args:
            alias: The alias; made where there is none.
            collection: A collection's own name.
            deadline: Until when.

        Raises:
            AlreadyExists: `COLLECTION_EXISTS`, the alias is the name of a collection.
        """

    async def delete_alias(self, alias: str, *, deadline: Deadline) -> None:
        """Delete an alias; NotFound (`ALIAS_NOT_FOUND`) where there is none."""

    async def scan(
        self,
        name: str,
        *,
        after: Cursor | None,
        limit: int,
        filter: Filter | None = None,  # noqa: A002 - the field's word
        incarnation: str | None = None,
        deadline: Deadline,
    ) -> Page:
        """Return up to `limit` documents under the filter from a cursor on; None begins.

        Documents that are neither written nor deleted meanwhile come exactly once.

        Raises:
            Unavailable: `COLLECTION_REPLACED`, an incarnation is given and the collection is another one by now.
        """

    async def count(self, name: str, *, filter: Filter | None = None, deadline: Deadline) -> int:  # noqa: A002
        """Count the documents under the filter, exactly."""

    async def upsert(
        self,
        name: str,
        documents: Sequence[Document],
        vectors: Sequence[Vector],
        *,
        incarnation: str | None = None,
        deadline: Deadline,
    ) -> None:
        """Store documents durably, replacing those whose id exists; all or none. Their words are indexed as the
        collection's parameters say.

        Misconfigured (`VECTOR_SIZE_MISMATCH`) where a vector has not the collection's dimension.
        """

    async def delete(self, name: str, ids: Sequence[DocumentId], *, deadline: Deadline) -> None:
        """Delete documents; ids that do not exist are no error."""

    async def get(
        self, name: str, ids: Sequence[DocumentId], *, with_parent_texts: bool = False, deadline: Deadline
    ) -> Sequence[Document]:
        """Return the documents that exist, in the order asked for; a missing text is returned as "".

        Args:
            name: The collection.
            ids: So few that one message holds what is stored under them.
            with_parent_texts: Whether first parts bring the whole text of their document; else it is not read.
            deadline: Until when.
        """

    async def search(  # noqa: PLR0913 - a query has so many parts
        self,
        name: str,
        queries: Sequence[ListQuery],
        *,
        encoder: Model | None,
        limit: int,
        filter: Filter | None,  # noqa: A002 - the field's word
        corpus: Filter | None = None,
        payload_fields: Sequence[str],
        with_vectors: bool = False,
        deadline: Deadline,
    ) -> Found:
        """Return for each query the `limit` best documents under the filter.

        Args:
            name: The collection.
            queries: At least one.
            encoder: What made the vectors among them; None where there are none.
            limit: Documents per query.
            filter: Which documents may be found.
            corpus: Which documents decide how rare a word is; None is all. Where a caller may not know of the others,
                a score must not tell of them either.
            payload_fields: The payload keys to bring along; ("*",) brings all.
            with_vectors: Whether candidates bring their vectors.
            deadline: Until when.

        Raises:
            Misconfigured: `ENCODER_MISMATCH`, the collection was made with an encoder of another digest;
                `VECTOR_SIZE_MISMATCH`, a vector has another dimension; `LEXICAL_INDEX_REQUIRED`, a query is of words
                and the collection has no index of them.
            InferenceFailed: A vector is not finite or has no length; `ANSWER_TOO_LARGE`.
            InvalidRequest: `TEXT_INDEX_REQUIRED`, the filter matches text at a key without a text index;
                `INDEX_MISMATCH`, it compares numbers at a key with an index of dates, or dates at one of numbers.
        """

    async def aclose(self) -> None:
        """Write everything down and release it."""
