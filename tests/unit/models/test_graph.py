"""The graphs of the demo models, on a tiny 4-bit file: shapes, norms, and independence of rows."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from tiny_models import TinyFile

from models import graph, weights

GENERATOR_SEED = 3


def adapter() -> weights.Adapter:
    """A random adapter that changes two linear layers of each encoder layer."""
    generator = np.random.default_rng(GENERATOR_SEED)

    def random(*shape: int):
        return generator.normal(0, 0.3, shape).astype(np.float16)

    low_rank = {
        f"encoder.layer.{layer}.{name}.lora_{side}": random(*((4, 32) if side == "A" else (32, 4)))
        for layer in range(2)
        for name in ("attention.self.query", "attention.output.dense")
        for side in "AB"
    }
    head = {"pooler.dense.weight": random(32, 32), "pooler.dense.bias": random(32)}
    return {**low_rank, **head, "classifier.weight": random(1, 32), "classifier.bias": random(1)}


@pytest.fixture(scope="module")
def models(tiny: TinyFile) -> dict[str, onnx.ModelProto]:
    """Both graphs, by kind."""
    return {"encoder": graph.encoder(tiny.file), "reranker": graph.reranker(tiny.file, adapter())}


def run(model: onnx.ModelProto, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Compute a graph's output."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"input_ids": ids, "attention_mask": mask})[0]


def batch(lengths: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return random ids and a mask for rows of these lengths."""
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    ids = np.random.default_rng(GENERATOR_SEED).integers(4, 45, mask.shape)
    return np.where(mask, ids, 1), mask


def test_vectors_have_norm_one(models: dict[str, onnx.ModelProto]):
    """The encoder's output is one vector of norm 1 per row."""
    vectors = run(models["encoder"], *batch([3, 17, 512]))
    assert vectors.shape == (3, 32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_logits_are_flat(models: dict[str, onnx.ModelProto]):
    """The reranker's output is one number per row, for a single row too."""
    assert run(models["reranker"], *batch([5, 9])).shape == (2,)
    assert run(models["reranker"], *batch([5])).shape == (1,)


@pytest.mark.parametrize("kind", ["encoder", "reranker"])
def test_a_row_does_not_depend_on_its_neighbours(models: dict[str, onnx.ModelProto], kind: str):
    """A row's output is the same alone and beside longer rows."""
    lengths = [3, 40, 7, 128]
    ids, mask = batch(lengths)
    together = run(models[kind], ids, mask)
    for row, length in enumerate(lengths):
        alone = run(models[kind], ids[row : row + 1, :length], mask[row : row + 1, :length])
        np.testing.assert_allclose(alone[0], together[row], atol=1e-5)


def test_padding_ids_are_not_seen(models: dict[str, onnx.ModelProto]):
    """Whatever id stands where the mask is 0, the output is the same."""
    ids, mask = batch([4, 9])
    other = np.where(mask, ids, 40)
    for model in models.values():
        np.testing.assert_allclose(run(model, ids, mask), run(model, other, mask), atol=1e-6)


def test_the_adapter_changes_the_body(tiny: TinyFile):
    """The low-rank changes reach the linear layers they are named after, and no others."""
    plain, changed = (dict(weights.layer(tiny.file, 1, part)) for part in (None, adapter()))
    names = {name for name in plain if not np.array_equal(plain[name], changed[name])}
    prefix = "encoder.layer.1.attention."
    assert names == {f"{prefix}self.query.weight", f"{prefix}output.dense.weight"}


def test_attention_is_fused(models: dict[str, onnx.ModelProto]):
    """Every layer's attention is one operator, and the manifest's words say which."""
    assert graph.attention_of(models["encoder"]) == "com.microsoft.Attention x 2"
    assert graph.attention_of(models["reranker"]) == "com.microsoft.Attention x 1, com.microsoft.MultiHeadAttention x 1"


def test_embeddings_stay_in_four_bits(models: dict[str, onnx.ModelProto], tiny: TinyFile):
    """The table is stored in 4 bits and looked up as the very numbers that the 4-bit file stands for."""
    model = models["encoder"]
    (table,) = (tensor for tensor in model.graph.initializer if tensor.name == "words")
    assert table.data_type == onnx.TensorProto.INT4
    (node,) = (node for node in model.graph.node if node.op_type == "GatherBlockQuantized")
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    probe.graph.output.append(onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, None))
    ids = np.arange(40).reshape(2, 20)
    np.testing.assert_array_equal(tiny.tensors["emb.word"][ids], run(probe, ids, np.ones_like(ids)))
