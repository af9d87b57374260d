"""What can fill a pool, by name: the searches that the gateway is asked for, and two baselines computed beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import InvalidRequest

DENSE, LEXICAL, WEIGHTED, EXACT, LSA = "dense", "lexical", "weighted", "exact", "lsa-12"
NO_FUNCTION_WORDS, STEMS = OTHER_WORDS = ("lexical-no-function-words", "lexical-stems")
"""BM25 over words that are indexed in another way."""
WEIGHTS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Weights of the dense list that are tried on dev."""
EVEN = 0.5
"""The weight where there is no dev split to choose one on; the gateway's own default."""
RRF_K = 60
"""Of reciprocal rank fusion: Cormack, Clarke and Buettcher, SIGIR 2009; the gateway's own default."""


class Kept(Enum):
    """How the collection that an option searches is kept."""

    WORDS = "words"
    """Vectors and words."""
    NO_FUNCTION_WORDS = "no-function-words"
    STEMS = "stems"
    SENTENCES = "sentences"
    """Every sentence by itself."""
    PLAIN = "plain"
    """Vectors alone; nothing searches it, it is there to compare its size with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to fill a pool."""

    name: str
    kept: Kept | None
    """Which collection is searched; None where the evaluation computes the pool itself."""
    retrieval: pb.Retrieval = field(default_factory=pb.Retrieval)
    rerank_parent: bool = False
    """Whether the reranker reads the whole document where a sentence was found."""
    component_count: int = 0
    """Of latent semantic analysis; 0 for everything else."""

    @property
    def synonyms(self) -> bool:
        """Whether it needs the data set's synonyms."""
        return self.retrieval.synonyms != pb.SYNONYM_USE_UNSPECIFIED

    def request(self, query: str, lang: str, *, collection: str, size: int) -> pb.SearchRequest:
        """Ask for the whole pool, in retrieval order.

        Args:
            query: The question.
            lang: Its language, as the synonyms name it.
            collection: Name of the collection.
            size: Of the pool.
        """
        retrieval = pb.Retrieval()
        retrieval.CopyFrom(self.retrieval)
        retrieval.language = lang
        parts = self.kept is Kept.SENTENCES
        return pb.SearchRequest(
            query=query,
            collection=collection,
            pool_size=size,
            top_k=1,
            rerank=pb.RERANK_OFF,
            include_pool=True,
            retrieval=retrieval,
            fold_to_parent=parts,
            # Where the reranker is to read the sentence, the sentence has to be in the answer.
            return_parent=parts and self.rerank_parent,
        )


def weighted(dense_weight: float) -> Option:
    """Return the weighted sum of dense and lexical scores under that weight."""
    fusion = pb.Fusion(method=pb.FUSION_METHOD_WEIGHTED, dense_weight=dense_weight)
    retrieval = pb.Retrieval(mode=pb.RETRIEVAL_MODE_HYBRID, fusion=fusion)
    return Option(name=WEIGHTED, kept=Kept.WORDS, retrieval=retrieval)


def chosen(names: Sequence[str]) -> tuple[Option, ...]:
    """Return options by name, in the study's order; none named are all. Dense, which all are compared with, is first.

    Raises:
        InvalidRequest: There is no such option.
    """
    if unknown := [name for name in names if name not in OPTIONS]:
        raise InvalidRequest(
            "OPTION_UNKNOWN", f"there is no {unknown[0][:40]!r}; there are {', '.join(OPTIONS)}", field="options"
        )
    return tuple(option for option in OPTIONS.values() if not names or option.name in {DENSE, *names})


def _searched(name: str, retrieval: pb.Retrieval, kept: Kept = Kept.WORDS) -> Option:
    return Option(name=name, kept=kept, retrieval=retrieval)


_WORDS = pb.Retrieval(mode=pb.RETRIEVAL_MODE_LEXICAL)
_RRF = pb.Fusion(method=pb.FUSION_METHOD_RRF, rrf_k=RRF_K)
_ALL = (
    _searched(DENSE, pb.Retrieval(mode=pb.RETRIEVAL_MODE_DENSE)),
    _searched(LEXICAL, _WORDS),
    _searched(NO_FUNCTION_WORDS, _WORDS, Kept.NO_FUNCTION_WORDS),
    _searched(STEMS, _WORDS, Kept.STEMS),
    _searched("rrf", pb.Retrieval(mode=pb.RETRIEVAL_MODE_HYBRID, fusion=_RRF)),
    weighted(EVEN),
    _searched(
        "dbsf",
        pb.Retrieval(mode=pb.RETRIEVAL_MODE_HYBRID, fusion=pb.Fusion(method=pb.FUSION_METHOD_DBSF)),
    ),
    _searched("lexical+synonyms", pb.Retrieval(mode=pb.RETRIEVAL_MODE_LEXICAL, synonyms=pb.SYNONYM_USE_LEXICAL)),
    _searched("dense+synonyms", pb.Retrieval(mode=pb.RETRIEVAL_MODE_DENSE, synonyms=pb.SYNONYM_USE_DENSE)),
    _searched(
        "rrf+synonyms",
        pb.Retrieval(mode=pb.RETRIEVAL_MODE_HYBRID, fusion=_RRF, synonyms=pb.SYNONYM_USE_BOTH),
    ),
    Option(name="sentences", kept=Kept.SENTENCES),
    Option(name="sentences-rerank-parent", kept=Kept.SENTENCES, rerank_parent=True),
    Option(name=LSA, kept=None, component_count=12),
    Option(name="lsa-128", kept=None, component_count=128),
    Option(name=EXACT, kept=None),
)
OPTIONS: Mapping[str, Option] = {option.name: option for option in _ALL}
