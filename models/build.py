"""A directory that appears under its name only when it is complete."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def building(target: Path) -> Iterator[Path]:
    """Give an empty directory beside the target, which replaces the target unless the block fails.

    Args:
        target: The directory to make; its parents are made too.
    """
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
