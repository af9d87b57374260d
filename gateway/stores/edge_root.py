"""A directory of collections that one process holds. Blocking, and for one thread at a time."""

import fcntl
import re
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Self
from uuid import uuid4

from gateway.filters import Filter
from gateway.parameters import CollectionParameters
from gateway.ports import Collection, Cursor, Document, DocumentId, ListQuery, Model, Page, RankedList, Vector
from gateway.stores.edge_aliases import Aliases
from gateway.stores.edge_collection import EdgeCollection, engine_errors
from gateway.stores.edge_meta import (
    META_NAME,
    CollectionMeta,
    EncoderReference,
    ParametersReference,
    read_meta,
    sync_directory,
)
from gateway.stores.lexical import require_supported
from gateway.stores.records import (
    collection_exists,
    collection_not_found,
    import_lost,
    require_count,
    require_encoder,
    require_incarnation,
    require_no_aliases,
)
from serving.errors import InferenceFailed, InvalidRequest, Misconfigured, NotFound, ServiceError

LOCK_NAME = ".lock"
MAKING = ".making-"
"""Prefix of a collection that is being made; it is renamed when it is whole."""
DROPPING = ".dropping-"
"""Prefix of a collection that is being deleted; it was renamed before anything was removed."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class EdgeRoot:
    """The collections under one directory, all open.

    Args:
        path: The directory.
        lock: Its lock file, open and locked.
        collections: What was found in it, by name.
        aliases: Of those.
    """

    def __init__(self, path: Path, lock: IO[str], collections: dict[str, EdgeCollection], aliases: Aliases) -> None:
        self._path = path
        self._lock = lock
        self._collections = collections
        self._aliases = aliases

    @classmethod
    def open(cls, path: Path) -> Self:
        """Lock the directory, making it where there is none, and open its collections.

        What a crash left half made or half deleted is removed. Directories that are none of ours are left alone.

        Raises:
            Misconfigured: `STORE_LOCKED`, another process holds it; `STORE_UNWRITABLE`; or a collection cannot be
                opened.
        """
        with ExitStack() as undo:
            lock = undo.enter_context(_locked(path))
            _sweep(path)
            collections: dict[str, EdgeCollection] = {}
            for directory in sorted(path.iterdir()):
                if (directory / META_NAME).is_file():
                    collections[directory.name] = EdgeCollection.load(directory)
                    undo.callback(collections[directory.name].close)
            aliases = Aliases.load(path, collections)
            undo.pop_all()
            return cls(path, lock, collections, aliases)

    def close(self) -> None:
        """Close every collection, then let go of the directory."""
        with ExitStack() as stack:
            stack.callback(self._lock.close)
            for collection in self._collections.values():
                stack.callback(collection.close)

    def call(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method by name; the form in which calls also reach another process."""
        return getattr(self, operation)(*args, **kwargs)

    def describe(self, name: str) -> Collection:
        """Return one collection, its documents counted exactly."""
        collection = self.collection(name)
        return collection.describe(self._aliases.of(collection.path.name))

    def upsert(
        self, name: str, documents: Sequence[Document], vectors: Sequence[Vector], *, incarnation: str | None
    ) -> None:
        """Store documents durably, all or none."""
        target = self.collection(name) if incarnation is None else self._import(name, incarnation)
        target.upsert(documents, vectors)

    def delete(self, name: str, ids: Sequence[DocumentId]) -> None:
        """Delete documents durably."""
        self.collection(name).delete(ids)

    def get(self, name: str, ids: Sequence[DocumentId], *, with_parent_texts: bool) -> Sequence[Document]:
        """Return the documents that exist, in the order asked for."""
        return self.collection(name).get(ids, with_parent_texts=with_parent_texts)

    def scan(
        self, name: str, *, after: Cursor | None, limit: int, wanted: Filter | None, incarnation: str | None
    ) -> Page:
        """Return some documents and their vectors."""
        collection = self.collection(name)
        require_incarnation(collection.incarnation, incarnation)
        return collection.scan(after, limit, wanted)

    def count(self, name: str, *, wanted: Filter | None = None) -> int:
        """Count documents."""
        return self.collection(name).count(wanted)

    def search(
        self, name: str, queries: Sequence[ListQuery], *, encoder: Model | None, **selection: Any
    ) -> tuple[Sequence[RankedList], str, Model]:
        """Return the best documents for each query, and whose they are; `selection` as `EdgeCollection.search`.

        That is the collection's own name and the encoder that it was made with.
        """
        collection = self.collection(name)
        require_encoder(name, collection.made_with, encoder)
        return collection.search(name, queries, **selection), collection.path.name, collection.made_with

    def collection(self, name: str) -> EdgeCollection:
        """Return an open collection that can be found, by its name or an alias.

        Raises:
            NotFound: `COLLECTION_NOT_FOUND`.
        """
        found = self._own(self._aliases.resolve(name))
        if found.hidden:
            raise collection_not_found(name)
        return found

    def list(self) -> Sequence[Collection]:
        """Describe all collections that can be found, by name."""
        return [self.describe(name) for name, one in sorted(self._collections.items()) if not one.hidden]

    def create(  # noqa: PLR0913 - the port's signature
        self,
        name: str,
        *,
        dimension: int,
        encoder: Model,
        passage_prefix: str,
        parameters: CollectionParameters,
        hidden: bool,
        incarnation: str,
    ) -> Collection:
        """Make an empty collection.

        Raises:
            AlreadyExists: `COLLECTION_EXISTS`.
            InvalidRequest: `COLLECTION_NAME`, the name cannot be a directory's; `PARAMETER_UNSUPPORTED`;
                `LANGUAGE_UNSUPPORTED`.
        """
        path = self._path / _checked(name)
        _require_one_copy(parameters)
        require_supported(parameters.lexical)
        if name in self._aliases or name in self._collections or path.exists():
            raise collection_exists(name)
        reference = EncoderReference(
            id=encoder.id, revision=encoder.revision, digest=encoder.digest, precision=encoder.precision
        )
        meta = CollectionMeta(
            dimension=dimension,
            encoder=reference,
            passage_prefix=passage_prefix,
            parameters=ParametersReference.of(parameters),
            hidden=hidden,
            incarnation=incarnation or uuid4().hex,
        )
        made = self._aside(MAKING, name)
        EdgeCollection.make(made, meta)
        try:
            self._rename(made, path)
            self._collections[name] = EdgeCollection.load(path)
        except ServiceError:
            self._discard(path)
            raise
        return self._collections[name].describe()

    def reveal(self, name: str, *, incarnation: str, document_count: int) -> Collection:
        """Let a hidden collection be found, provided that it holds so many documents."""
        collection = self._import(name, incarnation)
        require_count(collection.count(), document_count)
        collection.reveal()
        return self.describe(name)

    def drop(self, name: str, *, with_aliases: bool, incarnation: str | None) -> None:
        """Delete a collection and its aliases.

        Raises:
            NotFound: `COLLECTION_NOT_FOUND`.
            Misconfigured: `COLLECTION_ALIASED`.
            InvalidRequest: `NAME_IS_ALIAS`.
            Unavailable: `IMPORT_LOST`.
        """
        if incarnation is not None:
            self._import(name, incarnation)
        aliases = self._aliases.of(name)
        require_no_aliases(name, self._aliases.resolve(name), () if with_aliases else aliases)
        collection = self._own(name)
        if aliases:
            with engine_errors():
                self._aliases.delete(aliases)
        dropped = self._aside(DROPPING, name)
        with engine_errors():
            collection.path.rename(dropped)
            del self._collections[name]  # not before: where renaming fails it goes on as it was
            sync_directory(self._path)
        with suppress(InferenceFailed):  # there is nothing left that has to be written down
            collection.close()
        shutil.rmtree(dropped, ignore_errors=True)  # the next start removes what is left

    def assign_alias(self, alias: str, collection: str) -> None:
        """Point an alias at a collection."""
        if self._own(collection).hidden:
            raise collection_not_found(collection)
        if alias in self._collections or (self._path / _checked(alias)).exists():
            raise collection_exists(alias)
        with engine_errors():
            self._aliases.assign(alias, collection)

    def delete_alias(self, alias: str) -> None:
        """Delete an alias."""
        if alias not in self._aliases:
            raise NotFound("ALIAS_NOT_FOUND", "there is no alias of that name", alias=alias)
        with engine_errors():
            self._aliases.delete([alias])

    def _import(self, name: str, incarnation: str) -> EdgeCollection:
        """Return the hidden collection of a name and incarnation.

        Raises:
            Unavailable: `IMPORT_LOST`.
        """
        found = self._collections.get(name)
        if found is None or not found.hidden or found.incarnation != incarnation:
            raise import_lost()
        return found

    def _own(self, name: str) -> EdgeCollection:
        """Return a collection by its own name, hidden or not."""
        found = self._collections.get(name)
        if found is None:
            raise collection_not_found(name)
        return found

    def _aside(self, prefix: str, name: str) -> Path:
        path = self._path / f"{prefix}{name}"
        with engine_errors():
            if path.exists():
                shutil.rmtree(path)
        return path

    def _discard(self, path: Path) -> None:
        """Remove a directory where it can be, for its name would stay taken by what nobody can drop."""
        with suppress(OSError, InferenceFailed):
            dropped = self._aside(DROPPING, path.name)
            path.rename(dropped)
            shutil.rmtree(dropped)

    def _rename(self, old: Path, new: Path) -> None:
        with engine_errors():
            old.rename(new)
            sync_directory(self._path)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            "COLLECTION_NAME",
            "1 to 128 of a-z, A-Z, 0-9, '.', '_' and '-', beginning with a letter or digit",
            field="collection",
        )
    return name


def _require_one_copy(parameters: CollectionParameters) -> None:
    for field in ("shard_count", "replication_factor"):
        if getattr(parameters, field) > 1:
            raise InvalidRequest(
                "PARAMETER_UNSUPPORTED",
                "the embedded store keeps one copy on one machine; use a Qdrant server for more",
                field=f"parameters.{field}",
            )


def _locked(path: Path) -> IO[str]:
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / LOCK_NAME).open("w", encoding="utf-8")
    except OSError as error:
        raise Misconfigured("STORE_UNWRITABLE", f"{path} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise Misconfigured(
            "STORE_LOCKED",
            f"{path} is in use by another process; stop that one, give this one a directory of its own, "
            "or use a Qdrant server for more than one gateway",
        ) from error
    return lock


def _sweep(path: Path) -> None:
    for directory in path.iterdir():
        if directory.name.startswith((MAKING, DROPPING)) or _cut_off(directory):
            shutil.rmtree(directory, ignore_errors=True)


def _cut_off(directory: Path) -> bool:
    """Tell whether it is a collection whose import never ended."""
    return (directory / META_NAME).is_file() and read_meta(directory / META_NAME).hidden
