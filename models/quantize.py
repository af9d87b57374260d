"""The int8 form of a graph, for CPUs: weights in a quarter of the memory, products in integer instructions.

Every linear layer of the body is computed from int8 weights with a scale per column and from activations with a scale
per row, found when the graph runs. A row is one token, so what a text gives depends on no other text of its batch;
ONNX Runtime's own dynamic quantization takes one scale for a whole batch. Attention, normalization, Gelu, pooling and
head stay float32, and so does what each layer adds to. How other forms compare: docs/precision.md.

Weights use 7 of the 8 bits. CPUs without VNNI add two products of uint8 and int8 in 16 bits, which would saturate:
2 x 255 x 64 still fits. Wants numpy and onnx only, and of external data holds one weight at a time.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from serving.bundle import MODEL_NAME, Form, Kind

INT8_NAME = "model.int8.onnx"
WEIGHTS = "int8 linear weights with a scale per column, int8 activations with a scale per token"
TOLERANCES: dict[Kind, float] = {"encoder": 0.035, "reranker": 3.0}
"""Largest absolute difference from the fp32 reference: per vector element, or per logit."""
WEIGHT_MAX = 63
ACTIVATION_MAX, ACTIVATION_ZERO = 127, 128
MICROSOFT = "com.microsoft"
TINY = 1e-12
"""Least largest value of a row, so that a row of zeros has a scale."""
AXES_AS_INPUT = 18
"""Opset from which a reduction takes its axes as an input."""
ATTENTION_INPUTS = 4
"""States, weight, bias, mask."""
PROTOBUF_LIMIT = 2**31 - 2**26

Floats = npt.NDArray[np.float32]


def write_int8(part: Path, kind: Kind) -> Form:
    """Write `model.int8.onnx` beside `model.onnx` of a bundle that is being made.

    Args:
        part: The bundle's directory.
        kind: What the model is.

    Returns:
        What the manifest has to say of it.
    """
    convert(part / MODEL_NAME, part / INT8_NAME)
    return Form(file=INT8_NAME, weights=WEIGHTS, tolerance=TOLERANCES[kind])


def convert(source: Path, target: Path) -> None:
    """Write a graph's int8 form.

    Args:
        source: A graph of float32, external data beside it.
        target: The file to write; weights over protobuf's limit go into a file of their own beside it.
    """
    model = onnx.load(source, load_external_data=False)
    _Rewriting(model, source.parent).run()
    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    onnx.save(model, target, save_as_external_data=size > PROTOBUF_LIMIT, location=f"{target.name}.data")


def columns(weight: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Quantize a weight, float32 [in, out], to int8 of the same shape and float32 [out], a scale per column."""
    scales = np.maximum(np.abs(weight).max(axis=0), TINY) / np.float32(WEIGHT_MAX)
    return np.rint(weight / scales).astype(np.int8), scales.astype(np.float32)


