"""The demo profile: complete bundles from packages alone, made once, and made anew when something changed."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from models import demo, e5file, graph
from serving.bundle import MANIFEST_NAME, MODEL_NAME, Bundle
from serving.errors import Misconfigured

pytestmark = pytest.mark.slow


@pytest.fixture
def prepare(tmp_path: Path) -> Callable[[], list[str]]:
    """Prepares into a directory of the test's own and returns the progress lines."""

    def call() -> list[str]:
        lines: list[str] = []
        demo.prepare(tmp_path / "demo", lines.append)
        return [line.split(":")[1].split()[0] for line in lines]

    return call


def test_bundles_are_complete(demo_bundles: Path):
    """Both bundles are of their kind, whole by their digests, and honest about what they are."""
    encoder, reranker = (Bundle(demo_bundles / kind) for kind in demo.KINDS)
    encoder.verify()
    reranker.verify()
    assert encoder.manifest.model_id == "intfloat/multilingual-e5-small"
    assert (encoder.manifest.dimension, encoder.manifest.pooling, encoder.manifest.max_tokens) == (384, "mean", 512)
    assert "4-bit weights" in encoder.manifest.source
    assert reranker.manifest.model_id == "twostage/demo-reranker"
    assert "small cross-encoder" in reranker.manifest.source
    assert "bge" not in reranker.manifest.model_dump_json().lower()


def test_bundles_have_an_int8_form(demo_bundles: Path):
    """Both have it beside fp32, in less than two thirds of the bytes."""
    for kind in demo.KINDS:
        manifest = Bundle(demo_bundles / kind).manifest
        assert manifest.precisions == ("fp32", "int8")
        sizes = [manifest.files[manifest.form(precision).file].size for precision in manifest.precisions]
        assert sizes[1] < sizes[0] * 2 / 3


def test_golden_covers_all_lengths(demo_bundles: Path):
    """The golden rows reach from a few tokens to the limit, at which the longest were cut."""
    for kind in demo.KINDS:
        counts = [row.token_count for row in Bundle(demo_bundles / kind).golden().rows]
        assert len(counts) == 20
        assert min(counts) <= 6
        assert max(counts) == 512


def test_made_once_and_again_after_damage(prepare: Callable[[], list[str]], tmp_path: Path):
    """A second call leaves complete bundles alone; a missing manifest or a cut file makes one anew."""
    assert prepare() == ["making", "making"]
    digests = [Bundle(tmp_path / "demo" / kind).digest for kind in demo.KINDS]
    assert prepare() == ["up", "up"]
    (tmp_path / "demo" / "encoder" / MANIFEST_NAME).unlink()
    (tmp_path / "demo" / "reranker" / MODEL_NAME).write_bytes(b"short")
    assert prepare() == ["making", "making"]
    assert [Bundle(tmp_path / "demo" / kind).digest for kind in demo.KINDS] == digests


def test_changed_code_or_data_makes_it_anew(
    prepare: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A bundle of another recipe is made anew, and keeps its digest where the result is the same."""
    prepare()
    digest = Bundle(tmp_path / "demo" / "encoder").digest
    monkeypatch.setattr(demo, "RECIPE_MODULES", ("demo",))
    assert prepare() == ["making", "making"]
    assert Bundle(tmp_path / "demo" / "encoder").digest == digest


def test_failure_leaves_nothing_behind(
    prepare: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Where making fails there is no directory under the bundle's name, and none half done."""

    def fail(_file: e5file.E5File):
        raise MemoryError

    monkeypatch.setattr(graph, "encoder", fail)
    with pytest.raises(MemoryError):
        prepare()
    assert [path.name for path in (tmp_path / "demo").iterdir()] == [".lock"]


def test_missing_package(prepare: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch):
    """Without the weights' package there is one message that says what to install."""
    monkeypatch.setattr(e5file, "PACKAGE", "no_such_package_here")
    with pytest.raises(Misconfigured, match="is not installed"):
        prepare()


def test_needs_no_torch(demo_bundles: Path):
    """Preparing imports neither torch nor transformers nor anything of the hub."""
    program = (
        "import json, sys; from pathlib import Path; from models import demo; "
        f"demo.prepare(Path({str(demo_bundles)!r}), lambda line: None); "
        "import models.catalog, models.verify, models.full, models.acquire, models.export, models.golden; "
        "print(json.dumps([name for name in ('torch', 'transformers', 'huggingface_hub') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == []
