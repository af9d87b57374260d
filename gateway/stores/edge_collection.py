"""One collection of qdrant-edge on disk. Blocking, and for one thread at a time.

A collection is a directory::

    shard/            the engine's
    collection.json   what the collection is; written last, so that without it there is no collection

Searches are exact. The engine builds its approximate index only when told to, and measured on 20,000 random vectors
of 384 dimensions that index found 39 % of the true first 20 at its defaults (1.0 ms) and 87 % at ef = 512 (2.8 ms),
where the exact scan takes 1.5 ms. Vectors of real text are kinder: of 200,000 passages the index finds 98.9 % at
ef = 128 in 0.46 ms, where the scan takes 20 ms (docs/scaling.md). Up to there exactness is worth the milliseconds;
beyond, a Qdrant server is the store.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from uuid import UUID

import qdrant_edge as edge

from gateway.filters import Filter
from gateway.ports import (
    Collection,
    Cursor,
    DenseQuery,
    Document,
    DocumentId,
    ListQuery,
    Model,
    Page,
    RankedList,
    Vector,
)
from gateway.stores.conditions import payload_path, require_indexes
from gateway.stores.edge_filter import to_engine_filter, to_engine_index
from gateway.stores.edge_indexes import Indexes
from gateway.stores.edge_lists import Selection, read_lists
from gateway.stores.edge_meta import ENGINE, META_NAME, CollectionMeta, read_meta
from gateway.stores.edge_requests import (
    DENSE,
    Asked,
    by_vector,
    by_words,
    dense_of,
    selector,
    shard_config,
    stored_vectors,
)
from gateway.stores.lexical import lexicon
from gateway.stores.point_ids import to_point_id
from gateway.stores.records import (
    ALL_FIELDS,
    lexical_index_required,
    stored_payload,
    to_document,
    unit_vector,
)
from serving.errors import InferenceFailed, Misconfigured, ServiceError

SHARD_NAME = "shard"

_DISK_BLOCK = 512
"""Bytes per unit of `st_blocks`, whatever the file system's block is."""


