"""`twostage models export` with a tiny model."""

from pathlib import Path

import pytest
from tiny_models import TinyFile, write_hub_model
from up_process import twostage

from serving.bundle import Bundle

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_a_directory_becomes_a_bundle_that_verifies(tiny: TinyFile, tmp_path: Path) -> None:
    """What is given on the command line is in the manifest, and the bundle passes its own golden outputs."""
    pytest.importorskip("torch")
    source, out = write_hub_model(tmp_path / "source", tiny, "encoder"), tmp_path / "bundle"
    options = ("--model-id", "some/model", "--query-prefix", "query: ", "--max-tokens", "64")
    made = twostage("models", "export", "--from", str(source), "--kind", "encoder", "--out", str(out), *options)
    assert made.returncode == 0, made.stderr
    assert made.stdout == f"{out}\n"
    manifest = Bundle(out).manifest
    assert (manifest.model_id, manifest.query_prefix, manifest.max_tokens) == ("some/model", "query: ", 64)
    assert twostage("models", "verify", str(out)).returncode == 0
