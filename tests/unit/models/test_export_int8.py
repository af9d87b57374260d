"""The int8 form of exported models: part of the bundle where it is near enough, and left out where it is not."""

from pathlib import Path

import pytest
from tiny_models import TinyFile, write_hub_model

from models import quantize
from serving.bundle import Bundle, Kind
from serving.selftest import load_tested
from serving.session_options import SessionOptions

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]


def exported(tiny: TinyFile, directory: Path, kind: Kind) -> tuple[Bundle, list[str]]:
    """Export a tiny model with an int8 form and return its bundle and the progress lines."""
    from models.export import ExportOptions, export  # noqa: PLC0415 - after the check for torch

    lines: list[str] = []
    options = ExportOptions(model_id="m", revision="r", source="s", int8=True)
    source = write_hub_model(directory / "source", tiny, kind)
    return Bundle(export(source, kind, directory / "bundle", options, lines.append)), lines


@pytest.mark.parametrize("kind", ["encoder", "reranker"])
def test_form(tiny: TinyFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind):
    """The form is in the manifest, listed among the files, smaller, and passes the servers' own test."""
    monkeypatch.setitem(quantize.TOLERANCES, "encoder", 0.2)  # 32 random numbers lose more than 384 trained ones
    bundle, _ = exported(tiny, tmp_path, kind)
    assert bundle.manifest.precisions == ("fp32", "int8")
    form = bundle.manifest.form("int8")
    assert bundle.manifest.files[form.file].size < bundle.manifest.files["model.onnx"].size
    model, report = load_tested(bundle, kind, SessionOptions(device="cpu", threads=1, precision="int8"))
    assert model.precision == "int8"
    assert report.max_difference > 0


def test_left_out(tiny: TinyFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A form that is too far off is neither listed nor left in the directory, and a line says so."""
    monkeypatch.setitem(quantize.TOLERANCES, "encoder", 1e-9)
    bundle, lines = exported(tiny, tmp_path, "encoder")
    assert bundle.manifest.precisions == ("fp32",)
    assert not list(bundle.path.glob("*int8*"))
    assert any("without the int8 form" in line for line in lines)
