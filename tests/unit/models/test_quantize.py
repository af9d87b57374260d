"""The int8 form: what becomes of a weight, and that a row's result is its own."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_models import TinyFile

from models import graph, quantize
from models.quantize import ACTIVATION_MAX, INT8_NAME, WEIGHT_MAX, columns, convert, rows, write_int8
from serving.bundle import MODEL_NAME

IN, OUT = 48, 24
INT16_MAX, UINT8_MAX = 2**15 - 1, 255


def normal(*shape: int, seed: int = 5) -> npt.NDArray[np.float32]:
    """Random float32 numbers, some far larger than most, as a transformer's are."""
    generator = np.random.default_rng(seed)
    return (generator.normal(size=shape) * generator.lognormal(0, 1, shape)).astype(np.float32)


def linear(path: Path, weight: npt.NDArray[np.float32], *, opset: int = 21, external: bool = False) -> Path:
    """Write a graph of one linear layer and a layer normalization: `x` to `product` and `y`."""
    constants = {"w": weight, "g": np.ones(weight.shape[1], np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("LayerNormalization", ["product", "g"], ["y"]),
    ]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
        for names in (["x"], ["product", "y"])
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "linear", *ends, tensors),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=10,
    )
    onnx.save(model, path, save_as_external_data=external, location=f"{path.name}.data", size_threshold=0)
    return path


