"""What is measured in one go, and the file in which all of it is kept until it is reported."""

import zlib
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from benchmarks.peers.figures import Figures

OURS = "ours"
LIMIT = "limit"


class Load(BaseModel):
    """How often calls are made: by so many callers, or at a share of the capacity of our own server."""

    model_config = ConfigDict(frozen=True)

    callers: int | None = None
    share: float | None = None

    @property
    def name(self) -> str:
        """For example "c32" or "o80"."""
        return f"c{self.callers}" if self.share is None else f"o{self.share * 100:.0f}"

    @property
    def overload(self) -> bool:
        """Whether more arrives than can be done."""
        return self.share is not None and self.share > 1

    @classmethod
    def parse(cls, name: str) -> "Load":
        """Read a name."""
        number = int(name[1:])
        return cls(callers=number) if name.startswith("c") else cls(share=number / 100)


class Cell(BaseModel):
    """One target under one load."""

    model_config = ConfigDict(frozen=True)

    at: str
    """When it was measured, UTC."""
    target: str
    workload: str
    load: str
    round: int
    rate: float | None = None
    """Calls that arrived per second, where that was fixed."""
    resident_mib: float
    """Peak of the server's memory meanwhile."""
    others: float
    """Share of the machine's processor time that neither the server nor this program used meanwhile."""
    figures: Figures


class Started(BaseModel):
    """How a target came up, or why it was not measured."""

    model_config = ConfigDict(frozen=True)

    target: str
    kind: str
    start_s: float | None = None
    resident_mib: float | None = None
    """At rest, after the first answers."""
    agreement: str
    """How far its results are from ours, or what went wrong."""
    versions: dict[str, str] = {}
    fit: bool
    """Whether it was timed."""


def seed_of(workload: str, load: str, turn: int) -> int:
    """Return a seed that every target gets for the same cell."""
    return zlib.crc32(f"{workload}/{load}/{turn}".encode())


class Notebook:
    """Cells and starts as lines of a file, in the order in which they were measured.

    Args:
        path: The file; what it holds already is kept.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.cells: list[Cell] = []
        self.started: list[Started] = []
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._remember(
                    Cell.model_validate_json(line) if '"figures"' in line else Started.model_validate_json(line)
                )

    def add(self, record: Cell | Started) -> None:
        """Write down."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(record.model_dump_json() + "\n")
        self._remember(record)

    def of(self, target: str, workload: str, load: str) -> Iterable[Cell]:
        """Return a target's cells under one load."""
        return [one for one in self.cells if (one.target, one.workload, one.load) == (target, workload, load)]

    def _remember(self, record: Cell | Started) -> None:
        if isinstance(record, Cell):
            self.cells.append(record)
        else:
            self.started.append(record)
