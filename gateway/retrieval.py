"""The first stage: what is asked for, from query to queries of lists, and the pool that they fill. Over ports only.

Every list has a name. "dense" and "lexical" are the query's own; the others say what they were made of and are counted
from 1: "dense.alternative.1", "lexical.alternative.1", "dense.hypothetical.1", "dense.synonym.1".
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gateway.budget import Reserves, StageCaps
from gateway.pool import Filled, NamedQuery, fill_pool
from gateway.ports import DenseQuery, Encoded, Encoder, LexicalQuery, Model, ServerTime, Vector, VectorStore, Writer
from gateway.search_query import HypotheticalUse, SearchQuery, SynonymUse
from gateway.stage import stage
from gateway.synonyms import NO_SYNONYMS, Synonyms
from gateway.timings import SearchTimer
from serving.deadline import Deadline
from serving.errors import (
    DeadlineSpent,
    InvalidRequest,
    Misconfigured,
    NotReady,
    Overloaded,
    ServiceError,
    Unavailable,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What the second stage gets, in retrieval order."""

    filled: Filled
    encoder: Model | None
    """None where nothing was encoded."""
    written_count: int = 0
    """Passages that the writer wrote, and that were encoded."""
    write_skipped_reason: str = ""
    """Why there are none although they were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    passages: Sequence[str] = ()
    skipped_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vectors:
    """What was encoded for one search."""

    phrasings: Sequence[Vector] = ()
    """The query, its alternatives, and its variants by synonyms."""
    passages: Sequence[Vector] = ()
    """The caller's hypothetical passages, then those that were written."""
    encoder: Model | None = None
    written_count: int = 0
    skipped_reason: str = ""


NOTHING_ENCODED = _Vectors()


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
        wanted = search.retrieval.synonyms is not SynonymUse.NONE
        synonyms = self.synonyms(search.collection) if wanted else NO_SYNONYMS
        written = await self._write(search, deadline.before(kept.write), timer)
        vectors = NOTHING_ENCODED
        if search.retrieval.dense:
            with stage("encode", timer):
                until = deadline.before(kept.encode).within(self.caps.encode)
                vectors = await self._encode(search, synonyms, written, until, timer)
        queries = [*_dense_queries(search, vectors), *_lexical_queries(search, synonyms)]
        with stage("search", timer) as span:
            until = deadline.before(kept.search).within(self.caps.search)
            filled = await fill_pool(
                self.store,
                search,
                queries,
                encoder=vectors.encoder,
                deadline=until,
                timer=timer,
            )
            span.set_attributes(
                {
                    "twostage.pool_size": search.pool_size,
                    "twostage.candidates": len(filled.candidates),
                    "twostage.lists": len(queries),
                }
            )
        return Pool(
            filled=filled,
            encoder=vectors.encoder,
            written_count=vectors.written_count,
            write_skipped_reason=written.skipped_reason or vectors.skipped_reason,
        )

    async def _write(self, search: SearchQuery, deadline: Deadline, timer: SearchTimer) -> _Written:
        """Have hypothetical passages written; what goes wrong with that is a reason and never an error."""
        if not search.retrieval.write:
            return _Written()
        try:
            with stage("write", timer):
                until = deadline.within(self.caps.write)
                until.require("write")
                return _Written(passages=await _there(self.writer).write(search.query, deadline=until))
        except Misconfigured:
            raise
        except ServiceError as error:
            return _Written(skipped_reason=_why_not_written(error))

    async def _encode(
        self, search: SearchQuery, synonyms: Synonyms, written: _Written, deadline: Deadline, timer: SearchTimer
    ) -> _Vectors:
        """Encode the query in all its phrasings, and passages, all at once.

        Raises:
            Unavailable: `ENCODER_CHANGING`, two encoders answered that are not of one bundle.
        """
        retrieval = search.retrieval
        variants: Sequence[str] = ()
        if retrieval.synonyms.vectors:
            variants = synonyms.variants(search.query, retrieval.language, besides=retrieval.alternatives)
        phrasings = self._encode_phrasings(search, variants, deadline, timer)
        if not (retrieval.hypothetical_passages or written.passages):
            query = await phrasings
            timer.server_said(query.time)
            return _Vectors(phrasings=query.vectors, encoder=query.model)
        try:
            async with asyncio.TaskGroup() as group:
                first = group.create_task(phrasings)
                given = group.create_task(self._encode_given(search, deadline))
                own = group.create_task(self._encode_written(search, written.passages, deadline))
        except* ServiceError as errors:
            raise _first(errors) from None
        query, passages, (made, skipped_reason) = first.result(), given.result(), own.result()
        encodings = [one for one in (query, passages, made) if one is not None]
        timer.server_said(max((one.time for one in encodings), key=_length))
        if skipped_reason:
            timer.unaccounted()
        if len({one.model.digest for one in encodings}) > 1:
            raise Unavailable("ENCODER_CHANGING", "the encoders that answered are not of one bundle")
        return _Vectors(
            phrasings=query.vectors,
            passages=[vector for one in (passages, made) if one is not None for vector in one.vectors],
            encoder=query.model,
            written_count=0 if made is None else len(made.vectors),
            skipped_reason=skipped_reason,
        )

    async def _encode_phrasings(
        self, search: SearchQuery, variants: Sequence[str], deadline: Deadline, timer: SearchTimer
    ) -> Encoded:
        asked = (search.query, *search.retrieval.alternatives)
        try:
            return await self.encoder.encode_queries((*asked, *variants), priority=search.priority, deadline=deadline)
        except InvalidRequest as error:
            names = ["query", *(f"retrieval.alternatives[{index}]" for index in range(len(asked) - 1))]
            named = _named(error, names)
            if named is not None:
                raise named from error
            if not variants:
                raise
        # A variant of ours is too long, which is no fault of the caller's.
        timer.unaccounted()
        return await self._encode_phrasings(search, (), deadline, timer)

    async def _encode_given(self, search: SearchQuery, deadline: Deadline) -> Encoded | None:
        passages = search.retrieval.hypothetical_passages
        if not passages:
            return None
        try:
            return await self._encode_passages(search, passages, deadline)
        except InvalidRequest as error:
            names = [f"retrieval.hypothetical_passages[{index}]" for index in range(len(passages))]
            raise _named(error, names) or error from error

    async def _encode_written(
        self, search: SearchQuery, passages: Sequence[str], deadline: Deadline
    ) -> tuple[Encoded | None, str]:
        """Encode what the writer wrote; what goes wrong with that is a reason and never an error."""
        if not passages:
            return None, ""
        try:
            return await self._encode_passages(search, passages, deadline), ""
        except InvalidRequest:
            return None, "WRITER_FAILED"
        except ServiceError as error:
            return None, _why_not_written(error)

    async def _encode_passages(self, search: SearchQuery, passages: Sequence[str], deadline: Deadline) -> Encoded:
        return await self.encoder.encode_passages(passages, truncate=True, priority=search.priority, deadline=deadline)


