"""Several processes behind one port, for a server whose one Python process is the limit.

The parent holds the port and serves nothing. It starts every worker as a fresh interpreter, because gRPC does not
survive a fork, and each listens on the port for itself (SO_REUSEPORT); the kernel gives every new connection to one of
them, and it stays there. They begin and end together: whoever looks after the parent sees the fate of all in its exit
status.
"""

import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext

from serving import process
from serving.errors import Misconfigured
from serving.process import Fatal, OpenApp
from serving.settings import EXIT_MISCONFIGURED, ServerSettings, environment

log = logging.getLogger(__name__)

# From <sys/prctl.h>: a signal for this process when the thread that started it ends.
PR_SET_PDEATHSIG = 1
# A worker that has no signal handlers yet when it is told to end has nothing to drain either.
ENDED_AS_TOLD = (0, -signal.SIGTERM)


class WorkerEnded(Exception):
    """A worker ended that was to serve on, or did not drain as it should."""


def run(package: str, settings: ServerSettings, open_app: OpenApp) -> int:
    """Run an app in this process, or in as many as the settings say.

    Args:
        package: What `python -m` starts a worker with.
        settings: The server's.
        open_app: As for `process.run`.

    Returns:
        The exit status, as of `process.run`; of several workers 0 only where all have drained, 2 where one was
        misconfigured and 70 where one died, after a drain of the others.
    """
    if settings.parent_pid is not None:
        _end_with(settings.parent_pid)
        return process.run(open_app, patient=True)
    if settings.workers == 1:
        return process.run(open_app)
    return process.run(lambda on_fatal: open_workers(package, settings, on_fatal))


@asynccontextmanager
async def open_workers(package: str, settings: ServerSettings, on_fatal: Fatal) -> AsyncIterator[None]:
    """Start the workers; leaving drains them.

    Args:
        package: What `python -m` starts a worker with.
        settings: The server's.
        on_fatal: Told of every worker that ends by itself.

    Raises:
        Misconfigured: The address cannot be bound, or this system is not Linux.
    """
    if sys.platform != "linux":
        raise Misconfigured("WORKERS_UNSUPPORTED", f"several workers need Linux, this is {sys.platform}")
    told = asyncio.Event()
    with reserved(settings.host, settings.port) as port, _health_reserved(settings):
        workers = [await _start(package, settings, port, index) for index in range(settings.workers)]
        pids = ", ".join(str(worker.pid) for worker in workers)
        log.info("%d workers for %s:%d, processes %s", len(workers), settings.host, port, pids)
        watches = [asyncio.create_task(_watch(worker, told, on_fatal)) for worker in workers]
        try:
            yield
        finally:
            told.set()
            for worker in workers:
                if worker.returncode is None:
                    worker.terminate()
            await asyncio.gather(*watches)


@contextmanager
def reserved(host: str, port: int) -> Iterator[int]:
    """Take a port for workers alone: they can listen on it while this lasts, other servers cannot.

    It is bound alone and only then shared, so that the workers of a second parent are noticed like any other server.

    Args:
        host: Address to listen on.
        port: The port; 0 takes a free one.

    Yields:
        The port.

    Raises:
        Misconfigured: It cannot be bound.
    """
    with ExitStack() as stack:
        try:
            family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
            taken = stack.enter_context(socket.socket(family, kind))
            # While binding: connections of a server that has ended do not keep its port. Later it would let others in.
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(address)
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        except OSError as error:
            message = f"cannot listen on {host}:{port}: {error.strerror}; is another server there?"
            raise Misconfigured("ADDRESS_UNAVAILABLE", message) from error
        yield int(taken.getsockname()[1])


def _health_reserved(settings: ServerSettings) -> AbstractContextManager[int]:
    """Take the port of the health checks as well, where there is one: the workers share it, too."""
    return reserved(settings.host, settings.health_port) if settings.health_port else nullcontext(0)


async def _start(package: str, settings: ServerSettings, port: int, index: int) -> asyncio.subprocess.Process:
    metrics_port = settings.metrics_port and settings.metrics_port + index
    return await asyncio.create_subprocess_exec(
        *(sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", package),
        env=environment(settings, port=port, metrics_port=metrics_port, parent_pid=os.getpid()),
        stdin=asyncio.subprocess.DEVNULL,
        process_group=0,  # a terminal's Ctrl-C is for the parent, which hands it on
    )


async def _watch(worker: asyncio.subprocess.Process, told: asyncio.Event, on_fatal: Fatal) -> None:
    """Wait for a worker's end and report it unless it was told to end and did."""
    status = await worker.wait()
    if told.is_set() and status in ENDED_AS_TOLD:
        return
    if status == EXIT_MISCONFIGURED:
        on_fatal(Misconfigured("WORKER_MISCONFIGURED", f"worker {worker.pid} cannot start; its own line says why"))
        return
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    on_fatal(WorkerEnded(f"worker {worker.pid} ended {how}"))


def _end_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, however that ends and whatever hangs in here.

    Raises:
        SystemExit: The parent has ended already.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise SystemExit(process.EXIT_DIED)
