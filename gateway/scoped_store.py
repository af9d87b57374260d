"""The vector store as the caller of the moment may see it: the one way in which the gateway reaches documents.

Whatever an RPC does, it does through this; so what is not laid down in a scope cannot be searched, read, counted,
written or deleted, and nothing of it gets as far as the reranker. Rights to whole collections are checked before, by
`gateway.scopes.authorize`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from gateway.filters import Filter
from gateway.parameters import DEFAULT_PARAMETERS, CollectionParameters
from gateway.ports import Collection, Cursor, Document, DocumentId, Found, ListQuery, Model, Page, Vector, VectorStore
from gateway.scopes import Right, Scope, current
from serving.deadline import Deadline
from serving.errors import NotFound, PermissionDenied


class ScopedStore:
    """A `gateway.ports.VectorStore` over another one.

    Args:
        store: Holds everybody's documents.
    """

    def __init__(self, store: VectorStore) -> None:
        self.name = store.name
        self._store = store

    async def create(  # noqa: PLR0913 - the port's signature
        self,
        name: str,
        *,
        dimension: int,
        encoder: Model,
        passage_prefix: str = "",
        parameters: CollectionParameters = DEFAULT_PARAMETERS,
        hidden: bool = False,
        incarnation: str = "",
        deadline: Deadline,
    ) -> Collection:
        """Create an empty collection."""
        return await self._store.create(
            name,
            dimension=dimension,
            encoder=encoder,
            passage_prefix=passage_prefix,
            parameters=parameters,
            hidden=hidden,
            incarnation=incarnation,
            deadline=deadline,
        )

    async def reveal(self, name: str, *, incarnation: str, document_count: int, deadline: Deadline) -> Collection:
        """Let a hidden collection be found."""
        return await self._store.reveal(name, incarnation=incarnation, document_count=document_count, deadline=deadline)

    async def describe(self, name: str, *, deadline: Deadline) -> Collection:
        """Return one collection with the caller's own documents counted, under its own name."""
        return await self._counted(await self._store.describe(name, deadline=deadline), current(), deadline)

    async def list(self, *, deadline: Deadline) -> Sequence[Collection]:
        """Return the collections that the caller may know of, by a name that it may know."""
        scope, listed = current(), []
        for collection in await self._store.list(deadline=deadline):
            shown = scope.shown(collection)
            if shown is not None:
                counted = await self._counted(collection, scope, deadline)
                listed.append(replace(shown, document_count=counted.document_count))
        return sorted(listed, key=lambda one: one.name)

    async def drop(
        self, name: str, *, with_aliases: bool = False, incarnation: str | None = None, deadline: Deadline
    ) -> None:
        """Delete a collection.

        Raises:
            PermissionDenied: `ALIAS_FORBIDDEN`, an alias would go with it that is not the caller's to delete.
        """
        scope = current()
        if incarnation is None and not scope.manages_all:  # no alias points at what is being imported
            await self._require_own_aliases(name, scope, deadline)
        await self._store.drop(name, with_aliases=with_aliases, incarnation=incarnation, deadline=deadline)

    async def assign_alias(self, alias: str, collection: str, *, deadline: Deadline) -> None:
        """Point an alias at a collection."""
        await self._store.assign_alias(alias, collection, deadline=deadline)

    async def delete_alias(self, alias: str, *, deadline: Deadline) -> None:
        """Delete an alias."""
        await self._store.delete_alias(alias, deadline=deadline)

    async def scan(
        self,
        name: str,
        *,
        after: Cursor | None,
        limit: int,
        filter: Filter | None = None,  # noqa: A002 - the port's word
        incarnation: str | None = None,
        deadline: Deadline,
    ) -> Page:
        """Return some of the caller's documents."""
        wanted = current().narrowed(filter)
        with _unnamed(name):
            return await self._store.scan(
                name, after=after, limit=limit, filter=wanted, incarnation=incarnation, deadline=deadline
            )

    async def count(self, name: str, *, filter: Filter | None = None, deadline: Deadline) -> int:  # noqa: A002
        """Count the caller's documents."""
        with _unnamed(name):
            return await self._store.count(name, filter=current().narrowed(filter), deadline=deadline)

    async def upsert(
        self,
        name: str,
        documents: Sequence[Document],
        vectors: Sequence[Vector],
        *,
        incarnation: str | None = None,
        deadline: Deadline,
    ) -> None:
        """Store documents as the caller's own.

        Raises:
            PermissionDenied: One is not the caller's to write; none is stored.
        """
        scope = current()
        own = [scope.stamped(document, f"documents[{index}]") for index, document in enumerate(documents)]
        with _unnamed(name):
            await self._store.upsert(name, own, vectors, incarnation=incarnation, deadline=deadline)

    async def delete(self, name: str, ids: Sequence[DocumentId], *, deadline: Deadline) -> None:
        """Delete the caller's documents; ids of others are as those that do not exist."""
        scope = current()
        with _unnamed(name):
            await self._store.delete(name, [one for one in ids if scope.owns(one)], deadline=deadline)

    async def get(
        self, name: str, ids: Sequence[DocumentId], *, with_parent_texts: bool = False, deadline: Deadline
    ) -> Sequence[Document]:
        """Return the caller's documents; ids of others are as those that do not exist."""
        scope = current()
        with _unnamed(name):
            found = await self._store.get(name, ids, with_parent_texts=with_parent_texts, deadline=deadline)
        return [one for one in found if scope.sees(one.payload)]

    async def search(  # noqa: PLR0913 - the port's signature
        self,
        name: str,
        queries: Sequence[ListQuery],
        *,
        encoder: Model | None,
        limit: int,
        filter: Filter | None,  # noqa: A002 - the port's word
        corpus: Filter | None = None,
        payload_fields: Sequence[str],
        with_vectors: bool = False,
        deadline: Deadline,
    ) -> Found:
        """Return the best of the caller's documents for each query; how rare a word is, they alone decide."""
        scope = current()
        return await self._store.search(
            name,
            queries,
            encoder=encoder,
            limit=limit,
            filter=scope.narrowed(filter),
            corpus=scope.narrowed(corpus),
            payload_fields=payload_fields,
            with_vectors=with_vectors,
            deadline=deadline,
        )

    async def aclose(self) -> None:
        """Write everything down and release it."""
        await self._store.aclose()

    async def _require_own_aliases(self, name: str, scope: Scope, deadline: Deadline) -> None:
        try:
            collection = await self._store.describe(name, deadline=deadline)
        except NotFound:
            return  # also what is being imported, to which no alias points
        if any(scope.right(one) < Right.MANAGE for one in (collection.name, *collection.aliases)):
            message = "an alias of it, or what it is an alias of, is not this key's to manage"
            raise PermissionDenied("ALIAS_FORBIDDEN", message)

    async def _counted(self, collection: Collection, scope: Scope, deadline: Deadline) -> Collection:
        if not scope.documents:
            return collection
        with _unnamed(collection.name):
            count = await self._store.count(collection.name, filter=scope.filter, deadline=deadline)
        return replace(collection, document_count=count)


@contextmanager
def _unnamed(name: str) -> Iterator[None]:
    """Keep what is missing unnamed where the caller may not know the name: it asked by an alias, which was resolved."""
    try:
        yield
    except NotFound as error:
        if current().right(name):
            raise
        raise NotFound(error.reason, error.message) from error
