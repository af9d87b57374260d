"""The RPCs of collections: validate, call, convert."""

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import grpc

from gateway.convert_collections import (
    collection_message,
    header_message,
    header_of,
    parameters_of,
    stored_message,
    stored_of,
)
from gateway.convert_values import collection_name
from gateway.ports import Collection, Encoder, VectorStore
from gateway.scopes import current
from gateway.settings import GatewaySettings
from gateway.transfer import Import, importing, read_all
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1 import gateway_pb2_grpc as pb_grpc
from serving.deadline import Deadline
from serving.errors import InvalidRequest, Misconfigured, NotFound
from serving.server import deadline_of

SERVICE = pb.DESCRIPTOR.services_by_name["CollectionService"].full_name
BATCH_BYTES = 2 * 1024 * 1024
"""Size from which a message of an export is sent; with one more document it is still under gRPC's default of 4 MiB."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Parts: TypeAlias = AsyncIterator[pb.ImportCollectionRequest]


class CollectionService(pb_grpc.CollectionServiceServicer):
    """Implements retrieval.gateway.v1.CollectionService.

    Args:
        encoder: Whose vectors a new collection will hold.
        store: Where collections are.
        settings: The default deadlines.
    """

    def __init__(self, encoder: Encoder, store: VectorStore, settings: GatewaySettings) -> None:
        self._encoder = encoder
        self._store = store
        self._settings = settings

    async def CreateCollection(  # noqa: N802
        self, request: pb.CreateCollectionRequest, context: Context
    ) -> pb.CreateCollectionResponse:
        """Create a collection for the encoder that is serving now."""
        deadline, name = self._deadline(context), collection_name(request.collection)
        parameters = parameters_of(request.parameters)
        await self._require_room(deadline)
        info = await self._encoder.info(deadline=deadline)
        collection = await self._store.create(
            name,
            dimension=info.dimension,
            encoder=info.model,
            passage_prefix=info.passage_prefix,
            parameters=parameters,
            deadline=deadline,
        )
        return pb.CreateCollectionResponse(collection=collection_message(collection))

    async def DescribeCollection(  # noqa: N802
        self, request: pb.DescribeCollectionRequest, context: Context
    ) -> pb.DescribeCollectionResponse:
        """Return one collection."""
        name = collection_name(request.collection)
        collection = await self._store.describe(name, deadline=self._deadline(context))
        return pb.DescribeCollectionResponse(collection=collection_message(_shown(collection, name)))

    async def ListCollections(  # noqa: N802
        self,
        request: pb.ListCollectionsRequest,  # noqa: ARG002
        context: Context,
    ) -> pb.ListCollectionsResponse:
        """Return all collections."""
        collections = await self._store.list(deadline=self._deadline(context))
        return pb.ListCollectionsResponse(collections=[collection_message(collection) for collection in collections])

    async def DropCollection(  # noqa: N802
        self, request: pb.DropCollectionRequest, context: Context
    ) -> pb.DropCollectionResponse:
        """Delete a collection."""
        name = collection_name(request.collection)
        await self._store.drop(name, with_aliases=request.drop_aliases, deadline=self._deadline(context))
        return pb.DropCollectionResponse()

    async def AssignAlias(self, request: pb.AssignAliasRequest, context: Context) -> pb.AssignAliasResponse:  # noqa: N802
        """Point an alias at a collection."""
        alias, name = collection_name(request.alias, "alias"), collection_name(request.collection)
        await self._store.assign_alias(alias, name, deadline=self._deadline(context))
        return pb.AssignAliasResponse()

    async def DeleteAlias(self, request: pb.DeleteAliasRequest, context: Context) -> pb.DeleteAliasResponse:  # noqa: N802
        """Delete an alias."""
        alias = collection_name(request.alias, "alias")
        await self._store.delete_alias(alias, deadline=self._deadline(context))
        return pb.DeleteAliasResponse()

    async def ExportCollection(  # noqa: N802
        self, request: pb.ExportCollectionRequest, context: Context
    ) -> AsyncIterator[pb.ExportCollectionResponse]:
        """Return a whole collection."""
        deadline = self._each(context, self._settings.default_deadline_s)
        name = collection_name(request.collection)
        collection = await self._store.describe(name, deadline=deadline())
        yield pb.ExportCollectionResponse(header=header_message(_shown(collection, name)))
        count = 0
        async for batch in self._batches(collection, deadline):
            count += len(batch.documents)
            yield pb.ExportCollectionResponse(documents=batch)
        yield pb.ExportCollectionResponse(footer=pb.CollectionFooter(document_count=count))

    async def ImportCollection(  # noqa: N802
        self, request_iterator: Parts, context: Context
    ) -> pb.ImportCollectionResponse:
        """Make a collection of an export, all of it or nothing."""
        deadline = self._each(context, self._settings.upsert_deadline_s)
        start = _start(await anext(request_iterator, None))
        dimension, encoder = header_of(start.header)
        given, field = (
            (start.parameters, "start.parameters")
            if start.HasField("parameters")
            else (start.header.parameters, "start.header.parameters")
        )
        await self._require_room(deadline())
        async with importing(
            self._store,
            collection_name(start.collection, "start.collection"),
            dimension=dimension,
            encoder=encoder,
            passage_prefix=start.header.passage_prefix,
            parameters=parameters_of(given, field),
            deadline=deadline(),
        ) as target:
            await _fill(target, request_iterator, dimension, deadline)
            collection = await target.finish(deadline=deadline())
        return pb.ImportCollectionResponse(collection=collection_message(collection))

    async def _batches(
        self, collection: Collection, deadline: Callable[[], Deadline]
    ) -> AsyncIterator[pb.DocumentBatch]:
        """Read all documents, in messages that every client takes."""
        batch, size = pb.DocumentBatch(), 0
        async for documents, vectors in read_all(self._store, collection, deadline):
            for document, vector in zip(documents, vectors, strict=True):
                one = stored_message(document, vector)
                batch.documents.append(one)
                size += one.ByteSize()
                if size >= BATCH_BYTES:
                    yield batch
                    batch, size = pb.DocumentBatch(), 0
            if batch.documents:
                yield batch
                batch, size = pb.DocumentBatch(), 0

    async def _require_room(self, deadline: Deadline) -> None:
        """Refuse one more collection than the caller may know of."""
        most, count = self._settings.max_collections, len(await self._store.list(deadline=deadline))
        if count >= most:
            raise Misconfigured("TOO_MANY_COLLECTIONS", f"there are {count} collections, the limit is {most}")

    def _deadline(self, context: Context) -> Deadline:
        return deadline_of(context, self._settings.default_deadline_s)

    def _each(self, context: Context, default_s: float) -> Callable[[], Deadline]:
        """Return what makes the deadline of each step: the caller's, or the default anew."""
        remaining = context.time_remaining()
        ends = None if remaining is None else Deadline.after(remaining)
        return lambda: ends or Deadline.after(default_s)


