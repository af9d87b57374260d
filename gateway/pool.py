"""Lists to one pool: read, folded, fused, grouped, spread. Over the store's port only."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.diversity import grouped, mmr
from gateway.fusion import Fused, ListRank, WeightedList, fuse, weights
from gateway.part_ids import first_part
from gateway.ports import (
    ANSWER_TOO_LARGE,
    Candidate,
    DocumentId,
    Found,
    ListQuery,
    Model,
    ServerTime,
    VectorStore,
)
from gateway.search_query import RerankMode, SearchQuery
from gateway.timings import SearchTimer
from serving.deadline import Deadline
from serving.errors import DeadlineSpent, Misconfigured, NotFound, NotReady, Overloaded, ServiceError, Unavailable

NOT_NOW = (DeadlineSpent, Unavailable, NotReady, Overloaded)
"""What a further read may end with at no fault of the request's."""

MAX_CANDIDATES = 20_000
"""Most documents that one read of all lists together brings."""
MOST_DEEPER = 16
"""How many times the pool's size is read at most to fill a pool of which parts or groups are left out."""
DEEPER = 4
"""How many times as much is read when a pool is not full."""
MANY = 2_000
"""Candidates of all lists from which fusing them, some 10 us each, is no work for the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedQuery:
    """What one list is asked for."""

    name: str
    query: ListQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieved:
    """A candidate on its way to the second stage."""

    candidate: Candidate
    lists: Sequence[ListRank] = ()
    """Where each list had it; empty where there was one list."""
    passage: str | None = None
    """What the reranker is to read; None where there is nothing to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListReport:
    """One list, as provenance shows it."""

    name: str
    candidate_count: int
    compute: int
    """Nanoseconds in the store, of all reads together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A pool in retrieval order."""

    candidates: Sequence[Retrieved]
    lists: Sequence[ListReport]
    shortfall: str = ""
    """Why it may have fewer candidates than there are; empty where it has what it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What was read so far, and what came of it."""

    found: Found
    pool: Sequence[Fused]
    compute: Sequence[int]
    """Nanoseconds in the store for each list, of all reads together."""
    shortfall: str = ""


async def fill_pool(
    store: VectorStore,
    search: SearchQuery,
    queries: Sequence[NamedQuery],
    *,
    encoder: Model | None,
    deadline: Deadline,
    timer: SearchTimer,
) -> Filled:
    """Return the pool of a search.

    Args:
        store: Answers the queries.
        search: What is asked for.
        queries: At least one.
        encoder: What made the vectors among them.
        deadline: Until when.
        timer: Told how long the store has taken so far.

    Raises:
        ServiceError: Whatever the store raises at the first read. Where the store is late, full or away at a further
            one, or its answer would be too large, the pool stays as it was, except that documents which are to be
            returned are read or nothing is.
    """
    read = await _read_on(store, search, queries, encoder, deadline, timer)
    pool = read.pool
    if search.diversity.mmr_lambda is not None:
        spread = search.diversity.mmr_lambda
        pool = await _aside(lambda: mmr(read.pool, lambda_=spread, count=search.pool_size), deadline)
    reports = [
        ListReport(name=one.name, candidate_count=len(ranked.candidates), compute=compute)
        for one, ranked, compute in zip(queries, read.found.lists, read.compute, strict=True)
    ]
    pool, shortfall = pool[: search.pool_size], read.shortfall
    texts: Mapping[DocumentId, str] = {}
    firsts = [first for one in pool if (part := one.candidate.part) and (first := first_part(part.parent))]
    if firsts and (search.return_parent or search.rerank_parent):
        timer.unaccounted()  # no store says where the time of a `get` went
        try:
            texts = await _parent_texts(store, read.found.collection, firsts, deadline)
        except NOT_NOW as error:
            if search.return_parent or search.rerank is RerankMode.REQUIRED:
                raise
            shortfall = error.reason  # parts are worth reranking too
    return Filled(candidates=[_retrieved(search, one, texts) for one in pool], lists=reports, shortfall=shortfall)


async def _read_on(
    store: VectorStore,
    search: SearchQuery,
    queries: Sequence[NamedQuery],
    encoder: Model | None,
    deadline: Deadline,
    timer: SearchTimer,
) -> _Read:
    """Read until the pool is full or nothing is left: parts and groups that are left out have to be made up for."""
    most = MAX_CANDIDATES // len(queries)
    depth, deepest = min(search.depth, most), min(MOST_DEEPER * search.pool_size, most)
    time, compute = ServerTime(), [0] * len(queries)
    read: _Read | None = None
    while True:
        try:
            found = await _found(store, search, queries, encoder, depth, deadline)
            time = time.plus(found.time)
            timer.server_said(time)
            pool = await _ordered(search, queries, found, deadline)
        except ServiceError as error:
            if read is None or not (isinstance(error, NOT_NOW) or error.reason == ANSWER_TOO_LARGE):
                raise
            timer.unaccounted()
            return replace(read, shortfall=error.reason)  # a short pool is worth more than none
        compute = [before + one.compute for before, one in zip(compute, found.lists, strict=True)]
        read = _Read(found=found, pool=pool, compute=compute)
        ended = all(len(one.candidates) < depth for one in found.lists)
        if len(pool) >= search.pool_size or ended or depth >= deepest:
            return read
        depth = min(DEEPER * depth, deepest)