def rows(table: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Quantize an embedding table, float32 [rows, hidden], to int8 and float32 [rows, 1], a scale per row."""
    scales = np.maximum(np.abs(table).max(axis=1, keepdims=True), TINY) / np.float32(ACTIVATION_MAX)
    return np.rint(table / scales).astype(np.int8), scales.astype(np.float32)


class _Rewriting:
    """Replaces nodes of a graph; a weight in external data is read when its node is met, and not kept."""

    def __init__(self, model: onnx.ModelProto, directory: Path) -> None:
        self._graph = model.graph
        self._directory = directory
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self._nodes: list[onnx.NodeProto] = []
        self._quantized: dict[str, tuple[str, str]] = {}
        self._opset = next(one.version for one in model.opset_import if not one.domain)
        if all(one.domain != MICROSOFT for one in model.opset_import):
            model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))

    def run(self) -> None:
        """Replace linear layers, fused attention and the embedding table up to the last layer normalization."""
        nodes = list(self._graph.node)
        last = max((at for at, node in enumerate(nodes) if node.op_type == "LayerNormalization"), default=-1)
        for node in nodes[: last + 1]:
            self._rewrite(node)
        self._nodes.extend(nodes[last + 1 :])
        used = {name for node in self._nodes for name in node.input}
        kept = [self._loaded(tensor) for name, tensor in self._weights.items() if name in used]
        del self._graph.node[:], self._graph.initializer[:]
        self._graph.node.extend(self._nodes)
        self._graph.initializer.extend(kept)

    def _rewrite(self, node: onnx.NodeProto) -> None:
        if node.op_type == "MatMul" and self._matrix(node.input[1]):
            self._linear(node.input[0], node.input[1], self._read(node.input[1]), node.output[0])
        elif _plain_attention(node) and self._matrix(node.input[1]):
            self._attention(node)
        elif node.op_type == "Gather" and self._matrix(node.input[0]) and node.input[1] == "input_ids":
            self._embedding(node)
        else:
            self._nodes.append(node)

    def _linear(self, states: str, name: str, weight: Floats, output: str) -> None:
        """Compute states [..., in] times a weight [in, out]; the float product of a row is its integers' times scales.

        The column's scale is applied where the integers leave the product, the row's behind it.
        """
        quantized, row_scales = self._activations(states)
        integers, scales = columns(weight)
        zero = self._constant("activation_zero", np.uint8(ACTIVATION_ZERO))
        one = self._constant("one", np.float32(1))
        inputs = (
            quantized,
            self._constant(f"{name}.int8", integers),
            one,
            self._constant(f"{name}.scales", scales / np.float32(ACTIVATION_MAX)),
            zero,
        )
        product = self._node("MatMulIntegerToFloat", *inputs, output=f"{output}.columns", domain=MICROSOFT)
        self._node("Mul", product, row_scales, output=output)

    def _activations(self, states: str) -> tuple[str, str]:
        """Quantize each row to uint8 around 128; return them and each row's largest magnitude, [..., 1].

        What q, k and v are made of is quantized once.
        """
        if states not in self._quantized:
            top = self._reduced("ReduceMax", states)
            bottom = self._node("Neg", self._reduced("ReduceMin", states), output=f"{states}.bottom")
            tiny = self._constant("tiny", np.float32(TINY))
            largest = self._node("Max", top, bottom, tiny, output=f"{states}.largest")
            most = self._constant("activation_max", np.float32(ACTIVATION_MAX))
            factors = self._node("Div", most, largest, output=f"{states}.factors")
            scaled = self._node("Mul", states, factors, output=f"{states}.scaled")
            one = self._constant("one", np.float32(1))
            zero = self._constant("activation_zero", np.uint8(ACTIVATION_ZERO))
            # Rounds to even and clips, in one vectorized step.
            quantized = self._node("QuantizeLinear", scaled, one, zero, output=f"{states}.uint8")
            self._quantized[states] = quantized, largest
        return self._quantized[states]

    def _attention(self, node: onnx.NodeProto) -> None:
        """Take the projections out of fused attention; the rest of it is the same operator without them."""
        states, weight_name, bias_name, *others = node.input
        weight, bias = self._read(weight_name), self._read(bias_name)
        parts = []
        for part, columns_, biases in zip("qkv", np.split(weight, 3, axis=1), np.split(bias, 3), strict=True):
            name = f"{weight_name}.{part}"
            self._linear(states, name, np.ascontiguousarray(columns_), f"{name}.product")
            addend = self._constant(f"{bias_name}.{part}", biases)
            parts.append(self._node("Add", f"{name}.product", addend, output=f"{name}.output"))
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        self._node("MultiHeadAttention", *parts, "", *others, output=node.output[0], domain=MICROSOFT, **attributes)

    def _embedding(self, node: onnx.NodeProto) -> None:
        """Look up int8 rows and their scales."""
        name, ids = node.input
        integers, scales = rows(self._read(name))
        found = [
            self._node("Gather", self._constant(f"{name}.{suffix}", values), ids, output=f"{node.output[0]}.{suffix}")
            for suffix, values in (("int8", integers), ("scales", scales))
        ]
        floats = self._node("Cast", found[0], output=f"{node.output[0]}.floats", to=TensorProto.FLOAT)
        self._node("Mul", floats, found[1], output=node.output[0])

    def _reduced(self, kind: str, states: str) -> str:
        output = f"{states}.{kind}"
        if self._opset < AXES_AS_INPUT:
            return self._node(kind, states, output=output, axes=[-1], keepdims=1)
        return self._node(kind, states, self._constant("last_axis", np.array([-1])), output=output, keepdims=1)

    def _node(self, kind: str, *inputs: str, output: str, domain: str = "", **attributes: Any) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [output], name=output, domain=domain, **attributes))
        return output

    def _constant(self, name: str, value: npt.NDArray[Any] | np.generic) -> str:
        if name not in self._weights:
            self._weights[name] = numpy_helper.from_array(np.array(value, order="C"), name)
        return name

    def _matrix(self, name: str) -> bool:
        tensor = self._weights.get(name)
        return tensor is not None and len(tensor.dims) == 2 and tensor.data_type == TensorProto.FLOAT  # noqa: PLR2004

    def _read(self, name: str) -> Floats:
        values: Floats = numpy_helper.to_array(self._weights[name], str(self._directory))
        return values

    def _loaded(self, tensor: onnx.TensorProto) -> onnx.TensorProto:
        if tensor.data_location == TensorProto.EXTERNAL:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(self._directory))
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]
        return tensor


def _plain_attention(node: onnx.NodeProto) -> bool:
    """Tell whether a node is fused attention of states and at most a mask, which the operator without projections has.

    Their attributes of the same name mean the same.
    """
    if node.op_type != "Attention" or node.domain != MICROSOFT or len(node.input) > ATTENTION_INPUTS:
        return False
    return {one.name for one in node.attribute} <= {"num_heads", "mask_filter_value", "scale", "unidirectional"}
