"""Forms of a model: which one is run, what happens to one that is wrong here, and what is refused."""

import logging
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from factories import reranker_settings, tiny_reranker_bundle

from serving import session as serving_session
from serving.bundle import MODEL_NAME, Bundle, Form, Precision, file_entries, write_manifest
from serving.engine import open_engine
from serving.errors import Misconfigured
from serving.metrics import ServerMetrics
from serving.precision import PrecisionChoice
from serving.selftest import load_tested
from serving.session_options import SessionOptions

TOLERANCE = 0.05


def add_form(path: Path, precision: Precision, *, off: float = 0.0) -> Bundle:
    """Add a form whose embedding table is off by a factor that grows with the token's id."""
    name = f"model.{precision}.onnx"
    graph = onnx.load(path / MODEL_NAME)
    table = next(tensor for tensor in graph.graph.initializer if tensor.name == "table")
    values = onnx.numpy_helper.to_array(table)
    factors = 1 + off * np.linspace(-1, 1, values.size).reshape(values.shape)
    table.CopyFrom(onnx.numpy_helper.from_array((values * factors).astype(np.float32), "table"))
    onnx.save(graph, path / name)
    manifest = Bundle(path).manifest
    form = Form(file=name, weights=precision, tolerance=TOLERANCE)
    changes = {"files": file_entries(path), "forms": {**manifest.forms, precision: form}}
    write_manifest(path, manifest.model_copy(update=changes))
    return Bundle(path)


def options(precision: PrecisionChoice | None) -> SessionOptions:
    """One thread of a CPU."""
    return SessionOptions(device="cpu", threads=1, precision=precision)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A reranker's directory."""
    return tiny_reranker_bundle(tmp_path / "bundle").path


@pytest.fixture
def vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the processor instructions for int8, whatever it has."""
    monkeypatch.setattr(serving_session, "int8_flags", lambda: ("avx512_vnni",))


@pytest.fixture
def no_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the instructions for int8 from the processor."""
    monkeypatch.setattr(serving_session, "int8_flags", lambda: ())


@pytest.mark.usefixtures("vnni")
def test_the_form_that_is_served_is_the_one_that_computes(path: Path):
    """int8 is run, compared within its own tolerance, and named; its answers are not those of fp32."""
    model, report = load_tested(add_form(path, "int8", off=0.02), "reranker", options("auto"))
    assert (model.precision, model.form.file) == ("int8", "model.int8.onnx")
    assert 1e-4 < report.max_difference <= report.tolerance == TOLERANCE


@pytest.mark.usefixtures("no_vnni")
def test_without_instructions_fp32_is_served(path: Path):
    """A CPU that would compute int8 slowly, or saturate, gets fp32 (field failure 54)."""
    model, report = load_tested(add_form(path, "int8", off=0.02), "reranker", options("auto"))
    assert (model.precision, model.form.file) == ("fp32", MODEL_NAME)
    assert report.max_difference < 1e-5


@pytest.mark.usefixtures("vnni")
def test_a_form_that_is_wrong_here_gives_way(path: Path, caplog: pytest.LogCaptureFixture):
    """What `auto` took and what misses its golden outputs is warned of with the figure; fp32 is served (case 54)."""
    caplog.set_level(logging.WARNING)
    model, report = load_tested(add_form(path, "int8", off=1.5), "reranker", options("auto"))
    assert (model.precision, report.tolerance) == ("fp32", 1e-4)
    (record,) = caplog.records
    assert "int8 is not served, fp32 is" in record.message
    assert f"tolerance {TOLERANCE}" in record.message


@pytest.mark.usefixtures("vnni")
@pytest.mark.parametrize(("off", "precision"), [(0.02, "int8"), (1.5, "fp32")])
async def test_the_page_names_the_form_that_is_served(path: Path, off: float, precision: str):
    """A form that gave way is on no page: `auto` is told as what really runs (field failure 1)."""
    bundle, metrics = add_form(path, "int8", off=off), ServerMetrics("reranker")
    settings = reranker_settings(bundle, precision="auto")
    async with open_engine(settings, "reranker", metrics, lambda _: None) as engine:
        assert engine.reference["precision"] == precision
        labels = {**engine.reference, "precision": precision, "device": "cpu"}
        assert metrics.registry.get_sample_value("reranker_model_info", labels) == 1


def test_a_form_by_name_that_is_wrong_here_is_refused(path: Path):
    """Who asks for int8 does not silently get fp32; the message says what the CPU has for it (field failure 54)."""
    with pytest.raises(Misconfigured, match=r"missed by .* on cpu in int8 \(.+\)") as caught:
        load_tested(add_form(path, "int8", off=1.5), "reranker", options("int8"))
    assert caught.value.reason == "GOLDEN_MISMATCH"


@pytest.mark.usefixtures("vnni")
def test_a_wrong_fp32_is_refused_whatever_was_asked(tmp_path: Path):
    """There is nothing to fall back to behind the reference form."""
    wrong = tiny_reranker_bundle(tmp_path / "wrong", golden_shift=0.2).path
    for bundle in (Bundle(wrong), add_form(wrong, "int8")):
        with pytest.raises(Misconfigured) as caught:
            load_tested(bundle, "reranker", options("auto"))
        assert caught.value.reason == "GOLDEN_MISMATCH"


def test_a_bundle_of_one_other_precision_has_nothing_to_fall_back_to(tmp_path: Path):
    """Where a wrong bundle has no fp32 at all, it is refused."""
    wrong = tiny_reranker_bundle(tmp_path / "wrong", golden_shift=0.2, precision="int8")
    with pytest.raises(Misconfigured, match="in int8"):
        load_tested(wrong, "reranker", options("auto"))


def test_a_form_that_is_not_there_is_refused(path: Path):
    """precision=fp16 without such a form ends the start, and the message says what there is."""
    with pytest.raises(Misconfigured, match="has only fp32, int8") as caught:
        load_tested(add_form(path, "int8"), "reranker", options("fp16"))
    assert caught.value.reason == "PRECISION_UNAVAILABLE"


def test_an_fp16_form_by_name_is_warned_of_on_a_cpu(path: Path, caplog: pytest.LogCaptureFixture):
    """It runs, but it is slow, and the log says so (field failure 55)."""
    caplog.set_level(logging.WARNING)
    model, _ = load_tested(add_form(path, "fp16"), "reranker", options("fp16"))
    assert model.precision == "fp16"
    assert "fp16 weights on a CPU" in caplog.text


def test_the_digest_covers_every_form(path: Path):
    """A changed form is found like any other changed file."""
    bundle = add_form(path, "int8", off=0.01)
    shutil.copyfile(path / MODEL_NAME, path / "model.int8.onnx")
    with pytest.raises(Misconfigured, match=r"model\.int8\.onnx"):
        bundle.verify()


def test_forms_answer_in_the_same_shape(path: Path):
    """A form is fed and read as `model.onnx` is."""
    model, _ = load_tested(add_form(path, "int8", off=0.01), "reranker", options("int8"))
    rows = [model.tokenizer.single(ids) for ids in model.tokenizer.content_ids(["panda", "what is tea?"])]
    assert [np.shape(output) for output in model.compute(rows)] == [()] * 2
