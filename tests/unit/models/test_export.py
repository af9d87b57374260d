"""A Hugging Face directory becomes a bundle, or one clear error: tiny random models of both architectures."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny_models import LAYERS, TinyFile, write_hub_model

from models import tracing
from models.export import ExportOptions, export
from models.half import TOLERANCES
from models.source import Source, usable_positions
from models.verify import verify
from serving.bundle import TOKENIZER_NAME, Bundle, Kind
from serving.errors import Misconfigured
from serving.selftest import load_tested
from serving.session_options import SessionOptions

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

OPTIONS = ExportOptions(model_id="some/model", revision="abc", source="a test")
DATA_NAME = "model.onnx.data"


@pytest.fixture(scope="module")
def sources(tiny: TinyFile, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Hugging Face directories of an encoder and a reranker."""
    root = tmp_path_factory.mktemp("sources")
    return {kind: write_hub_model(root / kind, tiny, kind) for kind in ("encoder", "reranker")}


@pytest.fixture
def reranker(sources: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the reranker's directory that a test may change."""
    return Path(shutil.copytree(sources["reranker"], tmp_path / "source"))


def change_json(path: Path, **changes: object):
    """Change some keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def quiet(_line: str):
    """Take a line of progress and do nothing."""


@pytest.mark.parametrize("kind", ["encoder", "reranker"])
def test_bundle_passes_the_servers_own_test(sources: dict[str, Path], tmp_path: Path, kind: str):
    """The exported bundle meets the golden outputs of torch, attention fused in every layer."""
    lines: list[str] = []
    path = export(sources[kind], kind, tmp_path / "bundle", OPTIONS, lines.append)
    report = verify(path)
    assert report.row_count == 20
    assert report.max_difference < 1e-4
    assert report.manifest.attention == f"com.microsoft.Attention x {LAYERS} of {LAYERS}"
    assert report.manifest.max_tokens == 512
    assert any("comparing with torch" in line for line in lines)
    outputs = {row.output for row in Bundle(path).golden().rows}
    assert len(outputs) > 10, "a model that gives all rows the same proves nothing"


@pytest.mark.parametrize("kind", ["encoder", "reranker"])
def test_fp16_form(sources: dict[str, Path], tmp_path: Path, kind: Kind):
    """The fp16 form is in the manifest, listed among the files, and passes the servers' own test."""
    options = ExportOptions(model_id="m", revision="r", source="s", fp16=True)
    bundle = Bundle(export(sources[kind], kind, tmp_path / "bundle", options, quiet))
    assert bundle.manifest.precisions == ("fp32", "fp16")
    assert bundle.manifest.form("fp16").file in bundle.manifest.files
    fp16 = SessionOptions(device="cpu", threads=1, precision="fp16")
    model, report = load_tested(bundle, kind, fp16)
    assert model.precision == "fp16"
    assert 0 < report.max_difference < report.tolerance == TOLERANCES[kind]


def test_pooling_of_the_first_token(sources: dict[str, Path], tmp_path: Path):
    """An encoder that pools its first token is exported so, and says so."""
    options = ExportOptions(model_id="m", revision="r", source="s", pooling="cls", query_prefix="q: ")
    manifest = verify(export(sources["encoder"], "encoder", tmp_path / "cls", options, quiet)).manifest
    assert (manifest.pooling, manifest.dimension, manifest.query_prefix) == ("cls", 32, "q: ")
    mean = export(sources["encoder"], "encoder", tmp_path / "mean", OPTIONS, quiet)
    assert Bundle(mean).golden().rows[3] != Bundle(tmp_path / "cls").golden().rows[3]


def test_external_data(sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Field failure 46: weights over the limit are in a file of their own, and without it there is no bundle."""
    monkeypatch.setattr(tracing, "PROTOBUF_LIMIT", 1000)
    path = export(sources["reranker"], "reranker", tmp_path / "bundle", OPTIONS, quiet)
    assert DATA_NAME in Bundle(path).manifest.files
    verify(path)
    (path / DATA_NAME).unlink()
    with pytest.raises(Misconfigured, match="beside model"):
        Bundle(path)


def test_without_its_head(sources: dict[str, Path], tmp_path: Path):
    """Field failure 48: a body without classification head is no reranker."""
    with pytest.raises(Misconfigured) as caught:
        export(sources["encoder"], "reranker", tmp_path / "bundle", OPTIONS, quiet)
    assert caught.value.reason == "MODEL_WEIGHTS_MISSING"
    assert "classifier" in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_head_of_several_labels(tiny: TinyFile, tmp_path: Path):
    """A classifier of three labels is no reranker either."""
    source = write_hub_model(tmp_path / "source", tiny, "reranker", num_labels=3)
    with pytest.raises(Misconfigured, match="3 labels"):
        export(source, "reranker", tmp_path / "bundle", OPTIONS, quiet)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param(
            {"model_type": "xlm-roberta", "max_position_embeddings": 8194, "pad_token_id": 1}, 8192, id="xlm-roberta"
        ),
        pytest.param({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 0}, 512, id="bert"),
    ],
)
def test_usable_positions(config: dict[str, object], expected: int):
    """Field failures 24 and 49: XLM-R's first rows are never used, BERT's all are."""
    assert usable_positions(config) == expected


def test_limit_of_tokens(sources: dict[str, Path], tmp_path: Path):
    """Field failure 50: more tokens than the model has positions for is refused, fewer are kept to."""
    over = ExportOptions(model_id="m", revision="r", source="s", max_tokens=513)
    with pytest.raises(Misconfigured, match="max_tokens=513 is over the limit"):
        export(sources["reranker"], "reranker", tmp_path / "over", over, quiet)
    under = ExportOptions(model_id="m", revision="r", source="s", max_tokens=64)
    manifest = verify(export(sources["reranker"], "reranker", tmp_path / "under", under, quiet)).manifest
    assert manifest.max_tokens == 64


def test_default_limit_of_a_short_model(tiny: TinyFile, tmp_path: Path):
    """A model of 40 usable positions is limited to 40 tokens, not to the default."""
    source = write_hub_model(tmp_path / "source", tiny, "reranker", max_position_embeddings=42)
    path = export(source, "reranker", tmp_path / "bundle", OPTIONS, quiet)
    assert Bundle(path).manifest.max_tokens == 40
    assert max(row.token_count for row in Bundle(path).golden().rows) == 40
    verify(path)


def test_pad_ids_that_differ(reranker: Path, tmp_path: Path):
    """Field failure 30: where positions are counted by the pad id, tokenizer and model have to agree on it."""
    change_json(reranker / "config.json", pad_token_id=0)
    with pytest.raises(Misconfigured) as caught:
        export(reranker, "reranker", tmp_path / "bundle", OPTIONS, quiet)
    assert caught.value.reason == "TOKENIZER_MISMATCH"


def test_vocabulary_over_the_table(tiny: TinyFile, tmp_path: Path):
    """Field failure 30: a tokenizer with more pieces than the embedding table has rows is of another model."""
    source = write_hub_model(tmp_path / "source", tiny, "encoder", vocab_size=40)
    with pytest.raises(Misconfigured, match="40 rows"):
        export(source, "encoder", tmp_path / "bundle", OPTIONS, quiet)


def test_settings_baked_into_the_tokenizer(reranker: Path, tmp_path: Path):
    """Field failure 31: truncation and padding saved in tokenizer.json change nothing."""
    truncation = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 128}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>"}
    change_json(reranker / TOKENIZER_NAME, truncation=truncation, padding={**padding, "pad_to_multiple_of": None})
    path = export(reranker, "reranker", tmp_path / "bundle", OPTIONS, quiet)
    verify(path)
    assert len({row.token_count for row in Bundle(path).golden().rows}) > 10


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param({"model_type": "t5"}, "MODEL_UNSUPPORTED", id="another architecture"),
        pytest.param(None, "MODEL_MALFORMED", id="no configuration"),
    ],
)
def test_not_supported(reranker: Path, tmp_path: Path, content: dict[str, str] | None, reason: str):
    """A directory without configuration, or of an architecture that was never tried, is refused."""
    (reranker / "config.json").unlink()
    if content:
        (reranker / "config.json").write_text(json.dumps(content))
    with pytest.raises(Misconfigured) as caught:
        export(reranker, "reranker", tmp_path / "bundle", OPTIONS, quiet)
    assert caught.value.reason == reason


@pytest.mark.parametrize("axis", [0, 1], ids=["batch", "tokens"])
def test_frozen_axes_are_found_out(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, axis: int
):
    """Field failure 47: a graph in which the example's size of an axis was frozen is refused."""
    fuse = tracing._fuse

    def frozen(traced: Path, source: Source, target: Path, *, external: bool) -> int:
        layers = fuse(traced, source, target, external=external)
        graph = onnx.load(target)
        for node in graph.graph.input:
            node.type.tensor_type.shape.dim[axis].dim_value = (2, 8)[axis]
        onnx.save(graph, target)
        return layers

    monkeypatch.setattr(tracing, "_fuse", frozen)
    with pytest.raises(Misconfigured) as caught:
        export(sources["reranker"], "reranker", tmp_path / "bundle", OPTIONS, quiet)
    assert caught.value.reason == "EXPORT_SHAPE"


def test_other_weights_are_found_out(sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A graph that computes something else than torch is refused, and no bundle appears."""
    fuse = tracing._fuse

    def changed(traced: Path, source: Source, target: Path, *, external: bool) -> int:
        layers = fuse(traced, source, target, external=external)
        graph = onnx.load(target)
        largest = max(graph.graph.initializer, key=lambda tensor: len(tensor.raw_data))
        array = onnx.numpy_helper.to_array(largest) * np.float32(1.05)
        largest.CopyFrom(onnx.numpy_helper.from_array(array, largest.name))
        onnx.save(graph, target)
        return layers

    monkeypatch.setattr(tracing, "_fuse", changed)
    with pytest.raises(Misconfigured) as caught:
        export(sources["reranker"], "reranker", tmp_path / "bundle", OPTIONS, quiet)
    assert caught.value.reason == "EXPORT_PARITY"
    assert list(tmp_path.iterdir()) == []


def test_unfused_attention_is_told(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A graph whose attention was not fused is logged, and its manifest says so."""

    def plain(traced: Path, _source: Source, target: Path, *, external: bool) -> int:
        assert not external
        shutil.copyfile(traced, target)
        return 0

    monkeypatch.setattr(tracing, "_fuse", plain)
    path = export(sources["reranker"], "reranker", tmp_path / "bundle", OPTIONS, quiet)
    assert Bundle(path).manifest.attention == f"com.microsoft.Attention x 0 of {LAYERS}"
    assert f"attention fused in 0 of {LAYERS} layers" in caplog.text
