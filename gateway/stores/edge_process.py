"""An EdgeRoot in a process of its own. Blocking, and for one thread at a time.

The engine's binding keeps Python's global lock during every call, waits for the disk included: a query of 16 ms stalls
every other thread for 11, and a flush was seen to take 180. In a process of its own it stalls nobody, and a crash of
the engine is not a crash of the gateway.
"""

import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from serving.errors import Unavailable

PATIENCE_S = 10.0
"""How long the process may take to write everything down before it is killed."""


class EdgeProcess:
    """Runs `gateway.stores.edge_worker`; started anew by the call after one that found it dead.

    Args:
        root: The store's directory.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None

    @classmethod
    def open(cls, root: Path) -> Self:
        """Start the process and wait until the store is open.

        Raises:
            Misconfigured: As `EdgeRoot.open`.
            Unavailable: `STORE_DOWN`, the process ended.
        """
        started = cls(root)
        started._start()
        return started

    def call(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the EdgeRoot.

        Raises:
            ServiceError: What it raised there.
            Unavailable: `STORE_DOWN`, the process ended; whether it had done the work is not known.
        """
        connection = self._connection or self._start()
        try:
            connection.send((operation, args, kwargs))
            result, failure = connection.recv()
        except (EOFError, OSError) as error:
            self._reap()
            raise Unavailable("STORE_DOWN", "the vector store's process ended; it is started again") from error
        if failure is not None:
            raise failure.error()
        return result

    def close(self) -> None:
        """Let the process write everything down and end."""
        self._reap()

    def _start(self) -> "Connection[Any, Any]":
        ours, theirs = socket.socketpair()
        with theirs:
            handle = theirs.fileno()
            command = [sys.executable, "-P", "-m", "gateway.stores.edge_worker", str(self._root), str(handle)]
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                command, pass_fds=[handle], stdin=subprocess.DEVNULL
            )
        self._connection = Connection(ours.detach())
        try:
            _, failure = self._connection.recv()
        except (EOFError, OSError) as error:
            self._reap()
            raise Unavailable("STORE_DOWN", "the vector store's process ended while it started") from error
        if failure is not None:
            self._reap()
            raise failure.error()
        return self._connection

    def _reap(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
