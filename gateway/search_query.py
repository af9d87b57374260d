"""One validated search: what is asked for, and how it is to be found."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from gateway.diversity import Diversity
from gateway.filters import Filter
from gateway.fusion import Fusion
from serving.batching import Priority

MAX_DEPTH = 1_000
"""Most documents that are read from a list, unless parts or groups are left out of it."""
DIVERSE_DEPTH = 4
"""How many times the pool's size is read to choose a diverse pool from."""


class RerankMode(Enum):
    """What the reranker is for."""

    REQUIRED = "required"
    BEST_EFFORT = "best_effort"
    OFF = "off"


class RetrievalMode(Enum):
    """By what documents are found."""

    DENSE = "dense"
    LEXICAL = "lexical"
    HYBRID = "hybrid"


class HypotheticalUse(Enum):
    """What becomes of hypothetical passages."""

    AVERAGE = "average"
    """The mean of their vectors and the query's is searched in place of the query's: Gao et al. 2022, "Precise
    Zero-Shot Dense Retrieval without Relevance Labels", equation 8."""
    FUSE = "fuse"
    """Each has a list of its own."""


class SynonymUse(Enum):
    """What a collection's synonyms are applied to."""

    NONE = "none"
    LEXICAL = "lexical"
    DENSE = "dense"
    BOTH = "both"

    @property
    def words(self) -> bool:
        """Whether words are added to the query of the lexical list."""
        return self in (SynonymUse.LEXICAL, SynonymUse.BOTH)

    @property
    def vectors(self) -> bool:
        """Whether the query with its words replaced is encoded as well."""
        return self in (SynonymUse.DENSE, SynonymUse.BOTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """What fills the pool."""

    mode: RetrievalMode = RetrievalMode.DENSE
    fusion: Fusion = field(default_factory=Fusion)
    alternatives: Sequence[str] = ()
    """The query in other words."""
    hypothetical_passages: Sequence[str] = ()
    hypothetical_use: HypotheticalUse = HypotheticalUse.AVERAGE
    write: bool = False
    """Whether hypothetical passages are to be written."""
    synonyms: SynonymUse = SynonymUse.NONE
    language: str = ""
    """Of the query, as the synonyms name it; empty is any."""
    depth: int | None = None
    """Documents read from each list; None is what the pool needs."""

    @property
    def dense(self) -> bool:
        """Whether there are lists of vectors."""
        return self.mode is not RetrievalMode.LEXICAL

    @property
    def lexical(self) -> bool:
        """Whether there are lists of words."""
        return self.mode is not RetrievalMode.DENSE


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """One validated search."""

    query: str
    collection: str
    pool_size: int
    top_k: int
    filter: Filter | None = None
    rerank: RerankMode = RerankMode.REQUIRED
    payload_fields: Sequence[str] = ()
    priority: Priority = Priority.INTERACTIVE
    retrieval: Retrieval = field(default_factory=Retrieval)
    diversity: Diversity = field(default_factory=Diversity)
    fold_to_parent: bool = False
    """Whether the parts of a document count as one in `pool_size`, the best of them standing for it."""
    return_parent: bool = False
    """Whether a hit is the whole document instead of that part."""
    rerank_parent: bool = False
    """Whether the reranker reads the whole document instead of that part."""

    @property
    def depth(self) -> int:
        """Documents to read from each list at first."""
        if self.retrieval.depth is not None:
            return self.retrieval.depth
        diverse = self.diversity != Diversity()
        return min(DIVERSE_DEPTH * self.pool_size, MAX_DEPTH) if diverse else self.pool_size
