"""The real system with the demo models, started once by `twostage up`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from up_process import UpProcess


def make_home(directory: Path, demo_bundles: Path) -> Path:
    """Make a home of its own that shares the demo models."""
    for kind in ("encoder", "reranker"):
        bundle = directory / "bundles" / "demo" / kind
        bundle.mkdir(parents=True)
        for file in (demo_bundles / kind).iterdir():
            (bundle / file.name).symlink_to(file)
    return directory


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory, demo_bundles: Path) -> Iterator[UpProcess]:
    """A running system that tests share and leave as it is but for collections of their own."""
    directory = tmp_path_factory.mktemp("up")
    with UpProcess(make_home(directory / "home", demo_bundles), directory / "log") as up:
        yield up


@pytest.fixture
def home(tmp_path: Path, demo_bundles: Path) -> Path:
    """A home with the demo models and an empty store."""
    return make_home(tmp_path / "home", demo_bundles)
