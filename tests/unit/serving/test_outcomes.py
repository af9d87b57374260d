"""Every submission to a batcher is counted once, by how it ended."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from batcher_rig import SOON, Device, Item, fails_on_bad, held, items, known_costs, limits, submit, waiting

from serving.batcher import Batcher
from serving.batching import Priority
from serving.deadline import Deadline
from serving.errors import (
    DeadlineSpent,
    DeviceOutOfMemory,
    InferenceFailed,
    InvalidRequest,
    NotReady,
    Overloaded,
    ServiceError,
)
from serving.metrics import BatchMetrics, ServerMetrics
from serving.outcomes import Outcome, outcome_of

pytestmark = pytest.mark.timeout(30)

INTERACTIVE, BULK = Priority.INTERACTIVE, Priority.BULK


class Counts:
    """What a batcher has told of its submissions."""

    def __init__(self) -> None:
        self.ends: Counter[tuple[Priority, Outcome]] = Counter()

    def __call__(self, priority: Priority, outcome: Outcome) -> None:
        self.ends[priority, outcome] += 1

    def interactive(self) -> dict[Outcome, int]:
        """Return the counts of interactive submissions; there must be no others."""
        assert {priority for priority, _ in self.ends} <= {INTERACTIVE}
        return {outcome: count for (_, outcome), count in self.ends.items()}


@pytest.mark.parametrize(
    ("error", "late", "outcome"),
    [
        (Overloaded("QUEUE_FULL", "", retry_after_s=1), False, Outcome.QUEUE_FULL),
        (Overloaded("DEADLINE_UNREACHABLE", "", retry_after_s=1), False, Outcome.DEADLINE_UNREACHABLE),
        (DeviceOutOfMemory("DEVICE_OUT_OF_MEMORY", "", retry_after_s=1), False, Outcome.FAILED),
        (InferenceFailed("NON_FINITE", ""), False, Outcome.FAILED),
        (ZeroDivisionError(), True, Outcome.FAILED),
        (InvalidRequest("X", "", field="f"), False, Outcome.FAILED),
        (DeadlineSpent("DEADLINE_SPENT", ""), True, Outcome.EXPIRED),
        (NotReady("DRAINING", ""), False, Outcome.CLOSING),
        (NotReady("DRIVER_DEAD", ""), True, Outcome.CLOSING),
        (asyncio.CancelledError(), False, Outcome.ABANDONED),
        (asyncio.CancelledError(), True, Outcome.EXPIRED),
        (GeneratorExit(), False, Outcome.ABANDONED),
    ],
)
def test_every_error_is_one_outcome(error: BaseException, late: bool, outcome: Outcome):  # noqa: FBT001
    """What refuses, fails, ends or leaves a submission is told by its own word, whatever the reason's text."""
    assert outcome_of(error, late=late) is outcome


async def test_what_is_computed_counts_by_its_priority():
    """An answer is one count under the priority of its request, however many rows it has."""
    counts = Counts()
    async with Batcher([Device()], limits(), on_end=counts) as batcher:
        await submit(batcher, items(1, 2, 3))
        await batcher.submit(items(4), Deadline.after(SOON), priority=BULK, wait=True)
    assert counts.ends == {(INTERACTIVE, Outcome.COMPUTED): 1, (BULK, Outcome.COMPUTED): 1}


async def test_a_refusal_for_want_of_room_is_a_full_queue():
    """It counts at once, while what fills the queue has not ended yet."""
    counts, device = Counts(), Device()
    async with Batcher([device], limits(waiting=10), on_end=counts) as batcher:
        async with held(device, batcher):
            inside = asyncio.create_task(submit(batcher, items("inside", length=8)))
            await waiting(batcher, 1)
            with pytest.raises(Overloaded):
                await submit(batcher, items("outside", length=3))
            assert counts.interactive() == {Outcome.QUEUE_FULL: 1}
        await inside
    assert counts.interactive() == {Outcome.QUEUE_FULL: 1, Outcome.COMPUTED: 2}


async def test_a_refusal_for_want_of_time_is_an_unreachable_deadline():
    """What the queue would make too late is told from what does not fit in."""
    counts, device = Counts(), Device()
    async with Batcher([device], limits(), costs=known_costs(per_token=10.0), on_end=counts) as batcher:
        async with held(device, batcher):
            inside = asyncio.create_task(batcher.submit(items("inside", length=2), Deadline.after(3600)))
            await waiting(batcher, 1)
            with pytest.raises(Overloaded):
                await submit(batcher, items("outside", length=2))
        await inside
    assert counts.interactive() == {Outcome.DEADLINE_UNREACHABLE: 1, Outcome.COMPUTED: 2}


async def test_a_refusal_before_there_are_rows_counts_once():
    """Whoever no rows could help is refused as with them; on an idle device nobody is."""
    counts, device = Counts(), Device()
    async with Batcher([device], limits(), costs=known_costs(per_token=10.0), on_end=counts) as batcher:
        batcher.refuse_hopeless(Deadline.after(SOON))
        async with held(device, batcher):
            inside = asyncio.create_task(batcher.submit(items("inside", length=2), Deadline.after(3600)))
            await waiting(batcher, 1)
            batcher.refuse_hopeless(Deadline.after(3600))
            with pytest.raises(Overloaded) as caught:
                batcher.refuse_hopeless(Deadline.after(15))
            assert (caught.value.reason, caught.value.retry_after_s) == ("DEADLINE_UNREACHABLE", pytest.approx(20))
        await inside
    assert counts.interactive() == {Outcome.DEADLINE_UNREACHABLE: 1, Outcome.COMPUTED: 2}


