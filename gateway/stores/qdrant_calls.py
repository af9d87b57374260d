"""The calls of a Qdrant server that are about whole collections."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import grpc
from qdrant_client import grpc as pb

from gateway.parameters import PayloadIndex
from gateway.stores.qdrant_collections import Known, creation, index_creation, metadata_of
from gateway.stores.qdrant_requests import require_applied, whole_seconds
from serving.deadline import Deadline


class Call(Protocol):
    """Calls a method of the server."""

    async def __call__(self, method: Any, request: Any, deadline: Deadline, stage: str) -> Any:
        """Return the answer, or raise one of our errors."""


class CollectionCalls:
    """What is asked of the server, each in one call. An alias stands for its collection where not said otherwise.

    Args:
        channel: To the server.
        call: How its methods are called.
    """

    def __init__(self, channel: grpc.aio.Channel, call: Call) -> None:
        self._collections = pb.CollectionsStub(channel)  # type: ignore[no-untyped-call]  # generated
        self._points = pb.PointsStub(channel)  # type: ignore[no-untyped-call]  # generated
        self._call = call

    async def names(self, deadline: Deadline, stage: str) -> Sequence[str]:
        """Return the names of all collections, also those that are not ours."""
        answer = await self._call(self._collections.List, pb.ListCollectionsRequest(), deadline, stage)
        return [one.name for one in answer.collections]

    async def aliases(self, deadline: Deadline, stage: str) -> Mapping[str, str]:
        """Return alias -> collection."""
        answer = await self._call(self._collections.ListAliases, pb.ListAliasesRequest(), deadline, stage)
        return {one.alias_name: one.collection_name for one in answer.aliases}

    async def info(self, name: str, deadline: Deadline, stage: str) -> pb.CollectionInfo:
        """Return what the server knows of a collection."""
        request = pb.GetCollectionInfoRequest(collection_name=name)
        answer: pb.GetCollectionInfoResponse = await self._call(self._collections.Get, request, deadline, stage)
        return answer.result

    async def count(self, name: str, deadline: Deadline, stage: str) -> int:
        """Count the documents of a collection, exactly."""
        request = pb.CountPoints(collection_name=name, exact=True, timeout=whole_seconds(deadline))
        return int((await self._call(self._points.Count, request, deadline, stage)).result.count)

    async def create(self, wanted: Known, deadline: Deadline, stage: str) -> None:
        """Make a collection without its payload indexes."""
        await self._call(self._collections.Create, creation(wanted, whole_seconds(deadline)), deadline, stage)

    async def index(self, name: str, index: PayloadIndex, deadline: Deadline, stage: str) -> None:
        """Make a payload index."""
        request = index_creation(name, index, whole_seconds(deadline))
        require_applied(await self._call(self._points.CreateFieldIndex, request, deadline, stage), stage)

    async def keep(self, known: Known, deadline: Deadline, stage: str) -> None:
        """Have the server keep other things beside a collection than it did."""
        metadata, timeout_s = metadata_of(known), whole_seconds(deadline)
        request = pb.UpdateCollection(collection_name=known.name, metadata=metadata, timeout=timeout_s)
        await self._call(self._collections.Update, request, deadline, stage)

    async def delete(self, name: str, deadline: Deadline, stage: str) -> bool:
        """Delete the collection of a name, whichever it is, and no alias; whether there was one."""
        request = pb.DeleteCollection(collection_name=name, timeout=whole_seconds(deadline))
        answer = await self._call(self._collections.Delete, request, deadline, stage)
        return bool(answer.result)

    async def change_aliases(self, actions: Sequence[pb.AliasOperations], deadline: Deadline, stage: str) -> None:
        """Delete and make aliases, in one step."""
        request = pb.ChangeAliases(actions=actions, timeout=whole_seconds(deadline))
        await self._call(self._collections.UpdateAliases, request, deadline, stage)
