"""Documents in: encode passages, store them, acknowledge. One message at a time, all of it or nothing."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.ports import Document, Encoded, Encoder, VectorStore
from serving.deadline import Deadline
from serving.errors import DeadlineSpent, InvalidRequest, Misconfigured, Overloaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What became of one message."""

    stored_count: int
    truncated_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """Writes documents through the encoder into the store."""

    encoder: Encoder
    store: VectorStore

    async def upsert(
        self, collection: str, documents: Sequence[Document], *, truncate: bool, deadline: Deadline
    ) -> Stored:
        """Encode and store documents, all or none.

        A full encoder slows this down instead of failing it, for as long as the deadline allows.

        Raises:
            InvalidRequest: A text is blank or too long; the field names the document.
            NotFound: No such collection.
            Misconfigured: The collection belongs to another encoder.
        """
        target = await self.store.describe(collection, deadline=deadline)
        encoded = await self._encode([document.text for document in documents], truncate=truncate, deadline=deadline)
        if encoded.model.digest != target.encoder.digest:
            raise Misconfigured(
                "ENCODER_MISMATCH",
                f"collection {collection} was made with {target.encoder.id} {target.encoder.digest[:19]}, the encoder "
                f"serves {encoded.model.id} {encoded.model.digest[:19]}; index into a new collection",
            )
        await self.store.upsert(collection, documents, encoded.vectors, deadline=deadline)
        return Stored(stored_count=len(documents), truncated_count=sum(encoded.truncated))

    async def _encode(self, texts: Sequence[str], *, truncate: bool, deadline: Deadline) -> Encoded:
        while True:
            try:
                return await self.encoder.encode_passages(texts, truncate=truncate, deadline=deadline)
            except Overloaded as error:
                if deadline.remaining() <= error.retry_after_s:
                    raise DeadlineSpent("DEADLINE_SPENT", "no time left to wait for the encoder") from error
                await asyncio.sleep(error.retry_after_s)
            except InvalidRequest as error:
                field = error.field.replace("texts[", "documents[", 1) + ".text"
                raise InvalidRequest(
                    error.reason, error.message.removeprefix(f"{error.field}: "), field=field
                ) from error
