"""Documents in: split or encode their texts, store them, acknowledge. One message at a time, all of it or nothing."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import chain
from typing import TypeVar

from gateway.part_ids import first_part, part_id
from gateway.ports import Collection, Document, DocumentId, Encoder, Model, Part, Vector, VectorStore
from gateway.precisions import note_precision
from serving.deadline import Deadline
from serving.errors import DeadlineSpent, InvalidRequest, Misconfigured, Overloaded

TEXTS_PER_CALL = 256
"""Most texts that an encoder takes at once."""
SPLIT_TEXTS_PER_CALL = 16
"""So few that a message of too many parts is refused before all of it has been split."""
IDS_PER_CALL = 1_000
READ_IDS_PER_CALL = 256
"""A document has text and payload, 64 KiB each at most: 32 MiB, under a channel's limit of 64."""
MAX_PARTS = 16_384
"""Parts of all documents of a message. At 512 tokens that is 32 MiB of text, which is more than a message may have."""
TEXT_FIELD = re.compile(r"texts\[(\d+)\]")

T = TypeVar("T")


class Overlong(Enum):
    """What becomes of a text over the encoder's token limit."""

    REJECT = "reject"
    TRUNCATE = "truncate"
    SPLIT = "split"


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """Into what parts texts are split under `Overlong.SPLIT`."""

    max_tokens: int | None = None
    """Most tokens of a part, prefix and special tokens included; None is the encoder's limit."""
    per_sentence: bool = False
    """Whether every sentence is a part of its own."""


WHOLE_PARTS = Splitting()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What became of one message."""

    stored_count: int
    truncated_count: int
    split_count: int = 0
    """Documents that were split, each counted once in `stored_count`."""
    part_count: int = 0
    """Parts that they were split into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """Writes documents through the encoder into the store."""

    encoder: Encoder
    store: VectorStore

    async def upsert(
        self,
        collection: str,
        documents: Sequence[Document],
        *,
        overlong: Overlong,
        splitting: Splitting = WHOLE_PARTS,
        deadline: Deadline,
    ) -> Stored:
        """Encode and store documents, all or none.

        A full encoder slows this down instead of failing it, for as long as the deadline allows.

        Raises:
            InvalidRequest: A text is blank or too long, or a part's id is taken; the field names the document. Or there
                are too many parts (`documents`), or none can be of that size (`part_tokens`).
            NotFound: No such collection.
            Misconfigured: The collection belongs to another encoder.
        """
        target = await self.store.describe(collection, deadline=deadline)
        entries, stale = documents, list[DocumentId]()
        if overlong is Overlong.SPLIT:
            groups = await self._split(documents, splitting, deadline)
            stale = await self._stale(target.name, documents, groups, deadline)
            entries = list(chain.from_iterable(groups))
        vectors, truncated = await self._encode(
            target, entries, truncate=overlong is Overlong.TRUNCATE, deadline=deadline
        )
        # First, so that whoever is interrupted here and sends the message again leaves nothing behind.
        await self._delete(target.name, stale, deadline)
        await self.store.upsert(target.name, entries, vectors, deadline=deadline)
        parts = [entry.part for entry in entries if entry.part is not None]
        return Stored(
            stored_count=len(documents),
            truncated_count=truncated,
            split_count=sum(part.number == 1 for part in parts),
            part_count=len(parts),
        )

    async def delete(self, collection: str, ids: Sequence[DocumentId], *, deadline: Deadline) -> None:
        """Delete documents, split ones with all their parts; ids that do not exist are no error.

        Raises:
            NotFound: No such collection.
        """
        counts = await self._part_counts(collection, ids, deadline)
        parts = [part_id(one, number) for one, count in counts.items() for number in range(1, count + 1)]
        await self._delete(collection, [*ids, *parts], deadline)

    async def _split(
        self, documents: Sequence[Document], splitting: Splitting, deadline: Deadline
    ) -> list[list[Document]]:
        """Return what is to be stored in place of each document: itself, or its parts."""
        split = await self._passages(documents, splitting, deadline)
        groups = [
            _parts(document, passages, _id_of(index))
            for index, (document, passages) in enumerate(zip(documents, split, strict=True))
        ]
        seen: set[DocumentId] = set()
        for index, group in enumerate(groups):
            ids = {entry.id for entry in group}
            if not seen.isdisjoint(ids):
                raise InvalidRequest("ID_DUPLICATE", "a part's id occurs twice in this message", field=_id_of(index))
            seen |= ids
        return groups

    async def _passages(
        self, documents: Sequence[Document], splitting: Splitting, deadline: Deadline
    ) -> list[Sequence[str]]:
        """Split texts, a few at a time.

        Raises:
            InvalidRequest: `TOO_MANY_PARTS`.
        """
        split = list[Sequence[str]]()
        for begin in range(0, len(documents), SPLIT_TEXTS_PER_CALL):
            call = partial(
                self.encoder.split,
                [document.text for document in documents[begin : begin + SPLIT_TEXTS_PER_CALL]],
                max_tokens=splitting.max_tokens,
                per_sentence=splitting.per_sentence,
                deadline=deadline,
            )
            split += await _patiently(call, deadline, first=begin)
            if sum(map(len, split)) > MAX_PARTS:
                message = f"more than {MAX_PARTS} parts; send fewer documents at once, or ask for larger parts"
                raise InvalidRequest("TOO_MANY_PARTS", message, field="documents")
        return split

    async def _stale(
        self, collection: str, documents: Sequence[Document], groups: Sequence[Sequence[Document]], deadline: Deadline
    ) -> list[DocumentId]:
        """Return ids of what was stored for these documents and will not be replaced.

        Raises:
            InvalidRequest: `ID_TAKEN`, a part would replace a document of the caller's.
        """
        counts = await self._part_counts(collection, [document.id for document in documents], deadline)
        stale = []
        wanted = {}
        for index, (document, group) in enumerate(zip(documents, groups, strict=True)):
            kept = {entry.id for entry in group}
            wanted.update({entry.id: (index, entry.part) for entry in group if entry.part is not None})
            before = [part_id(document.id, number) for number in range(1, counts.get(document.id, 0) + 1)]
            stale += [one for one in (document.id, *before) if one not in kept]
        for found in await self._get(collection, list(wanted), deadline):
            index, part = wanted[found.id]
            if found.part is None or part is None or found.part.parent != part.parent:
                raise InvalidRequest("ID_TAKEN", "another document has the id of a part of it", field=_id_of(index))
        return stale

    async def _part_counts(
        self, collection: str, ids: Sequence[DocumentId], deadline: Deadline
    ) -> dict[DocumentId, int]:
        """Return how many parts there are of the documents that are stored in parts: their first one says."""
        firsts = [first for one in ids if (first := first_part(one)) is not None]
        found = await self._get(collection, firsts, deadline)
        return {one.part.parent: one.part.count for one in found if one.part is not None}

    async def _get(self, collection: str, ids: Sequence[DocumentId], deadline: Deadline) -> list[Document]:
        found: list[Document] = []
        for begin in range(0, len(ids), READ_IDS_PER_CALL):
            found += await self.store.get(collection, ids[begin : begin + READ_IDS_PER_CALL], deadline=deadline)
        return found

    async def _delete(self, collection: str, ids: Sequence[DocumentId], deadline: Deadline) -> None:
        for begin in range(0, len(ids), IDS_PER_CALL):
            await self.store.delete(collection, ids[begin : begin + IDS_PER_CALL], deadline=deadline)

    async def _encode(
        self, target: Collection, entries: Sequence[Document], *, truncate: bool, deadline: Deadline
    ) -> tuple[list[Vector], int]:
        """Return a vector for each text, and how many texts were cut."""
        vectors: list[Vector] = []
        truncated = 0
        for begin in range(0, len(entries), TEXTS_PER_CALL):
            texts = [entry.text for entry in entries[begin : begin + TEXTS_PER_CALL]]
            call = partial(self.encoder.encode_passages, texts, truncate=truncate, deadline=deadline)
            encoded = await _patiently(call, deadline)
            _check_encoder(target, encoded.model)
            vectors += encoded.vectors
            truncated += sum(encoded.truncated)
        return vectors, truncated


