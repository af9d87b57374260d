"""The line to the engine's process: many calls at once, callers that leave, a process that ends."""

import asyncio
import os
import signal
from time import monotonic_ns

import pytest
from contract.lexical_suite import LexicalSuite
from contract.vector_store_suite import DIMENSION, ENCODER, NAME, NORTH, put, search, soon, vector

from gateway.ports import DenseQuery, Document
from gateway.stores.edge import EdgeStore
from gateway.stores.edge_process import IN_FLIGHT
from serving.deadline import Deadline
from serving.errors import DeadlineSpent, ServiceError, Unavailable

pytestmark = pytest.mark.timeout(30)
COUNT = 3 * IN_FLIGHT


@pytest.fixture
async def apart(tmp_path):
    """A store in a process of its own with an empty collection."""
    async with await EdgeStore.open(tmp_path, patience_s=0) as opened:
        await opened.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
        yield opened


@pytest.fixture
async def store(tmp_path):
    """An empty store in a process of its own."""
    async with await EdgeStore.open(tmp_path, patience_s=0) as opened:
        yield opened


class TestEdgeProcessWords(LexicalSuite):
    """The suite of words and several queries across the process boundary."""


def stop(store: EdgeStore) -> None:
    """Let the engine's process stand still."""
    os.kill(store._root._process.pid, signal.SIGSTOP)


def go_on(store: EdgeStore) -> None:
    """Let it go on."""
    os.kill(store._root._process.pid, signal.SIGCONT)


async def test_calls_at_once_get_each_its_own_answer(apart):
    """Of many calls under way every one is answered with what it asked for, large answers too."""
    texts = {one: str(one) * 50_000 for one in range(COUNT)}
    for one, text in texts.items():
        await put(apart, Document(id=one, text=text), vectors=[vector(1, one, 0, 0)])
    gets = [apart.get(NAME, [one], deadline=soon()) for one in texts]
    searches = [search(apart, vector(1, one, 0, 0), limit=1) for one in texts]
    got, found = await asyncio.gather(asyncio.gather(*gets), asyncio.gather(*searches))
    assert [document.text for (document,) in got] == list(texts.values())
    assert [candidate.id for (candidate,) in found] == list(texts)


async def test_callers_that_leave_take_nobody_elses_answer(apart):
    """Those who left before and after their turn came are skipped; the next call gets its own answer."""
    stop(apart)
    leaving = [asyncio.create_task(put(apart, Document(id=one, text="left"))) for one in range(COUNT)]
    await asyncio.wait(leaving, timeout=0)
    for task in leaving:
        task.cancel()
    await asyncio.wait(leaving)
    staying = asyncio.create_task(put(apart, Document(id=COUNT, text="stayed")))
    await asyncio.wait([staying], timeout=0)
    go_on(apart)
    await staying
    ids = [one.id for one in await apart.get(NAME, list(range(COUNT + 1)), deadline=soon())]
    assert ids == [*range(IN_FLIGHT), COUNT]


async def test_what_is_late_before_its_turn_is_never_done(apart):
    """While the engine stands still deadlines are kept, and a write that was late is not done afterwards."""
    stop(apart)
    late = [
        apart.upsert(NAME, [Document(id=one, text="late")], [NORTH], deadline=Deadline.after(0.01))
        for one in range(COUNT)
    ]
    outcomes = await asyncio.gather(*late, return_exceptions=True)
    assert {type(one) for one in outcomes} == {DeadlineSpent}
    go_on(apart)
    assert (await apart.describe(NAME, deadline=soon())).document_count == 0


async def test_the_wait_for_the_process_is_queue_time(apart):
    """Time in which the engine is busy with others is reported as queue."""
    await put(apart, Document(id=1, text="t"))
    stop(apart)
    wanted = {"encoder": ENCODER, "limit": 1, "filter": None, "payload_fields": ()}
    task = asyncio.create_task(apart.search(NAME, [DenseQuery(vector=NORTH)], **wanted, deadline=soon()))
    await asyncio.wait([task], timeout=0)
    since = monotonic_ns()
    await asyncio.wait([task], timeout=0.01)
    waited = monotonic_ns() - since
    go_on(apart)
    assert (await task).time.queue > waited


async def test_all_who_wait_learn_that_the_process_ended(apart):
    """Those under way and those still waiting for their turn are Unavailable at once; the next call works."""
    stop(apart)
    waiting = [asyncio.create_task(apart.describe(NAME, deadline=soon())) for _ in range(COUNT)]
    await asyncio.wait(waiting, timeout=0)
    apart._root._process.kill()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in outcomes] == [Unavailable] * COUNT
    assert (await apart.describe(NAME, deadline=soon())).document_count == 0


async def test_closing_waits_for_what_was_accepted(tmp_path):
    """Writes under way and waiting when the store closes are done, and are there when it is opened again."""
    store = await EdgeStore.open(tmp_path, patience_s=0)
    await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
    writes = [asyncio.create_task(put(store, Document(id=one, text="t"))) for one in range(COUNT)]
    await asyncio.wait(writes, timeout=0)
    await asyncio.gather(store.aclose(), *writes)
    async with await EdgeStore.open(tmp_path, patience_s=0) as again:
        assert (await again.describe(NAME, deadline=soon())).document_count == COUNT


async def test_closing_after_the_process_died_is_no_error(tmp_path):
    """A store whose process is gone closes, and another may open the directory."""
    store = await EdgeStore.open(tmp_path, patience_s=0)
    store._root._process.kill()
    with pytest.raises(ServiceError):
        await store.list(deadline=soon())
    await store.aclose()
    async with await EdgeStore.open(tmp_path, patience_s=0) as again:
        assert await again.list(deadline=soon()) == []


async def test_closing_ends_a_process_that_stands_still(tmp_path):
    """One that answers nobody any more is killed, those who wait for it learn that, and the directory is free."""
    store = await EdgeStore.open(tmp_path, patience_s=0, closing_s=0.1)
    process = store._root._process
    stop(store)
    with pytest.raises(DeadlineSpent):
        await store.list(deadline=Deadline.after(0.01))
    waiting = [asyncio.create_task(store.list(deadline=soon())) for _ in range(COUNT)]
    await asyncio.wait(waiting, timeout=0)
    async with asyncio.timeout(20):
        await store.aclose()
    assert process.returncode == -signal.SIGKILL
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in outcomes] == [Unavailable] * COUNT
    async with await EdgeStore.open(tmp_path, patience_s=0) as again:
        assert await again.list(deadline=soon()) == []
