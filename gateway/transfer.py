"""Whole collections out of a store and into one, document by document. Knows no transport and no engine."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from uuid import uuid4

from gateway.parameters import CollectionParameters
from gateway.ports import Collection, Cursor, Document, Model, Vector, VectorStore
from serving.deadline import Deadline
from serving.errors import InferenceFailed, InvalidRequest, ServiceError

PAGE = 64
"""Documents read at once."""
CLEANUP_S = 30.0
"""How long to try to delete what was imported in vain, whatever time the caller had."""

Batch = tuple[Sequence[Document], Sequence[Vector]]


async def read_all(
    store: VectorStore, collection: Collection, deadline: Callable[[], Deadline]
) -> AsyncIterator[Batch]:
    """Read every document of a collection, a page at a time.

    Args:
        store: Where it is.
        collection: As it was described.
        deadline: Makes the deadline of a page.

    Raises:
        Unavailable: `COLLECTION_REPLACED`, another one has its name by now.
    """
    after: Cursor | None = None
    while True:
        page = await store.scan(
            collection.name, after=after, limit=PAGE, incarnation=collection.incarnation, deadline=deadline()
        )
        if page.documents:
            yield page.documents, page.vectors
        if page.next is None:
            return
        after = page.next


@dataclass(slots=True, kw_only=True)
class Import:
    """A collection that is being filled and that nobody sees.

    Its methods raise Unavailable (`IMPORT_LOST`) where somebody has dropped it, whoever has its name by then.
    """

    store: VectorStore
    name: str
    incarnation: str
    written: int = 0

    async def add(self, documents: Sequence[Document], vectors: Sequence[Vector], *, deadline: Deadline) -> None:
        """Store some documents."""
        await self.store.upsert(self.name, documents, vectors, incarnation=self.incarnation, deadline=deadline)
        self.written += len(documents)

    async def finish(self, *, deadline: Deadline) -> Collection:
        """Let the collection be found, provided that it holds exactly what was written.

        Raises:
            InvalidRequest: `IMPORT_COUNT`, it holds fewer documents: an id came twice.
        """
        try:
            return await self.store.reveal(
                self.name, incarnation=self.incarnation, document_count=self.written, deadline=deadline
            )
        except InferenceFailed as error:
            if error.reason != "COUNT_MISMATCH":
                raise
            message = f"fewer are stored than the {self.written} that came; an id came twice"
            raise InvalidRequest("IMPORT_COUNT", message, field="documents") from error


@asynccontextmanager
async def importing(  # noqa: PLR0913 - a collection has so many parts
    store: VectorStore,
    name: str,
    *,
    dimension: int,
    encoder: Model,
    passage_prefix: str,
    parameters: CollectionParameters,
    deadline: Deadline,
) -> AsyncIterator[Import]:
    """Make a hidden collection; leaving with an error deletes it, and never another one that has its name by then.

    Raises:
        AlreadyExists: The name is taken.
    """
    target = Import(store=store, name=name, incarnation=uuid4().hex)
    try:
        await store.create(
            name,
            dimension=dimension,
            encoder=encoder,
            passage_prefix=passage_prefix,
            parameters=parameters,
            hidden=True,
            incarnation=target.incarnation,
            deadline=deadline,
        )
        yield target
    except BaseException:
        # A task of its own, so that a second cancellation cannot cut it off.
        await asyncio.shield(asyncio.create_task(_undo(target)))
        raise


async def _undo(target: Import) -> None:
    """Delete what was imported in vain, also where it was cut off while it was made: the store may have gone on."""
    with suppress(ServiceError):
        await target.store.drop(target.name, incarnation=target.incarnation, deadline=Deadline.after(CLEANUP_S))
