"""The demo models as ONNX graphs, written node by node. Knows the 4-bit file and ONNX, not how a bundle is laid out.

The word embeddings, more than half of all weights, stay in their 4-bit blocks; linear weights are float32. Attention is
the fused operator of ONNX Runtime. Layer normalization, Gelu and bias are the standard operators, which ONNX Runtime
fuses itself when it loads the graph: emitted ready-made, they were up to a tenth slower on a CPU.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from models import weights
from models.e5file import BLOCK, NIBBLE_ZERO, Blocks, E5File, Floats
from models.weights import Adapter

MICROSOFT = "com.microsoft"
OPSET = 21
IR_VERSION = 10
INPUTS = ("input_ids", "attention_mask")
VECTORS = "vectors"
LOGITS = "logits"
ATTENTION = "attention.self"

Linear = tuple[Floats, Floats]
"""Weight float32 [out, in] and bias float32 [out]."""


def encoder(file: E5File) -> onnx.ModelProto:
    """Build the encoder: int64 [batch, tokens] inputs to `vectors`, float32 [batch, hidden] of L2 norm 1."""
    body = _Body(file, None)
    states = body.embedded()
    for index in range(file.shape.layers):
        states = body.layer(states, index)
    body.mean_pooled(states)
    return body.graph.model("encoder", VECTORS, ["batch", file.shape.hidden])


def reranker(file: E5File, adapter: Adapter) -> onnx.ModelProto:
    """Build the reranker: int64 [batch, tokens] inputs to `logits`, float32 [batch].

    The head reads the first token only, so the last layer is computed for that token alone.
    """
    body = _Body(file, adapter)
    states = body.embedded()
    for index in range(file.shape.layers - 1):
        states = body.layer(states, index)
    first = body.first_token_layer(states, file.shape.layers - 1)
    body.classified(first, weights.head(adapter))
    return body.graph.model("reranker", LOGITS, ["batch"])


def attention_of(model: onnx.ModelProto) -> str:
    """Say how attention is computed, for people, for example "com.microsoft.Attention x 12"."""
    kinds = [
        node.op_type for node in model.graph.node if node.domain == MICROSOFT and node.op_type.endswith("Attention")
    ]
    return ", ".join(f"{MICROSOFT}.{kind} x {kinds.count(kind)}" for kind in sorted(set(kinds)))


class _Graph:
    """Nodes and initializers in the order in which they are added."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}

    def constant(self, name: str, value: npt.NDArray[Any] | np.generic) -> str:
        if name not in self._initializers:
            # A 0-dimensional array stays one; np.ascontiguousarray would make it a vector.
            self._initializers[name] = numpy_helper.from_array(np.array(value, order="C"), name)
        return name

    def ints(self, *values: int) -> str:
        return self.constant("ints_" + "_".join(map(str, values)), np.array(values, np.int64))

    def four_bits(self, name: str, blocks: Blocks) -> str:
        """Add a matrix of signed 4-bit numbers, two to a byte, the first in the low half."""
        signed = blocks.nibbles ^ NIBBLE_ZERO
        packed = (signed[:, 0::2] | signed[:, 1::2] << 4).tobytes()
        tensor = helper.make_tensor(name, TensorProto.INT4, blocks.nibbles.shape, packed, raw=True)
        self._initializers[name] = tensor
        return name

    def node(self, kind: str, *inputs: str, output: str = "", domain: str = "", **attributes: Any) -> str:
        output = output or f"{kind}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [output], domain=domain, **attributes))
        return output

    def model(self, name: str, output: str, shape: list[str | int]) -> onnx.ModelProto:
        inputs = [helper.make_tensor_value_info(i, TensorProto.INT64, ["batch", "tokens"]) for i in INPUTS]
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)]
        graph = helper.make_graph(self._nodes, name, inputs, outputs, list(self._initializers.values()))
        domains = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=domains, ir_version=IR_VERSION, producer_name="twostage")


