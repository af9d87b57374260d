"""`python -m gateway` as a real process that is killed while documents come in, ten times over one directory."""

import asyncio
import os
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from clients import client
from fakes import FakeEncoder, serve
from rigs import document

from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1.gateway_pb2_grpc import CollectionServiceStub, DocumentServiceStub

LISTENING = re.compile(r"listening on 127\.0\.0\.1:(\d+)")
LIMIT_S = 60
ROUNDS = 10
IN_FLIGHT = 6
"""Messages that are sent ahead of their answers, so that a kill finds some at every stage of the way."""

Message = tuple[int, ...]


@asynccontextmanager
async def gateway(directory: Path, encoder_port: int) -> AsyncIterator[tuple[asyncio.subprocess.Process, Any, Any]]:
    """Start a gateway in a session of its own; whatever of it still runs at the end is killed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TWOSTAGE_")}
    given = {"HOST": "127.0.0.1", "PORT": "0", "STORE_PATH": directory, "ENCODER_TARGET": f"127.0.0.1:{encoder_port}"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway",
        env={**inherited, **{f"TWOSTAGE_GATEWAY_{name}": str(value) for name, value in given.items()}},
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    reading: asyncio.Task[bytes] | None = None
    try:
        async with asyncio.timeout(LIMIT_S):
            port = await _port(process)
        assert process.stderr is not None
        reading = asyncio.create_task(process.stderr.read())
        async with client(port) as channel:
            yield process, DocumentServiceStub(channel), CollectionServiceStub(channel)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if reading is not None:
            await reading  # ends when the engine's process, which has the same standard error, has ended too


async def _port(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    lines = []
    async for line in process.stderr:
        lines.append(line.decode())
        if found := LISTENING.search(lines[-1]):
            return int(found[1])
    pytest.fail("".join(lines))


def messages(random: Random, begin: int) -> list[Message]:
    """Make the numbers of documents of many messages of 1 to 30."""
    made = []
    for _ in range(200):
        size = random.randint(1, 30)
        made.append(tuple(range(begin, begin + size)))
        begin += size
    return made


def request(numbers: Message) -> pb.UpsertDocumentsRequest:
    """Make a message of documents."""
    return pb.UpsertDocumentsRequest(
        collection="c", documents=[document(one, f"text {one}", number=one) for one in numbers]
    )


async def killed_while_writing(
    process: asyncio.subprocess.Process, stub: Any, wanted: list[Message], kill: Any, answers: int
) -> tuple[list[Message], list[Message]]:
    """Write until so many messages are acknowledged, kill; return those, and those whose fate is not known."""
    stream = stub.UpsertDocuments(wait_for_ready=True)
    waiting: deque[Message] = deque()
    acknowledged: list[Message] = []
    coming = iter(wanted)
    try:
        while True:
            while len(waiting) < IN_FLIGHT:
                waiting.append(next(coming))
                await stream.write(request(waiting[-1]))
            if len(acknowledged) == answers:
                kill()
                answers = -1
            answer = await stream.read()
            assert answer is not grpc.aio.EOF
            assert answer.stored.stored_count == len(waiting[0]), answer
            acknowledged.append(waiting.popleft())
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        assert answers == -1, "it ended before it was killed"
    await process.wait()
    assert process.returncode == -signal.SIGKILL
    return acknowledged, list(waiting)


async def stored(documents: Any, wanted: Message) -> list[int]:
    """Return which documents of a message are stored, each of them whole."""
    ids = [pb.DocumentId(number=one) for one in wanted]
    found = await documents.GetDocuments(
        pb.GetDocumentsRequest(collection="c", ids=ids), wait_for_ready=True, timeout=LIMIT_S
    )
    for one in found.documents:
        assert one == document(one.id.number, f"text {one.id.number}", number=one.id.number)
    return [one.id.number for one in found.documents]


@pytest.mark.slow
async def test_a_killed_gateway_has_what_it_acknowledged(tmp_path: Path) -> None:
    """After each of ten kills: acknowledged messages are there, others whole or not at all, and the count is exact.

    In every second round the engine's process is killed in the same moment, as when a container is.
    """
    random = Random(20_240_501)  # noqa: S311 - a kill is no secret
    sure: list[Message] = []
    unsure: list[Message] = []
    begin = 0
    async with serve(FakeEncoder()) as encoder_port:
        for number in range(ROUNDS + 1):
            async with gateway(tmp_path / "store", encoder_port) as (process, documents, collections):
                if number == 0:
                    await collections.CreateCollection(
                        pb.CreateCollectionRequest(collection="c"), wait_for_ready=True, timeout=LIMIT_S
                    )
                for message in sure:
                    assert await stored(documents, message) == list(message)
                for message in unsure:
                    found = await stored(documents, message)
                    assert found in ([], list(message))
                    sure += [message] if found else []
                told = pb.DescribeCollectionRequest(collection="c")
                described = await collections.DescribeCollection(told, wait_for_ready=True, timeout=LIMIT_S)
                assert described.collection.document_count == sum(map(len, sure))
                if number == ROUNDS:
                    break

                def kill(number: int = number, process: Any = process) -> None:
                    os.killpg(process.pid, signal.SIGKILL) if number % 2 else process.kill()

                wanted = messages(random, begin)
                begin = wanted[-1][-1] + 1
                acknowledged, unsure = await killed_while_writing(
                    process, documents, wanted, kill, random.randint(0, 30)
                )
                sure += acknowledged
    assert len(sure) > ROUNDS
