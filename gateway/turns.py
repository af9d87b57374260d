"""Whoever shares a key goes one after another, in the order in which they came."""

import asyncio
from collections.abc import AsyncIterator, Collection, Hashable
from contextlib import asynccontextmanager

from serving.deadline import Deadline
from serving.errors import DeadlineSpent


class Turns:
    """Who is at work under which key, and who waits for it."""

    def __init__(self) -> None:
        self._open: dict[Hashable, list[tuple[asyncio.Event, bool]]] = {}
        """Whose turn is open under a key, and whether that shares it."""

    @asynccontextmanager
    async def take(
        self, keys: Collection[Hashable], deadline: Deadline, *, shared: Collection[Hashable] = ()
    ) -> AsyncIterator[None]:
        """Wait until all who came before with one of the keys are done; those who come later wait for this one.

        Args:
            keys: What to have alone.
            deadline: Until when to wait.
            shared: What to have together with others who share it, but not with one who has it alone.

        Raises:
            DeadlineSpent: They were not done in time.
        """
        ours = asyncio.Event()
        # All of them and not the last one only: the last may give up waiting while another is still at work.
        earlier = {turn for key in keys for turn, _ in self._open.get(key, ())}
        earlier |= {turn for key in shared for turn, sharing in self._open.get(key, ()) if not sharing}
        opened = [*((key, (ours, False)) for key in keys), *((key, (ours, True)) for key in shared)]
        for key, turn in opened:
            self._open.setdefault(key, []).append(turn)
        try:
            await _all_done(earlier, deadline)
            yield
        finally:
            ours.set()
            for key, turn in opened:
                self._open[key].remove(turn)
                if not self._open[key]:
                    del self._open[key]


async def _all_done(earlier: Collection[asyncio.Event], deadline: Deadline) -> None:
    try:
        async with asyncio.timeout(deadline.remaining()):
            for turn in earlier:
                await turn.wait()
    except TimeoutError as error:
        raise DeadlineSpent("DEADLINE_SPENT", "an earlier call is at work on one of the documents") from error
