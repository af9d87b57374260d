"""The RPCs of collections: validate, call, convert."""

from typing import Any, TypeAlias

import grpc

from gateway.convert import collection_message, collection_name
from gateway.ports import Encoder, VectorStore
from gateway.settings import GatewaySettings
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1 import gateway_pb2_grpc as pb_grpc
from serving.deadline import Deadline
from serving.server import deadline_of

SERVICE = pb.DESCRIPTOR.services_by_name["CollectionService"].full_name

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class CollectionService(pb_grpc.CollectionServiceServicer):
    """Implements retrieval.gateway.v1.CollectionService.

    Args:
        encoder: Whose vectors a new collection will hold.
        store: Where collections are.
        settings: The default deadline.
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
        model, dimension = await self._encoder.model(deadline=deadline)
        collection = await self._store.create(name, dimension=dimension, encoder=model, deadline=deadline)
        return pb.CreateCollectionResponse(collection=collection_message(collection))

    async def DescribeCollection(  # noqa: N802
        self, request: pb.DescribeCollectionRequest, context: Context
    ) -> pb.DescribeCollectionResponse:
        """Return one collection."""
        name = collection_name(request.collection)
        collection = await self._store.describe(name, deadline=self._deadline(context))
        return pb.DescribeCollectionResponse(collection=collection_message(collection))

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
        await self._store.drop(collection_name(request.collection), deadline=self._deadline(context))
        return pb.DropCollectionResponse()

    def _deadline(self, context: Context) -> Deadline:
        return deadline_of(context, self._settings.default_deadline_s)
