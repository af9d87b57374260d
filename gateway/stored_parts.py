"""What is stored under ids, as far as parts of split documents go: whose parts they are, and which a document has."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from gateway.part_ids import parent_of, possible_part
from gateway.parts import id_field
from gateway.ports import Document, DocumentId, Part, VectorStore
from serving.deadline import Deadline
from serving.errors import InvalidRequest

READ_IDS_PER_CALL = 256
"""A document has text and payload, 64 KiB each at most: 32 MiB, under a channel's limit of 64."""
FIRST_NUMBERS = 2
"""A split document has two parts at least. Each says how many there are, so that one may be missing: versions before
let callers delete or replace it."""


class StoredParts:
    """The parts in one collection, as one call finds them; no id is read twice.

    Args:
        store: Where it is.
        collection: Its own name, since an alias may be pointed elsewhere between two reads.
        deadline: Until when.
    """

    def __init__(self, store: VectorStore, collection: str, deadline: Deadline) -> None:
        self._store = store
        self._collection = collection
        self._deadline = deadline
        self._asked: set[DocumentId] = set()
        self._found: dict[DocumentId, DocumentId | None] = {}
        """Ids that are stored, and whose parts they are; None where one is nobody's part."""
        self._counts: dict[DocumentId, int] = {}
        """How many parts a document has, by the part that says most."""

    async def require_untaken(
        self, documents: Sequence[Document], groups: Sequence[Sequence[Document]], *, replaced: Collection[DocumentId]
    ) -> None:
        """Check that documents replace nothing but themselves. Only ids that could be those of parts are read.

        Args:
            documents: The documents.
            groups: What is to be stored in place of each.
            replaced: Documents whose earlier parts go, so that those may be replaced.

        Raises:
            InvalidRequest: `ID_TAKEN`.
        """
        # Also under the own id of a document that is split: what is stored there goes.
        touched = [(index, None, one.id) for index, one in enumerate(documents)]
        written = [(index, one.part, one.id) for index, group in enumerate(groups) for one in group]
        wanted = {one: (index, part) for index, part, one in [*touched, *written] if parent_of(one) is not None}
        await self._read(wanted)
        for one in self._found.keys() & wanted.keys():
            index, part = wanted[one]
            allowed = {None, *replaced} if part is None else {part.parent}
            if self._found[one] not in allowed:
                message = "another document, or a part of one, is stored under it or under the id of a part of it"
                raise InvalidRequest("ID_TAKEN", message, field=id_field(index))

    async def require_whole(self, ids: Sequence[DocumentId]) -> None:
        """Check that no part is to be deleted without its document.

        Raises:
            InvalidRequest: `ID_IS_PART`.
        """
        await self._read([one for one in ids if parent_of(one) is not None])
        named = {None, *ids}
        for index, one in enumerate(ids):
            if self._found.get(one) not in named:
                message = "it is a part of a document, which goes whole or not at all: name its parent as well"
                raise InvalidRequest("ID_IS_PART", message, field=f"ids[{index}]")

    async def of(self, parents: Iterable[DocumentId]) -> Mapping[DocumentId, Sequence[DocumentId]]:
        """Return the ids of the parts that are stored of each document.

        The last one comes first: whoever is interrupted while deleting them leaves those by which others are found.
        Beyond the last one that the others tell of there is one more where a replacement by fewer was interrupted, and
        that one says how many there were before.
        """
        last = dict.fromkeys(parents, 0)
        wanted = dict.fromkeys(last, FIRST_NUMBERS)
        while wanted:
            await self._read(
                one for parent, end in wanted.items() for one in _part_ids(parent, range(last[parent] + 1, end + 1))
            )
            last |= wanted
            wanted = {one: count + 1 for one in wanted if (count := self._counts.get(one, 0)) >= last[one]}
        return {
            parent: [one for one in _part_ids(parent, range(end, 0, -1)) if self._found.get(one) == parent]
            for parent, end in last.items()
        }

    async def _read(self, ids: Iterable[DocumentId]) -> None:
        new = [one for one in dict.fromkeys(ids) if one not in self._asked]
        for begin in range(0, len(new), READ_IDS_PER_CALL):
            some = new[begin : begin + READ_IDS_PER_CALL]
            for found in await self._store.get(self._collection, some, deadline=self._deadline):
                self._note(found.id, found.part)
        self._asked.update(new)

    def _note(self, identifier: DocumentId, part: Part | None) -> None:
        # An import may have forged a part under an id that is not its own.
        parent = None if part is None or part.parent != parent_of(identifier) else part.parent
        self._found[identifier] = parent
        if part is not None and parent is not None:
            self._counts[parent] = max(part.count, self._counts.get(parent, 0))


def _part_ids(parent: DocumentId, numbers: Iterable[int]) -> Iterable[str]:
    """Yield the ids of parts; those that the parent's id leaves no room for are not stored."""
    return (one for number in numbers if (one := possible_part(parent, number)) is not None)
