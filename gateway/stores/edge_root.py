"""A directory of collections that one process holds. Blocking, and for one thread at a time."""

import fcntl
import re
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Self

from gateway.ports import Candidate, Collection, Document, DocumentId, Model, Vector
from gateway.stores.edge_collection import (
    META_NAME,
    CollectionMeta,
    EdgeCollection,
    EncoderReference,
    engine_errors,
    sync_directory,
)
from serving.errors import AlreadyExists, InvalidRequest, Misconfigured, NotFound

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
    """

    def __init__(self, path: Path, lock: IO[str], collections: dict[str, EdgeCollection]) -> None:
        self._path = path
        self._lock = lock
        self._collections = collections

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
            undo.pop_all()
            return cls(path, lock, collections)

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
        return self.collection(name).describe()

    def upsert(self, name: str, documents: Sequence[Document], vectors: Sequence[Vector]) -> None:
        """Store documents durably, all or none."""
        self.collection(name).upsert(documents, vectors)

    def delete(self, name: str, ids: Sequence[DocumentId]) -> None:
        """Delete documents durably."""
        self.collection(name).delete(ids)

    def get(self, name: str, ids: Sequence[DocumentId]) -> Sequence[Document]:
        """Return the documents that exist, in the order asked for."""
        return self.collection(name).get(ids)

    def search(
        self, name: str, vector: Vector, *, encoder: Model, pool_size: int, **selection: Any
    ) -> tuple[Sequence[Candidate], int]:
        """Return the nearest documents and the engine's nanoseconds; `selection` as `EdgeCollection.search`."""
        collection = self.collection(name)
        collection.require_encoder(encoder)
        return collection.search(vector, pool_size=pool_size, **selection)

    def collection(self, name: str) -> EdgeCollection:
        """Return an open collection.

        Raises:
            NotFound: `COLLECTION_NOT_FOUND`.
        """
        found = self._collections.get(name)
        if found is None:
            raise NotFound("COLLECTION_NOT_FOUND", "there is no collection of that name", collection=name)
        return found

    def list(self) -> Sequence[Collection]:
        """Describe all collections, by name."""
        return [self._collections[name].describe() for name in sorted(self._collections)]

    def create(self, name: str, *, dimension: int, encoder: Model) -> Collection:
        """Make an empty collection.

        Raises:
            AlreadyExists: `COLLECTION_EXISTS`.
            InvalidRequest: `COLLECTION_NAME`, the name cannot be a directory's.
        """
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                "COLLECTION_NAME",
                "1 to 128 of a-z, A-Z, 0-9, '.', '_' and '-', beginning with a letter or digit",
                field="collection",
            )
        path = self._path / name
        if name in self._collections or path.exists():
            raise AlreadyExists("COLLECTION_EXISTS", "there is a collection of that name", collection=name)
        reference = EncoderReference(
            id=encoder.id, revision=encoder.revision, digest=encoder.digest, precision=encoder.precision
        )
        made = self._aside(MAKING, name)
        EdgeCollection.make(made, CollectionMeta(dimension=dimension, encoder=reference))
        self._rename(made, path)
        self._collections[name] = EdgeCollection.load(path)
        return self._collections[name].describe()

    def drop(self, name: str) -> None:
        """Delete a collection.

        Raises:
            NotFound: `COLLECTION_NOT_FOUND`.
        """
        collection = self.collection(name)
        del self._collections[name]
        collection.close()
        dropped = self._aside(DROPPING, name)
        self._rename(collection.path, dropped)
        shutil.rmtree(dropped, ignore_errors=True)  # the next start removes what is left

    def _aside(self, prefix: str, name: str) -> Path:
        path = self._path / f"{prefix}{name}"
        with engine_errors():
            if path.exists():
                shutil.rmtree(path)
        return path

    def _rename(self, old: Path, new: Path) -> None:
        with engine_errors():
            old.rename(new)
            sync_directory(self._path)


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
        if directory.name.startswith((MAKING, DROPPING)):
            shutil.rmtree(directory, ignore_errors=True)