def run(path: Path, feed: dict[str, npt.NDArray[np.generic]]) -> npt.NDArray[np.float32]:
    """Return a graph's first output, computed by one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return np.asarray(ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, feed)[0])


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """The int8 form of one linear layer."""
    convert(linear(tmp_path / "fp32.onnx", normal(IN, OUT)), tmp_path / "int8.onnx")
    return tmp_path / "int8.onnx"


def test_rows_are_independent(product: Path):
    """Field failure 11: a row is the same to the last bit alone and among rows that are a million times larger."""
    states = normal(2, 7, IN, seed=6)
    states[0, :3] *= 1e6
    together = run(product, {"x": states})
    alone = np.concatenate([run(product, {"x": row[None, None]})[0] for row in states.reshape(-1, IN)])
    np.testing.assert_array_equal(together.reshape(-1, OUT), alone)


def test_one_scale_per_tensor_would_not_be_independent():
    """The test above can fail: with the scale of the whole batch a row changes beside a larger one."""
    row, large = normal(1, IN), normal(1, IN, seed=6) * 1e3

    def quantized(states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        scale = np.abs(states).max() / ACTIVATION_MAX
        return np.rint(states / scale) * scale

    assert not np.array_equal(quantized(row)[0], quantized(np.concatenate([row, large]))[0])


@pytest.mark.parametrize("opset", [17, 21])
def test_error_bound(tmp_path: Path, opset: int):
    """No element is off by more than what half a step of every weight and of every activation can add up to."""
    weight, states = normal(IN, OUT), normal(5, IN, seed=6)
    convert(linear(tmp_path / "fp32.onnx", weight, opset=opset), tmp_path / "int8.onnx")
    actual = run(tmp_path / "int8.onnx", {"x": states})
    weight_steps = np.abs(weight).max(axis=0) / WEIGHT_MAX / 2
    state_steps = np.abs(states).max(axis=1, keepdims=True) / ACTIVATION_MAX / 2
    bound = np.abs(states).sum(axis=1, keepdims=True) * weight_steps
    bound += state_steps * (np.abs(weight).sum(axis=0) + IN * weight_steps)
    error = np.abs(actual - states.astype(np.float64) @ weight)
    assert (error <= bound * (1 + 1e-5)).all()
    assert error.max() > 0


def test_a_row_of_zeros_gives_zeros(product: Path):
    """Nothing is divided by zero."""
    np.testing.assert_array_equal(run(product, {"x": np.zeros((1, 2, IN), np.float32)}), 0)


def test_columns():
    """Every column has a scale of its own, is off by half a step at most, and uses the whole range."""
    weight = normal(IN, OUT) * np.logspace(-6, 6, OUT, dtype=np.float32)
    weight[:, 3] = 0
    integers, scales = columns(weight)
    assert integers.dtype == np.int8
    assert scales.shape == (OUT,)
    assert (np.abs(integers * scales - weight) <= scales * 0.501).all()
    assert set(np.abs(integers).max(axis=0)) == {0, WEIGHT_MAX}


def test_rows_of_a_table():
    """Every row of an embedding table has a scale of its own, and is off by half a step at most."""
    table = normal(9, IN) * np.logspace(-6, 6, 9, dtype=np.float32)[:, None]
    integers, scales = rows(table)
    assert scales.shape == (9, 1)
    assert (np.abs(integers * scales - table) <= scales * 0.501).all()


def test_no_pair_of_products_saturates():
    """Field failure 54: two products of uint8 and weight fit into 16 bits, whatever the CPU adds them in."""
    integers, _ = columns(normal(IN, OUT))
    assert 2 * UINT8_MAX * int(np.abs(integers.astype(int)).max()) <= INT16_MAX


def test_external_data(tmp_path: Path, product: Path):
    """Weights beside the graph give the same form, which needs no file beside it."""
    source = linear(tmp_path / "beside.onnx", normal(IN, OUT), external=True)
    assert (tmp_path / "beside.onnx.data").stat().st_size >= 4 * IN * OUT
    convert(source, tmp_path / "target.onnx")
    (tmp_path / "beside.onnx.data").unlink()
    states = normal(1, 3, IN)
    np.testing.assert_array_equal(run(tmp_path / "target.onnx", {"x": states}), run(product, {"x": states}))


def test_embedding_table(tmp_path: Path):
    """A table that the ids look up is stored as int8, and gives its rows within half a step."""
    table = normal(11, IN)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["found"]),
        helper.make_node("LayerNormalization", ["found", "ones"], ["y"]),
    ]
    ends = (
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("found", "y")],
    )
    tensors = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.ones(IN, np.float32), "ones")]
    model = helper.make_model(
        helper.make_graph(nodes, "lookup", *ends, tensors), opset_imports=[helper.make_opsetid("", 17)], ir_version=10
    )
    onnx.save(model, tmp_path / "fp32.onnx")
    convert(tmp_path / "fp32.onnx", tmp_path / "int8.onnx")
    ids = np.array([[3, 0, 10]])
    steps = np.abs(table[ids]).max(axis=-1, keepdims=True) / ACTIVATION_MAX
    assert (np.abs(run(tmp_path / "int8.onnx", {"input_ids": ids}) - table[ids]) <= steps * 0.501).all()
    stored = {tensor.name: tensor.data_type for tensor in onnx.load(tmp_path / "int8.onnx").graph.initializer}
    assert stored["table.int8"] == TensorProto.INT8
    assert "table" not in stored


def test_a_whole_model(tiny: TinyFile, tmp_path: Path):
    """A demo model's form has no float32 linear layer in its body, the same ends, and vectors that stay close."""
    model = graph.encoder(tiny.file)
    onnx.save(model, tmp_path / MODEL_NAME)
    form = write_int8(tmp_path, "encoder")
    assert (form.file, form.tolerance) == (INT8_NAME, quantize.TOLERANCES["encoder"])
    small = onnx.load(tmp_path / INT8_NAME)
    assert (small.graph.input, small.graph.output) == (model.graph.input, model.graph.output)
    kinds = [node.op_type for node in small.graph.node]
    assert kinds.count("MatMulIntegerToFloat") == 2 * 6
    assert kinds.count("MatMul") == 1  # pooling
    assert "Attention" not in kinds
    mask = (np.arange(20) < np.array([[20], [3]])).astype(np.int64)
    feed = {"input_ids": np.random.default_rng(1).integers(4, 45, mask.shape), "attention_mask": mask}
    exact, close = (run(tmp_path / name, feed) for name in (MODEL_NAME, INT8_NAME))
    cosines = (exact * close).sum(axis=1)
    assert (cosines >= 0.99).all()
    assert not np.array_equal(exact, close)


def test_attention_of_another_kind_stays(tiny: TinyFile, tmp_path: Path):
    """Fused attention with what the replacement lacks is left as it is."""
    model = graph.encoder(tiny.file)
    for node in model.graph.node:
        if node.op_type == "Attention":
            node.attribute.append(helper.make_attribute("qkv_hidden_sizes", [32, 32, 32]))
    onnx.save(model, tmp_path / MODEL_NAME)
    write_int8(tmp_path, "encoder")
    assert [node.op_type for node in onnx.load(tmp_path / INT8_NAME).graph.node].count("Attention") == 2
