"""Whole collections out of a store and into one, document by document. Knows no transport and no engine."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from gateway.parameters import CollectionParameters
from gateway.ports import Collection, Cursor, Document, Model, Vector, VectorStore
from serving.deadline import Deadline
from serving.errors import InferenceFailed, InvalidRequest, ServiceError

PAGE = 64
"""Documents read at once."""
CLEANUP_S = 30.0
"""How long to try to delete what was imported in vain, whatever time the caller had."""

Batch = tuple[Sequence[Document], Sequence[Vector]]


async def read_all(store: VectorStore, name: str, deadline: Callable[[], Deadline]) -> AsyncIterator[Batch]:
    """Read every document of a collection, a page at a time.

    Args:
        store: Where it is.
        name: Its own name.
        deadline: Makes the deadline of a page.
    """
    after: Cursor | None = None
    while True:
        page = await store.scan(name, after=after, limit=PAGE, deadline=deadline())
        if page.documents:
            yield page.documents, page.vectors
        if page.next is None:
            return
        after = page.next


@dataclass(slots=True, kw_only=True)
class Import:
    """A collection that is being filled and that nobody sees."""

    store: VectorStore
    name: str
    written: int = 0

    async def add(self, documents: Sequence[Document], vectors: Sequence[Vector], *, deadline: Deadline) -> None:
        """Store some documents."""
        await self.store.upsert(self.name, documents, vectors, deadline=deadline)
        self.written += len(documents)

    async def finish(self, *, deadline: Deadline) -> Collection:
        """Let the collection be found, provided that it holds exactly what was written.

        Raises:
            InvalidRequest: `IMPORT_COUNT`, it holds fewer documents: an id came twice.
        """
        try:
            return await self.store.reveal(self.name, document_count=self.written, deadline=deadline)
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
    """Make a hidden collection; leaving with an error deletes it.

    Raises:
        AlreadyExists: The name is taken.
    """
    await store.create(
        name,
        dimension=dimension,
        encoder=encoder,
        passage_prefix=passage_prefix,
        parameters=parameters,
        hidden=True,
        deadline=deadline,
    )
    try:
        yield Import(store=store, name=name)
    except BaseException:
        # A task of its own, so that a second cancellation cannot cut it off.
        deletion = asyncio.create_task(store.drop(name, deadline=Deadline.after(CLEANUP_S)))
        with suppress(ServiceError):
            await asyncio.shield(deletion)
        raise
