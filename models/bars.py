"""Download progress for people, as bars in a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from models.acquire import OnBytes


@contextmanager
def download_bars(console: Console) -> Iterator[OnBytes]:
    """Show a bar per file while the block runs.

    Args:
        console: Where to draw; one that is no terminal gets the last state only.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        tasks = {}

        def on_bytes(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=total)
            progress.update(tasks[name], completed=done)

        yield on_bytes
