"""What is left of calls that nobody awaits any more: nothing.

Numbers in brackets are those of field failures.
"""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from clients import client
from factories import encoder_settings, tiny_encoder_bundle

from encoder_server.app import open_app
from retrieval.encoder.v1 import encoder_pb2 as pb
from retrieval.encoder.v1.encoder_pb2_grpc import EncoderServiceStub
from serving.app import ModelServer

CALLS = 100
LIMIT_S = 20
REQUEST = pb.EncodeRequest(texts=["panda bear"] * 8, input_type=pb.INPUT_TYPE_QUERY)


async def left(stub: Any, call: Any, trips: int) -> None:
    """Leave a call after so many round trips to the server."""
    for _ in range(trips):
        await stub.GetModel(pb.GetModelRequest())
    call.cancel()


async def settled(server: ModelServer, task_count: int) -> None:
    """Wait until the queue is empty and there are no more tasks than before."""
    async with asyncio.timeout(LIMIT_S):
        while server.engine.batcher.waiting_rows or len(asyncio.all_tasks()) > task_count:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)


@pytest.mark.parametrize("budget_s", [None, 0.005])
async def test_calls_that_are_left_leave_nothing(tmp_path: Path, budget_s: float | None) -> None:
    """Calls ended at any time keep no task alive and no row in the queue, and the next call is answered (2, 78)."""
    bundle = tiny_encoder_bundle(tmp_path / "bundle")
    async with open_app(encoder_settings(bundle)) as server, client(server.port) as channel:
        stub: Any = EncoderServiceStub(channel)
        await stub.Encode(REQUEST)
        task_count = len(asyncio.all_tasks())
        calls = [stub.Encode(REQUEST, timeout=budget_s) for _ in range(CALLS)]
        await asyncio.gather(*(left(stub, call, index % 5) for index, call in enumerate(calls)))
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert any(not isinstance(one, pb.EncodeResponse) for one in ended)
        await settled(server, task_count)
        assert len((await stub.Encode(REQUEST)).embeddings) == 8


async def test_streams_that_are_left_leave_nothing(tmp_path: Path) -> None:
    """Neither does a stream left between two answers, with messages at work and others still to be read (78)."""
    bundle = tiny_encoder_bundle(tmp_path / "bundle")
    async with open_app(encoder_settings(bundle)) as server, client(server.port) as channel:
        stub: Any = EncoderServiceStub(channel)
        await stub.Encode(REQUEST)
        task_count = len(asyncio.all_tasks())
        for _ in range(CALLS // 4):
            call = stub.EncodeStream()
            for sequence in range(8):
                await call.write(pb.EncodeStreamRequest(sequence=sequence, request=REQUEST))
            assert (await call.read()).sequence == 0
            call.cancel()
            assert await call.code() is grpc.StatusCode.CANCELLED
        await settled(server, task_count)
        assert len((await stub.Encode(REQUEST)).embeddings) == 8
