"""Bundles on disk: every way of being damaged is named, with the path."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from factories import (
    EXTERNAL_NAME,
    flip_byte,
    halve,
    make_lfs_pointer,
    remove,
    tiny_encoder_bundle,
    tiny_reranker_bundle,
)

from serving.bundle import GOLDEN_NAME, MANIFEST_NAME, MODEL_NAME, TOKENIZER_NAME, Bundle, sha256
from serving.errors import Misconfigured

FILES = [MODEL_NAME, TOKENIZER_NAME, GOLDEN_NAME, EXTERNAL_NAME]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sound bundle with its weights in a file of their own."""
    return tiny_encoder_bundle(tmp_path / "bundle", external_data=True).path


def refused(path: Path) -> Misconfigured:
    """Open a bundle and return why it was refused."""
    with pytest.raises(Misconfigured) as caught:
        Bundle(path)
    return caught.value


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest."""
    manifest = json.loads((path / MANIFEST_NAME).read_text(encoding="utf-8"))
    change(manifest)
    (path / MANIFEST_NAME).write_text(json.dumps(manifest), encoding="utf-8")


def form(file: str, tolerance: float = 0.1) -> dict[str, Any]:
    """A further form as a manifest has it."""
    return {"file": file, "weights": "few", "tolerance": tolerance}


def test_a_sound_bundle_opens_and_verifies(path: Path):
    """What the factory writes is whole, and its digest is the manifest's."""
    bundle = Bundle(path)
    bundle.verify()
    assert set(bundle.manifest.files) == set(FILES)
    assert bundle.digest == f"sha256:{sha256(path / MANIFEST_NAME)}"
    assert len(bundle.golden().rows) > 3


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(path: Path, name: str):
    """The message has the whole path of what is not there (field failure 46)."""
    remove(path, name)
    error = refused(path)
    assert error.reason == "BUNDLE_FILE_MISSING"
    assert str(path / name) in error.message


def test_a_missing_data_file_comes_with_a_hint(path: Path):
    """Weights that were left behind belong beside the graph (field failure 46)."""
    remove(path, EXTERNAL_NAME)
    assert "copy it beside model.onnx" in refused(path).message


@pytest.mark.parametrize("name", FILES)
def test_a_git_lfs_pointer_is_recognised(path: Path, name: str):
    """A clone without Git LFS is told what to run (field failure 46)."""
    make_lfs_pointer(path, name)
    error = refused(path)
    assert error.reason == "BUNDLE_LFS_POINTER"
    assert str(path / name) in error.message
    assert "git lfs pull" in error.message


@pytest.mark.parametrize("name", FILES)
def test_half_a_file_is_refused_before_anything_is_loaded(path: Path, name: str):
    """An interrupted copy shows in the size, with both numbers (field failure 46)."""
    size = (path / name).stat().st_size
    halve(path, name)
    error = refused(path)
    assert error.reason == "BUNDLE_FILE_SIZE"
    assert all(part in error.message for part in (str(path / name), str(size), str(size // 2)))


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_shows_in_the_digest(path: Path, name: str):
    """Same size, other content: verify finds the file (field failure 46)."""
    flip_byte(path, name)
    with pytest.raises(Misconfigured, match="SHA-256") as caught:
        Bundle(path).verify()
    assert caught.value.reason == "BUNDLE_DIGEST_MISMATCH"
    assert str(path / name) in caught.value.message


def test_a_directory_without_manifest_is_no_bundle(path: Path):
    """The manifest is written last, so its absence means unfinished."""
    remove(path, MANIFEST_NAME)
    error = refused(path)
    assert error.reason == "BUNDLE_MISSING"
    assert str(path / MANIFEST_NAME) in error.message


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"version https://git-lfs.github.com/spec/v1\n"])
def test_a_manifest_that_is_no_json_object_is_malformed(path: Path, content: bytes):
    """Half a manifest is refused by name."""
    (path / MANIFEST_NAME).write_bytes(content)
    error = refused(path)
    assert error.reason == "BUNDLE_MALFORMED"
    assert str(path / MANIFEST_NAME) in error.message


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m: m.update(schema_version=2), "schema_version"),
        (lambda m: m.update(kind="ranker"), "kind"),
        (lambda m: m.update(surprise=1), "surprise"),
        (lambda m: m.pop("max_tokens"), "max_tokens"),
        (lambda m: m.update(max_tokens=3), "max_tokens"),
        (lambda m: m.update(dimension=None), "dimension"),
        (lambda m: m["files"].pop(GOLDEN_NAME), GOLDEN_NAME),
        (lambda m: m["files"].update({"../secret": m["files"][MODEL_NAME]}), "names, not paths"),
        (lambda m: m["files"][MODEL_NAME].update(sha256="0" * 63), "sha256"),
        (lambda m: m["special_tokens"].pop("pad"), "special_tokens.pad"),
        (lambda m: m.update(tolerance=0), "tolerance"),
        (lambda m: m.update(forms={"int8": form("elsewhere.onnx")}), "elsewhere.onnx not listed"),
        (lambda m: m.update(forms={"fp32": form(MODEL_NAME)}), "fp32 is what model.onnx is"),
        (lambda m: m.update(forms={"int4": form(MODEL_NAME)}), "forms.int4"),
        (lambda m: m.update(forms={"int8": form(MODEL_NAME, tolerance=0)}), "forms.int8.tolerance"),
    ],
)
def test_a_wrong_field_of_the_manifest_is_named(path: Path, change: Callable[[dict[str, Any]], object], named: str):
    """The operator learns file and field."""
    edit(path, change)
    error = refused(path)
    assert error.reason == "BUNDLE_MALFORMED"
    assert str(path / MANIFEST_NAME) in error.message
    assert named in error.message


def test_malformed_golden_outputs_are_refused_by_name(path: Path):
    """A self-test that cannot be read is no self-test."""
    bundle = Bundle(path)
    (path / GOLDEN_NAME).write_text('{"reference": "x", "rows": []}', encoding="utf-8")
    with pytest.raises(Misconfigured, match="rows") as caught:
        bundle.golden()
    assert str(path / GOLDEN_NAME) in caught.value.message


def test_links_as_container_volumes_make_them_are_followed(tmp_path: Path):
    """Kubernetes mounts files as links through `..data`; such a bundle opens (field failure 46)."""
    real = tiny_reranker_bundle(tmp_path / "..2026_01").path
    (tmp_path / "..data").symlink_to(real.name)
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    for file in real.iterdir():
        (mounted / file.name).symlink_to(tmp_path / "..data" / file.name)
    Bundle(mounted).verify()
