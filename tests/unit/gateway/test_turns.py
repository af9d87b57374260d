"""Who shares a key goes one after another."""

import asyncio

import pytest

from gateway.turns import Turns
from serving.deadline import Deadline
from serving.errors import DeadlineSpent


async def refused(turns: Turns, *keys: int) -> None:
    """Ask for a turn that has to be over before it is given."""
    with pytest.raises(DeadlineSpent):
        async with turns.take(keys, Deadline.after(0)):
            raise AssertionError("it was given")


async def test_turns_are_given_in_the_order_in_which_they_were_asked_for() -> None:
    """Each waits for whoever shares any of its keys, and for nobody else."""
    turns = Turns()
    order: list[str] = []

    async def worker(name: str, *keys: int) -> None:
        async with turns.take(keys, Deadline.after(20)):
            order.append(name)

    async with asyncio.TaskGroup() as group, turns.take([1], Deadline.after(20)):
        for name, keys in (("both", (1, 2)), ("second", (2,)), ("first", (1,))):
            group.create_task(worker(name, *keys))
        await group.create_task(worker("other", 3))
        assert order == ["other"]
    assert order[1] == "both"
    assert sorted(order[2:]) == ["first", "second"]


async def test_a_shared_key_is_waited_for_by_those_who_want_it_alone() -> None:
    """Two share a key at once; one who wants it alone waits for both, and a third sharer for that one."""
    turns = Turns()
    async with turns.take([1], Deadline.after(20), shared=[9]):
        async with turns.take([2], Deadline.after(20), shared=[9]):
            await refused(turns, 9)
        await refused(turns, 9)
    async with turns.take([9], Deadline.after(20), shared=[9]):
        with pytest.raises(DeadlineSpent):
            async with turns.take([3], Deadline.after(0), shared=[9]):
                raise AssertionError("it was given")
    async with turns.take([9], Deadline.after(20)):
        pass


async def test_whoever_gives_up_waiting_lets_nobody_through() -> None:
    """A third waits for the first at work, also when the second between them has left."""
    turns = Turns()
    async with turns.take([1], Deadline.after(20)):
        await refused(turns, 1, 2)
        await refused(turns, 1)
        async with turns.take([2], Deadline.after(20)):
            pass
    async with turns.take([1], Deadline.after(20)):
        pass


async def test_a_failure_ends_a_turn() -> None:
    """Whoever fails at work holds nobody up, and a key that is named twice is one."""
    turns = Turns()
    with pytest.raises(ValueError, match="at work"):
        async with turns.take([1, 1], Deadline.after(20)):
            raise ValueError("at work")
    async with turns.take([1], Deadline.after(20)):
        pass
