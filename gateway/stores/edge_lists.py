"""Ranked lists out of an open shard of qdrant-edge. Blocking, and for one thread at a time.

A list is read with all that it brings, which is fastest. Many candidates of several lists are mostly the same
documents, so that then ids and scores are read list by list and each document once: its candidates share text, payload
and vector, which cross to another process once as well. Nothing is written in between, because the engine does one
call at a time.
"""

import marshal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

import qdrant_edge as edge

from gateway.ids import sort_key
from gateway.ports import Candidate, RankedList
from gateway.stores.conditions import quoted
from gateway.stores.edge_requests import DENSE, Asked, dense_of, selector
from gateway.stores.edge_wire import MAX_ANSWER_BYTES
from gateway.stores.point_ids import ID_KEY, to_document_id
from gateway.stores.records import MAX_TIED, answer_too_large, finite, rank, to_candidate

EngineId = int | UUID | str
"""Of a point, as the binding types it."""

FEW = 400
"""Candidates of several lists up to which each brings its own: those of a hybrid search for the largest pool. To read
documents by their ids takes 1.3 times as long as with a list, and so few are at most 50 MiB."""
AT_ONCE = 256
"""Documents that are read before it is looked whether all of them would be too much for an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which documents lists may have, and what of them they bring along."""

    limit: int
    chosen: edge.Filter | None
    payload_fields: Sequence[str]
    with_vectors: bool


class _Hit(NamedTuple):
    id: EngineId
    score: float


class _Scored(Protocol):
    @property
    def score(self) -> float: ...


S = TypeVar("S", bound=_Scored)


def read_lists(shard: edge.EdgeShard, asked: Sequence[Asked | None], selection: Selection) -> Sequence[RankedList]:
    """Return a list for each query, in order; None finds nothing.

    Raises:
        InferenceFailed: `ANSWER_TOO_LARGE`, or a score is not finite.
    """
    if len(asked) > 1 and len(asked) * selection.limit > FEW:
        return _several(shard, asked, selection)
    return [RankedList(candidates=()) if one is None else _whole(shard, one, selection) for one in asked]


def _whole(shard: edge.EdgeShard, one: Asked, selection: Selection) -> RankedList:
    """Read one list with its documents."""

    def read(most: int) -> tuple[list[Candidate], int]:
        fields = selection.payload_fields
        points, took = _query(shard, one.request(most, selection.chosen, fields, with_vectors=selection.with_vectors))
        return [_candidate(point, one.score(point.score), fields) for point in points], took

    found, compute = _past_the_tie(read, selection.limit)
    return RankedList(candidates=sorted(found, key=rank)[: selection.limit], compute=compute)


def _several(shard: edge.EdgeShard, asked: Sequence[Asked | None], selection: Selection) -> Sequence[RankedList]:
    """Read the lists, then what they bring; the time of that is shared out among them by their length."""
    lists = [([], 0) if one is None else _hits(shard, one, selection) for one in asked]
    documents, took = _documents(shard, list(dict.fromkeys(hit.id for hits, _ in lists for hit in hits)), selection)
    count = max(1, sum(len(hits) for hits, _ in lists))
    return [
        RankedList(
            candidates=sorted((replace(documents[hit.id], score=hit.score) for hit in hits), key=rank),
            compute=compute + took * len(hits) // count,
        )
        for hits, compute in lists
    ]


def _hits(shard: edge.EdgeShard, one: Asked, selection: Selection) -> tuple[list[_Hit], int]:
    """Return the ids and scores of one list."""

    def read(most: int) -> tuple[list[_Hit], int]:
        points, took = _query(shard, one.request(most, selection.chosen, None, with_vectors=False))
        return [_Hit(point.id, finite(one.score(point.score))) for point in points], took

    limit = selection.limit
    hits, compute = _past_the_tie(read, limit)
    if len(hits) <= limit or hits[limit].score < hits[limit - 1].score:
        return hits[:limit], compute
    last = hits[limit - 1].score
    tied = [hit.id for hit in hits if hit.score == last]
    # Of text ids the point's id is a hash, which says nothing of their order.
    records, took = _retrieve(shard, tied, edge.PayloadSelector.Include([quoted(ID_KEY)]))
    order = {record.id: sort_key(to_document_id(record.id, record.payload or {})) for record in records}
    sure = [hit for hit in hits if hit.score > last]
    some = sorted(tied, key=order.__getitem__)[: limit - len(sure)]
    return [*sure, *(_Hit(point_id, last) for point_id in some)], compute + took


def _documents(
    shard: edge.EdgeShard, ids: Sequence[EngineId], selection: Selection
) -> tuple[Mapping[EngineId, Candidate], int]:
    """Return documents without a score, as long as they are no more than an answer holds."""
    documents: dict[EngineId, Candidate] = {}
    payloads: list[Any] = []
    size = compute = 0
    for begin in range(0, len(ids), AT_ONCE):
        size += sum(len(marshal.dumps(one)) for one in payloads)  # quick, and nearly what pickle makes of it
        if size > MAX_ANSWER_BYTES:
            raise answer_too_large()
        some = ids[begin : begin + AT_ONCE]
        wanted = selector(selection.payload_fields)
        records, took = _retrieve(shard, some, wanted, with_vectors=selection.with_vectors)
        compute += took
        payloads = [record.payload or {} for record in records]
        for record, payload in zip(records, payloads, strict=True):
            vector = None if record.vector is None else dense_of(record.vector)
            documents[record.id] = to_candidate(record.id, 0.0, payload, selection.payload_fields, vector)
    return documents, compute


def _candidate(point: edge.ScoredPoint, score: float, payload_fields: Sequence[str]) -> Candidate:
    vector = None if point.vector is None else dense_of(point.vector)
    return to_candidate(point.id, score, point.payload or {}, payload_fields, vector)


def _query(shard: edge.EdgeShard, request: edge.QueryRequest) -> tuple[list[edge.ScoredPoint], int]:
    return _timed(partial(shard.query, request))


def _retrieve(
    shard: edge.EdgeShard, ids: Sequence[EngineId], payload: Any, *, with_vectors: bool = False
) -> tuple[list[edge.Record], int]:
    wanted = DENSE if with_vectors else False
    return _timed(partial(shard.retrieve, list(ids), with_payload=payload, with_vector=wanted))


def _timed(work: Callable[[], Any]) -> tuple[Any, int]:
    started = time.perf_counter_ns()
    return work(), time.perf_counter_ns() - started


def _past_the_tie(read: Callable[[int], tuple[list[S], int]], limit: int) -> tuple[list[S], int]:
    """Read the best, and those after them that have the score of the last.

    Where the last score of the list goes on beyond it, more is read until the tie ends, so that the ids and not the
    engine's whim decide who is in; where more than `MAX_TIED` are equal, as by one common word, the engine chooses.
    """
    compute, most, last = 0, limit + 1, limit + MAX_TIED
    while True:
        found, took = read(most)
        compute += took
        if len(found) < most or most >= last or found[-1].score < found[limit - 1].score:
            return found, compute
        most = min(4 * most, last)
