"""The vector store that many gateways share: a Qdrant server of 1.16 or newer, over gRPC.

The generated stubs are used and not `AsyncQdrantClient`, which rounds timeouts up to whole seconds, asks the REST port
for its version in a thread unless told not to, and is not faster (`benchmarks/qdrant_calls.py` measures both).
"""

import math
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
from qdrant_client import grpc as pb

from gateway.parameters import DEFAULT_PARAMETERS, CollectionParameters
from gateway.ports import (
    Candidate,
    Collection,
    Cursor,
    Document,
    DocumentId,
    Filter,
    Found,
    Model,
    Page,
    ServerTime,
    Vector,
)
from gateway.precisions import note_precision
from gateway.stores.conditions import require_indexes
from gateway.stores.point_ids import to_point_id
from gateway.stores.qdrant_catalog import QdrantCatalog
from gateway.stores.qdrant_collections import Known, Memory, QdrantIndex
from gateway.stores.qdrant_filter import to_qdrant_filter
from gateway.stores.qdrant_probe import probe
from gateway.stores.qdrant_requests import (
    deleted,
    fetched,
    page_of,
    points_of,
    queried,
    require_applied,
    scrolled,
    whole_seconds,
    written,
)
from gateway.stores.qdrant_status import answered
from gateway.stores.qdrant_target import QdrantTarget, open_channel
from gateway.stores.qdrant_values import from_pb_id, from_pb_payload
from gateway.stores.records import (
    collection_not_found,
    rank,
    require_encoder,
    to_candidate,
    to_document,
    unit_vector,
)
from serving.deadline import Deadline
from serving.errors import InferenceFailed, NotReady

MAX_TIED = 1_000
"""Most candidates that are read beyond a pool whose last score goes on after it. One always is, to see whether it
does; further ones cost a second call, and where more than this are equal, the server chooses among them."""

CLOSE_GRACE_S = 5.0
"""How long closing waits for calls that are under way."""


