"""A stream of messages in, a stream of answers out, several at work at once, order kept."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

InT = TypeVar("InT")
OutT = TypeVar("OutT")


async def answer_in_order(
    messages: AsyncIterator[InT], answer: Callable[[InT], Awaitable[OutT]], in_flight: int
) -> AsyncIterator[OutT]:
    """Answer every message, at most `in_flight` at once, in the order in which they came.

    A message is in flight from its reading until its answer is handed on: so a sender that is too fast, and a receiver
    that is too slow, are slowed down by flow control and nothing piles up in here. Leaving early cancels what is at
    work.

    Args:
        messages: The stream.
        answer: Called for each; what is wrong with one message it answers itself and does not raise.
        in_flight: Most messages at once.
    """
    room = asyncio.Semaphore(in_flight)
    answers: asyncio.Queue[asyncio.Task[OutT] | BaseException | None] = asyncio.Queue()
    tasks: set[asyncio.Task[object]] = set()

    async def read() -> None:
        ended: BaseException | None = None
        try:
            await room.acquire()
            async for message in messages:
                task = asyncio.create_task(_call(answer, message))
                tasks.add(task)
                answers.put_nowait(task)
                await room.acquire()
        except BaseException as error:  # noqa: BLE001 - raised where the answers are read, after those before it
            ended = error
        answers.put_nowait(ended)

    tasks.add(asyncio.create_task(read()))
    try:
        while isinstance(item := await answers.get(), asyncio.Task):
            output = await item
            tasks.discard(item)
            room.release()
            yield output
        if item is not None:
            raise item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _call(answer: Callable[[InT], Awaitable[OutT]], message: InT) -> OutT:
    return await answer(message)
