"""A batcher over a device that a test can hold."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from serving.batcher import Batcher
from serving.batching import BatchLimits
from serving.cost import CostModel
from serving.deadline import Deadline
from serving.requests import Answer

SOON = 30.0
"""Seconds: a deadline that no test reaches."""


@dataclass(frozen=True)
class Item:
    """A row: what it is called and how long it is."""

    name: Any
    length: int = 1

    def __len__(self) -> int:
        return self.length


Computing = Callable[[Sequence[Item]], Sequence[Any]]


def names(rows: Sequence[Item]) -> list[Any]:
    """Answer every row with its name."""
    return [row.name for row in rows]


@dataclass(frozen=True)
class Feed:
    """A batch as the device takes it."""

    rows: list[Item]

    @property
    def padded_tokens(self) -> int:
        return len(self.rows) * max(map(len, self.rows))


@dataclass
class Device:
    """A device that can be held, and that remembers what it was given."""

    answer: Computing = names
    batches: list[list[Item]] = field(default_factory=list)
    entered: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    """Gets the size of every batch when its computing begins."""
    free: threading.Event = field(default_factory=threading.Event)
    """Batches wait for it."""

    def __post_init__(self) -> None:
        self.free.set()
        self._loop = asyncio.get_running_loop()

    def prepare(self, rows: Sequence[Item]) -> Feed:
        """Make a batch's feed."""
        return Feed(list(rows))

    def run(self, feed: Feed) -> Sequence[Any]:
        """Compute a batch on the inference thread."""
        rows = feed.rows
        self.batches.append(list(rows))
        self._loop.call_soon_threadsafe(self.entered.put_nowait, len(rows))
        assert self.free.wait(SOON)
        return self.answer(rows)

    @property
    def computed(self) -> list[Any]:
        """Names of everything that was computed."""
        return [row.name for batch in self.batches for row in batch]


def limits(*, tokens: int = 100, rows: int = 8, waiting: int = 1000) -> BatchLimits:
    """Make limits with small round defaults."""
    return BatchLimits(max_batch_tokens=tokens, max_batch_rows=rows, max_waiting_tokens=waiting)


def items(*given: Any, length: int = 1) -> list[Item]:
    """Make rows."""
    return [Item(name, length) for name in given]


async def submit(batcher: Batcher[Item, Any], rows: list[Item], *, wait: bool = False) -> Answer[Any]:
    """Submit with a deadline that is not reached."""
    return await batcher.submit(rows, Deadline.after(SOON), wait=wait)


async def waiting(batcher: Batcher[Item, Any], rows: int) -> None:
    """Return once so many rows wait."""
    for _ in range(1000):
        if batcher.waiting_rows == rows:
            return
        await asyncio.sleep(0)
    pytest.fail(f"{batcher.waiting_rows} rows wait, not {rows}")


@asynccontextmanager
async def held(
    device: Device, batcher: Batcher[Item, Any], rows: list[Item] | None = None
) -> AsyncIterator[asyncio.Task[Answer[Any]]]:
    """Keep the device busy with one batch inside the block; the batch is freed at its end."""
    device.free.clear()
    while not device.entered.empty():
        device.entered.get_nowait()
    try:
        task = asyncio.create_task(submit(batcher, rows or items("first")))
        await device.entered.get()
        yield task
    finally:
        device.free.set()


def fails_on_bad(rows: Sequence[Item]) -> Sequence[Any]:
    """Throw where one of the rows is called "bad"."""
    if "bad" in names(rows):
        raise RuntimeError("engine")
    return names(rows)


def known_costs(*, per_token: float) -> CostModel:
    """Make a model of a device whose cost is all in the tokens."""
    costs = CostModel()
    for tokens in range(1, 20):
        costs.observe(tokens, 1, tokens * per_token)
    return costs
