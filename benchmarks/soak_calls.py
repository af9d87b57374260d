"""The calls of `soak.py`: random requests, callers that await them, and ways to end them early."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from retrieval.encoder.v1 import encoder_pb2 as encoder_pb
from retrieval.encoder.v1.encoder_pb2_grpc import EncoderServiceStub
from retrieval.reranker.v1 import reranker_pb2 as reranker_pb
from retrieval.reranker.v1.reranker_pb2_grpc import RerankerServiceStub

CORPUS = Path(__file__).parents[1] / "data/helpcentre/documents.jsonl"
MOST_WORDS = 500
PATIENCE_S = 600.0
"""Deadline of the calls that are awaited."""
WAYS = {"at once": (0.0, 0.0), "soon": (0.0, 0.005), "later": (0.005, 0.3), "deadline": (0.001, 0.3)}
"""How a call is ended, and after how many seconds."""
LATE_S = 5.0
"""So long after its deadline a call is cancelled, should that be needed."""


class Requests:
    """Random requests, repeatable by their seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - traffic, not secrets
        lines = CORPUS.read_text(encoding="utf-8").splitlines()
        self._words = " ".join(json.loads(line)["text"] for line in lines).split()

    def text(self, count: int | None = None) -> str:
        """Make a text of so many words; or of any number of them, every order of magnitude as likely as another."""
        count = count or round(MOST_WORDS ** self.random.random())
        begin = self.random.randrange(len(self._words) - count)
        return " ".join(self._words[begin : begin + count])

    def encode(self, most: int = 8) -> encoder_pb.EncodeRequest:
        """Make a request of 1 to `most` texts."""
        return encoder_pb.EncodeRequest(
            texts=[self.text() for _ in range(self.random.randint(1, most))],
            input_type=encoder_pb.INPUT_TYPE_PASSAGE,
            overlong=encoder_pb.OVERLONG_TRUNCATE,
        )

    def messages(self) -> list[encoder_pb.EncodeStreamRequest]:
        """Make the messages of a stream."""
        count = self.random.randint(1, 4)
        return [encoder_pb.EncodeStreamRequest(sequence=i, request=self.encode(2)) for i in range(count)]

    def rerank(self, most: int = 20) -> reranker_pb.RerankRequest:
        """Make a request of 1 to `most` candidates."""
        texts = [self.text() for _ in range(self.random.randint(1, most))]
        return reranker_pb.RerankRequest(
            query=" ".join(self.text().split()[:12]),
            candidates=[reranker_pb.Candidate(id=str(index), text=text) for index, text in enumerate(texts)],
        )


class Clients:
    """One long-lived channel to each server, as a gateway has."""

    def __init__(self, encoder: grpc.aio.Channel, reranker: grpc.aio.Channel, seed: int) -> None:
        self.encoder = EncoderServiceStub(encoder)
        self.reranker = RerankerServiceStub(reranker)
        self.make = Requests(seed)

    async def encode(self) -> None:
        """Encode a batch."""
        await self.encoder.Encode(self.make.encode(), timeout=PATIENCE_S)

    async def stream(self) -> None:
        """Encode a stream."""
        call = self.encoder.EncodeStream(iter(self.make.messages()), timeout=PATIENCE_S)
        async for answer in call:
            if answer.HasField("failure"):
                raise RuntimeError(answer.failure.message)

    async def rerank(self) -> None:
        """Rerank a pool."""
        await self.reranker.Rerank(self.make.rerank(), timeout=PATIENCE_S)

    async def largest(self, count: int) -> int:
        """Encode and rerank so many texts over the model's limit in one call each; return how many were cut."""
        texts = [self.make.text(2 * MOST_WORDS) for _ in range(count)]
        request = encoder_pb.EncodeRequest(
            texts=texts, input_type=encoder_pb.INPUT_TYPE_PASSAGE, overlong=encoder_pb.OVERLONG_TRUNCATE
        )
        encoded = await self.encoder.Encode(request, timeout=PATIENCE_S)
        candidates = [reranker_pb.Candidate(id=str(index), text=text) for index, text in enumerate(texts)]
        pairs = reranker_pb.RerankRequest(query="question", candidates=candidates)
        ranked = await self.reranker.Rerank(pairs, timeout=PATIENCE_S)
        return sum(one.truncated for one in (*encoded.embeddings, *ranked.ranked))

    async def known(self) -> np.ndarray:
        """Return the answers to two requests that are always the same."""
        make = Requests(0)
        vectors = await self.encoder.Encode(make.encode(), timeout=PATIENCE_S)
        ranked = await self.reranker.Rerank(make.rerank(), timeout=PATIENCE_S)
        logits = [one.logit for one in sorted(ranked.ranked, key=lambda one: one.index)]
        return np.array([number for one in vectors.embeddings for number in one.values] + logits)


