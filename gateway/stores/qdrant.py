"""The vector store that many gateways share: a Qdrant server of 1.16 or newer, over gRPC.

The generated stubs are used and not `AsyncQdrantClient`, which rounds timeouts up to whole seconds, asks the REST port
for its version in a thread unless told not to, and is not faster (`benchmarks/qdrant_calls.py` measures both).
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import grpc
from qdrant_client import grpc as pb

from gateway.filters import Filter
from gateway.parameters import DEFAULT_PARAMETERS, CollectionParameters
from gateway.ports import (
    Collection,
    Cursor,
    Document,
    DocumentId,
    Found,
    LexicalQuery,
    ListQuery,
    Model,
    Page,
    ServerTime,
    Vector,
)
from gateway.precisions import note_precision
from gateway.stores.conditions import require_indexes
from gateway.stores.lexical import require_supported
from gateway.stores.point_ids import to_point_id
from gateway.stores.qdrant_calls import CollectionCalls
from gateway.stores.qdrant_catalog import QdrantCatalog
from gateway.stores.qdrant_collections import Known, Memory, QdrantIndex
from gateway.stores.qdrant_filter import to_qdrant_filter
from gateway.stores.qdrant_making import QdrantMaking, require_import
from gateway.stores.qdrant_probe import CORPUS_VERSION, PATIENCE_S, Version, probe, version_of
from gateway.stores.qdrant_requests import (
    deleted,
    fetched,
    page_of,
    points_of,
    require_applied,
    scrolled,
    whole_seconds,
    written,
)
from gateway.stores.qdrant_search import Selection, queried, ranked, together
from gateway.stores.qdrant_status import answered
from gateway.stores.qdrant_target import QdrantTarget, open_channel
from gateway.stores.qdrant_values import from_pb_id, from_pb_payload
from gateway.stores.records import (
    collection_not_found,
    import_lost,
    require_encoder,
    to_document,
)
from serving.deadline import Deadline
from serving.errors import InferenceFailed, Misconfigured, NotFound, NotReady

CLOSE_GRACE_S = 5.0
"""How long closing waits for calls that are under way."""


class QdrantStore:
    """A `gateway.ports.VectorStore`; made by `open` inside the running loop."""

    name = "qdrant"

    def __init__(
        self,
        target: QdrantTarget,
        channel: grpc.aio.Channel,
        index: QdrantIndex,
        memory: Memory,
        version: Version | None,
    ) -> None:
        self._metadata = target.metadata
        self._version = version
        self._server = pb.QdrantStub(channel)  # type: ignore[no-untyped-call]  # generated
        self._channel = channel
        self._index = index
        self._points = pb.PointsStub(channel)  # type: ignore[no-untyped-call]  # generated
        calls = CollectionCalls(channel, self._call)
        self._catalog = QdrantCatalog(calls, memory)
        self._making = QdrantMaking(calls, memory)
        self._closed = False

    @classmethod
    async def open(
        cls,
        target: QdrantTarget,
        *,
        index: QdrantIndex | None = None,
        memory: Memory | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Self:
        """Open the channel and ask the server who it is.

        A server that cannot be reached is no error: every call looks for it again.

        Args:
            target: Where the server is.
            index: How collections are searched.
            memory: What to remember collections in.
            patience_s: How long to wait for the server's answer.

        Raises:
            Misconfigured: What answers is no Qdrant of 1.16 or newer, or the certificates cannot be read.
        """
        channel = open_channel(target)
        try:
            version = await probe(channel, target, patience_s)
        except BaseException:
            await channel.close()
            raise
        return cls(target, channel, index or QdrantIndex(), memory or Memory(), version)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Finish what is under way and close the channel; again is no error."""
        await self._making.aclose(CLOSE_GRACE_S)
        self._closed = True
        await self._channel.close(CLOSE_GRACE_S)

    async def create(  # noqa: PLR0913 - the port's signature
        self,
        name: str,
        *,
        dimension: int,
        encoder: Model,
        passage_prefix: str = "",
        parameters: CollectionParameters = DEFAULT_PARAMETERS,
        hidden: bool = False,
        incarnation: str = "",
        deadline: Deadline,
    ) -> Collection:
        """Create an empty collection; it remembers the encoder without its device."""
        require_supported(parameters.lexical)
        wanted = Known(
            name=name,
            dimension=dimension,
            encoder=encoder,
            passage_prefix=passage_prefix,
            parameters=parameters,
            hidden=hidden,
            incarnation=incarnation or uuid4().hex,
        )
        return await self._making.create(wanted, deadline)

    async def reveal(self, name: str, *, incarnation: str, document_count: int, deadline: Deadline) -> Collection:
        """Let a hidden collection be found, if it holds so many documents."""
        return await self._making.reveal(name, incarnation, document_count, deadline)

    async def describe(self, name: str, *, deadline: Deadline) -> Collection:
        """Return one collection, its documents counted exactly; the server does not tell bytes on disk."""
        return await self._catalog.describe(name, deadline)

    async def list(self, *, deadline: Deadline) -> Sequence[Collection]:
        """Return all collections that are ours, by name."""
        return await self._catalog.list(deadline)

    async def drop(
        self, name: str, *, with_aliases: bool = False, incarnation: str | None = None, deadline: Deadline
    ) -> None:
        """Delete a collection and its documents; Misconfigured where it is another program's."""
        if incarnation is not None:
            await self._making.drop(name, incarnation, deadline)
            return
        await self._catalog.drop(name, deadline, with_aliases=with_aliases)

    async def assign_alias(self, alias: str, collection: str, *, deadline: Deadline) -> None:
        """Point an alias at a collection; other gateways may search the old one for `REMEMBERED_S` longer."""
        await self._catalog.assign_alias(alias, collection, deadline)

    async def delete_alias(self, alias: str, *, deadline: Deadline) -> None:
        """Delete an alias."""
        await self._catalog.delete_alias(alias, deadline)

    async def scan(
        self,
        name: str,
        *,
        after: Cursor | None,
        limit: int,
        filter: Filter | None = None,  # noqa: A002 - the port's word
        incarnation: str | None = None,
        deadline: Deadline,
    ) -> Page:
        """Return up to `limit` documents under the filter from a cursor on, by the server's order of ids."""
        chosen = None if filter is None else to_qdrant_filter(filter)

        async def send(own: str, _: None) -> Page:
            request = scrolled(own, after, limit, chosen, whole_seconds(deadline))
            page = page_of(await self._call(self._points.Scroll, request, deadline, "scan"))
            if incarnation is not None:  # asked after the page was read: what it is now, it was then
                await self._catalog.require_incarnation(own, incarnation, deadline, "scan")
            return page

        return await self._catalog.checked(name, _suits(filter), send, deadline, "scan")

    async def count(self, name: str, *, filter: Filter | None = None, deadline: Deadline) -> int:  # noqa: A002
        """Count the documents under the filter, exactly."""
        chosen = None if filter is None else to_qdrant_filter(filter)

        async def send(own: str, _: None) -> int:
            request = pb.CountPoints(collection_name=own, filter=chosen, exact=True, timeout=whole_seconds(deadline))
            return int((await self._call(self._points.Count, request, deadline, "count")).result.count)

        return await self._catalog.checked(name, _suits(filter), send, deadline, "count")

    async def upsert(
        self,
        name: str,
        documents: Sequence[Document],
        vectors: Sequence[Vector],
        *,
        incarnation: str | None = None,
        deadline: Deadline,
    ) -> None:
        """Store documents; of two with one id the later stays.

        The whole batch is checked before it is sent, and answered once every replica that the server waits for has
        applied it. A collection of several shards may keep part of a batch when the server itself fails within it.
        """
        if len(documents) != len(vectors):
            raise InferenceFailed("VECTOR_COUNT", f"{len(vectors)} vectors for {len(documents)} documents")

        async def send(own: str, points: Sequence[pb.PointStruct]) -> None:
            if points:
                request = written(own, points, whole_seconds(deadline))
                require_applied(await self._call(self._points.Upsert, request, deadline, "upsert"), "upsert")

        def check(known: Known) -> Sequence[pb.PointStruct]:
            if incarnation is None:
                _require_found(known)
            else:
                require_import(known, incarnation)
            return points_of(documents, vectors, known)

        # Only an empty batch would not notice by itself that its collection is gone.
        asks = not documents or incarnation is not None
        try:
            await self._catalog.checked(name, check, send, deadline, "upsert", writes=True, asks=asks)
        except NotFound as error:
            if incarnation is None:
                raise
            raise import_lost() from error

    async def delete(self, name: str, ids: Sequence[DocumentId], *, deadline: Deadline) -> None:
        """Delete documents."""
        point_ids = [to_point_id(one) for one in ids]

        async def send(own: str, _: None) -> None:
            if point_ids:
                request = deleted(own, point_ids, whole_seconds(deadline))
                require_applied(await self._call(self._points.Delete, request, deadline, "delete"), "delete")

        await self._catalog.checked(name, _require_found, send, deadline, "delete", writes=True, asks=not point_ids)

    async def get(
        self, name: str, ids: Sequence[DocumentId], *, with_parent_texts: bool = False, deadline: Deadline
    ) -> Sequence[Document]:
        """Return the documents that exist, in the order asked for."""
        point_ids = [to_point_id(one) for one in ids]

        async def send(own: str, _: None) -> Sequence[Document]:
            request = fetched(own, point_ids, whole_seconds(deadline), with_parent_texts=with_parent_texts)
            answer = await self._call(self._points.Get, request, deadline, "get")
            stored = {from_pb_id(one.id): one.payload for one in answer.result}
            return [to_document(one, from_pb_payload(stored[one])) for one in point_ids if one in stored]

        return await self._catalog.checked(name, _require_found, send, deadline, "get")

    async def search(  # noqa: PLR0913 - the port's signature
        self,
        name: str,
        queries: Sequence[ListQuery],
        *,
        encoder: Model | None,
        limit: int,
        filter: Filter | None,  # noqa: A002 - the port's word
        corpus: Filter | None = None,
        payload_fields: Sequence[str],
        with_vectors: bool = False,
        deadline: Deadline,
    ) -> Found:
        """Return for each query the `limit` best documents under the filter, all of them asked for at once.

        Raises:
            Misconfigured: `STORE_TOO_OLD`, the server cannot count words in the corpus alone.
        """
        selection = Selection(
            chosen=None if filter is None else to_qdrant_filter(filter),
            corpus=None if corpus is None else to_qdrant_filter(corpus),
            payload_fields=payload_fields,
            with_vectors=with_vectors,
        )
        if corpus is not None and any(isinstance(one, LexicalQuery) for one in queries):
            await self._require_corpus(deadline)

        def check(known: Known) -> Sequence[pb.QueryPoints | None]:
            _suits(filter)(known)
            _suits(corpus)(known)
            require_encoder(name, known.encoder, encoder)
            if encoder is not None:
                note_precision(known.name, known.encoder, encoder)
            return [queried(name, known, query, selection, self._index) for query in queries]

        async def ask(request: pb.QueryPoints) -> pb.QueryResponse:
            request.timeout = whole_seconds(deadline)
            answer: pb.QueryResponse = await self._call(self._points.Query, request, deadline, "search")
            return answer

        async def send(own: str, requests: Sequence[pb.QueryPoints | None]) -> Found:
            lists = await together([ranked(one, limit, selection, ask, self._index) for one in requests])
            return Found(lists=lists, collection=own, time=ServerTime(compute=max(one.compute for one in lists)))

        return await self._catalog.checked(name, check, send, deadline, "search")

    async def _require_corpus(self, deadline: Deadline) -> None:
        """Check that the server counts words in a corpus alone; one that cannot would not say so, but tell of others.

        Raises:
            Misconfigured: `STORE_TOO_OLD`.
        """
        if self._version is None or self._version < CORPUS_VERSION:  # not known yet, or newer by now
            self._version = version_of(
                await self._call(self._server.HealthCheck, pb.HealthCheckRequest(), deadline, "search")
            )
        if self._version is None or self._version < CORPUS_VERSION:
            raise Misconfigured(
                "STORE_TOO_OLD",
                "Qdrant before 1.19 weighs words by the documents of all callers; "
                "use a newer one for searches by words of a key that may see only some documents",
            )

    async def _call(self, method: Any, request: Any, deadline: Deadline, stage: str) -> Any:
        if self._closed:
            raise NotReady("DRAINING", "the vector store is closed", stage=stage)
        left = deadline.require(stage)
        return await answered(method(request, timeout=left, metadata=self._metadata), stage=stage)


def _require_found(known: Known) -> None:
    if known.hidden:
        raise collection_not_found(known.name)


def _suits(wanted: Filter | None) -> Callable[[Known], None]:
    """Return the check of a collection that is to be read under a filter."""

    def check(known: Known) -> None:
        _require_found(known)
        if wanted is not None:
            require_indexes(wanted, known.parameters.payload_indexes)

    return check
