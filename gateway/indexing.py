"""Documents in: split or encode their texts, store them, acknowledge. One message at a time, all of it or nothing."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import chain, islice
from typing import TypeVar

from gateway.part_ids import parent_of
from gateway.parts import id_field, parts_of, require_bytes, stale_ids
from gateway.ports import Collection, Document, DocumentId, Encoder, Model, Vector, VectorStore
from gateway.precisions import note_precision
from gateway.stored_parts import StoredParts
from gateway.turns import Turns
from serving.deadline import Deadline
from serving.errors import DeadlineSpent, InvalidRequest, Misconfigured, Overloaded

TEXTS_PER_CALL = 256
"""Most texts that an encoder takes at once."""
SPLIT_TEXTS_PER_CALL = 16
"""So few that a message of too many parts is refused before all of it has been split."""
IDS_PER_CALL = 1_000
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
    _called: Turns = field(default_factory=Turns, init=False, repr=False, compare=False)
    """By the name of a collection that a call uses."""
    _own: Turns = field(default_factory=Turns, init=False, repr=False, compare=False)
    """By a collection's own name."""

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

        A full encoder slows this down instead of failing it, for as long as the deadline allows. Of two calls that
        share an id and a collection, the later one waits for the earlier one.

        Raises:
            InvalidRequest: A text is blank or too long, or an id, or a part's, is taken; the field names the document.
                Or there are too many parts (`documents`), or none can be of that size (`part_tokens`).
            NotFound: No such collection.
            Misconfigured: The collection belongs to another encoder.
            DeadlineSpent: The encoder, or an earlier call, left no time.
        """
        ids = [one.id for one in documents]
        async with self._turn(collection, ids, deadline) as target:
            parts = StoredParts(self.store, target.name, deadline)
            splits = overlong is Overlong.SPLIT
            groups = await self._split(documents, splitting, deadline) if splits else [[one] for one in documents]
            await parts.require_untaken(documents, groups, replaced=ids if splits else ())
            stale = stale_ids(groups, documents, await parts.of(ids) if splits else {})
            entries = list(chain.from_iterable(groups))
            vectors, truncated = await self._encode(
                collection, target, entries, truncate=overlong is Overlong.TRUNCATE, deadline=deadline
            )
            # What is new comes first: the store may refuse it, or go down, and then what is old has to be there still.
            # Whoever is interrupted in between has both, and sends the message again: `StoredParts.of` finds the rest.
            await self.store.upsert(target.name, entries, vectors, deadline=deadline)
            await self._delete(target.name, stale, deadline)
        numbers = [entry.part.number for entry in entries if entry.part is not None]
        return Stored(
            stored_count=len(documents),
            truncated_count=truncated,
            split_count=numbers.count(1),
            part_count=len(numbers),
        )

    async def delete(
        self, collection: str, ids: Sequence[DocumentId], *, own: Sequence[DocumentId], deadline: Deadline
    ) -> None:
        """Delete documents, split ones with all their parts; ids that do not exist are no error.

        Args:
            collection: By its name or an alias.
            ids: All that are named.
            own: Those of them that the caller may write. Calls about the others are neither waited for nor made to
                wait, which would tell that they are there, and would let one caller hold up another.
            deadline: Until when.

        Raises:
            InvalidRequest: One is the id of a part whose document is not among them; nothing is deleted.
            NotFound: No such collection.
            DeadlineSpent: An earlier call with one of the ids left no time.
        """
        async with self._turn(collection, own, deadline) as target:
            parts = StoredParts(self.store, target.name, deadline)
            await parts.require_whole(ids)
            found = await parts.of(ids)
            # Parts in their own order, also where they are named: the first ones are those by which others are found.
            await self._delete(target.name, dict.fromkeys(chain(*found.values(), ids)), deadline)

    @asynccontextmanager
    async def _turn(self, collection: str, ids: Sequence[DocumentId], deadline: Deadline) -> AsyncIterator[Collection]:
        """Wait for earlier calls about the same documents, and yield the collection that the call is about.

        By the name that the call uses first, so that calls keep the order in which they came; then by the collection's
        own, which others may use. Whoever is about an id that a part could have keeps the document of such a part from
        being split meanwhile.
        """
        parents = {parent for one in ids if (parent := parent_of(one)) is not None}

        def keys(name: str, some: Iterable[DocumentId]) -> list[tuple[str, DocumentId]]:
            return [(name, one) for one in some]

        async with self._called.take(keys(collection, ids), deadline, shared=keys(collection, parents)):
            target = await self.store.describe(collection, deadline=deadline)
            async with self._own.take(keys(target.name, ids), deadline, shared=keys(target.name, parents)):
                yield target

    async def _split(
        self, documents: Sequence[Document], splitting: Splitting, deadline: Deadline
    ) -> list[list[Document]]:
        """Return what is to be stored in place of each document: itself, or its parts."""
        split = await self._passages(documents, splitting, deadline)
        require_bytes(documents, split)
        groups = [
            parts_of(document, passages, id_field(index))
            for index, (document, passages) in enumerate(zip(documents, split, strict=True))
        ]
        seen: set[DocumentId] = set()
        for index, group in enumerate(groups):
            ids = {entry.id for entry in group}
            if not seen.isdisjoint(ids):
                raise InvalidRequest("ID_DUPLICATE", "a part's id occurs twice in this message", field=id_field(index))
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

    async def _delete(self, collection: str, ids: Iterable[DocumentId], deadline: Deadline) -> None:
        left = iter(ids)
        while some := list(islice(left, IDS_PER_CALL)):
            await self.store.delete(collection, some, deadline=deadline)

    async def _encode(
        self, collection: str, target: Collection, entries: Sequence[Document], *, truncate: bool, deadline: Deadline
    ) -> tuple[list[Vector], int]:
        """Return a vector for each text, and how many texts were cut."""
        vectors: list[Vector] = []
        truncated = 0
        for begin in range(0, len(entries), TEXTS_PER_CALL):
            texts = [entry.text for entry in entries[begin : begin + TEXTS_PER_CALL]]
            call = partial(self.encoder.encode_passages, texts, truncate=truncate, deadline=deadline)
            encoded = await _patiently(call, deadline)
            _check_encoder(collection, target, encoded.model)
            vectors += encoded.vectors
            truncated += sum(encoded.truncated)
        return vectors, truncated


def _check_encoder(name: str, target: Collection, model: Model) -> None:
    """Check that vectors are those that the collection, asked for by `name`, is made of."""
    if model.digest != target.encoder.digest:
        raise Misconfigured(
            "ENCODER_MISMATCH",
            f"collection {name} was made with {target.encoder.id} {target.encoder.digest[:19]}, the encoder "
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
