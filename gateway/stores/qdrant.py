"""The vector store that many gateways share: a Qdrant server of 1.16 or newer, over gRPC.

The generated stubs are used and not `AsyncQdrantClient`, which rounds timeouts up to whole seconds, asks the REST port
for its version in a thread unless told not to, and is not faster (`benchmarks/qdrant_calls.py` measures both).
"""

import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from qdrant_client import grpc as pb

from gateway.ports import Candidate, Collection, Document, DocumentId, Filter, Found, Model, ServerTime, Vector
from gateway.stores.point_ids import to_point_id
from gateway.stores.qdrant_collections import Known, Memory, QdrantIndex, creation, read_known
from gateway.stores.qdrant_filter import to_qdrant_filter
from gateway.stores.qdrant_probe import probe
from gateway.stores.qdrant_requests import deleted, points_of, queried, require_applied, whole_seconds, written
from gateway.stores.qdrant_status import REFUSED, answered
from gateway.stores.qdrant_target import QdrantTarget, open_channel
from gateway.stores.qdrant_values import from_pb_id, from_pb_payload, to_pb_id
from gateway.stores.records import rank, require_encoder, to_candidate, to_document, unit_vector
from serving.deadline import Deadline
from serving.errors import InferenceFailed, Misconfigured, NotFound, NotReady

