"""The batcher: cancellation, expiry, order, overload, bad rows, death, drain and time."""

import asyncio
import threading
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from batcher_rig import (
    SOON,
    Computing,
    Device,
    Feed,
    Item,
    fails_on_bad,
    held,
    items,
    known_costs,
    limits,
    names,
    submit,
    waiting,
)

from serving.batcher import Batcher, BatchReport
from serving.batching import Priority
from serving.deadline import Deadline
from serving.device import MAX_FAILURES, DeviceBroken
from serving.errors import DeadlineSpent, DeviceOutOfMemory, InferenceFailed, NotReady, Overloaded
from serving.requests import Answer

pytestmark = pytest.mark.timeout(30)


# --- cancellation and expiry ---------------------------------------------------------------------------------------


async def test_a_cancelled_request_leaves_the_driver_alive():
    """Cancelling during the forward pass costs nobody else anything (field failure 2)."""
    device = Device()
    async with Batcher([device], limits()) as batcher:
        async with held(device, batcher) as task:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await submit(batcher, items("next"))).outputs == ["next"]


async def test_a_request_cancelled_in_the_queue_is_never_computed():
    """What nobody waits for any more is dropped before inference (field failure 2)."""
    device = Device()
    async with Batcher([device], limits()) as batcher:
        async with held(device, batcher) as first:
            gone = asyncio.create_task(submit(batcher, items("gone")))
            stays = asyncio.create_task(submit(batcher, items("stays")))
            await waiting(batcher, 2)
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
        assert [(await first).outputs, (await stays).outputs] == [["first"], ["stays"]]
        assert device.computed == ["first", "stays"]


async def test_an_expired_row_is_never_computed():
    """A request whose deadline comes while it waits is answered DeadlineSpent and not run (field failure 10)."""
    device = Device()
    async with Batcher([device], limits()) as batcher:
        async with held(device, batcher) as first:
            with pytest.raises(DeadlineSpent) as caught:
                await batcher.submit(items("late"), Deadline.after(0.01))
            assert caught.value.metadata == {"stage": "queue"}
        await first
        await submit(batcher, items("next"))
        assert device.computed == ["first", "next"]


async def test_a_deadline_that_is_over_on_arrival_is_never_computed():
    """A request without any time left costs the device nothing (field failure 10)."""
    device = Device()
    async with Batcher([device], limits()) as batcher:
        with pytest.raises(DeadlineSpent):
            await batcher.submit(items("late"), Deadline.after(-1))
        await submit(batcher, items("next"))
        assert device.computed == ["next"]


async def test_a_deadline_during_the_forward_pass_ends_the_wait():
    """The caller gets DeadlineSpent at its deadline, not when the batch is done."""
    device = Device()
    async with Batcher([device], limits()) as batcher:
        device.free.clear()
        with pytest.raises(DeadlineSpent):
            await batcher.submit(items("slow"), Deadline.after(0.01))
        device.free.set()
        assert (await submit(batcher, items("next"))).outputs == ["next"]


