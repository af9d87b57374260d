"""Which collections a Qdrant server has, and what their names and aliases stand for."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from qdrant_client import grpc as pb

from gateway.ports import Collection
from gateway.stores.qdrant_calls import CollectionCalls
from gateway.stores.qdrant_collections import Known, Memory, collection_of, read_known
from gateway.stores.qdrant_status import REFUSED
from gateway.stores.records import collection_exists, collection_not_found, require_incarnation, require_no_aliases
from serving.deadline import Deadline
from serving.errors import InferenceFailed, InvalidRequest, Misconfigured, NotFound

T = TypeVar("T")
U = TypeVar("U")


class QdrantCatalog:
    """The collections that are ours.

    Args:
        calls: To the server.
        memory: Where collections are remembered.
    """

    def __init__(self, calls: CollectionCalls, memory: Memory) -> None:
        self._calls = calls
        self._memory = memory

    async def describe(self, name: str, deadline: Deadline, stage: str = "describe") -> Collection:
        """Return one collection, its documents counted exactly."""
        aliases = await self._calls.aliases(deadline, stage)
        try:
            return await self._described(name, aliases, deadline, stage)
        except NotFound:
            if name not in aliases:
                raise
        # The alias was pointed elsewhere, and what it pointed at dropped.
        aliases = await self._calls.aliases(deadline, stage)
        return await self._described(name, aliases, deadline, stage)

    async def list(self, deadline: Deadline) -> Sequence[Collection]:
        """Return all collections that are ours, by name."""
        names = sorted(await self._calls.names(deadline, "list"))
        aliases = await self._calls.aliases(deadline, "list")
        described = [await self._described_if_ours(name, aliases, deadline) for name in names]
        return [one for one in described if one is not None]

    async def drop(self, name: str, deadline: Deadline, *, with_aliases: bool) -> None:
        """Delete a collection; the server deletes its aliases with it.

        The server deletes by name alone: what is made between the check and the deletion goes as well.
        """
        aliases = await self._calls.aliases(deadline, "drop")
        pointing = sorted(alias for alias, target in aliases.items() if target == name)
        require_no_aliases(name, aliases.get(name, name), () if with_aliases else pointing)
        read_known(name, (await self._calls.info(name, deadline, "drop")).config)
        self._memory.forget(name)
        if not await self._calls.delete(name, deadline, "drop"):
            raise collection_not_found(name)

    async def assign_alias(self, alias: str, collection: str, deadline: Deadline) -> None:
        """Point an alias at a collection, in one request."""
        aliases = await self._calls.aliases(deadline, "assign_alias")
        info = None if collection in aliases else await self._calls.info(collection, deadline, "assign_alias")
        if info is None or read_known(collection, info.config).hidden:
            raise collection_not_found(collection)
        made = pb.AliasOperations(create_alias=pb.CreateAlias(alias_name=alias, collection_name=collection))
        try:
            await self._change([*_deleted(alias, aliases), made], alias, deadline, "assign_alias")
        except InferenceFailed as error:
            if error.reason == REFUSED and alias in await self._calls.names(deadline, "assign_alias"):
                raise collection_exists(alias) from error
            raise

    async def delete_alias(self, alias: str, deadline: Deadline) -> None:
        """Delete an alias."""
        deletions = _deleted(alias, await self._calls.aliases(deadline, "delete_alias"))
        if not deletions:
            raise NotFound("ALIAS_NOT_FOUND", "there is no alias of that name", alias=alias)
        await self._change(deletions, alias, deadline, "delete_alias")

    async def require_incarnation(self, own: str, incarnation: str, deadline: Deadline, stage: str) -> None:
        """Check against the server that a collection still is the one that was meant.

        Raises:
            Unavailable: `COLLECTION_REPLACED`.
        """
        known = read_known(own, (await self._calls.info(own, deadline, stage)).config)
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
        aliases = await self._calls.aliases(deadline, stage)
        own = aliases.get(name, name)
        try:
            info = await self._calls.info(own, deadline, stage)
        except NotFound:
            if own == name:
                raise
            own = (await self._calls.aliases(deadline, stage)).get(name, name)
            info = await self._calls.info(own, deadline, stage)
        known = read_known(own, info.config, asked=name)
        if not known.hidden:
            self._memory.put(name, known)
        return known

    async def _described(self, name: str, aliases: Mapping[str, str], deadline: Deadline, stage: str) -> Collection:
        own = aliases.get(name, name)
        info = await self._calls.info(own, deadline, stage)
        known = read_known(own, info.config, asked=name)
        if known.hidden:
            raise collection_not_found(name)
        self._memory.put(own, known)
        return collection_of(
            known,
            document_count=await self._calls.count(own, deadline, stage),
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

    async def _change(self, actions: Sequence[pb.AliasOperations], alias: str, deadline: Deadline, stage: str) -> None:
        await self._calls.change_aliases(actions, deadline, stage)
        self._memory.forget(alias)


def _deleted(alias: str, aliases: Mapping[str, str]) -> Sequence[pb.AliasOperations]:
    if alias not in aliases:
        return []
    return [pb.AliasOperations(delete_alias=pb.DeleteAlias(alias_name=alias))]
