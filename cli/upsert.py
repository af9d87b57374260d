"""Documents to the gateway over streams of messages, until every one is stored or refused by its line number."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias
from uuid import UUID

import grpc

from cli.calls import CODE_BY_NUMBER, CallFailed, gateway_at
from cli.lines import Line, Malformed
from retrieval.gateway.v1 import gateway_pb2 as pb

MESSAGE_DOCUMENTS = 64
MESSAGES_IN_FLIGHT = 6
STREAM_S = 60.0
"""A stream is ended after this time and the next one opens a new connection: servers close old ones."""
OF_A_DOCUMENT = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL}
"""Codes that one document can cause; any other would meet the next message as well."""

Batch: TypeAlias = Sequence[Line]
Method: TypeAlias = "grpc.aio.StreamStreamMultiCallable[pb.UpsertDocumentsRequest, pb.UpsertDocumentsResponse]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A document that the gateway did not take."""

    number: int
    """Its line, from 1."""
    reason: str
    message: str


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of the lines; grows while they are sent."""

    line_count: int = 0
    stored_count: int = 0
    truncated_count: int = 0
    surrogate_count: int = 0
    malformed: list[Malformed] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)


async def upsert(
    address: str,
    collection: str,
    lines: Iterable[Line | Malformed],
    *,
    truncate: bool = False,
    outcome: Outcome,
    progress: Callable[[Outcome], None] = lambda _: None,
) -> None:
    """Send documents and wait until each is stored or refused.

    Args:
        address: Of the gateway.
        collection: An existing collection.
        lines: What to send; a malformed line is noted and left out.
        truncate: Whether a text over the token limit is cut instead of refused.
        outcome: Filled while answers come, and right also where this raises.
        progress: Told after every answer.

    Raises:
        CallFailed: The gateway answered with an error that no single document has caused.
        grpc.aio.AioRpcError: It cannot be reached, or a stream broke.
    """
    sender = _Sender(collection, _batches(lines, outcome), outcome, truncate=truncate)
    while sender.more():
        async with gateway_at(address) as gateway:
            await sender.send(gateway.documents.UpsertDocuments, progress)


class _Sender:
    """Sends batches; a refused one comes back document by document, so that its neighbours are not lost with it."""

    def __init__(self, collection: str, batches: Iterator[Batch], outcome: Outcome, *, truncate: bool) -> None:
        self._collection = collection
        self._batches = batches
        self._outcome = outcome
        self._truncate = truncate
        self._again: deque[Batch] = deque()
        self._at_work: dict[int, Batch] = {}
        self._sequence = 0

    def more(self) -> bool:
        """Return whether anything is left to send."""
        if not self._again and (batch := next(self._batches, None)) is not None:
            self._again.append(batch)
        return bool(self._again)

    async def send(self, method: Method, progress: Callable[[Outcome], None]) -> None:
        """Send over one stream until nothing is left or its time is over, and read every answer."""
        room = asyncio.Semaphore(MESSAGES_IN_FLIGHT)
        until = asyncio.get_running_loop().time() + STREAM_S
        answered = asyncio.Event()

        async def messages() -> AsyncIterator[pb.UpsertDocumentsRequest]:
            sent = False
            while not sent or asyncio.get_running_loop().time() < until:
                await room.acquire()
                while not self.more():
                    if not self._at_work:
                        return
                    answered.clear()  # an answer may still send documents back
                    await answered.wait()
                sent = True
                yield self._message(self._again.popleft())

        async for response in method(messages()):
            self._take(response)
            room.release()
            answered.set()
            progress(self._outcome)

    def _message(self, batch: Batch) -> pb.UpsertDocumentsRequest:
        self._sequence += 1
        self._at_work[self._sequence] = batch
        return pb.UpsertDocumentsRequest(
            sequence=self._sequence,
            collection=self._collection,
            documents=[line.document for line in batch],
            truncate=self._truncate,
        )

    def _take(self, response: pb.UpsertDocumentsResponse) -> None:
        batch = self._at_work.pop(response.sequence)
        failure = response.failure
        if response.WhichOneof("outcome") == "stored":
            self._outcome.stored_count += response.stored.stored_count
            self._outcome.truncated_count += response.stored.truncated_count
        elif CODE_BY_NUMBER[failure.code] not in OF_A_DOCUMENT:
            raise CallFailed(CODE_BY_NUMBER[failure.code], failure.reason, failure.message)
        elif len(batch) > 1:
            self._again.extend([line] for line in batch)
        else:
            message = failure.message.removeprefix("documents[0].")
            self._outcome.refused.append(Refused(number=batch[0].number, reason=failure.reason, message=message))


def _batches(lines: Iterable[Line | Malformed], outcome: Outcome) -> Iterator[Batch]:
    good = _good(lines, outcome)
    while batch := list(islice(good, MESSAGE_DOCUMENTS)):
        yield batch


def _good(lines: Iterable[Line | Malformed], outcome: Outcome) -> Iterator[Line]:
    """Pass lines on that are a document of their own; of two with one id nobody could say which is stored last."""
    seen: dict[int | str | UUID, int] = {}
    for line in lines:
        outcome.line_count += 1
        if isinstance(line, Malformed):
            outcome.malformed.append(line)
            continue
        first = seen.setdefault(_identifier(line.document.id), line.number)
        if first != line.number:
            outcome.malformed.append(Malformed(number=line.number, problem=f"its id is also on line {first}"))
            continue
        outcome.surrogate_count += line.surrogate_count
        yield line


def _identifier(message: pb.DocumentId) -> int | str | UUID:
    """Return an id as the store tells ids apart."""
    from gateway.ids import parse_text  # noqa: PLC0415 - numpy, which comes with it, would slow every command's start

    return message.number if message.WhichOneof("kind") == "number" else parse_text(message.text)
