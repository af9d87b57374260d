"""How a pool is kept from being full of likes: fewer per payload value, and maximal marginal relevance.

Pure: knows no store, no clock and no transport.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.fusion import Fused
from gateway.ports import Payload

Floats = npt.NDArray[np.floating[Any]]

MOST_COMPARED = 1_000
"""Documents that `mmr` chooses among: every pair of them is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diversity:
    """How different the documents of a pool are to be."""

    mmr_lambda: float | None = None
    """1 is relevance alone, 0 difference alone; None is not applied."""
    group_by: str = ""
    """Payload key; dots descend into objects. Empty is not applied."""
    group_size: int = 1
    """Documents per value of it."""

    @property
    def group_field(self) -> str:
        """The payload key at the top that groups are read from; empty where they are not."""
        return self.group_by.partition(".")[0]

    @property
    def needs_vectors(self) -> bool:
        """Whether candidates have to bring their vectors."""
        return self.mmr_lambda is not None


def grouped(found: Sequence[Fused], *, key: str, size: int) -> list[Fused]:
    """Keep, in order, at most `size` documents with one value at a payload key.

    A missing value and null are not limited. A list counts as each of its elements, and its document is kept where
    every one of them has room. Values are compared as JSON: 1 is 1.0, and neither "1" nor true.

    Args:
        found: Best first.
        key: Dots descend into objects.
        size: At least 1.
    """
    taken: Counter[Hashable] = Counter()
    kept = []
    for one in found:
        values = _values(one.candidate.payload, key)
        if all(taken[value] < size for value in values):
            taken.update(values)
            kept.append(one)
    return kept


def mmr(found: Sequence[Fused], *, lambda_: float, count: int) -> list[Fused]:
    """Choose documents that are relevant and differ from those already chosen: maximal marginal relevance.

    Relevance is the retrieval score and similarity the cosine of the documents' vectors, each scaled to 0 to 1 by its
    least and its greatest here. Unscaled they could not be weighed against each other: a fused score is of another
    size than a cosine, and cosines of E5 crowd into 0.7 to 1, so that difference would count for next to nothing.

    Only the first 1,000 documents are considered. Time and memory grow with the square of their number, and time with
    `count` times their number besides.

    Args:
        found: Highest score first, each with its vector, float32 [dimension] of length 1.
        lambda_: 1 keeps the order; 0 takes, after the first, what is farthest from all chosen.
        count: How many are wanted.

    Returns:
        At most `count` documents in the order in which they were chosen, scores as they were.

    Raises:
        ValueError: A document has no vector; our bug.

    Source: Carbonell and Goldstein (1998), "The Use of MMR, Diversity-Based Reranking for Reordering Documents and
    Producing Summaries", SIGIR.
    """
    some = found[:MOST_COMPARED]
    if not some:
        return []
    relevance = scaled(np.array([one.candidate.score for one in some]))
    order = marginal_order(relevance, scaled(_cosines(some)), lambda_=lambda_, count=count)
    return [some[index] for index in order]


def scaled(values: Floats) -> Floats:
    """Scale so that the least is 0 and the greatest 1; equal ones are all 0. Any shape, which stays."""
    spread = np.ptp(values)
    return (values - values.min()) / spread if spread else np.zeros_like(values)


def marginal_order(relevance: Floats, similarity: Floats, *, lambda_: float, count: int) -> list[int]:
    """Choose the most relevant, then each time the greatest lambda x relevance - (1 - lambda) x similarity.

    Args:
        relevance: Floating [n], n at least 1.
        similarity: Floating [n, n], symmetric; a document's is the greatest to any that is chosen. The diagonal is not
            looked at.
        lambda_: 0 to 1.
        count: How many are wanted.

    Returns:
        At most `count` indices, in the order of choice; the least of those that are equally good.
    """
    chosen = [int(relevance.argmax())]
    nearest = np.full(len(relevance), -np.inf)
    while len(chosen) < min(count, len(relevance)):
        nearest = np.maximum(nearest, similarity[chosen[-1]])
        margin = lambda_ * relevance - (1 - lambda_) * nearest
        margin[chosen] = -np.inf
        chosen.append(int(margin.argmax()))
    return chosen[:count]


def _cosines(found: Sequence[Fused]) -> Floats:
    """Return float32 [n, n]; the diagonal is the least of the others, which keeps it out of a scaling."""
    vectors = [one.candidate.vector for one in found if one.candidate.vector is not None]
    if len(vectors) < len(found):
        raise ValueError(f"{len(found) - len(vectors)} of {len(found)} documents have no vector")
    stacked = np.stack(vectors)
    cosines: Floats = stacked @ stacked.T
    np.fill_diagonal(cosines, cosines.min())
    return cosines


def _values(payload: Payload, key: str) -> set[Hashable]:
    """Return the distinct values at a key, without null."""
    value: Any = payload
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    elements = value if isinstance(value, list) else [value]
    return {_comparable(element) for element in elements if element is not None}


def _comparable(value: Any) -> Hashable:
    """Return what equals that of another JSON value exactly where both are equal; to Python, True is 1."""
    match value:
        case Mapping():
            return ("object", frozenset((name, _comparable(inner)) for name, inner in value.items()))
        case list():
            return ("list", tuple(_comparable(inner) for inner in value))
        case bool():
            return ("bool", value)
        case int() | float():
            return ("number", value)
        case _:
            return ("text or null", value)
