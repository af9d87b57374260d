"""Fixtures that more than one folder of tests uses."""

import fcntl
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tiny_models import TinyFile, write_e5_file

from models import demo

REPOSITORY = Path(__file__).parents[1]

# A machine that stands still for a moment makes an example slow and tells nothing of the code; and the same tree always
# meets the same examples, so that whoever changed nothing breaks nothing. `--hypothesis-profile=default` looks further.
settings.register_profile("house", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")


@pytest.fixture(scope="session")
def demo_bundles() -> Path:
    """The directory with the demo models' bundles, `encoder` and `reranker`, made where they are missing."""
    directory = REPOSITORY / ".twostage" / "bundles" / "demo"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory.parent / ".demo.lock").open("w") as lock:  # the tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        demo.prepare(directory, lambda _line: None)
    return directory


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyFile:
    """A 4-bit file of the real one's layout with two layers of 32 numbers and fifty pieces."""
    return write_e5_file(tmp_path_factory.mktemp("tiny") / "tiny.bin")
