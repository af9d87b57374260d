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


class LexicalTokenizer(Enum):
    """What a word is, to BM25."""

    WORD = "word"
    """A longest run of letters and digits."""
    MULTILINGUAL = "multilingual"
    """Also cuts what is written without spaces."""
    WHITESPACE = "whitespace"
    """What stands between white space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LexicalParameters:
    """How the words of texts are indexed for BM25; Robertson and Zaragoza (2009), "The Probabilistic Relevance
    Framework: BM25 and Beyond", name the constants.
    """

    k1: float = 1.5
    """How fast further occurrences of a word stop counting."""
    b: float = 0.75
    """How much a text over the average length loses."""
    average_words: float = 50.0
    """Words in a text of average length; fixed, so that a document's weights never change."""
    tokenizer: LexicalTokenizer = LexicalTokenizer.WORD
    language: str = ""
    """Of `stem` and `stop_words`: its English name in lower case."""
    stem: bool = False
    stop_words: bool = False
    """Whether the language's function words are left out."""
    extra_stop_words: Sequence[str] = ()
    fold_accents: bool = False


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
    lexical: LexicalParameters | None = None
    """How words are indexed; None is not at all."""


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