async def _found(
    store: VectorStore,
    search: SearchQuery,
    queries: Sequence[NamedQuery],
    encoder: Model | None,
    depth: int,
    deadline: Deadline,
) -> Found:
    group = search.diversity.group_field
    fields = tuple(dict.fromkeys((*search.payload_fields, group))) if group else search.payload_fields
    return await store.search(
        search.collection,
        [one.query for one in queries],
        encoder=encoder,
        limit=depth,
        filter=search.filter,
        payload_fields=fields,
        with_vectors=search.diversity.needs_vectors,
        deadline=deadline,
    )


async def _ordered(
    search: SearchQuery, queries: Sequence[NamedQuery], found: Found, deadline: Deadline
) -> Sequence[Fused]:
    """Fold, fuse and group."""
    if sum(len(one.candidates) for one in found.lists) < MANY:
        return _order(search, queries, found)
    return await _aside(lambda: _order(search, queries, found), deadline)


def _order(search: SearchQuery, queries: Sequence[NamedQuery], found: Found) -> Sequence[Fused]:
    lists = [one.candidates for one in found.lists]
    best: Mapping[DocumentId, Candidate] = {}
    if search.fold_to_parent:
        lists, best = folded(lists)
    fusion, diversity = search.retrieval.fusion, search.diversity
    shares = weights([one.query for one in queries], fusion.dense_weight)
    weighted = [
        WeightedList(name=one.name, weight=share, candidates=candidates)
        for one, share, candidates in zip(queries, shares, lists, strict=True)
    ]
    cut = None if diversity.group_by or diversity.needs_vectors else search.pool_size
    pool = fuse(weighted, fusion, limit=cut)
    if best:
        pool = [_part_of(one, best) for one in pool]
    return grouped(pool, key=diversity.group_by, size=diversity.group_size) if diversity.group_by else pool


def folded(
    lists: Sequence[Sequence[Candidate]],
) -> tuple[list[Sequence[Candidate]], Mapping[DocumentId, Candidate]]:
    """Put documents in the place of their parts, so that lists that found other parts of one agree on it.

    Returns:
        The lists, each with every document once, at the place of its first part there and under its own id; and the
        part that stands for each document: the one with the best rank in any list.
    """
    documents: list[Sequence[Candidate]] = []
    best: dict[DocumentId, tuple[int, Candidate]] = {}
    for candidates in lists:
        firsts: dict[DocumentId, Candidate] = {}
        for one in candidates:
            firsts.setdefault(one.part.parent if one.part else one.id, one)
        for rank, (key, one) in enumerate(firsts.items()):
            if key not in best or rank < best[key][0]:
                best[key] = (rank, one)
        documents.append([replace(one, id=key) for key, one in firsts.items()])
    return documents, {key: one for key, (_, one) in best.items()}


def _part_of(fused: Fused, best: Mapping[DocumentId, Candidate]) -> Fused:
    """Put the part that stands for a document back in its place."""
    part = best.get(fused.candidate.id)
    return fused if part is None else replace(fused, candidate=replace(part, score=fused.candidate.score))


async def _aside(work: Callable[[], Sequence[Fused]], deadline: Deadline) -> Sequence[Fused]:
    """Do some computing in a thread, and wait for it no longer than until the deadline."""
    try:
        async with asyncio.timeout(deadline.require("search")):
            return await asyncio.to_thread(work)
    except TimeoutError:
        raise DeadlineSpent("DEADLINE_SPENT", "no time left to choose among what was found") from None


# --- whole documents -----------------------------------------------------------------------------------------------


async def _parent_texts(
    store: VectorStore, collection: str, firsts: Sequence[DocumentId], deadline: Deadline
) -> Mapping[DocumentId, str]:
    """Return the texts of whole documents, by document; their first parts keep them.

    `collection` is the own name of what was searched: an alias may by now point at other documents of these ids.

    One message holds them: a pool has at most 200, with 64 KiB each of text, payload and whole text at most.
    What has been deleted or written anew since the search is not among them.

    Raises:
        Misconfigured: `PARENT_TEXT_MISSING`, a first part is there and has no whole text.
        Unavailable: `COLLECTION_REPLACED`, it was dropped since the search.
    """
    texts: dict[DocumentId, str] = {}
    try:
        found = await store.get(collection, firsts, with_parent_texts=True, deadline=deadline)
    except NotFound as error:
        message = "the collection was dropped while it was searched; search again"
        raise Unavailable("COLLECTION_REPLACED", message) from error
    for one in found:
        if one.part is None:
            continue
        if one.parent_text is None:
            message = "a document was split before whole texts were kept; index it again"
            raise Misconfigured("PARENT_TEXT_MISSING", message)
        texts[one.part.parent] = one.parent_text
    return texts


def _retrieved(search: SearchQuery, fused: Fused, texts: Mapping[DocumentId, str]) -> Retrieved:
    """Make one of the pool of what was found, the whole document in the place of its part where that is asked for."""
    candidate = _as_asked(search, fused.candidate)
    passage, part = candidate.text, candidate.part
    if part is not None and part.parent in texts:  # where it is not, the part that was found stands for it
        text = texts[part.parent]
        passage = text if search.rerank_parent else passage
        candidate = replace(candidate, id=part.parent, text=text) if search.return_parent else candidate
    return Retrieved(candidate=candidate, lists=fused.lists, passage=passage)


def _as_asked(search: SearchQuery, candidate: Candidate) -> Candidate:
    """Leave out what was read only to group and to compare by."""
    if candidate.vector is not None:
        candidate = replace(candidate, vector=None)
    group = search.diversity.group_field
    if group and group not in search.payload_fields and "*" not in search.payload_fields:
        payload = {key: value for key, value in candidate.payload.items() if key != group}
        candidate = replace(candidate, payload=payload)
    return candidate