def _parts(document: Document, passages: Sequence[str], field: str) -> list[Document]:
    if len(passages) == 1:
        return [document]
    return [
        Document(
            id=part_id(document.id, number, field=field),
            text=passage,
            payload=document.payload,
            part=Part(parent=document.id, number=number, count=len(passages)),
            parent_text=document.text if number == 1 else None,
        )
        for number, passage in enumerate(passages, 1)
    ]


def _id_of(index: int) -> str:
    return f"documents[{index}].id"


def _check_encoder(target: Collection, model: Model) -> None:
    if model.digest != target.encoder.digest:
        raise Misconfigured(
            "ENCODER_MISMATCH",
            f"collection {target.name} was made with {target.encoder.id} {target.encoder.digest[:19]}, the encoder "
            f"serves {model.id} {model.digest[:19]}; index into a new collection",
        )
    note_precision(target.name, target.encoder, model)


async def _patiently(call: Callable[[], Awaitable[T]], deadline: Deadline, *, first: int = 0) -> T:
    """Call the encoder, again where it is full; what it refuses is named as the caller knows it.

    Args:
        call: Sends texts.
        deadline: Until when.
        first: Position of the first text among the documents.
    """
    while True:
        try:
            return await call()
        except Overloaded as error:
            if deadline.remaining() <= error.retry_after_s:
                raise DeadlineSpent("DEADLINE_SPENT", "no time left to wait for the encoder") from error
            await asyncio.sleep(error.retry_after_s)
        except InvalidRequest as error:
            message = error.message.removeprefix(f"{error.field}: ")
            raise InvalidRequest(error.reason, message, field=_callers_field(error.field, first)) from error


def _callers_field(field: str, first: int) -> str:
    if found := TEXT_FIELD.fullmatch(field):
        return f"documents[{first + int(found[1])}].text"
    return "part_tokens" if field == "max_tokens" else field
