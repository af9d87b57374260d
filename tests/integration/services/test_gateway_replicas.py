"""One of two rerankers is killed with calls in its hands: the other one answers them.

Numbers in brackets are those of field failures.
"""

import asyncio

import pytest
from fakes import FakeReranker, serve
from replica_process import BEGUN, replica

from gateway.channels import open_channel
from gateway.ports import Reranked
from gateway.reranker_client import SERVICE, RerankerClient
from serving.deadline import Deadline

CALLS = 12
LARGE = "alpha " * 10_000
"""Just under 60,000 bytes."""


@pytest.mark.parametrize("passages", [["alpha", "beta"], [LARGE] * 20], ids=["small", "over a megabyte"])
async def test_calls_in_the_hands_of_a_killed_replica_are_answered_by_the_other(passages: list[str]) -> None:
    """Nobody notices that a server was killed in the middle of its calls, however large they are (59)."""
    alive = FakeReranker()
    async with replica() as (process, port), serve(alive) as other:
        target = f"ipv4:127.0.0.1:{port},127.0.0.1:{other}"
        async with open_channel(target, SERVICE) as channel:
            client = RerankerClient(channel)

            def ask() -> asyncio.Task[Reranked]:
                return asyncio.create_task(client.rerank("alpha", passages, deadline=Deadline.after(20)))

            assert process.stdout is not None
            begun = asyncio.create_task(process.stdout.readline())
            calls = []
            while not begun.done():  # until both are connected to
                calls.append(ask())
                await asyncio.wait({begun, calls[-1]}, return_when=asyncio.FIRST_COMPLETED)
            calls += [ask() for _ in range(CALLS)]
            async with asyncio.timeout(20):
                assert await process.stdout.readline() == BEGUN
            process.kill()
            answers = await asyncio.gather(*calls)
    assert all(len(answer.scores) == len(passages) for answer in answers)
    assert len(alive.requests) == len(calls)