def _there(writer: Writer | None) -> Writer:
    if writer is None:
        raise Misconfigured("WRITER_MISSING", "this gateway has no writer of hypothetical passages")
    return writer


def _dense_queries(search: SearchQuery, encoded: _Vectors) -> Sequence[NamedQuery]:
    """Return the queries by vectors; of the phrasings the query is the first, then come alternatives, then variants."""
    if not encoded.phrasings:
        return ()
    count = 1 + len(search.retrieval.alternatives)
    own, alternatives, variants = encoded.phrasings[0], encoded.phrasings[1:count], encoded.phrasings[count:]
    hypothetical = encoded.passages
    if hypothetical and search.retrieval.hypothetical_use is HypotheticalUse.AVERAGE:
        mean: Vector = np.mean([own, *hypothetical], axis=0, dtype=np.float32)
        # Vectors that cancel each other out have a mean without direction, which no store can compare by.
        own, hypothetical = (mean if mean.any() else own), ()
    vectors = [
        ("dense", own),
        *_numbered("dense.alternative", alternatives),
        *_numbered("dense.hypothetical", hypothetical),
        *_numbered("dense.synonym", variants),
    ]
    return [NamedQuery(name=name, query=DenseQuery(vector=vector)) for name, vector in vectors]


def _lexical_queries(search: SearchQuery, synonyms: Synonyms) -> Sequence[NamedQuery]:
    retrieval = search.retrieval
    if not retrieval.lexical:
        return ()
    words = synonyms.words(search.query, retrieval.language) if retrieval.synonyms.words else ()
    own = NamedQuery(name="lexical", query=LexicalQuery(text=" ".join((search.query, *words))))
    others = [
        NamedQuery(name=f"lexical.alternative.{number}", query=LexicalQuery(text=text))
        for number, text in enumerate(retrieval.alternatives, 1)
    ]
    return [own, *others]


def _numbered(name: str, vectors: Sequence[Vector]) -> Sequence[tuple[str, Vector]]:
    return [(f"{name}.{number}", vector) for number, vector in enumerate(vectors, 1)]


def _length(time: ServerTime) -> int:
    return time.queue + time.tokenize + time.compute


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
