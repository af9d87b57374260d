"""Indexing while the gateway dies."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from clients import SOON_AGAIN, client
from fakes import FakeEncoder, sensible, serve
from up_process import TWOSTAGE

from cli.addresses import free_ports
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1.gateway_pb2_grpc import CollectionServiceStub, DocumentServiceStub

pytestmark = pytest.mark.slow

COUNT = 64 * 10 - 3


@asynccontextmanager
async def gateway(port: int, encoder_port: int, store: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a gateway with the embedded store; ready once it is entered, killed and gone at the end, engine and all."""
    settings = {
        "HOST": "127.0.0.1",
        "PORT": str(port),
        "ENCODER_TARGET": f"dns:///127.0.0.1:{encoder_port}",
        "STORE_PATH": str(store),
    }
    told = {**os.environ, **{f"TWOSTAGE_GATEWAY_{name}": value for name, value in settings.items()}}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", env=told, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    reading = asyncio.create_task(process.stderr.read())
    try:
        async with client(port, SOON_AGAIN) as channel:
            listed = CollectionServiceStub(channel).ListCollections
            await listed(pb.ListCollectionsRequest(), wait_for_ready=True, timeout=60)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading  # ends when the engine's process, which has the same standard error, has ended too


async def index(*arguments: str) -> tuple[int, bytes]:
    process = await asyncio.create_subprocess_exec(
        *TWOSTAGE, "index", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    stdout, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, stdout


async def stored(port: int) -> set[int]:
    async with client(port) as channel:
        get = DocumentServiceStub(channel).GetDocuments
        ids = [pb.DocumentId(number=number) for number in range(COUNT + 10)]
        answer = await get(pb.GetDocumentsRequest(collection="c", ids=ids), timeout=20)
        return {document.id.number for document in answer.documents}


@pytest.mark.parametrize("message", [2, 5, 9])
async def test_a_gateway_killed_meanwhile_loses_nothing_that_it_acknowledged(message: int, tmp_path: Path) -> None:
    """The run ends with the status of a server that cannot be reached; the same command then stores what is missing."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"id": n, "text": f"alpha {n}"}) + "\n" for n in range(COUNT)))
    encoder = FakeEncoder()
    async with serve(encoder) as encoder_port:
        (port,) = free_ports(1)
        command = (str(tmp_path / "a.jsonl"), "-c", "c", "--gateway", f"127.0.0.1:{port}", "--home", str(tmp_path))
        async with gateway(port, encoder_port, tmp_path / "store") as process:
            asked = 0

            async def step(request: Any, _context: Any, answer: Any) -> Any:
                nonlocal asked
                asked += hasattr(request, "vector_format")
                if asked == message and process.returncode is None:
                    process.kill()
                return answer

            encoder.always = step
            status, _ = await index(*command)
            assert status == 69
        encoder.always = sensible
        async with gateway(port, encoder_port, tmp_path / "store"):
            status, stdout = await index(*command, "--json")
            report = json.loads(stdout)
            assert (status, report["stored_count"], report["document_count"]) == (0, COUNT, COUNT)
            assert report["exact"]
            assert await stored(port) == set(range(COUNT))
