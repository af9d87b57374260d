"""The fp16 form: what it is made of, and what it computes."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_models import TinyFile

from models import graph, half
from models.half import HALF_NAME, TOLERANCES, convert, write_half
from serving.bundle import MODEL_NAME, Kind

BOS, PAD, EOS = 0, 1, 2


def batch(*lengths: int, vocabulary: int) -> dict[str, npt.NDArray[np.int64]]:
    """A batch of mixed lengths, as a tokenizer and the padding leave it."""
    generator = np.random.default_rng(len(lengths))
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    ids = np.where(mask == 1, generator.integers(4, vocabulary, mask.shape), PAD)
    ids[:, 0] = BOS
    ids[np.arange(len(lengths)), np.array(lengths) - 1] = EOS
    return {"input_ids": ids, "attention_mask": mask}


def run(path: Path, feed: dict[str, npt.NDArray[np.int64]]) -> npt.NDArray[np.float32]:
    """Run a graph on the CPU."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    (output,) = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, feed)
    return np.asarray(output)


def check(directory: Path, kind: Kind, feed: dict[str, npt.NDArray[np.int64]]) -> float:
    """Convert, compare the signatures, and return the largest difference of the outputs."""
    form = write_half(directory, kind)
    sessions = [
        ort.InferenceSession(directory / name, providers=["CPUExecutionProvider"]) for name in (MODEL_NAME, form.file)
    ]
    ends = [[(each.name, each.type) for each in [*one.get_inputs(), *one.get_outputs()]] for one in sessions]
    assert ends[0] == ends[1]
    full, small = (run(directory / name, feed) for name in (MODEL_NAME, form.file))
    assert full.dtype == small.dtype == np.float32
    assert full.shape == small.shape
    assert np.isfinite(small).all()
    assert form.tolerance == TOLERANCES[kind]
    return float(np.abs(full - small).max())


def written(model: onnx.ModelProto, directory: Path) -> Path:
    """Write a graph as a bundle has it."""
    directory.mkdir(exist_ok=True)
    onnx.save(model, directory / MODEL_NAME)
    return directory


def weights(path: Path) -> dict[int, int]:
    """Count bytes of weights by their type."""
    counts: dict[int, int] = {}
    for tensor in onnx.load(path).graph.initializer:
        counts[tensor.data_type] = counts.get(tensor.data_type, 0) + len(tensor.raw_data)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["encoder", "reranker"])
def test_the_demo_models_answer_the_same_in_half(demo_bundles: Path, tmp_path: Path, kind: Kind):
    """Finite for mixed lengths down to one token, and within a twentieth of what is tolerated (field failure 53)."""
    (tmp_path / MODEL_NAME).symlink_to(demo_bundles / kind / MODEL_NAME)
    difference = check(tmp_path, kind, batch(3, 17, 40, vocabulary=5000))
    assert 0 < difference < {"encoder": 1e-4, "reranker": 0.02}[kind]


def test_most_weights_become_half_and_none_double(tiny: TinyFile, tmp_path: Path):
    """Only what follows the last layer normalization keeps float32, and 4-bit blocks stay as they are."""
    directory = written(graph.encoder(tiny.file), tmp_path / "encoder")
    write_half(directory, "encoder")
    full, small = weights(directory / MODEL_NAME), weights(directory / HALF_NAME)
    assert small[TensorProto.FLOAT16] == full[TensorProto.FLOAT] // 2
    assert TensorProto.FLOAT not in small
    assert small[TensorProto.INT4] == full[TensorProto.INT4]


def test_the_output_is_no_rounded_number(tiny: TinyFile, tmp_path: Path):
    """Pooling and norm are computed in float32: outputs are finer than float16 has them, so that few are equal."""
    directory = written(graph.encoder(tiny.file), tmp_path / "encoder")
    write_half(directory, "encoder")
    vectors = run(directory / HALF_NAME, batch(3, 9, 20, vocabulary=40))
    assert (vectors != vectors.astype(np.float16)).mean() > 0.5
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def least_as_mask(directory: Path) -> Path:
    """Write unfused attention whose mask is the least float32, as an export leaves it: far beyond float16."""
    size, vocabulary = 8, 20
    generator = np.random.default_rng(1)
    constants = {
        "table": generator.normal(size=(vocabulary, size)).astype(np.float32),
        "one": np.ones(1, np.float32),
        "least": np.array([np.finfo(np.float32).min], np.float32),
        "scale": np.ones(size, np.float32),
        "shift": np.zeros(size, np.float32),
        "axes": np.array([1], np.int64),
        "head": generator.normal(size=(size,)).astype(np.float32),
        "first": np.array(0, np.int64),
    }
    steps = [
        ("Gather", ["table", "input_ids"], "x", {}),
        ("Cast", ["attention_mask"], "mask", {"to": TensorProto.FLOAT}),
        ("Sub", ["one", "mask"], "padding", {}),
        ("Mul", ["padding", "least"], "far", {}),
        ("Unsqueeze", ["far", "axes"], "bias", {}),
        ("Transpose", ["x"], "turned", {"perm": [0, 2, 1]}),
        ("MatMul", ["x", "turned"], "scores", {}),
        ("Add", ["scores", "bias"], "masked", {}),
        ("Softmax", ["masked"], "shares", {"axis": -1}),
        ("MatMul", ["shares", "x"], "mixed", {}),
        ("LayerNormalization", ["mixed", "scale", "shift"], "states", {"axis": -1}),
        ("Gather", ["states", "first"], "picked", {"axis": 1}),
        ("MatMul", ["picked", "head"], "logits", {}),
    ]
    nodes = [helper.make_node(kind, inputs, [output], **attributes) for kind, inputs, output, attributes in steps]
    ends = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in graph.INPUTS]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch"])
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    proto = helper.make_graph(nodes, "unfused", ends, [logits], initializers)
    return written(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), directory)


def test_a_mask_of_the_least_float_works_in_half(tmp_path: Path):
    """The constant is clipped to what float16 holds, so padding is still nothing and no row is NaN (case 53)."""
    directory = least_as_mask(tmp_path / "unfused")
    assert check(directory, "reranker", batch(3, 17, 40, vocabulary=20)) < 0.02


def test_weights_beside_the_graph_are_found_and_kept_apart(
    tiny: TinyFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A graph with external data is read, and one over the limit is written so (field failure 46)."""
    model = graph.encoder(tiny.file)
    source, target = tmp_path / MODEL_NAME, tmp_path / HALF_NAME
    onnx.save_model(model, source, save_as_external_data=True, location="model.onnx.data", size_threshold=128)
    convert(source, target)
    assert not target.with_name(f"{HALF_NAME}.data").exists()
    monkeypatch.setattr(half, "PROTOBUF_LIMIT", 1000)
    convert(source, target)
    assert target.with_name(f"{HALF_NAME}.data").exists()
    feed = batch(3, 9, vocabulary=40)
    np.testing.assert_allclose(run(target, feed), run(source, feed), atol=TOLERANCES["encoder"])
