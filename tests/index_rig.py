"""A gateway with a store in memory and a fake encoder, and the `twostage` command as a process against it."""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from clients import client
from fakes import ENCODER_DIGEST, FakeEncoder, FakeReranker, sensible, serve
from store_fake import MemoryStore
from up_process import TWOSTAGE

from gateway import encoder_client, reranker_client
from gateway.app import _services
from gateway.channels import open_channel
from gateway.ports import Document, DocumentId, VectorStore
from gateway.settings import GatewaySettings
from retrieval.gateway.v1.gateway_pb2_grpc import CollectionServiceStub, GatewayServiceStub
from serving.deadline import Deadline
from serving.metrics import ServerMetrics
from serving.server import open_server


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A process that has ended."""

    status: int
    stdout: str
    stderr: str


class IndexRig:
    """A serving gateway."""

    def __init__(self, channel: grpc.aio.Channel, address: str, encoder: FakeEncoder, store: VectorStore) -> None:
        self.address, self.encoder, self.store = address, encoder, store
        self.home = Path()
        self.search = GatewayServiceStub(channel).Search
        self.collections = CollectionServiceStub(channel)

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        """Start a command; it knows this gateway and a home of the test's own."""
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
        told = ("--gateway", self.address)
        home = ("--home", str(self.home)) if arguments[0] in {"index", "reindex"} else ()
        return await asyncio.create_subprocess_exec(*TWOSTAGE, *arguments, *told, *home, **pipes)

    async def run(self, *arguments: str, stdin: bytes = b"") -> Ended:
        """Run a command to its end."""
        process = await self.start(*arguments)
        stdout, stderr = await process.communicate(stdin)
        assert process.returncode is not None
        return Ended(status=process.returncode, stdout=stdout.decode(), stderr=stderr.decode())

    async def kill(self, message: int, *arguments: str, turns: int = 0) -> None:
        """Start a command, and kill it some turns of the loop after the encoder was asked for the n-th message."""
        process = await self.start(*arguments)
        asked = 0

        async def step(request: Any, _context: Any, answer: Any) -> Any:
            nonlocal asked
            asked += hasattr(request, "vector_format")
            if asked == message and process.returncode is None:
                asked += 1
                for _ in range(turns):
                    await asyncio.sleep(0)
                process.kill()
            return answer

        self.encoder.always = step
        await process.communicate()
        assert process.returncode == -signal.SIGKILL
        self.encoder.always = sensible

    async def documents(self, collection: str, ids: Sequence[DocumentId]) -> list[Document]:
        """Return what is stored of some documents."""
        found: list[Document] = []
        for begin in range(0, len(ids), 500):
            found += await self.store.get(collection, ids[begin : begin + 500], deadline=Deadline.after(60))
        return found

    async def count(self, collection: str) -> int:
        """Count all documents."""
        return (await self.store.describe(collection, deadline=Deadline.after(60))).document_count

    @property
    def encoded_count(self) -> int:
        """Passages that the encoder was asked for so far."""
        return sum(len(request.texts) for request in self.encoder.requests if hasattr(request, "vector_format"))


@asynccontextmanager
async def open_index_rig(
    home: Path, store: VectorStore | None = None, digest: str = ENCODER_DIGEST
) -> AsyncIterator[IndexRig]:
    """Serve a gateway on a free port, with an encoder of some digest."""
    async with AsyncExitStack() as stack:
        encoder, kept = FakeEncoder(digest), store or MemoryStore()
        ports = [await stack.enter_async_context(serve(fake)) for fake in (encoder, FakeReranker())]
        told = GatewaySettings(host="127.0.0.1", port=0, grace_s=1, encode_cap_s=60, search_cap_s=60)
        targets = [f"dns:///127.0.0.1:{port}" for port in ports]
        encoders = await stack.enter_async_context(open_channel(targets[0], encoder_client.SERVICE))
        rerankers = await stack.enter_async_context(open_channel(targets[1], reranker_client.SERVICE))
        metrics = ServerMetrics("gateway")
        services = _services(
            encoder_client.EncoderClient(encoders), reranker_client.RerankerClient(rerankers), kept, told, metrics
        )
        running = await stack.enter_async_context(open_server(told, metrics, services))
        stack.push_async_callback(running.drain, delay_s=0, grace_s=1)
        await running.set_serving(serving=True)
        address = f"127.0.0.1:{running.port}"
        channel = await stack.enter_async_context(client(address))
        rig = IndexRig(channel, address, encoder, kept)
        rig.home = home
        yield rig
