"""What has been acknowledged, on disk: so that a run that was killed goes on where it was.

A journal is a file of JSON lines, each durable before the next message is counted: `begin` with what the run is about,
then `stored` and `refused` as answers come, and `end`. A last line that was cut off by a crash is as if never written.
"""

import fcntl
import json
import os
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from serving.errors import Misconfigured

VERSION = 1


class Run(BaseModel):
    """What a run is about: it can go on only where all of this is the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = VERSION
    name: str
    """The collection or alias that was asked for."""
    collection: str
    """The collection that is written."""
    file: str
    digest: str
    """Of the input file."""
    options: dict[str, str]
    """Whatever else decides which documents are stored, and how."""
    encoder_digest: str
    before_count: int
    """Documents in the collection when the run began."""


@dataclass(slots=True, kw_only=True)
class Counts:
    """What has become of documents."""

    stored: int = 0
    truncated: int = 0
    split: int = 0
    parts: int = 0

    @property
    def entries(self) -> int:
        """What the collection holds of them."""
        return self.stored - self.split + self.parts

    def add(self, more: "Counts") -> None:
        """Count more."""
        self.stored += more.stored
        self.truncated += more.truncated
        self.split += more.split
        self.parts += more.parts


@dataclass(slots=True, kw_only=True)
class _State:
    """What a journal says."""

    run: Run
    counts: Counts = field(default_factory=Counts)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    refused: dict[int, tuple[str, str]] = field(default_factory=dict)
    ended: bool = False


class Journal:
    """An open journal, which no other process has open meanwhile.

    Args:
        path: The file; made where there is none, with its directory.

    Raises:
        Misconfigured: `JOURNAL_UNUSABLE`, it cannot be written; `JOURNAL_LOCKED`, another process has it open;
            `JOURNAL_MALFORMED`, it is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            message = f"{path} cannot be written: {error.strerror}; name another place with --journal"
            raise Misconfigured("JOURNAL_UNUSABLE", message) from error
        try:
            self._lock()
            self._state = self._read()
        except BaseException:
            os.close(self._handle)
            raise
        self._ranges = _merged(self._state.ranges) if self._state else []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)

    @property
    def unfinished(self) -> Run | None:
        """The run that was interrupted; None where there is none."""
        return None if self._state is None or self._state.ended else self._state.run

    @property
    def counts(self) -> Counts:
        """What was stored so far."""
        return self._state.counts if self._state else Counts()

    @property
    def refused(self) -> dict[int, tuple[str, str]]:
        """Line to reason and message of what was refused so far."""
        return self._state.refused if self._state else {}

    def covers(self, number: int) -> bool:
        """Tell whether a line was acknowledged before this run went on."""
        index = bisect_right(self._ranges, (number, 1 << 63)) - 1
        return index >= 0 and self._ranges[index][0] <= number <= self._ranges[index][1]

    def begin(self, run: Run) -> None:
        """Forget what is in it and begin a new run."""
        os.ftruncate(self._handle, 0)
        os.lseek(self._handle, 0, os.SEEK_SET)
        self._state, self._ranges = _State(run=run), []
        self._write({"record": "begin", **run.model_dump()})
        _sync_directory(self.path.parent)

    def stored(self, first: int, last: int, counts: Counts) -> None:
        """Note that lines are stored; all of `first` to `last` that are documents and were not noted before."""
        self.counts.add(counts)
        self._write(
            {
                "record": "stored",
                "first": first,
                "last": last,
                "stored": counts.stored,
                "truncated": counts.truncated,
                "split": counts.split,
                "parts": counts.parts,
            }
        )

    def refuse(self, number: int, reason: str, message: str) -> None:
        """Note that a line was refused."""
        self.refused[number] = (reason, message)
        self._write({"record": "refused", "line": number, "reason": reason, "message": message})

    def end(self, document_count: int) -> None:
        """Note that the run is over, and what the collection holds."""
        self._write({"record": "end", "document_count": document_count})

    def _lock(self) -> None:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Misconfigured("JOURNAL_LOCKED", f"{self.path}: another process writes it") from error

    def _write(self, record: dict[str, Any]) -> None:
        data = (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "replace")
        while data:
            data = data[os.write(self._handle, data) :]
        os.fsync(self._handle)

    def _read(self) -> _State | None:
        with os.fdopen(os.dup(self._handle), "rb") as file:
            file.seek(0)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        os.ftruncate(self._handle, len(whole))
        os.lseek(self._handle, len(whole), os.SEEK_SET)
        state: _State | None = None
        for line in whole.splitlines():
            try:
                state = _apply(state, json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, ValidationError) as error:
                raise Misconfigured(
                    "JOURNAL_MALFORMED", f"{self.path} is no journal of this version; name another, or delete it"
                ) from error
        return state


def _apply(state: _State | None, record: dict[str, Any]) -> _State:
    kind = record.pop("record")
    if kind == "begin":
        if record["version"] != VERSION:
            raise ValueError(record["version"])
        return _State(run=Run.model_validate(record))
    if state is None:
        raise ValueError(kind)
    if kind == "stored":
        state.ranges.append((int(record.pop("first")), int(record.pop("last"))))
        state.counts.add(Counts(**record))
    elif kind == "refused":
        state.refused[int(record["line"])] = (str(record["reason"]), str(record["message"]))
        state.ranges.append((int(record["line"]), int(record["line"])))
    elif kind == "end":
        state.ended = True
    else:
        raise ValueError(kind)
    return state


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
