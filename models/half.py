"""The fp16 form of a graph, for GPUs: half the memory, and tensor cores. Inputs and output stay what they are.

All up to the last layer normalization becomes float16; what follows, pooling and norm or the head, is little work and
stays float32. Attention masks with -10000, which float16 can hold, and softmax and layer normalization add up in
float32 by themselves, as ONNX Runtime's kernels and the operator's definition have it.
"""

from pathlib import Path
from typing import Any

from serving.bundle import MODEL_NAME, Form, Kind

HALF_NAME = "model.fp16.onnx"
TOLERANCES: dict[Kind, float] = {"encoder": 2e-3, "reranker": 0.2}
"""Largest absolute difference from the fp32 reference: per vector element, or per logit."""
# In an unfused graph the mask is a constant of the least float32; clipped to this it works as well, and sums of it are
# still finite.
LARGEST = 1e4
PROTOBUF_LIMIT = 2**31 - 2**26


def write_half(part: Path, kind: Kind) -> Form:
    """Write `model.fp16.onnx` beside `model.onnx` of a bundle that is being made.

    Args:
        part: The bundle's directory.
        kind: What the model is.

    Returns:
        What the manifest has to say of it.
    """
    convert(part / MODEL_NAME, part / HALF_NAME)
    return Form(file=HALF_NAME, weights="fp16, head and pooling fp32", tolerance=TOLERANCES[kind])


def convert(source: Path, target: Path) -> None:
    """Write a graph's fp16 form.

    Args:
        source: A graph of float32, external data beside it.
        target: The file to write; weights over protobuf's limit go into a file of their own beside it.
    """
    import onnx  # noqa: PLC0415 - no dependency of who only serves
    from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415
    from onnxruntime.transformers.onnx_model import OnnxModel  # noqa: PLC0415

    # Types are inferred without the weights: in one message with them they may exceed protobuf's limit.
    model = onnx.shape_inference.infer_shapes(onnx.load(source, load_external_data=False))
    kept = _tail(model.graph)
    onnx.external_data_helper.load_external_data_for_model(model, str(source.parent))
    (output,) = model.graph.output
    # Asked to keep the output's type, the converter rounds it to float16 and casts back; this hides it instead.
    output.type.tensor_type.elem_type = onnx.TensorProto.UNDEFINED
    half = convert_float_to_float16(model, disable_shape_infer=True, max_finite_val=LARGEST, node_block_list=kept)
    half.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    sorted_model = OnnxModel(half)
    sorted_model.topological_sort()
    size = sum(len(tensor.raw_data) for tensor in half.graph.initializer)
    sorted_model.save_model_to_file(str(target), use_external_data_format=size > PROTOBUF_LIMIT)


def _tail(graph: Any) -> list[str]:
    """Name all nodes and return those that the last normalized states do not depend on: pooling or head, and its mask.

    The converter casts where a type is written down, so there it is written of those states, and of what is computed
    from them it is not.
    """
    from onnx import TensorProto, helper  # noqa: PLC0415 - no dependency of who only serves

    for index, node in enumerate(graph.node):
        node.name = node.name or f"{node.op_type}_{index}"
    states = [node for node in graph.node if node.op_type == "LayerNormalization"][-1].output[0]
    needed, tail = {states}, []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
        else:
            tail.append(node)
    computed = {output for node in tail for output in node.output}
    typed = [value for value in graph.value_info if value.name not in computed]
    del graph.value_info[:]
    graph.value_info.extend([*typed, helper.make_tensor_value_info(states, TensorProto.FLOAT, None)])
    return [node.name for node in tail]
