"""Which collections a Qdrant server has, and what their names and aliases stand for."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import grpc
from qdrant_client import grpc as pb

from gateway.parameters import CollectionStatus
from gateway.ports import Collection
from gateway.stores.qdrant_collections import (
    SCHEMA_VERSION,
    STATUSES,
    Known,
    Memory,
    creation,
    index_creation,
    metadata_of,
    read_known,
)
from gateway.stores.qdrant_requests import require_applied, whole_seconds
from gateway.stores.qdrant_status import REFUSED
from gateway.stores.records import (
    collection_exists,
    collection_not_found,
    import_lost,
    require_count,
    require_incarnation,
    require_no_aliases,
)
from serving.deadline import Deadline
from serving.errors import InferenceFailed, InvalidRequest, Misconfigured, NotFound

T = TypeVar("T")
U = TypeVar("U")

CLEANUP_S = 5.0
"""How long to try to delete a collection that was not made whole, whatever time the caller had."""


class Call(Protocol):
    """Calls a method of the server."""

    async def __call__(self, method: Any, request: Any, deadline: Deadline, stage: str) -> Any:
        """Return the answer, or raise one of our errors."""


class QdrantCatalog:
    """The collections that are ours.

    Args:
        channel: To the server.
        call: How its methods are called.
        memory: Where collections are remembered.
    """

    def __init__(self, channel: grpc.aio.Channel, call: Call, memory: Memory) -> None:
        self._collections = pb.CollectionsStub(channel)  # type: ignore[no-untyped-call]  # generated
        self._points = pb.PointsStub(channel)  # type: ignore[no-untyped-call]  # generated
        self._call = call
        self._memory = memory

    async def create(self, wanted: Known, deadline: Deadline) -> Collection:
        """Create an empty collection with its payload indexes; where that fails nothing stays."""
        request = creation(wanted, whole_seconds(deadline))
        try:
            await self._call(self._collections.Create, request, deadline, "create")
        except InferenceFailed as error:
            if error.reason == REFUSED and wanted.name in await self._aliases(deadline, "create"):
                raise collection_exists(wanted.name) from error
            raise
        try:
            return await self._complete(wanted, deadline)
        except BaseException:
            with contextlib.suppress(Exception):
                await self.delete(wanted.name, Deadline.after(CLEANUP_S), "create")
            raise

    async def reveal(self, name: str, incarnation: str, document_count: int, deadline: Deadline) -> Collection:
        """Let a hidden collection be found, if it holds so many documents."""
        known = await self._import(name, incarnation, deadline, "reveal")
        require_count(await self._count(name, deadline, "reveal"), document_count)
        metadata = metadata_of(replace(known, hidden=False))
        request = pb.UpdateCollection(collection_name=name, metadata=metadata, timeout=whole_seconds(deadline))
        await self._call(self._collections.Update, request, deadline, "reveal")
        self._memory.forget(name)
        return await self.describe(name, deadline, "reveal")

    async def describe(self, name: str, deadline: Deadline, stage: str = "describe") -> Collection:
        """Return one collection, its documents counted exactly."""
        aliases = await self._aliases(deadline, stage)
        try:
            return await self._described(name, aliases, deadline, stage)
        except NotFound:
            if name not in aliases:
                raise
        # The alias was pointed elsewhere, and what it pointed at dropped.
        aliases = await self._aliases(deadline, stage)
        return await self._described(name, aliases, deadline, stage)

    async def list(self, deadline: Deadline) -> Sequence[Collection]:
        """Return all collections that are ours, by name."""
        answer = await self._call(self._collections.List, pb.ListCollectionsRequest(), deadline, "list")
        aliases = await self._aliases(deadline, "list")
        names = sorted(one.name for one in answer.collections)
        described = [await self._described_if_ours(name, aliases, deadline) for name in names]
        return [one for one in described if one is not None]

    async def drop(self, name: str, deadline: Deadline, *, with_aliases: bool, incarnation: str | None) -> None:
        """Delete a collection; the server deletes its aliases with it.

        The server deletes by name alone: what is made between the check and the deletion goes as well.
        """
        if incarnation is not None:
            await self._import(name, incarnation, deadline, "drop")
        aliases = await self._aliases(deadline, "drop")
        pointing = sorted(alias for alias, target in aliases.items() if target == name)
        require_no_aliases(name, aliases.get(name, name), () if with_aliases else pointing)
        read_known(name, (await self._info(name, deadline, "drop")).config)
        if not await self.delete(name, deadline, "drop"):
            raise collection_not_found(name)

    async def delete(self, name: str, deadline: Deadline, stage: str) -> bool:
        """Delete a collection without a question; whether there was one."""
        self._memory.forget(name)
        request = pb.DeleteCollection(collection_name=name, timeout=whole_seconds(deadline))
        answer = await self._call(self._collections.Delete, request, deadline, stage)
        return bool(answer.result)

    async def assign_alias(self, alias: str, collection: str, deadline: Deadline) -> None:
        """Point an alias at a collection, in one request."""
        aliases = await self._aliases(deadline, "assign_alias")
        info = None if collection in aliases else await self._info(collection, deadline, "assign_alias")
        if info is None or read_known(collection, info.config).hidden:
            raise collection_not_found(collection)
        made = pb.AliasOperations(create_alias=pb.CreateAlias(alias_name=alias, collection_name=collection))
        try:
            await self._change([*_deleted(alias, aliases), made], alias, deadline, "assign_alias")
        except InferenceFailed as error:
            if error.reason == REFUSED and await self._is_collection(alias, deadline):
                raise collection_exists(alias) from error
            raise

    async def delete_alias(self, alias: str, deadline: Deadline) -> None:
        """Delete an alias."""
        deletions = _deleted(alias, await self._aliases(deadline, "delete_alias"))
        if not deletions:
            raise NotFound("ALIAS_NOT_FOUND", "there is no alias of that name", alias=alias)
        await self._change(deletions, alias, deadline, "delete_alias")

    async def require_incarnation(self, own: str, incarnation: str, deadline: Deadline, stage: str) -> None:
        """Check against the server that a collection still is the one that was meant.

        Raises:
            Unavailable: `COLLECTION_REPLACED`.
        """
        known = read_known(own, (await self._info(own, deadline, stage)).config)
        require_incarnation(known.incarnation, incarnation)

    async def checked(  # noqa: PLR0913 - a request has so many parts
        self,
        name: str,
        check: Callable[[Known], T],
        send: Callable[[str, T], Awaitable[U]],
        deadline: Deadline,
        stage: str,
        *,
        writes: bool = False,
        asks: bool = False,
    ) -> U:
        """Check a request against the collection as remembered, and where that goes wrong as it is now; send it.

        Args:
            name: A collection's or an alias.
            check: Makes the request for a collection, or raises.
            send: Sends it to the collection of that name.
            deadline: Until when.
            stage: What is being done, as errors name it.
            writes: Whether what an alias points at has to be known for certain.
            asks: Whether to ask the server in any case.
        """
        if asks:
            self._memory.forget(name)
        known, fitted = await self._fitting(name, check, deadline, stage, writes=writes)
        try:
            return await send(known.name, fitted)
        except NotFound:
            self._memory.forget(name)
            if known.name == name:
                raise
        except InferenceFailed as error:
            if error.reason == REFUSED:
                check(await self._fetch(name, deadline, stage))
            raise
        # The alias was pointed elsewhere, and what it pointed at dropped.
        known, fitted = await self._fitting(name, check, deadline, stage, writes=writes)
        return await send(known.name, fitted)

    async def _fitting(
        self, name: str, check: Callable[[Known], T], deadline: Deadline, stage: str, *, writes: bool
    ) -> tuple[Known, T]:
        known = self._memory.get(name)
        if known is not None and (known.name == name or not writes):
            with contextlib.suppress(Misconfigured, InvalidRequest):
                return known, check(known)
        known = await self._fetch(name, deadline, stage)
        return known, check(known)

    async def _fetch(self, name: str, deadline: Deadline, stage: str) -> Known:
        self._memory.forget(name)
        aliases = await self._aliases(deadline, stage)
        own = aliases.get(name, name)
        try:
            info = await self._info(own, deadline, stage)
        except NotFound:
            if own == name:
                raise
            own = (await self._aliases(deadline, stage)).get(name, name)
            info = await self._info(own, deadline, stage)
        known = read_known(own, info.config, asked=name)
        if not known.hidden:
            self._memory.put(name, known)
        return known

    async def _complete(self, wanted: Known, deadline: Deadline) -> Collection:
        try:
            known = read_known(wanted.name, (await self._info(wanted.name, deadline, "create")).config)
        except Misconfigured as error:
            raise Misconfigured(
                "STORE_TOO_OLD", "Qdrant before 1.16 keeps no metadata of collections; use a newer one"
            ) from error
        for index in wanted.parameters.payload_indexes:
            request = index_creation(wanted.name, index, whole_seconds(deadline))
            require_applied(await self._call(self._points.CreateFieldIndex, request, deadline, "create"), "create")
        if not known.hidden:
            self._memory.put(wanted.name, known)
        return _collection(known, document_count=0)

    async def _import(self, name: str, incarnation: str, deadline: Deadline, stage: str) -> Known:
        """Return the hidden collection of a name and incarnation.

        Raises:
            Unavailable: `IMPORT_LOST`.
        """
        try:
            known = read_known(name, (await self._info(name, deadline, stage)).config)
        except NotFound as error:
            raise import_lost() from error
        require_import(known, incarnation)
        return known

    async def _described(self, name: str, aliases: Mapping[str, str], deadline: Deadline, stage: str) -> Collection:
        own = aliases.get(name, name)
        info = await self._info(own, deadline, stage)
        known = read_known(own, info.config, asked=name)
        if known.hidden:
            raise collection_not_found(name)
        self._memory.put(own, known)
        return _collection(
            known,
            document_count=await self._count(own, deadline, stage),
            status=info.status,
            aliases=sorted(alias for alias, target in aliases.items() if target == own),
        )

    async def _described_if_ours(self, name: str, aliases: Mapping[str, str], deadline: Deadline) -> Collection | None:
        """Describe a collection unless it is hidden, was dropped meanwhile or is another program's."""
        try:
            return await self._described(name, aliases, deadline, "list")
        except NotFound:
            return None
        except Misconfigured as error:
            if error.reason != "COLLECTION_MALFORMED":
                raise
            return None

    async def _info(self, own: str, deadline: Deadline, stage: str) -> pb.CollectionInfo:
        request = pb.GetCollectionInfoRequest(collection_name=own)
        answer: pb.GetCollectionInfoResponse = await self._call(self._collections.Get, request, deadline, stage)
        return answer.result

    async def _count(self, own: str, deadline: Deadline, stage: str) -> int:
        request = pb.CountPoints(collection_name=own, exact=True, timeout=whole_seconds(deadline))
        return int((await self._call(self._points.Count, request, deadline, stage)).result.count)

    async def _aliases(self, deadline: Deadline, stage: str) -> Mapping[str, str]:
        """Return alias -> collection."""
        answer = await self._call(self._collections.ListAliases, pb.ListAliasesRequest(), deadline, stage)
        return {one.alias_name: one.collection_name for one in answer.aliases}

    async def _is_collection(self, name: str, deadline: Deadline) -> bool:
        answer = await self._call(self._collections.List, pb.ListCollectionsRequest(), deadline, "assign_alias")
        return any(one.name == name for one in answer.collections)

    async def _change(self, actions: Sequence[pb.AliasOperations], alias: str, deadline: Deadline, stage: str) -> None:
        request = pb.ChangeAliases(actions=actions, timeout=whole_seconds(deadline))
        await self._call(self._collections.UpdateAliases, request, deadline, stage)
        self._memory.forget(alias)


def require_import(known: Known, incarnation: str) -> None:
    """Check that a collection is hidden and the one that was meant.

    Raises:
        Unavailable: `IMPORT_LOST`.
    """
    if not known.hidden or known.incarnation != incarnation:
        raise import_lost()


def _collection(
    known: Known,
    *,
    document_count: int,
    status: Any = pb.CollectionStatus.Green,
    aliases: Sequence[str] = (),
) -> Collection:
    return Collection(
        name=known.name,
        document_count=document_count,
        dimension=known.dimension,
        encoder=known.encoder,
        passage_prefix=known.passage_prefix,
        schema_version=SCHEMA_VERSION,
        status=STATUSES.get(status, CollectionStatus.UNKNOWN),
        parameters=known.parameters,
        aliases=aliases,
        incarnation=known.incarnation,
    )


def _deleted(alias: str, aliases: Mapping[str, str]) -> Sequence[pb.AliasOperations]:
    if alias not in aliases:
        return []
    return [pb.AliasOperations(delete_alias=pb.DeleteAlias(alias_name=alias))]
