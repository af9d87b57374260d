"""Searches in the words of Qdrant's gRPC interface."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import qdrant_edge as edge
from qdrant_client import grpc as pb

from gateway.parameters import Quantization
from gateway.ports import Candidate, DenseQuery, ListQuery, RankedList
from gateway.stores.lexical import VECTOR_NAME, lexicon
from gateway.stores.qdrant_collections import Known, QdrantIndex
from gateway.stores.qdrant_requests import numbers_of, to_pb_words
from gateway.stores.qdrant_values import from_pb_id, from_pb_payload, selector
from gateway.stores.records import MAX_TIED, cosine, lexical_index_required, rank, to_candidate, unit_vector

T = TypeVar("T")

OVERSAMPLING = 3.0
"""Candidates of the first pass over quantized vectors, per candidate asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which documents a search may find, and what of them it brings along."""

    chosen: pb.Filter | None
    corpus: pb.Filter | None
    payload_fields: Sequence[str]
    with_vectors: bool


def queried(
    name: str, known: Known, query: ListQuery, selection: Selection, index: QdrantIndex
) -> pb.QueryPoints | None:
    """Return the request of one query; how many, and in what time, is still to be said. None where none can be found.

    Errors call the collection by `name`, the one that it was asked for by.

    Raises:
        Misconfigured: `VECTOR_SIZE_MISMATCH` or `LEXICAL_INDEX_REQUIRED`.
        InferenceFailed: A vector is not finite or has no length.
    """
    if isinstance(query, DenseQuery):
        return _by_vector(known, unit_vector(query.vector, known.dimension), selection, index)
    if known.parameters.lexical is None:
        raise lexical_index_required(name)
    words = lexicon(known.parameters.lexical).query(query.text)
    return None if words is None else _by_words(known, words, selection)


async def ranked(
    request: pb.QueryPoints | None,
    limit: int,
    selection: Selection,
    ask: Callable[[pb.QueryPoints], Awaitable[pb.QueryResponse]],
    index: QdrantIndex,
) -> RankedList:
    """Ask until the list's last score ends, so that the ids and not the server's whim decide who is in."""
    if request is None:
        return RankedList(candidates=())
    compute, most, last = 0, limit + 1, limit + MAX_TIED
    while True:
        request.limit = most
        if not request.using:
            request.params.hnsw_ef = max(index.ef, most)
        answer = await ask(request)
        compute += _nanoseconds(answer.time)
        found = [_candidate(one, request, selection.payload_fields) for one in answer.result]
        found.sort(key=rank)
        if len(found) < most or most >= last or found[-1].score < found[limit - 1].score:
            return RankedList(candidates=found[:limit], compute=compute)
        most = min(4 * most, last)


async def together(calls: Sequence[Coroutine[Any, Any, T]]) -> Sequence[T]:
    """Await all calls at once; where one fails, the others are given up."""
    if len(calls) == 1:
        return [await calls[0]]
    tasks = [asyncio.create_task(one) for one in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _by_vector(known: Known, numbers: Sequence[float], selection: Selection, index: QdrantIndex) -> pb.QueryPoints:
    params = pb.SearchParams(exact=index.exact)
    if known.parameters.quantization is not Quantization.NONE:
        # Rescored, so that a score is the cosine of the whole vectors.
        params.quantization.CopyFrom(pb.QuantizationSearchParams(rescore=True, oversampling=OVERSAMPLING))
    return _request(known, pb.VectorInput(dense=pb.DenseVector(data=numbers)), selection, params=params)


def _by_words(known: Known, words: edge.SparseVector, selection: Selection) -> pb.QueryPoints:
    # Without a corpus the server counts every document, and what was deleted until its optimizer has passed.
    params = None if selection.corpus is None else pb.SearchParams(idf=pb.IdfParams(corpus=selection.corpus))
    return _request(known, pb.VectorInput(sparse=to_pb_words(words)), selection, using=VECTOR_NAME, params=params)


def _request(known: Known, nearest: pb.VectorInput, selection: Selection, **others: Any) -> pb.QueryPoints:
    return pb.QueryPoints(
        collection_name=known.name,
        query=pb.Query(nearest=nearest),
        filter=selection.chosen,
        with_payload=selector(selection.payload_fields),
        with_vectors=pb.WithVectorsSelector(enable=selection.with_vectors),
        **others,
    )


def _candidate(point: pb.ScoredPoint, request: pb.QueryPoints, payload_fields: Sequence[str]) -> Candidate:
    score = point.score if request.using else cosine(point.score)
    vector = numbers_of(point.vectors) if request.with_vectors.enable else None
    return to_candidate(from_pb_id(point.id), score, from_pb_payload(point.payload), payload_fields, vector)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9) if math.isfinite(seconds) and seconds > 0 else 0
