"""The first stage: texts to vectors, vectors and words to lists, lists to one pool. Over ports only.

Every list has a name. "dense" and "lexical" are the query's own; the others say what they were made of and are counted
from 1: "dense.alternative.1", "lexical.alternative.1", "dense.hypothetical.1", "dense.synonym.1".
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gateway.budget import Reserves, StageCaps
from gateway.diversity import Diversity, diversify
from gateway.fusion import Fused, ListRank, WeightedList, fuse, weights
from gateway.part_ids import first_part
from gateway.ports import (
    Candidate,
    DenseQuery,
    DocumentId,
    Encoded,
    Encoder,
    Found,
    LexicalQuery,
    ListQuery,
    Model,
    ServerTime,
    Vector,
    VectorStore,
    Writer,
)
from gateway.search_query import HypotheticalUse, SearchQuery
from gateway.stage import stage
from gateway.synonyms import NO_SYNONYMS, Synonyms
from gateway.timings import SearchTimer
from serving.deadline import Deadline
from serving.errors import (
    DeadlineSpent,
    InferenceFailed,
    InvalidRequest,
    Misconfigured,
    NotReady,
    Overloaded,
    ServiceError,
    Unavailable,
)

MAX_PARTS_PER_DOCUMENT = 16
"""How many times the pool's size is read at most to fill a pool of which parts or groups are left out."""
DEEPER = 4
"""How many times as much is read when a pool is not full."""


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
    """Nanoseconds in the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What the second stage gets, in retrieval order."""

    candidates: Sequence[Retrieved]
    lists: Sequence[ListReport]
    encoder: Model | None
    """None where nothing was encoded."""
    written_count: int = 0
    """Passages that the writer wrote."""
    write_skipped_reason: str = ""
    """Why it wrote none although it was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    passages: Sequence[str] = ()
    skipped_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _List:
    name: str
    query: ListQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStage:
    """Fills a pool, over its ports."""

    encoder: Encoder
    store: VectorStore
    caps: StageCaps
    writer: Writer | None = None
    """Writes hypothetical passages; None where there is none."""
    synonyms: Callable[[str], Synonyms] = field(default=lambda _: NO_SYNONYMS)
    """The synonyms of a collection, by the name that the search uses."""

    async def fill(self, search: SearchQuery, kept: Reserves, deadline: Deadline, timer: SearchTimer) -> Pool:
        """Return the pool.

        Args:
            search: What is asked for.
            kept: What the stages leave to those after them.
            deadline: Of the whole search.
            timer: Told of the stages `write`, `encode` and `search`.

        Raises:
            ServiceError: With the stage in its metadata.
        """
        written = await self._write(search, kept, deadline, timer)
        lists, encoder = await self._lists(search, written.passages, deadline.before(kept.encode), timer)
        with stage("search", timer) as span:
            until = deadline.before(kept.search).within(self.caps.search)
            candidates, reports = await self._pool(search, lists, encoder, until, timer)
            span.set_attributes(
                {
                    "twostage.pool_size": search.pool_size,
                    "twostage.candidates": len(candidates),
                    "twostage.lists": len(lists),
                }
            )
        return Pool(
            candidates=candidates,
            lists=reports,
            encoder=encoder,
            written_count=len(written.passages),
            write_skipped_reason=written.skipped_reason,
        )

    # --- write -----------------------------------------------------------------------------------------------------

    async def _write(self, search: SearchQuery, kept: Reserves, deadline: Deadline, timer: SearchTimer) -> _Written:
        """Have hypothetical passages written; whatever goes wrong is a reason and never an error."""
        if not search.retrieval.write:
            return _Written()
        if self.writer is None:
            raise Misconfigured("WRITER_MISSING", "this gateway has no writer of hypothetical passages")
        until = deadline.before(kept.write).within(self.caps.write)
        try:
            with stage("write", timer):
                until.require("write")
                return _Written(passages=await self.writer.write(search.query, deadline=until))
        except ServiceError as error:
            return _Written(skipped_reason=_why_not_written(error))

    # --- encode ----------------------------------------------------------------------------------------------------

    async def _lists(
        self, search: SearchQuery, written: Sequence[str], deadline: Deadline, timer: SearchTimer
    ) -> tuple[Sequence[_List], Model | None]:
        """Return the lists to ask for, and what encoded their vectors."""
        retrieval = search.retrieval
        synonyms = self.synonyms(search.collection)
        lists: list[_List] = []
        encoder: Model | None = None
        if retrieval.dense:
            variants = synonyms.variants(search.query, retrieval.language) if retrieval.synonyms.vectors else ()
            passages = (*retrieval.hypothetical_passages, *written)
            with stage("encode", timer):
                until = deadline.within(self.caps.encode)
                phrasings, read = await self._encode(search, variants, passages, until)
                timer.server_said(_together(phrasings, read))
            lists += _dense_lists(search, phrasings.vectors, () if read is None else read.vectors)
            encoder = phrasings.model
        if retrieval.lexical:
            words = synonyms.words(search.query, retrieval.language) if retrieval.synonyms.words else ()
            lists.append(_List(name="lexical", query=LexicalQuery(text=" ".join((search.query, *words)))))
            lists += [
                _List(name=f"lexical.alternative.{number}", query=LexicalQuery(text=text))
                for number, text in enumerate(retrieval.alternatives, 1)
            ]
        return lists, encoder

    async def _encode(
        self, search: SearchQuery, variants: Sequence[str], passages: Sequence[str], deadline: Deadline
    ) -> tuple[Encoded, Encoded | None]:
        """Encode the query in all its phrasings, and passages beside it."""
        if not passages:
            return await self._encode_phrasings(search, variants, deadline), None
        try:
            async with asyncio.TaskGroup() as group:
                phrasings = group.create_task(self._encode_phrasings(search, variants, deadline))
                read = group.create_task(self._encode_passages(search, passages, deadline))
        except* ServiceError as errors:
            raise _first(errors) from None
        return phrasings.result(), read.result()

    async def _encode_phrasings(self, search: SearchQuery, variants: Sequence[str], deadline: Deadline) -> Encoded:
        asked = (search.query, *search.retrieval.alternatives)
        try:
            return await self.encoder.encode_queries((*asked, *variants), priority=search.priority, deadline=deadline)
        except InvalidRequest as error:
            names = ["query", *(f"retrieval.alternatives[{index}]" for index in range(len(asked) - 1))]
            named = _named(error, names)
            if named is None:  # a variant of ours is too long, which is no fault of the caller's
                return await self._encode_phrasings(search, (), deadline)
            raise named from error

    async def _encode_passages(self, search: SearchQuery, passages: Sequence[str], deadline: Deadline) -> Encoded:
        try:
            return await self.encoder.encode_passages(
                passages, truncate=True, priority=search.priority, deadline=deadline
            )
        except InvalidRequest as error:
            given = len(search.retrieval.hypothetical_passages)
            named = _named(error, [f"retrieval.hypothetical_passages[{index}]" for index in range(given)])
            raise named or InferenceFailed("WRITER_FAILED", "what the writer wrote cannot be encoded") from error

    # --- search ----------------------------------------------------------------------------------------------------

    async def _pool(
        self,
        search: SearchQuery,
        lists: Sequence[_List],
        encoder: Model | None,
        deadline: Deadline,
        timer: SearchTimer,
    ) -> tuple[Sequence[Retrieved], Sequence[ListReport]]:
        """Return the pool; where parts or groups are left out, read on until it is full or nothing is left to read."""
        depth, time = search.depth, ServerTime()
        while True:
            found = await self._read(search, lists, encoder, depth, deadline)
            time = time.plus(found.time)
            timer.server_said(time)
            # Comparing a thousand documents with one another takes some 30 ms, which the loop has not got.
            if search.diversity.mmr_lambda is not None:
                pool = await asyncio.to_thread(_chosen, search, lists, found)
            else:
                pool = _chosen(search, lists, found)
            ended = all(len(one.candidates) < depth for one in found.lists)
            if len(pool) >= search.pool_size or ended or depth >= search.pool_size * MAX_PARTS_PER_DOCUMENT:
                break
            depth *= DEEPER
        reports = [
            ListReport(name=one.name, candidate_count=len(ranked.candidates), compute=ranked.compute)
            for one, ranked in zip(lists, found.lists, strict=True)
        ]
        return await self._whole(search, pool, deadline), reports

    async def _read(
        self, search: SearchQuery, lists: Sequence[_List], encoder: Model | None, depth: int, deadline: Deadline
    ) -> Found:
        return await self.store.search(
            search.collection,
            [one.query for one in lists],
            encoder=encoder,
            limit=depth,
            filter=search.filter,
            payload_fields=_fields_to_read(search),
            with_vectors=search.diversity.needs_vectors,
            deadline=deadline,
        )

    async def _whole(self, search: SearchQuery, pool: Sequence[Fused], deadline: Deadline) -> Sequence[Retrieved]:
        """Put whole documents in the place of parts where that is asked for."""
        texts: dict[DocumentId, str] = {}
        if search.return_parent or search.rerank_parent:
            texts = await self._parent_texts(search.collection, [one.candidate for one in pool], deadline)
        return [_retrieved(search, one, texts) for one in pool]

    async def _parent_texts(
        self, collection: str, candidates: Sequence[Candidate], deadline: Deadline
    ) -> dict[DocumentId, str]:
        """Return the texts of the documents that candidates are parts of; their first parts keep them.

        What has been deleted or written anew since the search is not among them.

        Raises:
            Misconfigured: `PARENT_TEXT_MISSING`, a first part is there and has no whole text.
        """
        firsts = [first for one in candidates if one.part is not None and (first := first_part(one.part.parent))]
        found = await self.store.get(collection, firsts, deadline=deadline) if firsts else ()
        texts: dict[DocumentId, str] = {}
        for one in found:
            if one.part is None:
                continue
            if one.parent_text is None:
                message = "a document was split before whole texts were kept; index it again"
                raise Misconfigured("PARENT_TEXT_MISSING", message)
            texts[one.part.parent] = one.parent_text
        return texts


def folded(candidates: Sequence[Fused]) -> Sequence[Fused]:
    """Keep of every split document the first part only; whole documents stay."""
    first: dict[DocumentId, Fused] = {}
    for one in candidates:
        part = one.candidate.part
        first.setdefault(part.parent if part else one.candidate.id, one)
    return list(first.values())


def _dense_lists(search: SearchQuery, phrasings: Sequence[Vector], passages: Sequence[Vector]) -> Sequence[_List]:
    """Return the lists of vectors; of the phrasings, the query is the first, then come alternatives, then variants."""
    count = 1 + len(search.retrieval.alternatives)
    own, alternatives, variants = phrasings[0], phrasings[1:count], phrasings[count:]
    hypothetical: Sequence[Vector] = passages
    if passages and search.retrieval.hypothetical_use is HypotheticalUse.AVERAGE:
        own, hypothetical = np.mean([own, *passages], axis=0, dtype=np.float32), ()
    vectors = [
        ("dense", own),
        *_numbered("dense.alternative", alternatives),
        *_numbered("dense.hypothetical", hypothetical),
        *_numbered("dense.synonym", variants),
    ]
    return [_List(name=name, query=DenseQuery(vector=vector)) for name, vector in vectors]


def _numbered(name: str, vectors: Sequence[Vector]) -> Sequence[tuple[str, Vector]]:
    return [(f"{name}.{number}", vector) for number, vector in enumerate(vectors, 1)]


def _chosen(search: SearchQuery, lists: Sequence[_List], found: Found) -> Sequence[Fused]:
    """Fuse, fold and diversify."""
    fusion = search.retrieval.fusion
    shares = weights([one.query for one in lists], fusion.dense_weight)
    weighted = [
        WeightedList(name=one.name, weight=share, candidates=ranked.candidates)
        for one, share, ranked in zip(lists, shares, found.lists, strict=True)
    ]
    whole = not search.fold_to_parent and search.diversity == Diversity()
    fused = fuse(weighted, fusion, limit=search.pool_size if whole else None)
    pool = folded(fused) if search.fold_to_parent else fused
    return diversify(pool, search.diversity, count=search.pool_size)


def _fields_to_read(search: SearchQuery) -> Sequence[str]:
    """Return the payload keys that are asked for, and the one to group by."""
    group = search.diversity.group_by.partition(".")[0]
    return search.payload_fields if not group else tuple(dict.fromkeys((*search.payload_fields, group)))


def _retrieved(search: SearchQuery, fused: Fused, texts: dict[DocumentId, str]) -> Retrieved:
    """Make one of the pool of what was found."""
    candidate = replace(fused.candidate, payload=_asked_payload(search, fused.candidate), vector=None)
    passage = candidate.text
    part = candidate.part
    if part is not None and part.parent in texts:  # where it is not, the part that was found stands for it
        text = texts[part.parent]
        passage = text if search.rerank_parent else passage
        candidate = replace(candidate, id=part.parent, text=text) if search.return_parent else candidate
    return Retrieved(candidate=candidate, lists=fused.lists, passage=passage)


def _asked_payload(search: SearchQuery, candidate: Candidate) -> dict[str, object]:
    """Leave out what was read only to group by."""
    fields, group = search.payload_fields, search.diversity.group_by.partition(".")[0]
    extra = bool(group) and "*" not in fields and group not in fields
    return {key: value for key, value in candidate.payload.items() if not (extra and key == group)}


def _together(phrasings: Encoded, read: Encoded | None) -> ServerTime:
    """Return the server's time of two calls at once: that of the one which took longer there."""
    times = [one.time for one in (phrasings, read) if one is not None]
    return max(times, key=lambda time: time.queue + time.tokenize + time.compute)


def _first(errors: BaseExceptionGroup[ServiceError]) -> ServiceError:
    """Return one of the errors of calls that were made together."""
    found = errors.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


def _named(error: InvalidRequest, names: Sequence[str]) -> InvalidRequest | None:
    """Name a text as our caller knows it; None where it is none of the caller's."""
    known = {f"texts[{index}]": name for index, name in enumerate(names)}
    name = known.get(error.field)
    if name is None:
        return None
    return InvalidRequest(error.reason, error.message.removeprefix(f"{error.field}: "), field=name)


def _why_not_written(error: ServiceError) -> str:
    if isinstance(error, DeadlineSpent):
        return "DEADLINE_SPENT"
    if isinstance(error, (Unavailable, NotReady, Overloaded)):
        return "WRITER_UNAVAILABLE"
    return "WRITER_FAILED"
