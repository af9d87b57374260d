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


def run(open_app: OpenApp) -> int:
    """Run an app until SIGTERM or SIGINT, then drain it; a second signal ends the process at once.

    Args:
        open_app: Given a callback for a fatal fault, opens the app; leaving the context drains it.

    Returns:
        The exit status: 0 after a drain, 2 where an operator has to act, 70 where the app died.
    """
    try:
        return asyncio.run(_run(open_app))
    except Misconfigured as error:
        sys.stderr.write(f"{error.reason}: {error.message}\n")
        return EXIT_MISCONFIGURED


async def _run(open_app: OpenApp) -> int:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    opened = False

    def on_signal(number: int) -> None:
        if ended.done():
            os._exit(128 + number)
        if not opened:
            os._exit(0)  # a model that is being loaded cannot be interrupted, and there is nothing to drain
        log.info("%s: draining", signal.Signals(number).name)
        ended.set_result(0)

    def on_fatal(error: BaseException) -> None:
        log.critical("a part of this server died, going down", exc_info=error)
        if not ended.done():
            ended.set_result(EXIT_DIED)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    async with open_app(on_fatal):
        opened = True
        return await ended
