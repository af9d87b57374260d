"""The payload indexes of one collection of qdrant-edge, which come as filters ask for them. Blocking.

Filters come from callers, who can name any number of keys. So an index is made only where documents hold what it would
serve, and all that is remembered of filters is bounded.
"""

from collections.abc import Sequence
from typing import Any

import qdrant_edge as edge

from gateway.filters import Filter
from gateway.stores.edge_filter import dated_paths, listed_path, served, useful_indexes

INDEX_FROM = 1_000
"""Documents from which a payload key is indexed when a filter first names it. Unindexed, the engine reads every
payload: 31 ms for 20,000 documents. Indexed: 0.4 ms, after 0.1 s once; writes then take about twice as long."""

MAX_INDEXES = 16
"""Payload keys indexed per collection."""

MAX_USELESS = 256
"""Indexes remembered as useless until the next write, so that not every search looks for what they would serve."""

_Wanted = tuple[str, edge.PayloadSchemaType]


class Indexes:
    """Makes indexes, and deletes those that would answer wrongly.

    Args:
        shard: The engine's handle, open.
        declared: Keys whose indexes are a promise; they stay.
    """

    def __init__(self, shard: edge.EdgeShard, declared: Sequence[str]) -> None:
        self._shard = shard
        self._declared = {listed_path(key) for key in declared}
        self._kinds = {path: index.data_type for path, index in shard.info().payload_schema.items()}
        self._dated: set[str] = set()
        self._useless: set[_Wanted] = set()

    def serve(self, wanted: Filter) -> None:
        """Make the indexes that serve a filter; by the time it is asked none is left that would answer it wrongly."""
        dated = dated_paths(wanted)
        self._delete_numbers(dated)
        missing = [one for one in useful_indexes(wanted).items() if self._may_make(one, dated)]
        if not missing or self._room() <= 0 or self._is_small():
            return
        for path, kind in self._useful(missing)[: self._room()]:
            self._update(edge.UpdateOperation.create_field_index(path, kind))
            self._kinds[path] = kind

    def written(self) -> None:
        """Look again for what indexes would serve: there are new documents."""
        self._useless.clear()

    def _delete_numbers(self, dated: set[str]) -> None:
        """Delete the indexes that a filter of numbers has brought to keys which are now asked for dates."""
        for path in dated - self._declared:
            if self._kinds.get(path) == edge.PayloadSchemaType.Float:
                self._update(edge.UpdateOperation.delete_field_index(path))
                del self._kinds[path]
                self._dated.add(path)

    def _may_make(self, wanted: _Wanted, dated: set[str]) -> bool:
        path, kind = wanted
        numbers = kind == edge.PayloadSchemaType.Float
        taken = path in self._kinds or (numbers and (path in dated or path in self._dated))
        return not taken and wanted not in self._useless

    def _room(self) -> int:
        # What was deleted counts, so that callers cannot have indexes made and deleted without end.
        return MAX_INDEXES - len(self._kinds) - len(self._dated - self._kinds.keys())

    def _is_small(self) -> bool:
        return self._shard.count(edge.CountRequest(exact=False)) < INDEX_FROM

    def _useful(self, missing: Sequence[_Wanted]) -> Sequence[_Wanted]:
        """Return those that serve the first document that any of them serves; later filters bring the others."""
        document = self._first([edge.Filter(should=[served(*one) for one in missing])])
        if document is None:
            if len(self._useless) + len(missing) > MAX_USELESS:
                self._useless.clear()
            self._useless.update(missing)
            return []
        this = edge.HasIdCondition({document})
        return [one for one in missing if self._first([this, served(*one)]) is not None]

    def _first(self, must: Sequence[Any]) -> Any:
        wanted = edge.Filter(must=list(must))
        records, _ = self._shard.scroll(
            edge.ScrollRequest(limit=1, filter=wanted, with_payload=False, with_vector=False)
        )
        return records[0].id if records else None

    def _update(self, operation: edge.UpdateOperation) -> None:
        self._shard.update(operation)
        self._shard.flush()
