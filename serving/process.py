"""A server as a process: signals, exit status, one line for what an operator has to mend."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from serving.errors import Misconfigured
from serving.settings import EXIT_MISCONFIGURED

log = logging.getLogger(__name__)

EXIT_DIED = 70
"""A part of the server died while it was serving (sysexits: EX_SOFTWARE)."""

Fatal = Callable[[BaseException], None]
OpenApp = Callable[[Fatal], AbstractAsyncContextManager[object]]


def run(open_app: OpenApp, *, patient: bool = False) -> int:
    """Run an app until SIGTERM or SIGINT, then drain it; a second signal ends the process at once.

    Args:
        open_app: Given a callback for a fatal fault, opens the app; leaving the context drains it. A fault that is
            Misconfigured ends the process as if opening had raised it.
        patient: Whether a second signal is no reason for haste: some supervisors send theirs to a parent, which hands
            it on, and to its children as well.

    Returns:
        The exit status: 0 after a drain, 2 where an operator has to act, 70 where the app died, be it in the drain.
    """
    try:
        return asyncio.run(_run(open_app, _Ending(patient=patient)))
    except Misconfigured as error:
        sys.stderr.write(f"{error.reason}: {error.message}\n")
        return EXIT_MISCONFIGURED


class _Ending:
    """How and when this process ends."""

    def __init__(self, *, patient: bool) -> None:
        self.opened = False
        self.begun = asyncio.Event()
        self._patient = patient
        self._died = False
        self._fault: Misconfigured | None = None

    def status(self) -> int:
        """Return the exit status.

        Raises:
            Misconfigured: The process ended for that.
        """
        if self._fault is not None:
            raise self._fault
        return EXIT_DIED if self._died else 0

    def on_signal(self, number: int) -> None:
        """Begin the drain, or end at once where there is nothing to drain or no patience left."""
        if not self.opened:
            os._exit(0)  # a model that is being loaded cannot be interrupted, and there is nothing to drain
        if not self.begun.is_set():
            log.info("%s: draining", signal.Signals(number).name)
            self.begun.set()
        elif not self._patient:
            os._exit(128 + number)

    def on_fatal(self, error: BaseException) -> None:
        """Begin the drain of what still works."""
        if isinstance(error, Misconfigured):
            self._fault = self._fault or error
        else:
            log.critical("a part of this server died, going down", exc_info=error)
            self._died = True
        self.begun.set()


async def _run(open_app: OpenApp, ending: _Ending) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.on_signal, number)
    async with open_app(ending.on_fatal):
        ending.opened = True
        await ending.begun.wait()
    return ending.status()