class _Body:
    """BERT's layers as nodes; every method returns the name of what it computes, [batch, tokens, hidden] mostly."""

    def __init__(self, file: E5File, adapter: Adapter | None) -> None:
        self.graph = _Graph()
        self._file = file
        self._shape = file.shape
        self._adapter = adapter
        # ONNX Runtime's attention takes the mask as int32.
        self._mask = self.graph.node("Cast", "attention_mask", to=TensorProto.INT32)

    def embedded(self) -> str:
        """Add word, position and type embeddings; all tokens are of type 0, whose row joins the positions."""
        graph, shape = self.graph, self._shape
        blocks = self._file.blocks("emb.word", shape.vocabulary, shape.hidden)
        table = graph.four_bits("words", blocks)
        scales = graph.constant("words.scales", blocks.scales)
        axes: dict[str, Any] = {"gather_axis": 0, "quantize_axis": 1, "block_size": BLOCK}
        words = graph.node("GatherBlockQuantized", table, "input_ids", scales, domain=MICROSOFT, **axes)
        tensors = dict(weights.embeddings(self._file))
        kinds = tensors["embeddings.token_type_embeddings.weight"]
        positions = graph.constant("positions", tensors["embeddings.position_embeddings.weight"] + kinds[0])
        tokens = graph.node("Shape", "input_ids", start=1, end=2)
        places = graph.node("Slice", positions, graph.ints(0), tokens)
        return self._normalized(graph.node("Add", words, places), "embeddings.LayerNorm", tensors)

    def layer(self, states: str, index: int) -> str:
        """Compute one layer for all tokens."""
        tensors = dict(weights.layer(self._file, index, self._adapter))
        prefix = f"encoder.layer.{index}."
        parts = [_linear(tensors, f"{prefix}{ATTENTION}.{part}") for part in ("query", "key", "value")]
        weight = self.graph.constant(f"{prefix}qkv.weight", np.concatenate([part[0] for part in parts]).T)
        bias = self.graph.constant(f"{prefix}qkv.bias", np.concatenate([part[1] for part in parts]))
        heads = self._shape.heads
        context = self.graph.node("Attention", states, weight, bias, self._mask, domain=MICROSOFT, num_heads=heads)
        return self._after_attention(context, states, prefix, tensors)

    def first_token_layer(self, states: str, index: int) -> str:
        """Compute one layer for the first token, which attends to all: [batch, 1, hidden]."""
        tensors = dict(weights.layer(self._file, index, self._adapter))
        prefix = f"encoder.layer.{index}."
        first = self.graph.node("Slice", states, self.graph.ints(0), self.graph.ints(1), self.graph.ints(1))
        query = self._dense(first, f"{prefix}{ATTENTION}.query", tensors)
        key, value = (self._dense(states, f"{prefix}{ATTENTION}.{part}", tensors) for part in ("key", "value"))
        inputs = (query, key, value, "", self._mask)
        context = self.graph.node("MultiHeadAttention", *inputs, domain=MICROSOFT, num_heads=self._shape.heads)
        return self._after_attention(context, first, prefix, tensors)

    def mean_pooled(self, states: str) -> str:
        """Average the real tokens' states and scale to L2 norm 1: the sum will do, as the scaling undoes a division."""
        mask = self.graph.node("Cast", "attention_mask", to=TensorProto.FLOAT)
        row = self.graph.node("Unsqueeze", mask, self.graph.ints(1))
        total = self.graph.node("Squeeze", self.graph.node("MatMul", row, states), self.graph.ints(1))
        return self.graph.node("LpNormalization", total, output=VECTORS, axis=-1, p=2)

    def classified(self, first: str, head: dict[str, Floats]) -> str:
        """Turn the first token's state, [batch, 1, hidden], into a logit: dense, tanh, dense."""
        pooled = self.graph.node("Tanh", self._dense(first, "pooler.dense", head))
        logit = self._dense(pooled, "classifier", head)
        return self.graph.node("Squeeze", logit, self.graph.ints(1, 2), output=LOGITS)

    def _after_attention(self, context: str, states: str, prefix: str, tensors: dict[str, Floats]) -> str:
        attended = self._dense(context, f"{prefix}attention.output.dense", tensors)
        total = self.graph.node("Add", attended, states)
        states = self._normalized(total, f"{prefix}attention.output.LayerNorm", tensors)
        wide = self.graph.node("Gelu", self._dense(states, f"{prefix}intermediate.dense", tensors))
        narrow = self._dense(wide, f"{prefix}output.dense", tensors)
        return self._normalized(self.graph.node("Add", narrow, states), f"{prefix}output.LayerNorm", tensors)

    def _dense(self, states: str, name: str, tensors: dict[str, Floats]) -> str:
        weight, bias = _linear(tensors, name)
        product = self.graph.node("MatMul", states, self.graph.constant(f"{name}.weight", weight.T))
        return self.graph.node("Add", product, self.graph.constant(f"{name}.bias", bias))

    def _normalized(self, states: str, name: str, tensors: dict[str, Floats]) -> str:
        weight, bias = (self.graph.constant(f"{name}.{part}", tensors[f"{name}.{part}"]) for part in ("weight", "bias"))
        return self.graph.node("LayerNormalization", states, weight, bias, axis=-1, epsilon=self._shape.eps)


def _linear(tensors: dict[str, Floats], name: str) -> Linear:
    return tensors[f"{name}.weight"], tensors[f"{name}.bias"]
