"""The gateway as it is put together: its own store, its health, and more than one event loop.

Numbers in brackets are those of field failures.
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from clients import client
from fakes import FakeEncoder, FakeReranker, Gate, serve
from rigs import document, failure, health, numbers, request

from gateway.app import open_app
from gateway.settings import GatewaySettings
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1.gateway_pb2_grpc import CollectionServiceStub, DocumentServiceStub, GatewayServiceStub
from serving.errors import Misconfigured

SERVICES = tuple(f"retrieval.gateway.v1.{name}Service" for name in ("Gateway", "Document", "Collection"))


def settings_of(directory: Path, encoder: int, reranker: int, **others: Any) -> GatewaySettings:
    """Make the settings of a gateway on a free port."""
    return GatewaySettings(
        **{
            "host": "127.0.0.1",
            "port": 0,
            "grace_s": 5,
            "store_path": directory / "store",
            "encoder_target": f"dns:///127.0.0.1:{encoder}",
            "reranker_target": f"dns:///127.0.0.1:{reranker}",
            **others,
        }
    )


async def index_and_search(channel: grpc.aio.Channel) -> list[int]:
    """Make a collection, store three documents and search them."""
    await CollectionServiceStub(channel).CreateCollection(pb.CreateCollectionRequest(collection="c"))
    documents = [document(1, "alpha"), document(2, "alpha beta"), document(3, "gamma")]
    message = pb.UpsertDocumentsRequest(collection="c", documents=documents)
    (answer,) = [one async for one in DocumentServiceStub(channel).UpsertDocuments(iter([message]))]
    assert answer.stored.stored_count == 3
    return await search(channel)


async def search(channel: grpc.aio.Channel) -> list[int]:
    """Search."""
    return numbers((await GatewayServiceStub(channel).Search(request("alpha beta"), timeout=20)).hits)


async def whole_life(directory: Path) -> list[int]:
    """Open backends and gateway, use them, and close them, all in the loop that is running."""
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(serve(fake)) for fake in (FakeEncoder(), FakeReranker())]
        running = await stack.enter_async_context(open_app(settings_of(directory, *ports)))
        channel = await stack.enter_async_context(client(running.port))
        return await index_and_search(channel)


async def test_documents_survive_a_restart(tmp_path: Path) -> None:
    """What was acknowledged is found by the next gateway over the same directory."""
    assert await whole_life(tmp_path) == [2, 1, 3]
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(serve(fake)) for fake in (FakeEncoder(), FakeReranker())]
        running = await stack.enter_async_context(open_app(settings_of(tmp_path, *ports)))
        channel = await stack.enter_async_context(client(running.port))
        assert await search(channel) == [2, 1, 3]


async def test_health_is_serving_for_every_service_and_unknown_names_are_not_found(tmp_path: Path) -> None:
    """The overall name and each service say SERVING once the gateway is open (5)."""
    async with open_app(settings_of(tmp_path, 1, 1)) as running, client(running.port) as channel:
        assert [await health(channel, name) for name in ("", *SERVICES)] == [1, 1, 1, 1]
        failed = await failure(health(channel, "no.such.Service"))
        assert failed.code is grpc.StatusCode.NOT_FOUND


async def test_two_loops_at_the_same_time(tmp_path: Path) -> None:
    """A gateway of a second loop in another thread works beside that of the first (field failure 64)."""
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(serve(fake)) for fake in (FakeEncoder(), FakeReranker())]
        running = await stack.enter_async_context(open_app(settings_of(tmp_path / "first", *ports)))
        channel = await stack.enter_async_context(client(running.port))
        elsewhere = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(whole_life(tmp_path / "second"))))
        assert await index_and_search(channel) == [2, 1, 3]
        assert await elsewhere == [2, 1, 3]
        assert await search(channel) == [2, 1, 3]


async def test_one_loop_after_the_other(tmp_path: Path) -> None:
    """Nothing of a closed loop is kept: an app opened in the next one works (64)."""
    for name in ("first", "second"):
        assert await asyncio.to_thread(lambda: asyncio.run(whole_life(tmp_path / name))) == [2, 1, 3]  # noqa: B023 - awaited in the same turn


async def test_a_taken_port_is_the_operators(tmp_path: Path) -> None:
    """A second gateway on the same port is refused and the first goes on (36)."""
    async with open_app(settings_of(tmp_path / "first", 1, 1)) as running, client(running.port) as channel:
        with pytest.raises(Misconfigured) as caught:
            async with open_app(settings_of(tmp_path / "second", 1, 1, port=running.port)):
                pass
        assert caught.value.reason == "ADDRESS_UNAVAILABLE"
        assert await health(channel) == 1


async def test_closing_lets_running_searches_end(tmp_path: Path) -> None:
    """A search that is at work when the gateway closes is answered (field failure 19)."""
    encoder, gate = FakeEncoder(), Gate()
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(serve(fake)) for fake in (encoder, FakeReranker())]
        app = await stack.enter_async_context(AsyncExitStack())
        running = await app.enter_async_context(open_app(settings_of(tmp_path, *ports)))
        channel = await stack.enter_async_context(client(running.port))
        await index_and_search(channel)
        encoder.script.append(gate)
        search_at_work = asyncio.create_task(search(channel))
        await asyncio.wait_for(gate.begun.wait(), 20)
        closing = asyncio.create_task(app.aclose())
        async with asyncio.timeout(20):
            while not await _draining(channel):
                pass
        gate.opened.set()
        assert await search_at_work == [2, 1, 3]
        await closing


async def _draining(channel: grpc.aio.Channel) -> bool:
    """Tell whether the server no longer says SERVING, or takes no new calls at all."""
    try:
        return await health(channel) != 1
    except grpc.aio.AioRpcError as error:
        # A call that comes in the very moment of closing is cancelled by gRPC itself.
        assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)  # noqa: PT017 - others are wrong
        return True
