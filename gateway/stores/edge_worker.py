"""The process that runs qdrant-edge for `gateway.stores.edge_process`; `python -m gateway.stores.edge_worker ROOT FD`.

Reads `(time sent, deadline, operation, args, kwargs)` from the socket FD, answers each with `(result, failure,
nanoseconds since then)`, and ends when the other side is gone, whether that closed or died.
"""

import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gateway.stores.edge_failure import Failure
from gateway.stores.edge_root import EdgeRoot
from gateway.stores.edge_wire import packed
from serving.deadline import Deadline
from serving.errors import InferenceFailed, ServiceError


def serve(root: Path, connection: "Connection[Any, Any]") -> None:
    """Open the directory, report, and answer until the other side is gone."""
    opened: list[EdgeRoot] = []
    connection.send_bytes(answered(lambda: opened.append(EdgeRoot.open(root)), 0))
    if not opened:
        return
    try:
        while True:
            sent, deadline, operation, args, kwargs = connection.recv()
            queue = time.monotonic_ns() - sent
            connection.send_bytes(answered(partial(_call, opened[0], deadline, operation, args, kwargs), queue))
    except (EOFError, ConnectionError):
        opened[0].close()


def _call(root: EdgeRoot, deadline: Deadline, operation: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    deadline.require(operation)
    return root.call(operation, *args, **kwargs)


def answered(work: Callable[[], Any], queue: int) -> memoryview:
    """Do some work and return the message that answers it; one that would be too long is an error."""
    result, failure = _answer(work)
    try:
        return packed((result, failure, queue))
    except ServiceError as error:
        return packed((None, Failure.of(error), queue))


def _answer(work: Callable[[], Any]) -> tuple[Any, Failure | None]:
    try:
        return work(), None
    except ServiceError as error:
        return None, Failure.of(error)
    except Exception as error:  # noqa: BLE001 - a bug of ours must not end the process that others wait for
        failed = InferenceFailed("STORE_FAILED", "the vector store failed; details are in the log")
        failed.__cause__ = error
        return None, Failure.of(failed)


def main() -> None:
    """Run the worker; the gateway alone decides when it ends, so signals to the group are not for it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    serve(Path(sys.argv[1]), Connection(int(sys.argv[2])))


if __name__ == "__main__":
    main()
