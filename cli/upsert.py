"""Documents to the gateway over streams of messages, until every one is stored or refused by its line number."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import TypeAlias
from uuid import UUID

import grpc

from cli.calls import CODE_BY_NUMBER, CallFailed, gateway_at, made_up
from cli.lines import Line, Malformed
from cli.long_texts import LongTexts
from cli.record import Outcome, Record
from retrieval.gateway.v1 import gateway_pb2 as pb

MESSAGE_DOCUMENTS = 64
MESSAGE_BYTES = 2 * 1024 * 1024
"""A message holds no more of either; a single document may be larger than this and travels alone. Batches by tokens are
the encoder's affair, which sees the messages of all clients."""
MESSAGES_IN_FLIGHT = 6
MOST_BROKEN = 3
"""Streams in a row that may end without an answer or a server's word, before that is an error."""
STREAM_S = 60.0
"""A stream is ended after this time and the next one opens a new connection: servers close old ones."""
OF_A_DOCUMENT = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL}
"""Codes that one document can cause; any other would meet the next message as well."""
REJECTED = LongTexts()

Batch: TypeAlias = Sequence[Line]
Method: TypeAlias = "grpc.aio.StreamStreamMultiCallable[pb.UpsertDocumentsRequest, pb.UpsertDocumentsResponse]"


async def upsert(
    address: str,
    collection: str,
    lines: Iterable[Line | Malformed],
    *,
    long_texts: LongTexts = REJECTED,
    record: Record,
    progress: Callable[[Outcome], None] = lambda _: None,
) -> None:
    """Send documents and wait until each is stored or refused.

    Args:
        address: Of the gateway.
        collection: An existing collection.
        lines: What to send, in ascending order; a malformed line is noted and left out, and so is what is settled.
        long_texts: What becomes of texts over the token limit.
        record: Told of every line while answers come, and right also where this raises.
        progress: Told after every answer.

    Raises:
        CallFailed: The gateway answered with an error that no single document has caused.
        grpc.aio.AioRpcError: It cannot be reached, or a stream broke.
    """
    sender = _Sender(collection, _batches(_good(lines, record)), record, long_texts)
    while sender.more():
        async with gateway_at(address) as gateway:
            try:
                await sender.send(gateway.documents.UpsertDocuments, progress)
            except grpc.aio.AioRpcError as error:
                if not (made_up(error) and sender.take_back()):
                    raise


class _Sender:
    """Sends batches; a refused one comes back document by document, so that its neighbours are not lost with it."""

    def __init__(self, collection: str, batches: Iterator[Batch], record: Record, long_texts: LongTexts) -> None:
        self._collection = collection
        self._batches = batches
        self._record = record
        self._long_texts = long_texts
        self._again: deque[Batch] = deque()
        self._at_work: dict[int, Batch] = {}
        self._sequence = 0
        self._broken = 0

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
        streaming = True

        async def messages() -> AsyncIterator[pb.UpsertDocumentsRequest]:
            sent = False
            while not sent or asyncio.get_running_loop().time() < until:
                await room.acquire()
                while not self.more():
                    if not self._at_work:
                        return
                    answered.clear()  # an answer may still send documents back
                    await answered.wait()
                if not streaming:
                    return  # what is taken now would never be answered
                sent = True
                yield self._message(self._again.popleft())

        try:
            async for response in method(messages()):
                self._take(response)
                room.release()
                answered.set()
                progress(self._record.outcome)
        finally:
            streaming = False

    def take_back(self) -> bool:
        """Have what was not answered sent again, which changes nothing where it is stored; whether to try that."""
        self._again.extendleft(reversed(self._at_work.values()))
        self._at_work.clear()
        self._broken += 1
        return self._broken < MOST_BROKEN

    def _message(self, batch: Batch) -> pb.UpsertDocumentsRequest:
        self._sequence += 1
        self._at_work[self._sequence] = batch
        return pb.UpsertDocumentsRequest(
            sequence=self._sequence,
            collection=self._collection,
            documents=[line.document for line in batch],
            overlong=self._long_texts.overlong,
            part_tokens=self._long_texts.part_tokens,
            part_per_sentence=self._long_texts.part_per_sentence,
        )

    def _take(self, response: pb.UpsertDocumentsResponse) -> None:
        batch = self._at_work.pop(response.sequence)
        self._broken = 0
        failure = response.failure
        if response.WhichOneof("outcome") == "stored":
            self._record.stored(batch, response.stored)
        elif CODE_BY_NUMBER[failure.code] not in OF_A_DOCUMENT:
            raise CallFailed(CODE_BY_NUMBER[failure.code], failure.reason, failure.message)
        elif len(batch) > 1:
            self._again.extend([line] for line in batch)
        else:
            self._record.refused(batch[0], failure.reason, failure.message.removeprefix("documents[0]."))


def _batches(lines: Iterable[Line]) -> Iterator[Batch]:
    batch: list[Line] = []
    size = 0
    for line in lines:
        line_bytes = line.document.ByteSize()
        if batch and (len(batch) == MESSAGE_DOCUMENTS or size + line_bytes > MESSAGE_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += line_bytes
    if batch:
        yield batch


def _good(lines: Iterable[Line | Malformed], record: Record) -> Iterator[Line]:
    """Pass lines on that are a document of their own; of two with one id nobody could say which is stored last."""
    seen: dict[int | str | UUID, int] = {}
    for line in lines:
        record.outcome.line_count += 1
        if isinstance(line, Malformed):
            record.malformed(line)
            continue
        first = seen.setdefault(_identifier(line.document.id), line.number)
        if first != line.number:
            problem = f"its id is also on line {first}"
            record.malformed(Malformed(number=line.number, problem=problem, original=line.original))
            continue
        record.outcome.surrogate_count += line.surrogate_count
        if not record.settled(line.number):
            yield line


def _identifier(message: pb.DocumentId) -> int | str | UUID:
    """Return an id as the store tells ids apart."""
    from gateway.ids import parse_text  # noqa: PLC0415 - numpy, which comes with it, would slow every command's start

    return message.number if message.WhichOneof("kind") == "number" else parse_text(message.text)
