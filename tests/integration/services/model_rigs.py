"""Whole model servers for tests, and a valve on the thread that computes."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from clients import client
from rigs import health

import encoder_server.app
import reranker_server.app
from encoder_server.settings import EncoderSettings
from reranker_server.settings import RerankerSettings
from retrieval.encoder.v1 import encoder_pb2, encoder_pb2_grpc
from retrieval.reranker.v1 import reranker_pb2, reranker_pb2_grpc
from serving.app import ModelServer
from serving.model import Feed

QUERY, PASSAGE = encoder_pb2.INPUT_TYPE_QUERY, encoder_pb2.INPUT_TYPE_PASSAGE
PATIENCE_S = 20


class Valve:
    """Stands before the model: holds every batch back until it is opened, and keeps what was computed."""

    def __init__(self, server: ModelServer) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.batches: list[int] = []
        model = server.engine.model
        self._run, model.run = model.run, self  # type: ignore[method-assign]

    def __call__(self, feed: Feed) -> Any:
        self.batches.append(feed.row_count)
        self.entered.set()
        if not self.opened.wait(60):
            raise TimeoutError
        return self._run(feed)

    async def wait_entered(self) -> None:
        """Wait until a batch is held back."""
        assert await asyncio.to_thread(self.entered.wait, PATIENCE_S)


class ModelRig:
    """A model server and a client of it."""

    def __init__(self, server: ModelServer, channel: grpc.aio.Channel) -> None:
        self.server, self.channel = server, channel

    async def waiting(self, *rows: int) -> None:
        """Wait until one of these is the number of rows in the queue."""
        async with asyncio.timeout(PATIENCE_S):
            while self.server.engine.batcher.waiting_rows not in rows:
                await health(self.channel)


class EncoderRig(ModelRig):
    """An encoder server and a client of it."""

    def __init__(self, server: ModelServer, channel: grpc.aio.Channel) -> None:
        super().__init__(server, channel)
        self.stub = encoder_pb2_grpc.EncoderServiceStub(channel)

    def encode(self, *texts: str, deadline_s: float | None = PATIENCE_S, **fields: Any) -> Any:
        """Call Encode."""
        return self.stub.Encode(encode_request(*texts, **fields), timeout=deadline_s)

    async def vectors(self, *texts: str, **fields: Any) -> npt.NDArray[np.float32]:
        """Encode and return float32 [texts, dimension]."""
        answer = await self.encode(*texts, **fields)
        return np.array([one.values for one in answer.embeddings], np.float32)


class RerankerRig(ModelRig):
    """A reranker server and a client of it."""

    def __init__(self, server: ModelServer, channel: grpc.aio.Channel) -> None:
        super().__init__(server, channel)
        self.stub = reranker_pb2_grpc.RerankerServiceStub(channel)

    def rerank(self, query: str, *texts: str, deadline_s: float | None = PATIENCE_S, **fields: Any) -> Any:
        """Call Rerank with candidates whose ids are their positions."""
        candidates = [reranker_pb2.Candidate(id=str(index), text=text) for index, text in enumerate(texts)]
        request = reranker_pb2.RerankRequest(**{"query": query, "candidates": candidates, **fields})
        return self.stub.Rerank(request, timeout=deadline_s)


@asynccontextmanager
async def open_encoder(settings: EncoderSettings) -> AsyncIterator[EncoderRig]:
    """Open an encoder server and a client."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(encoder_server.app.open_app(settings))
        yield EncoderRig(server, await stack.enter_async_context(client(server.port)))


@asynccontextmanager
async def open_reranker(settings: RerankerSettings) -> AsyncIterator[RerankerRig]:
    """Open a reranker server and a client."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(reranker_server.app.open_app(settings))
        yield RerankerRig(server, await stack.enter_async_context(client(server.port)))


def encode_request(*texts: str, **fields: Any) -> encoder_pb2.EncodeRequest:
    """Make a request, of passages unless said otherwise."""
    return encoder_pb2.EncodeRequest(**{"texts": texts, "input_type": PASSAGE, **fields})
