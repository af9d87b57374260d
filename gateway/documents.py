"""The RPCs of documents: validate, call, convert."""

from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc

from gateway.convert import document_message, documents_of, overlong_of, splitting_of
from gateway.convert_values import collection_name, ids_of
from gateway.indexing import Indexer
from gateway.ports import VectorStore
from gateway.scopes import UPSERT, current, require
from gateway.settings import GatewaySettings
from gateway.stored_parts import READ_IDS_PER_CALL
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1 import gateway_pb2_grpc as pb_grpc
from serving.deadline import Deadline
from serving.errors import InvalidRequest
from serving.server import deadline_of
from serving.status import failure_of
from serving.streams import answer_in_order

SERVICE = pb.DESCRIPTOR.services_by_name["DocumentService"].full_name
# One message is stored while the next ones are encoded.
MESSAGES_IN_FLIGHT = 3

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class DocumentService(pb_grpc.DocumentServiceServicer):
    """Implements retrieval.gateway.v1.DocumentService.

    Args:
        indexer: Writes documents.
        store: Reads and deletes them.
        settings: The default deadlines.
    """

    def __init__(self, indexer: Indexer, store: VectorStore, settings: GatewaySettings) -> None:
        self._indexer = indexer
        self._store = store
        self._settings = settings

    async def UpsertDocuments(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.UpsertDocumentsRequest], context: Context
    ) -> AsyncIterator[pb.UpsertDocumentsResponse]:
        """Store documents, answered message by message in order."""
        remaining = context.time_remaining()
        ends = None if remaining is None else Deadline.after(remaining)

        async def answer(message: pb.UpsertDocumentsRequest) -> pb.UpsertDocumentsResponse:
            return await self._upsert(message, ends or Deadline.after(self._settings.upsert_deadline_s))

        async for response in answer_in_order(request_iterator, answer, MESSAGES_IN_FLIGHT):
            yield response

    async def DeleteDocuments(  # noqa: N802
        self, request: pb.DeleteDocumentsRequest, context: Context
    ) -> pb.DeleteDocumentsResponse:
        """Delete documents."""
        ids, scope = ids_of(request.ids), current()
        await self._indexer.delete(
            collection_name(request.collection),
            ids,
            own=[one for one in ids if scope.owns(one)],
            deadline=deadline_of(context, self._settings.default_deadline_s),
        )
        return pb.DeleteDocumentsResponse()

    async def GetDocuments(self, request: pb.GetDocumentsRequest, context: Context) -> pb.GetDocumentsResponse:  # noqa: N802
        """Return documents; those that make the answer too large are the last that are read."""
        collection, ids = collection_name(request.collection), ids_of(request.ids)
        deadline = deadline_of(context, self._settings.default_deadline_s)
        response, limit = pb.GetDocumentsResponse(), self._settings.max_answer_bytes
        if len(ids) > READ_IDS_PER_CALL:  # an alias may be pointed elsewhere between two reads
            collection = (await self._store.describe(collection, deadline=deadline)).name
        for begin in range(0, len(ids), READ_IDS_PER_CALL):
            some = ids[begin : begin + READ_IDS_PER_CALL]
            documents = await self._store.get(collection, some, deadline=deadline)
            response.documents.extend(document_message(one) for one in documents)
            if (size := response.ByteSize()) > limit:
                message = f"the answer has at least {size} bytes, the limit is {limit}; ask for fewer documents"
                raise InvalidRequest("ANSWER_TOO_LARGE", message, field="ids")
        return response

    async def _upsert(self, message: pb.UpsertDocumentsRequest, deadline: Deadline) -> pb.UpsertDocumentsResponse:
        try:
            scope = current()
            require(UPSERT, message, scope)
            documents, overlong = documents_of(message.documents), overlong_of(message)
            stored = await self._indexer.upsert(
                collection_name(message.collection),
                [scope.stamped(one, f"documents[{index}]") for index, one in enumerate(documents)],
                overlong=overlong,
                splitting=splitting_of(message, overlong),
                deadline=deadline,
            )
        except Exception as error:  # noqa: BLE001 - reported in the message's own answer
            code, reason, text = failure_of(error)
            failure = pb.Failure(code=code, reason=reason, message=text)
            return pb.UpsertDocumentsResponse(sequence=message.sequence, failure=failure)
        return pb.UpsertDocumentsResponse(
            sequence=message.sequence,
            stored=pb.Stored(
                stored_count=stored.stored_count,
                truncated_count=stored.truncated_count,
                split_count=stored.split_count,
                part_count=stored.part_count,
            ),
        )
