"""Bundles are listed, and verified with the code that serves them."""

import shutil
from pathlib import Path

import pytest

from models.verify import list_bundles, verify
from serving.bundle import GOLDEN_NAME, MANIFEST_NAME, Bundle, Golden, file_entries, write_manifest
from serving.errors import Misconfigured


@pytest.fixture
def copy(demo_bundles: Path, tmp_path: Path) -> Path:
    """A copy of the demo encoder that a test may damage."""
    return Path(shutil.copytree(demo_bundles / "encoder", tmp_path / "profile" / "encoder"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["encoder", "reranker"])
def test_demo_bundles_pass(demo_bundles: Path, kind: str):
    """Every golden output is met, far within the tolerance."""
    report = verify(demo_bundles / kind)
    assert report.row_count == 20
    assert 0 < report.max_difference < report.manifest.tolerance / 10
    assert report.digest == Bundle(demo_bundles / kind).digest


@pytest.mark.slow
def test_other_outputs_are_found_out(copy: Path):
    """A bundle whose golden outputs are another model's is refused, digests being right."""
    bundle = Bundle(copy)
    golden = bundle.golden()
    wrong = golden.rows[5].model_copy(update={"output": golden.rows[6].output})
    rows = (*golden.rows[:5], wrong, *golden.rows[6:])
    (copy / GOLDEN_NAME).write_text(Golden(reference="other", rows=rows).model_dump_json())
    write_manifest(copy, bundle.manifest.model_copy(update={"files": file_entries(copy)}))
    with pytest.raises(Misconfigured) as caught:
        verify(copy)
    assert caught.value.reason == "GOLDEN_MISMATCH"


def test_damage_of_the_same_size_is_found_out(copy: Path):
    """A file that changed without changing its size is refused by its digest."""
    data = (copy / GOLDEN_NAME).read_bytes()
    (copy / GOLDEN_NAME).write_bytes(data.replace(b"7", b"8", 1))
    with pytest.raises(Misconfigured) as caught:
        verify(copy)
    assert caught.value.reason == "BUNDLE_DIGEST_MISMATCH"


def test_list(copy: Path):
    """Bundles are listed by path, a broken one with what is wrong; half-made ones are not."""
    root = copy.parents[1]
    broken = root / "profile" / "reranker"
    hidden = root / "profile" / ".full.part"
    for directory in (broken, hidden):
        directory.mkdir()
        (directory / MANIFEST_NAME).write_text("{}")
    encoder, reranker = list_bundles(root)
    assert (encoder.path, encoder.problem) == (copy, "")
    assert encoder.manifest is not None
    assert encoder.manifest.dimension == 384
    assert (reranker.path, reranker.manifest) == (broken, None)
    assert "bundle.json" in reranker.problem


def test_list_of_nothing(tmp_path: Path):
    """A directory that does not exist holds no bundles."""
    assert list_bundles(tmp_path / "none") == []