def _shown(collection: Collection, name: str) -> Collection:
    """Return a collection as the caller may know it, having asked for it by a name that it may use."""
    shown = current().shown(collection)
    if shown is None:
        raise NotFound("COLLECTION_NOT_FOUND", "there is no collection of that name", collection=name)
    return shown


def _start(part: pb.ImportCollectionRequest | None) -> pb.ImportStart:
    if part is None or part.WhichOneof("part") != "start":
        raise InvalidRequest("IMPORT_ORDER", "the first message has to be the start", field="start")
    return part.start


async def _fill(target: Import, parts: Parts, dimension: int, deadline: Callable[[], Deadline]) -> None:
    """Store batches up to the footer, which has to be the last message and right."""
    async for part in parts:
        kind = part.WhichOneof("part")
        if kind == "documents":
            await target.add(*stored_of(part.documents.documents, dimension), deadline=deadline())
        elif kind == "footer":
            if part.footer.document_count != target.written:
                message = f"{target.written} documents came, the footer says {part.footer.document_count}"
                raise InvalidRequest("IMPORT_COUNT", message, field="footer.document_count")
            if await anext(parts, None) is not None:
                raise InvalidRequest("IMPORT_ORDER", "a message after the footer", field="footer")
            return
        else:
            raise InvalidRequest("IMPORT_ORDER", "documents or the footer are wanted", field="part")
    raise InvalidRequest("IMPORT_ORDER", "the messages end without a footer: the export is not whole", field="footer")
