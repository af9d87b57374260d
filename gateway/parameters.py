"""How a collection is kept, and how it is. Knows no transport and no engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Quantization(Enum):
    """How vectors are held for the first pass of a search; the score is always of the whole vector."""

    NONE = "none"
    INT8 = "int8"
    BINARY = "binary"


class IndexKind(Enum):
    """What an index of payload values serves. None of them changes an answer.

    (A fraction without a remainder, which no RPC of ours stores, is to an index of integers the integer.)
    """

    KEYWORD = "keyword"
    """AnyOf of text."""
    INTEGER = "integer"
    """AnyOf of whole numbers."""
    FLOAT = "float"
    """Range; a DateRange of the key is refused."""
    BOOL = "bool"
    """AnyOf of a truth value."""
    DATETIME = "datetime"
    """DateRange; a Range or an AnyOf of numbers of the key is refused."""
    TEXT = "text"
    """TextMatch, which is refused without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadIndex:
    """An index of the payload values at a key; dots descend into objects."""

    key: str
    kind: IndexKind


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionParameters:
    """How a collection is kept."""

    hnsw_m: int = 16
    """Links per vector in the approximate index; Qdrant's own default."""
    hnsw_ef_construct: int = 128
    """Neighbours looked at while that is built; Qdrant's own default is 100."""
    on_disk: bool = False
    """Whether vectors are read from disk as needed instead of being kept in memory."""
    quantization: Quantization = Quantization.NONE
    shard_count: int = 1
    replication_factor: int = 1
    payload_indexes: Sequence[PayloadIndex] = ()


DEFAULT_PARAMETERS = CollectionParameters()


class CollectionStatus(Enum):
    """How a collection is, in Qdrant's colours."""

    GREEN = "green"
    """Everything is indexed."""
    YELLOW = "yellow"
    """It is being indexed; searches are right and may be slower."""
    GREY = "grey"
    """Indexing waits for the next write."""
    RED = "red"
    """Something failed; the store's log says what."""
    UNKNOWN = "unknown"
    """The store says something else."""
