"""Points and queries in the words of qdrant-edge."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import qdrant_edge as edge

from gateway.ports import Vector
from gateway.stores.conditions import include_paths, quoted
from gateway.stores.lexical import VECTOR_NAME
from gateway.stores.records import PARENT_TEXT_KEY, cosine, payload_keys

DENSE = [""]
"""Asks for the unnamed vector alone."""


def shard_config(dimension: int, *, on_disk: bool, lexical: bool) -> edge.EdgeConfig:
    """Return how the engine keeps a collection."""
    dense = edge.EdgeVectorParams(size=dimension, distance=edge.Distance.Cosine, on_disk=on_disk)
    words = edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf, on_disk=on_disk)
    # Threshold 0: no approximate index, ever. One search thread: the shard is one segment.
    return edge.EdgeConfig(
        vectors=dense,
        sparse_vectors={VECTOR_NAME: words} if lexical else None,
        optimizers=edge.EdgeOptimizersConfig(indexing_threshold=0),
        max_search_threads=1,
    )


def stored_vectors(numbers: list[float], words: edge.SparseVector | None) -> Any:
    """Return a document's vectors as the engine stores them."""
    return numbers if words is None else {"": numbers, VECTOR_NAME: words}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One query of a search."""

    query: edge.Query
    params: edge.SearchParams
    score: Callable[[float], float]
    """What the engine's score is to us."""

    def request(
        self, limit: int, chosen: edge.Filter | None, payload_fields: Sequence[str] | None, *, with_vectors: bool
    ) -> edge.QueryRequest:
        """Return what asks the engine; None for `payload_fields` asks for ids and scores alone."""
        return edge.QueryRequest(
            limit=limit,
            query=self.query,
            filter=chosen,
            params=self.params,
            with_vector=DENSE if with_vectors else False,
            with_payload=False if payload_fields is None else selector(payload_fields),
        )


def by_vector(numbers: list[float]) -> Asked:
    """Ask for the nearest vectors, compared one by one."""
    return Asked(query=edge.Query.Nearest(numbers), params=edge.SearchParams(exact=True), score=cosine)


def by_words(words: edge.SparseVector, corpus: edge.Filter | None) -> Asked:
    """Ask for the documents with the words, which are as rare as they are in the corpus; None is every document.

    The engine's own counts go on to hold what was deleted, until the collection is next opened. Those under a filter do
    not, so that one is always given; where it lets everything through it costs 0.2 ms for 20,000 documents.
    """
    idf = edge.IdfParams(corpus=edge.Filter() if corpus is None else corpus)
    query = edge.Query.Nearest(words, using=VECTOR_NAME)
    return Asked(query=query, params=edge.SearchParams(idf=idf), score=float)


def dense_of(vector: Any) -> Vector:
    """Return the numbers of an unnamed vector that the engine gave."""
    return np.asarray(vector, np.float32)


def selector(payload_fields: Sequence[str]) -> Any:
    """Return what asks for no more of the payload than is needed."""
    paths = include_paths(payload_keys(payload_fields))
    if paths is None:
        return edge.PayloadSelector.Exclude([quoted(PARENT_TEXT_KEY)])
    return edge.PayloadSelector.Include(list(paths))