@pytest.mark.parametrize("wait", [False, True])
async def test_a_deadline_that_passes_is_expired(wait: bool):  # noqa: FBT001
    """In the queue and in the line before it alike."""
    counts, device = Counts(), Device()
    async with Batcher([device], limits(waiting=10), on_end=counts) as batcher:
        async with held(device, batcher):
            inside = asyncio.create_task(submit(batcher, items("inside", length=8)))
            await waiting(batcher, 1)
            with pytest.raises(DeadlineSpent):
                await batcher.submit(items("late", length=7 if wait else 1), Deadline.after(0.01), wait=wait)
        await inside
    assert counts.interactive() == {Outcome.EXPIRED: 1, Outcome.COMPUTED: 2}


@pytest.mark.parametrize(("seconds", "outcome"), [(SOON, Outcome.ABANDONED), (0.005, Outcome.EXPIRED)])
async def test_a_caller_who_leaves_has_abandoned_unless_its_time_was_over(seconds: float, outcome: Outcome):
    """A caller's own deadline reaches a server as a cancellation; it counts as what it is."""
    counts, device = Counts(), Device()
    async with Batcher([device], limits(), on_end=counts) as batcher, held(device, batcher):
        gone = asyncio.create_task(batcher.submit(items("gone"), Deadline.after(seconds)))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    assert counts.interactive() == {outcome: 1, Outcome.COMPUTED: 1}


async def test_a_callers_time_is_judged_by_all_that_it_gave():
    """What gRPC rounds off is a share of the whole budget, however little of it was left at submission."""
    counts, device = Counts(), Device()
    deadline = Deadline(Deadline.after(SOON).at, budget_s=100 * SOON)
    async with Batcher([device], limits(), on_end=counts) as batcher, held(device, batcher):
        gone = asyncio.create_task(batcher.submit(items("gone"), deadline))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    assert counts.interactive() == {Outcome.EXPIRED: 1, Outcome.COMPUTED: 1}


async def test_a_row_that_cannot_be_computed_has_failed():
    """Neither the retry of its batch nor the rest of its rows count once more."""
    counts, device = Counts(), Device(answer=fails_on_bad)
    async with Batcher([device], limits(), on_end=counts) as batcher:
        results = await asyncio.gather(
            *(submit(batcher, rows) for rows in (items("a"), items("bad", "b"), items("c"))), return_exceptions=True
        )
    assert [isinstance(result, ServiceError) for result in results] == [False, True, False]
    assert counts.interactive() == {Outcome.FAILED: 1, Outcome.COMPUTED: 2}


async def test_whoever_comes_while_the_batcher_closes_is_told_so():
    """Refused on arrival, or sent away from the line; what was in the queue is computed."""
    counts, device = Counts(), Device()
    async with Batcher([device], limits(waiting=10), on_end=counts) as batcher:
        async with held(device, batcher):
            inside = asyncio.create_task(submit(batcher, items("inside", length=8)))
            await waiting(batcher, 1)
            patient = asyncio.create_task(submit(batcher, items("patient", length=7), wait=True))
            await asyncio.sleep(0)
            draining = asyncio.create_task(batcher.drain())
            await asyncio.sleep(0)
            for wait in (False, True):
                with pytest.raises(NotReady):
                    await submit(batcher, items("later"), wait=wait)
        await asyncio.gather(inside, patient, draining, return_exceptions=True)
    assert counts.interactive() == {Outcome.CLOSING: 3, Outcome.COMPUTED: 2}


async def test_outcomes_add_up_to_the_submissions_whatever_happens():
    """Four hundred submissions of all kinds, left, late, refused, bad and patient, are four hundred outcomes."""
    random = Random(11)  # noqa: S311 - a mixture, no secrets
    counts, device = Counts(), Device(answer=fails_on_bad)
    submitted: Counter[Priority] = Counter()

    async def one(batcher: Batcher[Item, Any]) -> None:
        priority, wait = random.choice([INTERACTIVE, BULK]), random.random() < 0.5
        rows: Sequence[Item] = [
            Item(random.choice(["good"] * 19 + ["bad"]), random.randint(1, 20)) for _ in range(random.randint(1, 4))
        ]
        deadline = Deadline.after(random.choice([SOON, SOON, 0.02, 0.0]))
        submitted[priority] += 1
        task = asyncio.create_task(batcher.submit(rows, deadline, priority=priority, wait=wait))
        for _ in range(random.randint(1, 5)):  # once at least, or the submission has not begun
            await asyncio.sleep(0)
        if random.random() < 0.2:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async with Batcher([device], limits(rows=4, waiting=60), on_end=counts) as batcher:
        await asyncio.gather(*(one(batcher) for _ in range(400)))
        leftover = [asyncio.create_task(one(batcher)) for _ in range(20)]
        await asyncio.sleep(0)
        await batcher.drain()
        await asyncio.gather(*leftover)
    for priority in Priority:
        assert sum(count for (told, _), count in counts.ends.items() if told is priority) == submitted[priority]
    assert {outcome for _, outcome in counts.ends} >= {
        Outcome.COMPUTED,
        Outcome.QUEUE_FULL,
        Outcome.EXPIRED,
        Outcome.ABANDONED,
        Outcome.FAILED,
    }


def test_every_outcome_is_on_the_page_before_it_happens():
    """A rate of something that never happened is 0 and not nothing; counts go to their own series."""
    metrics = ServerMetrics("encoder")
    batches = BatchMetrics(metrics)
    batches.count_end(BULK, Outcome.QUEUE_FULL)
    found = {
        (priority.name, outcome.name): metrics.registry.get_sample_value(
            "encoder_submissions_total", {"priority": priority.name.lower(), "outcome": outcome.value}
        )
        for priority in Priority
        for outcome in Outcome
    }
    assert found.pop(("BULK", "QUEUE_FULL")) == 1
    assert set(found.values()) == {0}
    assert len(found) == 13
