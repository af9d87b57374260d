"""answer_in_order: order, bound, early end, and errors of the stream itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from serving.streams import answer_in_order

pytestmark = pytest.mark.timeout(30)


async def numbers(count: int) -> AsyncIterator[int]:
    """Yield 0, 1, 2, ..."""
    for number in range(count):
        yield number


class Gates:
    """Answers that wait until they are let through.

    Args:
        count: How many answers there will be.
    """

    def __init__(self, count: int) -> None:
        self.gates = [asyncio.Event() for _ in range(count)]
        self.started: asyncio.Queue[int] = asyncio.Queue()
        self.running: set[int] = set()
        self.cancelled: list[int] = []
        self.most = 0

    async def answer(self, number: int) -> int:
        """Answer a number with its tenfold, once its gate is open."""
        self.running.add(number)
        self.most = max(self.most, len(self.running))
        self.started.put_nowait(number)
        try:
            await self.gates[number].wait()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        finally:
            self.running.discard(number)
        return number * 10


async def collect(answers: AsyncIterator[int], into: list[int] | None = None) -> list[int]:
    """Read a stream to its end, keeping what came before an error."""
    seen = [] if into is None else into
    async for answer in answers:
        seen.append(answer)
    return seen


async def test_answers_keep_the_order_of_their_messages():
    """A later message that is done first waits for those before it."""
    gates = Gates(4)
    reader = asyncio.create_task(collect(answer_in_order(numbers(4), gates.answer, 4)))
    assert [await gates.started.get() for _ in range(4)] == [0, 1, 2, 3]
    for gate in reversed(gates.gates):
        gate.set()
    assert await reader == [0, 10, 20, 30]


async def test_the_bound_is_used_in_full_and_never_exceeded():
    """With three in flight a fourth message is not begun before the first is answered, and all three run at once."""
    gates = Gates(9)
    reader = asyncio.create_task(collect(answer_in_order(numbers(9), gates.answer, 3)))
    for number in range(3):
        assert await gates.started.get() == number
    assert gates.running == {0, 1, 2}
    for gate in gates.gates:
        gate.set()
    assert await reader == [number * 10 for number in range(9)]
    assert gates.most == 3


async def test_finished_answers_that_nobody_takes_stop_the_reading():
    """A receiver that is too slow is felt by the sender: answers do not pile up behind the first."""
    read: list[int] = []
    done = asyncio.Event()

    async def messages() -> AsyncIterator[int]:
        for number in range(100):
            read.append(number)
            yield number

    async def answer(number: int) -> int:
        if number == 3:
            done.set()
        return number

    async with aclosing(answer_in_order(messages(), answer, 3)) as answers:
        assert await anext(answers) == 0
        await done.wait()
        # Every task that could still move gets to: what is read is at most the bound beyond what was taken.
        for _ in range(200):
            await asyncio.sleep(0)
        assert read == [0, 1, 2, 3]


async def test_leaving_early_cancels_what_is_at_work():
    """After the receiver has gone nothing is computed any more."""
    gates = Gates(5)
    gates.gates[0].set()
    async with aclosing(answer_in_order(numbers(5), gates.answer, 3)) as answers:
        assert await anext(answers) == 0
        assert [await gates.started.get() for _ in range(4)] == [0, 1, 2, 3]
    assert sorted(gates.cancelled) == [1, 2, 3]
    assert not gates.running


async def test_cancelling_the_reader_cancels_what_is_at_work():
    """A cancelled call leaves no answer running behind."""
    gates = Gates(2)
    reader = asyncio.create_task(collect(answer_in_order(numbers(2), gates.answer, 2)))
    assert [await gates.started.get(), await gates.started.get()] == [0, 1]
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert sorted(gates.cancelled) == [0, 1]


async def test_an_error_of_the_stream_comes_after_the_answers_before_it():
    """What was sent before a broken message is still answered; then the error is raised."""

    async def broken() -> AsyncIterator[int]:
        yield 1
        yield 2
        raise ValueError("third message")

    async def answer(number: int) -> int:
        return number

    seen: list[int] = []
    with pytest.raises(ValueError, match="third message"):
        await collect(answer_in_order(broken(), answer, 2), seen)
    assert seen == [1, 2]


async def test_a_stream_that_is_cancelled_inside_ends_the_answers():
    """An input stream that raises CancelledError on its own leaves nobody waiting for ever (field failure 9)."""

    async def cancelled() -> AsyncIterator[int]:
        yield 1
        raise asyncio.CancelledError

    async def answer(number: int) -> int:
        return number

    seen: list[int] = []
    with pytest.raises(asyncio.CancelledError):
        await collect(answer_in_order(cancelled(), answer, 2), seen)
    assert seen == [1]


async def test_an_answer_that_raises_ends_the_stream():
    """An exception of one answer is raised where that answer was due."""

    async def answer(number: int) -> int:
        if number == 1:
            raise LookupError(number)
        return number

    seen: list[int] = []
    with pytest.raises(LookupError):
        await collect(answer_in_order(numbers(3), answer, 3), seen)
    assert seen == [0]


async def test_an_empty_stream_has_no_answers():
    """No message, no answer, no error."""

    async def answer(number: int) -> int:
        return number

    assert await collect(answer_in_order(numbers(0), answer, 3)) == []