async def test_an_outer_cancellation_stays_a_cancellation():
    """The deadline's own timer does not turn a cancelled caller into a late one."""
    device = Device()
    async with Batcher([device], limits()) as batcher, held(device, batcher):
        task = asyncio.create_task(submit(batcher, items("x")))
        await waiting(batcher, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()


# --- order ---------------------------------------------------------------------------------------------------------


async def test_every_output_belongs_to_its_row_however_requests_are_mixed():
    """Sixty concurrent requests of mixed lengths, batched by length, get their own answers (field failure 3)."""
    random = Random(5)  # noqa: S311 - lengths, no secrets
    device = Device(answer=lambda rows: [("out", row.name) for row in rows])
    requests = [
        [Item((request, index), random.randint(1, 60)) for index in range(random.randint(1, 9))]
        for request in range(60)
    ]
    async with Batcher([device], limits(tokens=128, waiting=100_000)) as batcher:
        answers = await asyncio.gather(*(submit(batcher, rows) for rows in requests))
    for rows, answer in zip(requests, answers, strict=True):
        assert answer.outputs == [("out", row.name) for row in rows]
    assert len(device.computed) == sum(map(len, requests))
    assert max(map(len, device.batches)) > 1


async def test_a_request_larger_than_a_batch_is_split_and_joined_in_order():
    """Twenty rows go through batches of at most eight and come back as they went in."""
    device = Device()
    async with Batcher([device], limits(rows=8)) as batcher:
        answer = await submit(batcher, items(*range(20)))
    assert answer.outputs == list(range(20))
    assert [len(batch) for batch in device.batches] == [8, 8, 4]


# --- overload ------------------------------------------------------------------------------------------------------


async def test_a_full_queue_refuses_at_once_and_says_when_to_come_again():
    """Refusal needs no wait, carries a positive retry_after_s, and leaves those who wait alone (field failure 15)."""
    device = Device()
    async with Batcher([device], limits(waiting=10)) as batcher:
        async with held(device, batcher) as first:
            inside = asyncio.create_task(submit(batcher, items("inside", length=8)))
            await waiting(batcher, 1)
            with pytest.raises(Overloaded) as caught:
                await submit(batcher, items("outside", length=3))
            assert caught.value.reason == "QUEUE_FULL"
            assert caught.value.retry_after_s > 0
        assert (await first).outputs == ["first"]
        assert (await inside).outputs == ["inside"]
        assert "outside" not in device.computed


async def test_the_measured_cost_sets_the_time_to_retry():
    """The advice is what the queue is predicted to take, and no longer the first guess."""
    device = Device()
    async with Batcher([device], limits(waiting=10), costs=known_costs(per_token=0.5)) as batcher:
        async with held(device, batcher):
            inside = asyncio.create_task(submit(batcher, items("inside", length=8)))
            await waiting(batcher, 1)
            with pytest.raises(Overloaded) as caught:
                await submit(batcher, items("outside", length=3))
            assert caught.value.retry_after_s == pytest.approx(8 * 0.5, rel=0.01)
        await inside


async def test_a_deadline_that_the_queue_cannot_meet_is_refused_at_once():
    """Who would wait in vain is told so on arrival, with the time after which it is worth trying."""
    device = Device()
    async with Batcher([device], limits(), costs=known_costs(per_token=10.0)) as batcher:
        async with held(device, batcher):
            inside = asyncio.create_task(batcher.submit(items("inside", length=2), Deadline.after(3600)))
            await waiting(batcher, 1)
            with pytest.raises(Overloaded) as caught:
                await submit(batcher, items("outside", length=2))
            assert caught.value.reason == "DEADLINE_UNREACHABLE"
            assert caught.value.retry_after_s == pytest.approx(40, rel=0.01)
        await inside
        assert "outside" not in device.computed


async def test_an_idle_device_takes_everyone_whatever_the_prediction():
    """A prediction that is far too high is put right by computing, instead of refusing everyone for ever."""
    device = Device()
    async with Batcher([device], limits(), costs=known_costs(per_token=1000.0)) as batcher:
        assert (await submit(batcher, items("x"))).outputs == ["x"]


async def test_bulk_rows_neither_fill_the_queue_nor_go_before_interactive_ones():
    """With a queue full of bulk rows a person's row is let in, and computed next."""
    device = Device()
    async with Batcher([device], limits(rows=1, waiting=3)) as batcher:
        async with held(device, batcher):
            bulk = [
                asyncio.create_task(batcher.submit(items(n), Deadline.after(SOON), priority=Priority.BULK))
                for n in range(3)
            ]
            await waiting(batcher, 3)
            with pytest.raises(Overloaded):
                await batcher.submit(items("more"), Deadline.after(SOON), priority=Priority.BULK)
            person = asyncio.create_task(submit(batcher, items("person")))
            await waiting(batcher, 4)
        await asyncio.gather(person, *bulk)
        assert device.computed == ["first", "person", 0, 1, 2]


async def test_nobody_overtakes_those_who_stand_in_line():
    """While a patient submitter waits for room, a smaller one that would fit is refused and not let in before it."""
    device = Device()
    async with Batcher([device], limits(waiting=10)) as batcher:
        async with held(device, batcher):
            inside = asyncio.create_task(submit(batcher, items("inside", length=8)))
            await waiting(batcher, 1)
            patient = asyncio.create_task(submit(batcher, items("patient", length=7), wait=True))
            await asyncio.sleep(0)
            with pytest.raises(Overloaded):
                await submit(batcher, items("small", length=1))
        await asyncio.gather(inside, patient)


async def test_computing_happens_on_one_thread_that_is_not_the_loops():
    """Batches run on a single inference thread, so probes are answered while it is busy (field failures 6 and 58)."""
    threads: set[str] = set()

    def answer(rows: Sequence[Item]) -> Sequence[Any]:
        threads.add(threading.current_thread().name)
        return names(rows)

    device = Device(answer)
    async with Batcher([device], limits(rows=1)) as batcher:
        async with held(device, batcher) as first:
            probe = asyncio.create_task(asyncio.sleep(0, "alive"))
            assert await probe == "alive"
            assert not first.done()
        await asyncio.gather(*(submit(batcher, items(n)) for n in range(5)))
    assert threads == {"inference_0"}


async def test_waiting_for_room_is_let_in_when_there_is_some():
    """With wait=True a full queue means waiting instead of refusal."""
    device = Device()
    async with Batcher([device], limits(waiting=10)) as batcher:
        async with held(device, batcher):
            inside = asyncio.create_task(submit(batcher, items("inside", length=8)))
            await waiting(batcher, 1)
            patient = [asyncio.create_task(submit(batcher, items(n, length=7), wait=True)) for n in (1, 2, 3)]
            for _ in range(20):
                await asyncio.sleep(0)
            assert batcher.waiting_rows == 1
        assert (await inside).outputs == ["inside"]
        assert [(await task).outputs for task in patient] == [[1], [2], [3]]


async def test_a_cancelled_waiter_for_room_leaves_nothing_behind():
    """Giving up before there was room computes nothing."""
    device = Device()
    async with Batcher([device], limits(waiting=10)) as batcher:
        async with held(device, batcher):
            inside = asyncio.create_task(submit(batcher, items("inside", length=8)))
            await waiting(batcher, 1)
            patient = asyncio.create_task(submit(batcher, items("patient", length=7), wait=True))
            await asyncio.sleep(0)
            patient.cancel()
            with pytest.raises(asyncio.CancelledError):
                await patient
        await inside
        assert device.computed == ["first", "inside"]


async def test_waiting_for_room_ends_with_the_deadline():
    """Nobody waits for room longer than their deadline."""
    device = Device()
    async with Batcher([device], limits(waiting=10)) as batcher:
        async with held(device, batcher):
            inside = asyncio.create_task(submit(batcher, items("inside", length=8)))
            await waiting(batcher, 1)
            with pytest.raises(DeadlineSpent):
                await batcher.submit(items("patient", length=7), Deadline.after(0.01), wait=True)
        await inside


# --- bad rows ------------------------------------------------------------------------------------------------------


async def together(batcher: Batcher[Item, Any], device: Device, *requests: list[Item]) -> list[Any]:
    """Submit requests such that they wait together; return answers or errors in order."""
    async with held(device, batcher):
        tasks = [asyncio.create_task(submit(batcher, rows)) for rows in requests]
        await waiting(batcher, sum(map(len, requests)))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return [result.outputs if isinstance(result, Answer) else result for result in results]


async def test_a_row_that_makes_the_engine_throw_fails_alone():
    """Of three requests in one batch only the one with the bad row fails; the driver goes on (field failure 23)."""
    device = Device(answer=fails_on_bad)
    async with Batcher([device], limits()) as batcher:
        good, bad, also_good = await together(batcher, device, items("a"), items("bad"), items("b"))
        assert (good, also_good) == (["a"], ["b"])
        assert isinstance(bad, InferenceFailed)
        assert [len(batch) for batch in device.batches] == [1, 3, 1, 2, 1, 1]
        assert (await submit(batcher, items("next"))).outputs == ["next"]


async def test_the_rest_of_a_failed_request_is_not_computed():
    """Rows of a request that has failed in one batch are not in the next one, where others would wait for them."""
    device = Device(answer=fails_on_bad)
    async with Batcher([device], limits(rows=1)) as batcher:
        bad, good = await together(batcher, device, items("bad", "rest"), items("a"))
    assert isinstance(bad, InferenceFailed)
    assert good == ["a"]
    assert device.computed == ["first", "bad", "a"]


async def test_a_row_without_finite_output_fails_alone():
    """A row that the model answers with InferenceFailed fails its own request only (field failure 22)."""
    device = Device(answer=lambda rows: [InferenceFailed("NON_FINITE", "x") if n == "nan" else n for n in names(rows)])
    async with Batcher([device], limits()) as batcher:
        good, bad, also_good = await together(batcher, device, items("a"), items("c", "nan", "d"), items("b"))
    assert (good, also_good) == (["a"], ["b"])
    assert isinstance(bad, InferenceFailed)
    assert bad.reason == "NON_FINITE"


@pytest.mark.parametrize("wrong", [lambda rows: names(rows)[1:], lambda rows: [*names(rows), "extra"]])
async def test_another_number_of_outputs_than_of_rows_is_an_error(wrong: Computing):
    """Outputs are never zipped to the shorter list (field failure 3)."""
    async with Batcher([Device(answer=wrong)], limits()) as batcher:
        with pytest.raises(InferenceFailed):
            await submit(batcher, items("a", "b"))


async def test_rows_given_up_while_their_batch_fails_are_not_computed_again():
    """The retry in halves skips rows whose caller has gone."""
    fail = threading.Event()

    def answer(rows: Sequence[Item]) -> Sequence[Any]:
        assert len(rows) == 1 or fail.wait(SOON)
        return fails_on_bad(rows)

    device = Device(answer)
    async with Batcher([device], limits()) as batcher:
        async with held(device, batcher):
            bad = asyncio.create_task(submit(batcher, items("bad")))
            gone = asyncio.create_task(submit(batcher, items("gone")))
            await waiting(batcher, 2)
        assert await device.entered.get() == 2
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        fail.set()
        with pytest.raises(InferenceFailed):
            await bad
    assert device.computed == ["first", "bad", "gone", "bad"]


async def test_a_batch_that_does_not_fit_the_memory_is_computed_in_parts():
    """Running out of memory splits the batch until its parts fit, and fails nobody (field failure 56)."""

    def answer(rows: Sequence[Item]) -> Sequence[Any]:
        if len(rows) > 2:
            raise DeviceOutOfMemory("DEVICE_OUT_OF_MEMORY", "x", retry_after_s=1.0)
        return names(rows)

    device = Device(answer)
    async with Batcher([device], limits()) as batcher:
        assert (await submit(batcher, items(*range(8)))).outputs == list(range(8))
    assert [len(batch) for batch in device.batches] == [8, 4, 2, 2, 4, 2, 2]


async def test_a_row_that_does_not_fit_the_memory_says_so():
    """What fails even alone for want of memory is reported as that, for the caller to try again (field failure 56)."""

    def answer(rows: Sequence[Item]) -> Sequence[Any]:
        raise DeviceOutOfMemory("DEVICE_OUT_OF_MEMORY", f"{len(rows)} rows", retry_after_s=1.0)

    async with Batcher([Device(answer)], limits()) as batcher:
        with pytest.raises(DeviceOutOfMemory):
            await submit(batcher, items("a"))


async def test_a_device_that_only_fails_ends_the_process():
    """After so many batches without one good output the server goes down instead of answering errors for ever."""
    deaths: list[BaseException] = []

    def answer(rows: Sequence[Item]) -> Sequence[Any]:
        raise RuntimeError(f"device lost, {len(rows)} rows")

    async with Batcher([Device(answer)], limits(), on_death=deaths.append) as batcher:
        for _ in range(MAX_FAILURES - 1):
            with pytest.raises(InferenceFailed):
                await submit(batcher, items("a"))
        assert not deaths
        with pytest.raises(InferenceFailed):
            await submit(batcher, items("a"))
        with pytest.raises(NotReady):
            await submit(batcher, items("b"), wait=True)
    assert [type(death) for death in deaths] == [DeviceBroken]


async def test_one_good_output_forgives_the_failures_before_it():
    """Bad rows now and then, however many in all, do not end the process."""
    deaths: list[BaseException] = []
    async with Batcher([Device(answer=fails_on_bad)], limits(), on_death=deaths.append) as batcher:
        for _ in range(MAX_FAILURES * 2):
            with pytest.raises(InferenceFailed):
                await submit(batcher, items("bad"))
            await submit(batcher, items("good"))
    assert not deaths


# --- several at once -----------------------------------------------------------------------------------------------


async def test_several_instances_compute_at_the_same_time():
    """Two instances hold a batch each, and their answers do not mix."""
    one, two = Device(), Device()
    one.free.clear()
    two.free.clear()
    async with Batcher([one, two], limits(rows=1)) as batcher:
        tasks = [asyncio.create_task(submit(batcher, items(name))) for name in ("a", "b")]
        await one.entered.get()
        await two.entered.get()
        one.free.set()
        two.free.set()
        assert [(await task).outputs for task in tasks] == [["a"], ["b"]]


async def test_a_full_batch_is_prepared_while_another_one_runs():
    """With prefetch the next feed is made before the device is free, but not computed at the same time."""
    prepared: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    class Watched(Device):
        def prepare(self, rows: Sequence[Item]) -> Feed:
            loop.call_soon_threadsafe(prepared.put_nowait, len(rows))
            return super().prepare(rows)

    device = Watched()
    async with Batcher([device], limits(rows=2), prefetch=True) as batcher:
        async with held(device, batcher) as first:
            assert await prepared.get() == 1
            second = asyncio.create_task(submit(batcher, items("b", "c")))
            assert await prepared.get() == 2
            assert device.computed == ["first"]
        assert [(await first).outputs, (await second).outputs] == [["first"], ["b", "c"]]


async def test_a_batch_that_is_not_full_is_not_taken_early():
    """What comes while the device is busy still joins the batch that waits, with prefetch too."""
    device = Device()
    async with Batcher([device], limits(rows=3), prefetch=True) as batcher:
        async with held(device, batcher):
            second = asyncio.create_task(submit(batcher, items("b")))
            await waiting(batcher, 1)
            third = asyncio.create_task(submit(batcher, items("c")))
            await waiting(batcher, 2)
        await asyncio.gather(second, third)
    assert [len(batch) for batch in device.batches] == [1, 2]


# --- death and drain -----------------------------------------------------------------------------------------------


async def test_a_dead_driver_fails_everyone_and_reports_its_death_once():
    """Running and waiting requests fail with NotReady, later ones are refused, on_death hears of it once."""
    device, deaths = Device(), list[BaseException]()

    def broken(_: BatchReport) -> None:
        raise ZeroDivisionError

    async with Batcher([device], limits(rows=1), on_batch=broken, on_death=deaths.append) as batcher:
        async with held(device, batcher) as running:
            queued = asyncio.create_task(submit(batcher, items("queued")))
            await waiting(batcher, 1)
        for task in (running, queued):
            with pytest.raises(NotReady) as caught:
                await task
            assert caught.value.reason == "DRIVER_DEAD"
        with pytest.raises(NotReady):
            await submit(batcher, items("later"))
    assert [type(death) for death in deaths] == [ZeroDivisionError]
    assert "later" not in device.computed


async def test_death_during_the_retry_of_a_failed_batch_leaves_nobody_waiting():
    """Rows of a failed batch that still wait for their retry are failed too when the driver dies."""
    device, deaths = Device(answer=fails_on_bad), list[BaseException]()

    def broken(report: BatchReport) -> None:
        if "a" in device.computed and report.row_count == 1:
            raise ZeroDivisionError

    async with Batcher([device], limits(), on_batch=broken, on_death=deaths.append) as batcher:
        outcome = await together(batcher, device, items("a"), items("bad"), items("b"))
    assert [type(result) for result in outcome] == [NotReady] * 3
    assert len(deaths) == 1


async def test_death_wakes_those_who_wait_for_room():
    """A patient submitter does not wait for room in a queue that nobody empties any more."""
    device = Device()

    def broken(_: BatchReport) -> None:
        raise ZeroDivisionError

    async with Batcher([device], limits(waiting=10), on_batch=broken) as batcher:
        async with held(device, batcher):
            inside = asyncio.create_task(submit(batcher, items("inside", length=8)))
            await waiting(batcher, 1)
            patient = asyncio.create_task(submit(batcher, items("patient", length=8), wait=True))
            await asyncio.sleep(0)
        results = await asyncio.gather(inside, patient, return_exceptions=True)
    assert [type(result) for result in results] == [NotReady, NotReady]


async def test_draining_computes_what_waits_and_refuses_the_rest():
    """Nothing that was accepted is lost at shutdown (field failure 19)."""
    device = Device()
    async with Batcher([device], limits(rows=1)) as batcher:
        async with held(device, batcher) as first:
            queued = [asyncio.create_task(submit(batcher, items(n))) for n in range(3)]
            await waiting(batcher, 3)
            draining = asyncio.create_task(batcher.drain())
            await asyncio.sleep(0)
            with pytest.raises(NotReady) as caught:
                await submit(batcher, items("later"))
            assert caught.value.reason == "DRAINING"
            assert not draining.done()
        await draining
        assert (await first).outputs == ["first"]
        assert [(await task).outputs for task in queued] == [[0], [1], [2]]


async def test_draining_refuses_those_who_wait_for_room():
    """Whoever was not let in yet is told NotReady instead of being let in late."""
    device = Device()
    async with Batcher([device], limits(waiting=10)) as batcher:
        async with held(device, batcher):
            inside = asyncio.create_task(submit(batcher, items("inside", length=8)))
            await waiting(batcher, 1)
            patient = asyncio.create_task(submit(batcher, items("patient", length=8), wait=True))
            await asyncio.sleep(0)
            draining = asyncio.create_task(batcher.drain())
            with pytest.raises(NotReady):
                await patient
        await draining
        assert (await inside).outputs == ["inside"]


# --- time and reports ----------------------------------------------------------------------------------------------


async def test_queue_and_compute_add_up_and_do_not_overlap():
    """The two parts of every request fill the time from submit to its last batch, no nanosecond twice (case 73)."""
    device, reports = Device(), list[BatchReport]()
    loop = asyncio.get_running_loop()
    async with Batcher([device], limits(rows=2), on_batch=reports.append) as batcher:
        begun = loop.time()
        answers = await asyncio.gather(*(submit(batcher, items(*range(5))) for _ in range(4)))
        elapsed = loop.time() - begun
    busy = sum(report.seconds for report in reports)
    for answer in answers:
        assert answer.queue >= 0
        assert answer.compute > 0
        assert answer.queue + answer.compute <= elapsed * 1e9
        assert answer.compute <= busy * 1e9 + 1
    assert sum(report.row_count for report in reports) == 20


async def test_every_nanosecond_is_told_once(monkeypatch: pytest.MonkeyPatch):
    """On a clock that only computing moves, a request's parts are its own batches and the ones it waited for."""
    clock = [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: clock[0])

    def answer(rows: Sequence[Item]) -> Sequence[Any]:
        clock[0] += 100
        return names(rows)

    device = Device(answer)
    async with Batcher([device], limits(rows=2)) as batcher:
        alone = await submit(batcher, items(*range(6)))
        async with held(device, batcher) as first:
            second = asyncio.create_task(submit(batcher, items("b1", "b2", "b3")))
            await waiting(batcher, 3)
            third = asyncio.create_task(submit(batcher, items("c1", "c2")))
            await waiting(batcher, 5)
        parts = [(answer.queue, answer.compute) for answer in [alone, await first, await second, await third]]
    # b1 and b2 share a batch, b3 and c1 the next, c2 is last: each request waits for what came before it.
    assert parts == [(0, 300), (0, 100), (100, 200), (200, 200)]


async def test_a_report_counts_rows_tokens_and_padding():
    """Lengths 49 and 50 are 99 tokens in 100 places."""
    device, reports = Device(), list[BatchReport]()
    async with Batcher([device], limits(), on_batch=reports.append) as batcher:
        await submit(batcher, [Item("a", 49), Item("b", 50)])
    (report,) = reports
    assert (report.row_count, report.token_count, report.padded_token_count) == (2, 99, 100)


async def test_the_oldest_row_has_an_age_while_it_waits():
    """The age is above 0 with a row in the queue, and 0 when none waits."""
    device = Device()
    async with Batcher([device], limits()) as batcher:
        assert batcher.oldest_age == 0
        async with held(device, batcher):
            queued = asyncio.create_task(submit(batcher, items("queued")))
            await waiting(batcher, 1)
            assert batcher.oldest_age > 0
        await queued
        assert batcher.oldest_age == 0
