"""Collections that a Qdrant server makes for nobody: deleted in the background, whenever it is done with them.

A server may go on making a collection when its caller has no time left, or has gone, and only later have it. So it is
looked for again and again; it is hidden, so that nobody has written to it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from serving.deadline import Deadline
from serving.errors import ServiceError

log = logging.getLogger(__name__)

CLEANUP_S = 30.0
"""How long to look for a collection that was made in vain, whatever time the caller had."""

FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 0.5
"""Between two looks; each pause is twice the one before, up to the last."""

PATIENCE_S = 1.0
"""How long whoever still has time waits for the name to be free: a look or two."""

ABSENT = ("IMPORT_LOST", "COLLECTION_MALFORMED")
"""Reasons that say that nothing, or something else, has the name: it is not made yet, or never will be."""

Remove = Callable[[str, str, Deadline], Coroutine[Any, Any, None]]
"""Deletes the hidden collection of a name and incarnation; Unavailable (`IMPORT_LOST`) where there is none."""


class Leftovers:
    """What is still to be deleted.

    Args:
        remove: Tries it once. It is never called for one collection by two at once: it checks and then deletes by
            name alone, and the slower of two would delete what has the name by then.
    """

    def __init__(self, remove: Remove) -> None:
        self._remove = remove
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._closing = asyncio.Event()

    def delete(self, name: str, incarnation: str) -> None:
        """Begin to delete a hidden collection, which need not be there yet; again, or after closing, is no error."""
        key = (name, incarnation)
        if key in self._tasks or self._closing.is_set():
            return
        self._tasks[key] = task = asyncio.create_task(self._keep_removing(name, incarnation))
        task.add_done_callback(lambda _: self._tasks.pop(key))

    def of(self, name: str, incarnation: str | None = None) -> list[asyncio.Task[None]]:
        """Return what ends when a collection of a name, or that one, is deleted or given up."""
        return [task for (own, one), task in self._tasks.items() if own == name and incarnation in (None, one)]

    async def aclose(self, grace_s: float) -> None:
        """Look for each once more, and give up what cannot be deleted within the grace."""
        self._closing.set()
        tasks = list(self._tasks.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.wait(tasks)

    async def _keep_removing(self, name: str, incarnation: str) -> None:
        ends, pause_s, absent = Deadline.after(CLEANUP_S), FIRST_PAUSE_S, False
        try:
            while not ends.spent():
                absent = False
                try:
                    await self._remove(name, incarnation, ends)
                except ServiceError as error:
                    absent = error.reason in ABSENT
                else:
                    absent = True
                    return
                if self._closing.is_set():
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(ends.within(pause_s).remaining()):
                        await self._closing.wait()
                pause_s = min(2 * pause_s, LAST_PAUSE_S)
        finally:
            if not absent:
                log.warning("collection %s may be left on the Qdrant server, hidden; drop it if it is not listed", name)


async def freed(tasks: list[asyncio.Task[None]], deadline: Deadline) -> bool:
    """Wait a little until one of what `Leftovers.of` returned has ended; whether one has."""
    if not tasks:
        return False
    patience = deadline.within(PATIENCE_S).remaining()
    done, _ = await asyncio.wait(tasks, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)
