"""Files that are read again when they change, so that keys and certificates are replaced without a restart."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from serving.errors import Misconfigured

T = TypeVar("T")

EVERY_S = 1.0
"""How often files are looked at, at most."""

log = logging.getLogger(__name__)


class Watched(Generic[T]):
    """What some files say now, or said when they were last right. Any thread may ask.

    The contents are compared and not the times of the files: a symbolic link that is pointed elsewhere, as Kubernetes
    does with every mounted secret, is noticed as well as two writes within one tick of the file system's clock.

    Args:
        paths: The files, all of which belong together.
        read: Makes a value of their contents, or raises Misconfigured.
        every_s: How often to look.
        clock: Monotonic seconds.

    Raises:
        Misconfigured: `FILE_UNREADABLE`, or what `read` raises: at the start there is nothing older to go on with.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        read: Callable[[Sequence[bytes]], T],
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths, self._read, self._every_s, self._clock = tuple(paths), read, every_s, clock
        self._lock = threading.Lock()
        self._seen = _contents(self._paths)
        self._complaint = ""
        self._value = read(self._seen)
        self._due = clock() + every_s

    def current(self) -> T:
        """Return what the files say; what they said before where they are wrong now, which is logged once."""
        if self._clock() >= self._due:
            with self._lock:
                if self._clock() >= self._due:
                    self._look()
                    self._due = self._clock() + self._every_s
        return self._value

    def _look(self) -> None:
        try:
            contents = _contents(self._paths)
            if contents == self._seen:
                return
            self._value = self._read(contents)
        except Misconfigured as error:
            if error.message != self._complaint:
                log.error("%s: %s; going on with what was read before", error.reason, error.message)
            self._complaint = error.message
            return
        self._seen, self._complaint = contents, ""
        log.info("read again: %s", ", ".join(map(str, self._paths)))


def _contents(paths: Sequence[Path]) -> Sequence[bytes]:
    try:
        return [path.read_bytes() for path in paths]
    except OSError as error:
        raise Misconfigured("FILE_UNREADABLE", f"{error.filename} cannot be read: {error.strerror}") from error
