"""How long a message of a stream of documents may take.

Numbers in brackets are those of field failures.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from gateway.documents import DocumentService
from gateway.indexing import Overlong, Stored
from gateway.ports import Document
from gateway.settings import GatewaySettings
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.deadline import Deadline


class NotingIndexer:
    """Stores nothing and notes the deadlines it was given."""

    def __init__(self) -> None:
        self.deadlines: list[Deadline] = []

    async def upsert(
        self,
        collection: str,
        documents: Sequence[Document],
        *,
        splitting: object,
        overlong: Overlong,
        deadline: Deadline,
    ) -> Stored:
        self.deadlines.append(deadline)
        return Stored(stored_count=len(documents), truncated_count=0)


class Caller:
    """What gRPC says of a caller: the seconds left, or None."""

    def __init__(self, remaining: float | None) -> None:
        self.remaining = remaining

    def time_remaining(self) -> float | None:
        return self.remaining


async def deadlines(remaining: float | None) -> list[Deadline]:
    """Send two messages and return the deadline of each."""
    indexer = NotingIndexer()
    service = DocumentService(indexer, None, GatewaySettings(upsert_deadline_s=100))  # type: ignore[arg-type]

    async def messages() -> AsyncIterator[pb.UpsertDocumentsRequest]:
        for number in range(2):
            documents = [pb.Document(id=pb.DocumentId(number=number), text="t")]
            yield pb.UpsertDocumentsRequest(collection="c", documents=documents)

    caller: Any = Caller(remaining)
    answers = [answer async for answer in service.UpsertDocuments(messages(), caller)]
    assert [answer.stored.stored_count for answer in answers] == [1, 1]
    return indexer.deadlines


@pytest.mark.parametrize("remaining", [7.0, 0.0])
async def test_the_callers_deadline_is_one_instant_for_all_messages(remaining: float) -> None:
    """A message that comes late does not get the whole budget anew, and none left is not taken for none set (10)."""
    before = Deadline.after(remaining)
    first, second = await deadlines(remaining)
    assert first == second
    assert before <= first <= Deadline.after(remaining)


async def test_without_a_deadline_every_message_has_its_own() -> None:
    """A stream may run as long as it likes; each of its messages gets the default (10)."""
    before = Deadline.after(100)
    first, second = await deadlines(None)
    assert before <= first < second <= Deadline.after(100)
