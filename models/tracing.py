"""A torch model to an ONNX graph with fused attention, and the proof that it computes the same.

The graph comes from torch's tracing exporter with eager attention, because the pattern that this leaves is the one that
ONNX Runtime's offline optimizer fuses into its attention operator; from the newer exporter's graphs it fuses none.
Layer normalization and Gelu are left to ONNX Runtime, which fuses them with biases and sums when it loads a graph.
"""

import logging
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models.golden import Compute
from models.source import Source
from serving.bundle import MODEL_NAME, Kind
from serving.errors import Misconfigured

log = logging.getLogger(__name__)

OPSET = 17
PROTOBUF_LIMIT = 2**31 - 2**26
"""Bytes of weights above which they go into a file of their own: protobuf's 2 GiB, less room for the graph."""
INPUTS = ("input_ids", "attention_mask")
OUTPUTS: dict[Kind, str] = {"encoder": "vectors", "reranker": "logits"}
PROBE_SHAPES = ((1, 3), (2, 17), (3, 512))
"""Batch and tokens at which an exported graph has to agree with torch: a frozen axis shows at one of these."""


def write_graph(model: Any, source: Source, part: Path) -> str:
    """Write a model's graph, and its weights in a file of their own where they are too many for one.

    Args:
        model: A module of `models.torch_model`.
        source: What it was loaded from.
        part: The directory to write `model.onnx` into.

    Returns:
        How attention is computed, for people; a layer in which it was not fused is logged too.
    """
    traced = part / "traced"
    traced.mkdir()
    _trace(model, source, traced / MODEL_NAME)
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    fused = _fuse(traced / MODEL_NAME, source, part / MODEL_NAME, external=size > PROTOBUF_LIMIT)
    shutil.rmtree(traced)
    layers = source.config["num_hidden_layers"]
    if fused != layers:
        log.warning("%s: attention fused in %d of %d layers; the graph will be slower", source.path, fused, layers)
    return f"com.microsoft.Attention x {fused} of {layers}"


def prove(graph: Path, run: Compute, source: Source, tolerance: float) -> float:
    """Run every probe shape, padding in all rows but the first, and compare with the reference.

    Returns:
        The largest absolute difference.

    Raises:
        Misconfigured: A shape does not run, or differs by more than the tolerance.
    """
    import onnxruntime as ort  # noqa: PLC0415 - torch and its kin are no dependency of who only serves

    worst = 0.0
    session = ort.InferenceSession(graph, providers=["CPUExecutionProvider"])
    for batch, tokens in PROBE_SHAPES:
        ids, mask = _probe(source, batch, min(tokens, source.max_tokens))
        expected = run(ids, mask)
        try:
            (actual,) = session.run(None, dict(zip(INPUTS, (ids, mask), strict=True)))
        except Exception as error:  # onnxruntime's exceptions share no base but this
            raise Misconfigured("EXPORT_SHAPE", f"the exported graph does not run at {ids.shape}") from error
        difference = float(np.abs(actual - expected).max()) if actual.shape == expected.shape else float("nan")
        if not difference <= tolerance:  # NaN too
            raise Misconfigured(
                "EXPORT_PARITY",
                f"at {ids.shape} the exported graph gives {actual.shape} and torch {expected.shape}, difference "
                f"{difference:.2g}, tolerance {tolerance:g}",
            )
        worst = max(worst, difference)
    return worst


def _trace(model: Any, source: Source, target: Path) -> None:
    import torch  # noqa: PLC0415 - torch and its kin are no dependency of who only serves

    example = tuple(torch.from_numpy(array) for array in _probe(source, 2, 8))
    output = OUTPUTS[source.kind]
    axes = {name: {0: "batch", 1: "tokens"} for name in INPUTS} | {output: {0: "batch"}}
    with warnings.catch_warnings(), torch.inference_mode():
        # The tracer warns of every shape that Python saw; `prove` looks whether one was frozen.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            example,
            str(target),
            input_names=list(INPUTS),
            output_names=[output],
            dynamic_axes=axes,
            opset_version=OPSET,
            dynamo=False,
        )


def _fuse(traced: Path, source: Source, target: Path, *, external: bool) -> int:
    """Fuse attention and save; return in how many layers it was fused."""
    import onnx  # noqa: PLC0415 - torch and its kin are no dependency of who only serves
    from onnxruntime.transformers.fusion_options import FusionOptions  # noqa: PLC0415
    from onnxruntime.transformers.optimizer import optimize_model  # noqa: PLC0415

    fusions = FusionOptions("bert")
    fusions.use_raw_attention_mask()
    fusions.enable_embed_layer_norm = False
    fusions.enable_skip_layer_norm = False
    fusions.enable_bias_skip_layer_norm = False
    fusions.enable_bias_gelu = False
    # The optimizer finds useless casts, which hide attention, by types: written down here without the weights being
    # read, they spare it its own inference, which takes five times the memory of the weights.
    fusions.enable_shape_inference = False
    typed = onnx.shape_inference.infer_shapes(onnx.load(traced, load_external_data=False))
    traced.write_bytes(typed.SerializeToString())
    heads, hidden = source.config["num_attention_heads"], source.config["hidden_size"]
    optimized = optimize_model(
        str(traced), "bert", num_heads=heads, hidden_size=hidden, optimization_options=fusions, opt_level=0
    )
    optimized.save_model_to_file(str(target), use_external_data_format=external)
    return len(optimized.get_nodes_by_op_type("Attention"))


def _probe(source: Source, batch: int, tokens: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return ids and mask, int64 [batch, tokens]; each row has one token less than the one before."""
    generator = np.random.default_rng(tokens)
    ids = generator.integers(0, source.config["vocab_size"], (batch, tokens))
    # A pad id among the tokens would shift the positions after it, and so would not be what a text can give.
    ids[ids == source.special.pad] = source.special.unk
    mask = np.arange(tokens) < tokens - np.arange(batch)[:, None]
    return np.where(mask, ids, source.special.pad), mask.astype(np.int64)