class EdgeCollection:
    """An open collection.

    Args:
        path: Its directory.
        meta: What its `collection.json` says.
        shard: The engine's handle, open.
    """

    def __init__(self, path: Path, meta: CollectionMeta, shard: edge.EdgeShard) -> None:
        self.path = path
        self._meta = meta
        self._shard = shard
        lexical = meta.parameters.read().lexical
        self._lexicon = None if lexical is None else lexicon(lexical)
        self._indexes = Indexes(shard, [one.key for one in meta.parameters.payload_indexes])

    @staticmethod
    def make(path: Path, meta: CollectionMeta) -> None:
        """Write an empty collection into a new directory, durably.

        Raises:
            InferenceFailed: The engine or the disk failed.
        """
        lexical = meta.parameters.lexical is not None
        config = shard_config(meta.dimension, on_disk=meta.parameters.on_disk, lexical=lexical)
        with engine_errors():
            path.mkdir()
            shard = edge.EdgeShard.create(str(path / SHARD_NAME), config)
            for index in meta.parameters.payload_indexes:
                made = edge.UpdateOperation.create_field_index(payload_path(index.key), to_engine_index(index.kind))
                shard.update(made)
            shard.flush()
            shard.close()
            meta.write(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Open a collection and win back the space of deleted documents.

        Compacting takes about 0.15 s for 40,000 documents, and is done only here because it stalls everything.

        Raises:
            Misconfigured: `COLLECTION_MALFORMED`, `collection.json` is not ours or from another version;
                `COLLECTION_UNREADABLE`, the engine cannot open the shard.
        """
        meta = read_meta(path / META_NAME)
        try:
            with engine_errors():
                shard = edge.EdgeShard.load(str(path / SHARD_NAME))
                if shard.optimize():
                    shard.close()  # the files of the old segment go when the shard is opened again
                    shard = edge.EdgeShard.load(str(path / SHARD_NAME))
        except InferenceFailed as error:
            raise Misconfigured(
                "COLLECTION_UNREADABLE",
                f"{path}: {ENGINE} cannot open it (made with {meta.engine}); "
                "restore it from a copy, or delete the directory and index again",
            ) from error
        return cls(path, meta, shard)

    def close(self) -> None:
        """Write everything down and release it."""
        with engine_errors():
            try:
                self._shard.flush()
            finally:
                self._shard.close()

    @property
    def hidden(self) -> bool:
        """Whether it is still being imported."""
        return self._meta.hidden

    @property
    def incarnation(self) -> str:
        """Which one of its name it is."""
        return self._meta.incarnation

    def reveal(self) -> None:
        """Let it be found, durably."""
        with engine_errors():
            revealed = self._meta.model_copy(update={"hidden": False})
            revealed.write(self.path)
            self._meta = revealed

    def describe(self, aliases: Sequence[str] = ()) -> Collection:
        """Count the documents, and the bytes that the directory takes on disk."""
        return Collection(
            name=self.path.name,
            document_count=self.count(),
            dimension=self._meta.dimension,
            encoder=self._meta.model(),
            disk_bytes=_disk_bytes(self.path),
            passage_prefix=self._meta.passage_prefix,
            schema_version=self._meta.schema_version,
            parameters=self._meta.parameters.read(),
            aliases=aliases,
            incarnation=self._meta.incarnation,
        )

    def count(self, wanted: Filter | None = None) -> int:
        """Count the documents under the filter, exactly."""
        chosen = self._chosen(wanted)
        with engine_errors():
            return self._shard.count(edge.CountRequest(exact=True, filter=chosen))

    def upsert(self, documents: Sequence[Document], vectors: Sequence[Vector]) -> None:
        """Store documents durably. Nothing is stored where one of them is wrong.

        The whole batch is checked and built first, because the engine stops at the first bad point and keeps those
        before it.
        """
        if len(documents) != len(vectors):
            raise InferenceFailed("VECTOR_COUNT", f"{len(vectors)} vectors for {len(documents)} documents")
        points = [self._point(index, *pair) for index, pair in enumerate(zip(documents, vectors, strict=True))]
        if points:
            self._update(edge.UpdateOperation.upsert_points(points))
            self._indexes.written()

    def delete(self, ids: Sequence[DocumentId]) -> None:
        """Delete documents durably."""
        if ids:
            self._update(edge.UpdateOperation.delete_points([to_point_id(one) for one in ids]))

    def get(self, ids: Sequence[DocumentId], *, with_parent_texts: bool) -> Sequence[Document]:
        """Return the documents that exist, in the order asked for."""
        point_ids = [to_point_id(one) for one in ids]
        wanted = True if with_parent_texts else selector((ALL_FIELDS,))
        with engine_errors():
            records = self._shard.retrieve(list(dict.fromkeys(point_ids)), with_payload=wanted, with_vector=False)
        found = {record.id: to_document(record.id, record.payload or {}) for record in records}
        return [found[point_id] for point_id in point_ids if point_id in found]

    def scan(self, after: Cursor | None, limit: int, wanted: Filter | None = None) -> Page:
        """Return up to `limit` documents under the filter and their vectors, by the engine's order of ids."""
        chosen = self._chosen(wanted)
        request = edge.ScrollRequest(offset=after, limit=limit, filter=chosen, with_payload=True, with_vector=DENSE)
        with engine_errors():
            records, following = self._shard.scroll(request)
        return Page(
            documents=[to_document(record.id, record.payload or {}) for record in records],
            vectors=[dense_of(record.vector) for record in records],
            next=following if following is None or isinstance(following, int) else UUID(str(following)),
        )

    @property
    def made_with(self) -> Model:
        """The encoder of its documents."""
        return self._meta.model()

    def search(  # noqa: PLR0913 - those of the port
        self,
        name: str,
        queries: Sequence[ListQuery],
        *,
        limit: int,
        wanted: Filter | None,
        corpus: Filter | None,
        payload_fields: Sequence[str],
        with_vectors: bool,
    ) -> Sequence[RankedList]:
        """Answer queries one after the other, once all of them are found to be answerable.

        Errors call the collection by `name`, the one that it was asked for by.
        """
        chosen, counted = self._chosen(wanted), self._chosen(corpus)
        asked = [self._asked(name, query, counted) for query in queries]
        selection = Selection(limit=limit, chosen=chosen, payload_fields=payload_fields, with_vectors=with_vectors)
        with engine_errors():
            return read_lists(self._shard, asked, selection)

    def _asked(self, name: str, query: ListQuery, corpus: edge.Filter | None) -> Asked | None:
        """Return what the engine is asked; None where nothing can be found."""
        if isinstance(query, DenseQuery):
            return by_vector(unit_vector(query.vector, self._meta.dimension))
        if self._lexicon is None:
            raise lexical_index_required(name)
        with engine_errors():
            words = self._lexicon.query(query.text)
        return None if words is None else by_words(words, corpus)

    def _point(self, index: int, document: Document, vector: Vector) -> edge.Point:
        field = f"documents[{index}]"
        point_id = to_point_id(document.id, field=f"{field}.id")
        payload = stored_payload(document, field=field)
        numbers = unit_vector(vector, self._meta.dimension)
        with engine_errors():
            words = None if self._lexicon is None else self._lexicon.document(document.text)
            return edge.Point(point_id, stored_vectors(numbers, words), payload)

    def _chosen(self, wanted: Filter | None) -> edge.Filter | None:
        """Translate a filter, and make the indexes that serve it."""
        if wanted is None:
            return None
        chosen = to_engine_filter(wanted)
        require_indexes(wanted, self._meta.parameters.read().payload_indexes)
        with engine_errors():
            self._indexes.serve(wanted)
        return chosen

    def _update(self, operation: edge.UpdateOperation) -> None:
        # The write-ahead log alone survives a killed process; only the flush survives a power cut.
        with engine_errors():
            self._shard.update(operation)
            self._shard.flush()


@contextmanager
def engine_errors() -> Iterator[None]:
    """Turn whatever the engine raises into InferenceFailed; errors of our own pass.

    The binding raises plain Exception, ValueError, TypeError and, where Rust panics, a BaseException of its own.
    """
    try:
        yield
    except ServiceError:
        raise
    except Exception as error:
        raise InferenceFailed("STORE_FAILED", "the vector store failed; details are in the log") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise InferenceFailed("STORE_FAILED", "the vector store failed; details are in the log") from error


def _disk_bytes(path: Path) -> int:
    # Allocated, not apparent: the engine's files are sparse, 100 MB by their length in an empty collection.
    return sum(entry.lstat().st_blocks * _DISK_BLOCK for entry in path.rglob("*"))
