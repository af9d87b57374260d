"""The demo models in the reference implementation, rebuilt from the same 4-bit file."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from models import e5file, reference, weights
from serving.bundle import Bundle
from serving.model import Model
from serving.session_options import SessionOptions

THREADS = 2


@pytest.fixture(scope="session")
def reference_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Hugging Face directories by kind; removed afterwards, as they are large."""
    root = tmp_path_factory.mktemp("reference")
    file = e5file.E5File(e5file.locate())
    adapters = {"encoder": None, "reranker": weights.read_adapter()}
    for kind, adapter in adapters.items():
        reference.write(file, root / kind, adapter)
    yield {kind: root / kind for kind in adapters}
    shutil.rmtree(root)


@pytest.fixture(scope="session")
def served(demo_bundles: Path) -> dict[str, Model]:
    """The demo bundles as the servers load them, by kind."""
    options = SessionOptions(device="cpu", threads=THREADS)
    return {kind: Model(Bundle(demo_bundles / kind), kind, options) for kind in ("encoder", "reranker")}