class QdrantStore:
    """A `gateway.ports.VectorStore`; made by `open` inside the running loop."""

    name = "qdrant"

    def __init__(self, target: QdrantTarget, channel: grpc.aio.Channel, index: QdrantIndex, memory: Memory) -> None:
        self._metadata = target.metadata
        self._channel = channel
        self._index = index
        self._points = pb.PointsStub(channel)  # type: ignore[no-untyped-call]  # generated
        self._catalog = QdrantCatalog(channel, self._call, memory)
        self._closed = False

    @classmethod
    async def open(
        cls,
        target: QdrantTarget,
        *,
        index: QdrantIndex | None = None,
        memory: Memory | None = None,
        patience_s: float = 2.0,
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
            await probe(channel, target, patience_s)
        except BaseException:
            await channel.close()
            raise
        return cls(target, channel, index or QdrantIndex(), memory or Memory())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Finish what is under way and close the channel; again is no error."""
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
        deadline: Deadline,
    ) -> Collection:
        """Create an empty collection; it remembers the encoder without its device."""
        wanted = Known(
            name=name,
            dimension=dimension,
            encoder=encoder,
            passage_prefix=passage_prefix,
            parameters=parameters,
            hidden=hidden,
        )
        return await self._catalog.create(wanted, deadline)

    async def reveal(self, name: str, *, document_count: int, deadline: Deadline) -> Collection:
        """Let a hidden collection be found, if it holds so many documents."""
        return await self._catalog.reveal(name, document_count, deadline)

    async def describe(self, name: str, *, deadline: Deadline) -> Collection:
        """Return one collection, its documents counted exactly; the server does not tell bytes on disk."""
        return await self._catalog.describe(name, deadline)

    async def list(self, *, deadline: Deadline) -> Sequence[Collection]:
        """Return all collections that are ours, by name."""
        return await self._catalog.list(deadline)

    async def drop(self, name: str, *, with_aliases: bool = False, deadline: Deadline) -> None:
        """Delete a collection and its documents; Misconfigured where it is another program's."""
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
        deadline: Deadline,
    ) -> Page:
        """Return up to `limit` documents under the filter from a cursor on, by the server's order of ids."""
        chosen = None if filter is None else to_qdrant_filter(filter)

        async def send(own: str, _: None) -> Page:
            request = scrolled(own, after, limit, chosen, whole_seconds(deadline))
            return page_of(await self._call(self._points.Scroll, request, deadline, "scan"))

        return await self._catalog.checked(name, _suits(filter), send, deadline, "scan")

    async def count(self, name: str, *, filter: Filter | None = None, deadline: Deadline) -> int:  # noqa: A002
        """Count the documents under the filter, exactly."""
        chosen = None if filter is None else to_qdrant_filter(filter)

        async def send(own: str, _: None) -> int:
            request = pb.CountPoints(collection_name=own, filter=chosen, exact=True, timeout=whole_seconds(deadline))
            return int((await self._call(self._points.Count, request, deadline, "count")).result.count)

        return await self._catalog.checked(name, _suits(filter), send, deadline, "count")

    async def upsert(
        self, name: str, documents: Sequence[Document], vectors: Sequence[Vector], *, deadline: Deadline
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
            return points_of(documents, vectors, known.dimension)

        # Only an empty batch would not notice by itself that its collection is gone.
        await self._catalog.checked(name, check, send, deadline, "upsert", writes=True, asks=not documents)

    async def delete(self, name: str, ids: Sequence[DocumentId], *, deadline: Deadline) -> None:
        """Delete documents."""
        point_ids = [to_point_id(one) for one in ids]

        async def send(own: str, _: None) -> None:
            if point_ids:
                request = deleted(own, point_ids, whole_seconds(deadline))
                require_applied(await self._call(self._points.Delete, request, deadline, "delete"), "delete")

        await self._catalog.checked(name, _require_found, send, deadline, "delete", writes=True, asks=not point_ids)

    async def get(self, name: str, ids: Sequence[DocumentId], *, deadline: Deadline) -> Sequence[Document]:
        """Return the documents that exist, in the order asked for."""
        point_ids = [to_point_id(one) for one in ids]

        async def send(own: str, _: None) -> Sequence[Document]:
            request = fetched(own, point_ids, whole_seconds(deadline))
            answer = await self._call(self._points.Get, request, deadline, "get")
            stored = {from_pb_id(one.id): one.payload for one in answer.result}
            return [to_document(one, from_pb_payload(stored[one])) for one in point_ids if one in stored]

        return await self._catalog.checked(name, _require_found, send, deadline, "get")

    async def search(  # noqa: PLR0913 - the port's signature
        self,
        name: str,
        vector: Vector,
        *,
        encoder: Model,
        pool_size: int,
        filter: Filter | None,  # noqa: A002 - the field's word
        payload_fields: Sequence[str],
        deadline: Deadline,
    ) -> Found:
        """Return the `pool_size` nearest documents under the filter, as the collection's index finds them."""
        chosen = None if filter is None else to_qdrant_filter(filter)

        def check(known: Known) -> pb.QueryPoints:
            _suits(filter)(known)
            require_encoder(known.name, known.encoder, encoder)
            note_precision(known.name, known.encoder, encoder)
            return queried(known, unit_vector(vector, known.dimension), chosen, payload_fields, self._index)

        async def send(_: str, request: pb.QueryPoints) -> Found:
            return await self._pool(request, pool_size, payload_fields, deadline)

        return await self._catalog.checked(name, check, send, deadline, "search")

    async def _pool(
        self, request: pb.QueryPoints, pool_size: int, payload_fields: Sequence[str], deadline: Deadline
    ) -> Found:
        """Ask until the pool's last score ends, so that the ids and not the server's whim decide who is in."""
        compute, limit, most = 0, pool_size + 1, pool_size + MAX_TIED
        while True:
            request.limit, request.timeout = limit, whole_seconds(deadline)
            request.params.hnsw_ef = max(self._index.ef, limit)
            answer = await self._call(self._points.Query, request, deadline, "search")
            compute += _nanoseconds(answer.time)
            pool = [_candidate(one, payload_fields) for one in answer.result]
            pool.sort(key=rank)
            if len(pool) < limit or limit >= most or pool[-1].score < pool[pool_size - 1].score:
                return Found(candidates=pool[:pool_size], time=ServerTime(compute=compute))
            limit = min(4 * limit, most)

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


def _candidate(point: pb.ScoredPoint, payload_fields: Sequence[str]) -> Candidate:
    return to_candidate(from_pb_id(point.id), point.score, from_pb_payload(point.payload), payload_fields)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9) if math.isfinite(seconds) and seconds > 0 else 0
