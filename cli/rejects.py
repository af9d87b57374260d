"""The reject file: every line that is no document in the collection, with the reason, to be mended and sent again."""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from serving.errors import Misconfigured

MALFORMED = "MALFORMED"


class Rejects:
    """Writes JSON lines; the file is made with the first.

    Args:
        path: The file.
        goes_on: Whether it belongs to a run that goes on; else what is in it goes.

    Raises:
        Misconfigured: `REJECTS_UNUSABLE`, it cannot be written or is not ours.
    """

    def __init__(self, path: Path, *, goes_on: bool) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        try:
            self._known = _known(path) if goes_on else set[int]()
            if not goes_on:
                path.unlink(missing_ok=True)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Misconfigured("REJECTS_UNUSABLE", f"{path} is no reject file; name another with --rejects") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, number: int, reason: str, message: str, original: str, *, durable: bool = True) -> None:
        """Write a line, once.

        Args:
            number: Of the line, from 1.
            reason: Stable word for programs.
            message: For people.
            original: The line as it stands in the file.
            durable: Whether it has to outlast a power cut; what is found again by reading the file again does not.
        """
        if number in self._known:
            return
        self._known.add(number)
        record = {"line": number, "reason": reason, "message": message, "original": original}
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
        self._file.write((json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "replace"))
        self._file.flush()
        if durable:
            os.fsync(self._file.fileno())


def _known(path: Path) -> set[int]:
    """Return the lines that are in the file already; one that a crash has cut off is cut away."""
    if not path.exists():
        return set()
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    known = {int(json.loads(line)["line"]) for line in whole.splitlines()}
    os.truncate(path, len(whole))
    return known
