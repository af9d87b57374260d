"""Taking turns with others on a shared machine: a lock on a file, held for a while and then offered to them."""

import asyncio
import contextlib
import fcntl
import threading
from io import TextIOWrapper
from pathlib import Path

HOLD_S = 110.0
OFFER_S = 0.5


class Turn:
    """Whose turn it is.

    Args:
        path: The file; None is a machine that is not shared.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: TextIOWrapper | None = None
        self._taken = 0.0

    async def take(self, needed_s: float) -> None:
        """Wait for the turn, unless it is ours and lasts for so many seconds more."""
        loop = asyncio.get_running_loop()
        if self._file is not None and loop.time() - self._taken + needed_s > HOLD_S:
            self.give()
            await asyncio.sleep(OFFER_S)
        if self._path is not None and self._file is None:
            file = self._path.open("w")
            try:
                await _locked(file)
            except BaseException:
                file.close()
                raise
            self._file, self._taken = file, loop.time()

    def give(self) -> None:
        """End the turn."""
        if self._file is not None:
            self._file.close()
            self._file = None


async def _locked(file: TextIOWrapper) -> None:
    """Wait for the lock on a thread that does not keep this process from ending meanwhile."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not done.done():
            done.set_result(None)

    def wait() -> None:
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # nobody waits any more
            fcntl.flock(file, fcntl.LOCK_EX)
            loop.call_soon_threadsafe(tell)

    threading.Thread(target=wait, name="turn", daemon=True).start()
    await done