T = TypeVar("T")
U = TypeVar("U")

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
        self._memory = memory
        self._points = pb.PointsStub(channel)  # type: ignore[no-untyped-call]  # generated
        self._collections = pb.CollectionsStub(channel)  # type: ignore[no-untyped-call]  # generated
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
            index: How new collections are indexed and all are searched.
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

    async def create(self, name: str, *, dimension: int, encoder: Model, deadline: Deadline) -> Collection:
        """Create an empty collection; it remembers the encoder without its device."""
        request = creation(name, dimension, encoder, self._index, whole_seconds(deadline))
        await self._call(self._collections.Create, request, deadline, "create")
        try:
            known = await self._fetch(name, deadline, "create")
        except Misconfigured as error:
            await self._drop(name, deadline, "create")
            raise Misconfigured(
                "STORE_TOO_OLD", "Qdrant before 1.16 keeps no metadata of collections; use a newer one"
            ) from error
        return Collection(name=name, document_count=0, dimension=known.dimension, encoder=known.encoder)

    async def describe(self, name: str, *, deadline: Deadline) -> Collection:
        """Return one collection, its documents counted exactly; the server does not tell bytes on disk."""
        return await self._describe(name, deadline, "describe")

    async def list(self, *, deadline: Deadline) -> Sequence[Collection]:
        """Return all collections that are ours, by name."""
        answer = await self._call(self._collections.List, pb.ListCollectionsRequest(), deadline, "list")
        names = sorted(one.name for one in answer.collections)
        described = [await self._describe_ours(name, deadline) for name in names]
        return [one for one in described if one is not None]

    async def drop(self, name: str, *, deadline: Deadline) -> None:
        """Delete a collection and its documents; Misconfigured where it is another program's."""
        await self._fetch(name, deadline, "drop")
        if not await self._drop(name, deadline, "drop"):
            raise NotFound("COLLECTION_NOT_FOUND", "there is no collection of that name", collection=name)

    async def upsert(
        self, name: str, documents: Sequence[Document], vectors: Sequence[Vector], *, deadline: Deadline
    ) -> None:
        """Store documents; of two with one id the later stays.

        The whole batch is checked before it is sent, and answered once every replica that the server waits for has
        applied it. A collection of several shards may keep part of a batch when the server itself fails within it.
        """
        if len(documents) != len(vectors):
            raise InferenceFailed("VECTOR_COUNT", f"{len(vectors)} vectors for {len(documents)} documents")
        if not documents:
            await self._fetch(name, deadline, "upsert")
            return

        async def send(points: Sequence[pb.PointStruct]) -> None:
            request = written(name, points, whole_seconds(deadline))
            require_applied(await self._call(self._points.Upsert, request, deadline, "upsert"), "upsert")

        await self._checked(
            name, lambda known: points_of(documents, vectors, known.dimension), send, deadline, "upsert"
        )

    async def delete(self, name: str, ids: Sequence[DocumentId], *, deadline: Deadline) -> None:
        """Delete documents."""
        point_ids = [to_point_id(one) for one in ids]
        if not point_ids:
            await self._fetch(name, deadline, "delete")
            return
        request = deleted(name, point_ids, whole_seconds(deadline))
        require_applied(await self._call(self._points.Delete, request, deadline, "delete"), "delete")

    async def get(self, name: str, ids: Sequence[DocumentId], *, deadline: Deadline) -> Sequence[Document]:
        """Return the documents that exist, in the order asked for."""
        point_ids = [to_point_id(one) for one in ids]
        request = pb.GetPoints(
            collection_name=name,
            ids=[to_pb_id(one) for one in dict.fromkeys(point_ids)],
            with_payload=pb.WithPayloadSelector(enable=True),
            with_vectors=pb.WithVectorsSelector(enable=False),
            timeout=whole_seconds(deadline),
        )
        answer = await self._call(self._points.Get, request, deadline, "get")
        stored = {from_pb_id(one.id): one.payload for one in answer.result}
        return [to_document(one, from_pb_payload(stored[one])) for one in point_ids if one in stored]

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

        def check(known: Known) -> Sequence[float]:
            require_encoder(name, known.encoder, encoder)
            return unit_vector(vector, known.dimension)

        async def send(numbers: Sequence[float]) -> Found:
            request = queried(name, numbers, chosen, payload_fields, self._index)
            return await self._pool(request, pool_size, payload_fields, deadline)

        return await self._checked(name, check, send, deadline, "search")

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

    async def _checked(
        self,
        name: str,
        check: Callable[[Known], T],
        send: Callable[[T], Awaitable[U]],
        deadline: Deadline,
        stage: str,
    ) -> U:
        """Check a request against the collection as remembered, and where that goes wrong as it is now; send it."""
        try:
            return await send(await self._fitting(name, check, deadline, stage))
        except NotFound:
            self._memory.forget(name)
            raise
        except InferenceFailed as error:
            if error.reason == REFUSED:
                check(await self._fetch(name, deadline, stage))
            raise

    async def _fitting(self, name: str, check: Callable[[Known], T], deadline: Deadline, stage: str) -> T:
        known = self._memory.get(name)
        if known is not None:
            with contextlib.suppress(Misconfigured):
                return check(known)
        return check(await self._fetch(name, deadline, stage))

    async def _fetch(self, name: str, deadline: Deadline, stage: str) -> Known:
        self._memory.forget(name)
        request = pb.GetCollectionInfoRequest(collection_name=name)
        answer = await self._call(self._collections.Get, request, deadline, stage)
        known = read_known(name, answer.result.config)
        self._memory.put(known)
        return known

    async def _describe(self, name: str, deadline: Deadline, stage: str) -> Collection:
        known = await self._fetch(name, deadline, stage)
        request = pb.CountPoints(collection_name=name, exact=True, timeout=whole_seconds(deadline))
        answer = await self._call(self._points.Count, request, deadline, stage)
        return Collection(
            name=name, document_count=answer.result.count, dimension=known.dimension, encoder=known.encoder
        )

    async def _describe_ours(self, name: str, deadline: Deadline) -> Collection | None:
        """Describe a collection unless it was dropped meanwhile or is another program's."""
        try:
            return await self._describe(name, deadline, "list")
        except NotFound:
            return None
        except Misconfigured as error:
            if error.reason != "COLLECTION_MALFORMED":
                raise
            return None

    async def _drop(self, name: str, deadline: Deadline, stage: str) -> bool:
        self._memory.forget(name)
        request = pb.DeleteCollection(collection_name=name, timeout=whole_seconds(deadline))
        answer = await self._call(self._collections.Delete, request, deadline, stage)
        return bool(answer.result)

    async def _call(self, method: Any, request: Any, deadline: Deadline, stage: str) -> Any:
        if self._closed:
            raise NotReady("DRAINING", "the vector store is closed", stage=stage)
        left = deadline.require(stage)
        return await answered(method(request, timeout=left, metadata=self._metadata), stage=stage)


def _candidate(point: pb.ScoredPoint, payload_fields: Sequence[str]) -> Candidate:
    return to_candidate(from_pb_id(point.id), point.score, from_pb_payload(point.payload), payload_fields)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9) if math.isfinite(seconds) and seconds > 0 else 0