@asynccontextmanager
async def callers(calls: Sequence[Callable[[], Awaitable[None]]], counts: Counter[str]) -> AsyncIterator[None]:
    """Keep making calls, each as soon as the one before has its answer; leaving lets the last ones end."""
    over = asyncio.Event()

    async def keep(call: Callable[[], Awaitable[None]]) -> None:
        while not over.is_set():
            try:
                await call()
                counts[call.__name__] += 1
            except grpc.aio.AioRpcError as error:
                counts[f"{call.__name__} {error.code().name}"] += 1

    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(keep(call))
        try:
            yield
        finally:
            over.set()


async def end_early(clients: Clients, call: "EndedCall", way: str) -> str:
    """Make a call and end it; return the status that its caller saw."""
    delay = clients.make.random.uniform(*WAYS[way])
    budget, after = (delay, delay + LATE_S) if way == "deadline" else (PATIENCE_S, delay)
    return await call(clients, budget, after)


async def _ended(call: Any, work: Awaitable[Any], after_s: float) -> str:
    """Do the work of a call, cancel it after a time unless it has ended by then, and return its status."""
    working = asyncio.ensure_future(work)
    if after_s:
        await asyncio.wait([working], timeout=after_s)
    if not working.done():
        call.cancel()
        working.cancel()  # gRPC leaves a writer waiting whose stream was ended before it began
        await asyncio.wait([working])
        return "CANCELLED"
    error = working.exception()
    if error is None:
        return "OK"
    # What gRPC's client makes of a stream whose deadline passes before or during a write.
    if isinstance(error, asyncio.InvalidStateError) or "execute_batch" in str(error):
        return "ENDED_IN_WRITE"
    if not isinstance(error, grpc.aio.AioRpcError):
        raise error
    return error.code().name


async def _whole(call: Any) -> Any:
    return await call


async def _encode(clients: Clients, budget_s: float, after_s: float) -> str:
    call = clients.encoder.Encode(clients.make.encode(2), timeout=budget_s)
    return await _ended(call, _whole(call), after_s)


async def _rerank(clients: Clients, budget_s: float, after_s: float) -> str:
    call = clients.reranker.Rerank(clients.make.rerank(4), timeout=budget_s)
    return await _ended(call, _whole(call), after_s)


async def _stream(clients: Clients, budget_s: float, after_s: float) -> str:
    """Read what comes and leave the stream open, so that it is idle when all is answered."""
    call = clients.encoder.EncodeStream(timeout=budget_s)

    async def work() -> None:
        for message in clients.make.messages():
            await call.write(message)
        while await call.read() is not grpc.aio.EOF:
            pass

    return await _ended(call, work(), after_s)


EndedCall = Callable[[Clients, float, float], Awaitable[str]]
ENDED_CALLS: Sequence[EndedCall] = (_encode, _stream, _rerank)
"""Each is given a budget and the time after which it is cancelled, both in seconds."""
