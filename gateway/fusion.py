"""How several ranked lists become one. Pure: knows no store, no clock and no transport."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import fsum
from typing import NamedTuple

import numpy as np

from gateway.ids import sort_key
from gateway.ports import Candidate, DenseQuery, DocumentId, ListQuery


class FusionMethod(Enum):
    """How the fused score of a document comes about; a list without the document adds nothing to any."""

    RRF = "rrf"
    """Reciprocal rank fusion: the sum of weight / (k + rank), ranks from 1."""
    WEIGHTED = "weighted"
    """The sum of weight x score, scores of each list scaled by `min_max`."""
    DBSF = "dbsf"
    """Distribution-based: the sum of scores, those of each list scaled by `three_sigma`. Weights do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """How lists are to be fused."""

    method: FusionMethod = FusionMethod.WEIGHTED
    """The default was never significantly below vectors alone, and ranks alone were on three sets (docs/quality.md)."""
    rrf_k: int = 60
    """How little the first ranks stand out. 60 as in Cormack, Clarke and Buettcher (2009)."""
    dense_weight: float = 0.5
    """Weight of all lists of vectors together, 0 to 1; see `weights`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedList:
    """A list to be fused."""

    name: str
    weight: float
    candidates: Sequence[Candidate]
    """Highest score first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRank:
    """Where a list had a document."""

    list: str
    rank: int
    """From 1."""
    score: float
    """In that list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """A document of the fused list."""

    candidate: Candidate
    """As in the first list that had it, with the fused score."""
    lists: Sequence[ListRank] = ()
    """Where each list had it, in the order of the lists; empty where there was one list."""


def weights(queries: Sequence[ListQuery], dense_weight: float) -> list[float]:
    """Return the weight of each query's list; together they are 1.

    Lists of vectors share `dense_weight` evenly, lists of words the rest. Where there is only one kind it has all.
    """
    dense = sum(isinstance(query, DenseQuery) for query in queries)
    lexical = len(queries) - dense
    if not dense or not lexical:
        return [1 / len(queries) for _ in queries]
    shares = (dense_weight / dense, (1 - dense_weight) / lexical)
    return [shares[0] if isinstance(query, DenseQuery) else shares[1] for query in queries]


def fuse(lists: Sequence[WeightedList], fusion: Fusion, *, limit: int | None = None) -> list[Fused]:
    """Make one list of several: highest fused score first, equal scores by id.

    One list stays as it is, with its order and its scores. Several are fused even where only one found anything. What
    only lists of weight 0 have gets the score 0 from them and comes last, also behind what a list that counts scales
    to 0. A document counts once in a list, at its first place.

    Args:
        lists: Any number.
        fusion: How.
        limit: How many documents are wanted; None is all.

    Source: Cormack, Clarke and Buettcher (2009), "Reciprocal Rank Fusion outperforms Condorcet and individual Rank
    Learning Methods", SIGIR; a weight is a factor of what a list adds. Qdrant counts ranks from 0, so that its k of 61
    is 60 here, and its weight divides the rank: a first place adds nearly the same at any weight, only that further
    places add less.
    """
    if len(lists) == 1:
        return [Fused(candidate=candidate) for candidate in _distinct(lists[0].candidates)[:limit]]
    places: dict[DocumentId, list[_Place]] = {}
    for one in lists:
        for place in _places(one, fusion):
            places.setdefault(place.candidate.id, []).append(place)
    # An exact sum is the same in whatever order the lists come.
    scores = {document: fsum(place.share for place in some) for document, some in places.items()}
    counted = {document for document, some in places.items() if any(place.counts for place in some)}
    order = sorted(places, key=lambda document: (document not in counted, -scores[document], sort_key(document)))
    return [_fused(places[document], scores[document]) for document in order[:limit]]


def min_max(scores: Sequence[float]) -> list[float]:
    """Scale scores so that the least is 0 and the greatest 1; equal ones are all 1.

    Source: Lee (1997), "Analyses of Multiple Evidence Combination", SIGIR; as a weighted sum of a dense and a lexical
    list in Bruch, Gai and Ingber (2023), "An Analysis of Fusion Functions for Hybrid Retrieval", TOIS.
    """
    if not scores:
        return []
    least, greatest = min(scores), max(scores)
    return [(score - least) / (greatest - least) if greatest > least else 1.0 for score in scores]


def three_sigma(scores: Sequence[float]) -> list[float]:
    """Scale scores so that the mean is 0.5, and three standard deviations below and above it are 0 and 1.

    The deviation is the sample's (n - 1). Nothing is cut off: an outlier may go beyond. Equal scores, and a single
    one, are 0.5.

    Source: `distr_norm` in lib/segment/src/common/score_fusion.rs of Qdrant.
    """
    if not scores:
        return []
    # Equal scores less the first are exactly 0, and so is their deviation.
    values = np.asarray(scores, dtype=np.float64) - scores[0]
    sigma = values.std(ddof=1) if len(values) > 1 else 0.0
    if not sigma:
        return [0.5] * len(scores)
    scaled: list[float] = ((values - values.mean()) / (6 * sigma) + 0.5).tolist()
    return scaled


class _Place(NamedTuple):
    list: str
    rank: int
    candidate: Candidate
    share: float
    counts: bool
    """Whether the list has a say in the order."""


def _places(one: WeightedList, fusion: Fusion) -> list[_Place]:
    candidates = _distinct(one.candidates)
    shares = _shares([candidate.score for candidate in candidates], one.weight, fusion)
    counts = one.weight > 0 or fusion.method is FusionMethod.DBSF
    pairs = zip(candidates, shares, strict=True)
    return [_Place(one.name, rank, candidate, share, counts) for rank, (candidate, share) in enumerate(pairs, 1)]


def _fused(places: Sequence[_Place], score: float) -> Fused:
    lists = [ListRank(list=place.list, rank=place.rank, score=place.candidate.score) for place in places]
    return Fused(candidate=replace(places[0].candidate, score=score), lists=lists)


def _shares(scores: Sequence[float], weight: float, fusion: Fusion) -> list[float]:
    """Return what a list adds to the fused scores of its documents, which are in order."""
    match fusion.method:
        case FusionMethod.RRF:
            return [weight / (fusion.rrf_k + rank) for rank in range(1, len(scores) + 1)]
        case FusionMethod.WEIGHTED:
            return [weight * score for score in min_max(scores)]
        case FusionMethod.DBSF:
            return three_sigma(scores)


def _distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    first: dict[DocumentId, Candidate] = {}
    for candidate in candidates:
        first.setdefault(candidate.id, candidate)
    return list(first.values())
