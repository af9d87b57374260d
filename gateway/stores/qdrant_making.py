"""How a collection comes to be on a Qdrant server: whole before it can be found, or not at all."""

import asyncio
import contextlib
from dataclasses import replace

from qdrant_client import grpc as pb

from gateway.ports import Collection
from gateway.stores.qdrant_calls import CollectionCalls
from gateway.stores.qdrant_collections import Known, Memory, collection_of, read_known
from gateway.stores.qdrant_leftovers import Leftovers, freed
from gateway.stores.qdrant_status import REFUSED
from gateway.stores.records import collection_exists, import_lost, require_count
from serving.deadline import Deadline
from serving.errors import (
    AlreadyExists,
    DeadlineSpent,
    InferenceFailed,
    Misconfigured,
    NotFound,
    ServiceError,
    Unavailable,
)

LOOK_S = 1.0
"""How long to look at what became of a call whose answer was lost, whatever time the caller has left."""

UNCLEAR = (DeadlineSpent, InferenceFailed, Unavailable)
"""Errors of a call that the server may have carried out, or may yet."""


class QdrantMaking:
    """The collections that are being made or imported.

    Args:
        calls: To the server.
        memory: Where collections are remembered.
    """

    def __init__(self, calls: CollectionCalls, memory: Memory) -> None:
        self._calls = calls
        self._memory = memory
        self._leftovers = Leftovers(self._remove)

    async def aclose(self, grace_s: float) -> None:
        """Delete what was made in vain, or give it up after so many seconds."""
        await self._leftovers.aclose(grace_s)

    async def create(self, wanted: Known, deadline: Deadline) -> Collection:
        """Create an empty collection with its payload indexes; it cannot be found before it has them.

        Where that fails, what the server has made or is still making goes, at the latest a while after; only what could
        be found already stays, and that is whole.
        """
        made = replace(wanted, hidden=wanted.hidden or bool(wanted.parameters.payload_indexes))
        await self._make(made, deadline)
        try:
            known = await self._complete(made, deadline)
            if known.hidden and not wanted.hidden:
                known = await self._show(known, deadline, "create")
        except BaseException as error:
            self._abandon(made)
            if isinstance(error, ServiceError):  # and not where the caller left
                await freed(self._leftovers.of(made.name, made.incarnation), deadline)
            raise
        return collection_of(known, document_count=0)

    async def reveal(self, name: str, incarnation: str, document_count: int, deadline: Deadline) -> Collection:
        """Let a hidden collection be found, if it holds so many documents."""
        info = await self._import(name, incarnation, deadline, "reveal")
        require_count(await self._calls.count(name, deadline, "reveal"), document_count)
        known = await self._show(read_known(name, info.config), deadline, "reveal")
        return collection_of(known, document_count=document_count, status=info.status)

    async def drop(self, name: str, incarnation: str, deadline: Deadline) -> None:
        """Delete what was being imported; where the server fails, go on trying without the caller.

        Raises:
            Unavailable: `IMPORT_LOST`.
        """
        deadline.require("drop")
        if self._leftovers.of(name, incarnation):  # it goes, and nobody needs to wait
            raise import_lost()
        try:
            await self._remove(name, incarnation, deadline)
        except ServiceError as error:
            if error.reason != "IMPORT_LOST":
                self._leftovers.delete(name, incarnation)
            raise

    async def _make(self, made: Known, deadline: Deadline) -> None:
        """Have the server make a collection, where need be in the place of one that was made in vain."""
        leftovers = self._leftovers.of(made.name)
        try:
            await self._send_creation(made, deadline)
        except AlreadyExists:
            if not await freed(leftovers, deadline):
                raise
            await self._send_creation(made, deadline)

    async def _send_creation(self, made: Known, deadline: Deadline) -> None:
        deadline.require("create")
        try:
            await self._calls.create(made, deadline, "create")
        except (asyncio.CancelledError, *UNCLEAR) as error:
            refused = isinstance(error, InferenceFailed) and error.reason == REFUSED
            if refused and made.name in await self._calls.aliases(deadline, "create"):
                raise collection_exists(made.name) from error
            if not refused:
                self._abandon(made)
            raise

    def _abandon(self, made: Known) -> None:
        """Have a collection deleted that may be made or not; one that was never hidden is whole, and may be in use."""
        if made.hidden:
            self._leftovers.delete(made.name, made.incarnation)

    async def _complete(self, made: Known, deadline: Deadline) -> Known:
        """Make the payload indexes; return the collection as the server keeps it."""
        info = await self._calls.info(made.name, deadline, "create")
        try:
            known = read_known(made.name, info.config)
        except Misconfigured as error:
            with contextlib.suppress(ServiceError):  # by its name alone, for nothing else tells that it is ours
                await self._calls.delete(made.name, deadline, "create")
            raise Misconfigured(
                "STORE_TOO_OLD", "Qdrant before 1.16 keeps no metadata of collections; use a newer one"
            ) from error
        for index in made.parameters.payload_indexes:
            await self._calls.index(made.name, index, deadline, "create")
        if not known.hidden:
            self._memory.put(made.name, known)
        return known

    async def _show(self, hidden: Known, deadline: Deadline, stage: str) -> Known:
        """Let a hidden collection be found; return it as it is then.

        Where the answer is lost, a look tells whether it was done. Where that tells nothing either, the error is
        raised, and whether the collection can be found is open.
        """
        shown = replace(hidden, hidden=False)
        try:
            await self._calls.keep(shown, deadline, stage)
        except UNCLEAR:
            if not await self._shows(shown, stage):
                raise
        self._memory.forget(shown.name)
        self._memory.put(shown.name, shown)
        return shown

    async def _shows(self, shown: Known, stage: str) -> bool:
        """Tell whether a collection can be found, as far as one look goes."""
        try:
            info = await self._calls.info(shown.name, Deadline.after(LOOK_S), stage)
            found = read_known(shown.name, info.config)
        except ServiceError:
            return False
        return found.incarnation == shown.incarnation and not found.hidden

    async def _remove(self, name: str, incarnation: str, deadline: Deadline) -> None:
        """Delete the hidden collection of a name and incarnation.

        Raises:
            Unavailable: `IMPORT_LOST`.
        """
        await self._import(name, incarnation, deadline, "drop")
        self._memory.forget(name)
        if not await self._calls.delete(name, deadline, "drop"):
            raise import_lost()

    async def _import(self, name: str, incarnation: str, deadline: Deadline, stage: str) -> pb.CollectionInfo:
        """Return the hidden collection of a name and incarnation.

        Raises:
            Unavailable: `IMPORT_LOST`.
        """
        try:
            info = await self._calls.info(name, deadline, stage)
        except NotFound as error:
            raise import_lost() from error
        require_import(read_known(name, info.config), incarnation)
        return info


def require_import(known: Known, incarnation: str) -> None:
    """Check that a collection is hidden and the one that was meant.

    Raises:
        Unavailable: `IMPORT_LOST`.
    """
    if not known.hidden or known.incarnation != incarnation:
        raise import_lost()
