"""Replicas that are reached but say NOT_SERVING: those that still load their model, and those that drain.

Numbers in brackets are those of field failures.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from fakes import FakeEncoder, serve

from gateway.channels import open_channel
from gateway.encoder_client import SERVICE, EncoderClient
from retrieval.encoder.v1 import encoder_pb2_grpc
from serving.deadline import Deadline
from serving.errors import NotReady, Unavailable
from serving.metrics import ServerMetrics
from serving.server import RunningServer, open_server
from serving.settings import ServerSettings

CALLS = 200


class Loading(encoder_pb2_grpc.EncoderServiceServicer):
    """Refuses as a server without its model does, until there is one."""

    def __init__(self) -> None:
        self.ready = FakeEncoder()
        self.loaded = False
        self.refused_count = 0

    async def GetModel(self, request: Any, context: Any) -> Any:  # noqa: N802
        if not self.loaded:
            self.refused_count += 1
            raise NotReady("STARTING", "the model is being loaded")
        return await self.ready.GetModel(request, context)


@asynccontextmanager
async def loading() -> AsyncIterator[tuple[Loading, RunningServer]]:
    """Open a server as the real ones are before their model is there."""
    servicer = Loading()
    services = {SERVICE: lambda server: encoder_pb2_grpc.add_EncoderServiceServicer_to_server(servicer, server)}
    async with open_server(ServerSettings(host="127.0.0.1"), ServerMetrics("encoder"), services) as running:
        yield servicer, running


async def ask(client: EncoderClient) -> int:
    """Call once."""
    return (await client.info(deadline=Deadline.after(20))).dimension


async def test_a_replica_that_loads_is_not_called_until_it_serves() -> None:
    """Of many calls at once none fails and none reaches it; once it says SERVING it has its share (60)."""
    other = FakeEncoder()
    async with AsyncExitStack() as stack:
        servicer, running = await stack.enter_async_context(loading())
        port = await stack.enter_async_context(serve(other))
        target = f"ipv4:127.0.0.1:{running.port},127.0.0.1:{port}"
        client = EncoderClient(await stack.enter_async_context(open_channel(target, SERVICE)))
        assert set(await asyncio.gather(*(ask(client) for _ in range(CALLS)))) == {16}
        assert (servicer.refused_count, len(other.requests)) == (0, CALLS)
        servicer.loaded = True
        await running.set_serving(serving=True)
        async with asyncio.timeout(20):
            while not servicer.ready.requests:
                await ask(client)
        servicer.ready.requests.clear()
        await asyncio.gather(*(ask(client) for _ in range(CALLS)))
        assert abs(len(servicer.ready.requests) - CALLS / 2) <= 1


async def test_a_replica_that_drains_is_called_no_more() -> None:
    """It says NOT_SERVING and still answers; calls go to the other one as soon as that is heard (59)."""
    other = FakeEncoder()
    async with AsyncExitStack() as stack:
        servicer, running = await stack.enter_async_context(loading())
        servicer.loaded = True
        await running.set_serving(serving=True)
        port = await stack.enter_async_context(serve(other))
        target = f"ipv4:127.0.0.1:{running.port},127.0.0.1:{port}"
        client = EncoderClient(await stack.enter_async_context(open_channel(target, SERVICE)))
        async with asyncio.timeout(20):
            while not (servicer.ready.requests and other.requests):
                await ask(client)
        draining = asyncio.create_task(running.drain(delay_s=60, grace_s=1))
        async with asyncio.timeout(20):
            while True:
                servicer.ready.requests.clear()
                await asyncio.gather(*(ask(client) for _ in range(CALLS)))
                if not servicer.ready.requests:
                    break
        draining.cancel()


async def test_a_single_replica_that_loads_is_unavailable() -> None:
    """Where nobody serves yet a call says so at once, and the first one after SERVING is answered (60)."""
    async with loading() as (servicer, running), open_channel(f"127.0.0.1:{running.port}", SERVICE) as channel:
        client = EncoderClient(channel)
        with pytest.raises(Unavailable):
            await ask(client)
        assert servicer.refused_count == 0
        servicer.loaded = True
        await running.set_serving(serving=True)
        async with asyncio.timeout(20):
            while True:
                try:
                    assert await ask(client) == 16
                except Unavailable:
                    continue
                break
