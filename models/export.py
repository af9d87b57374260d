"""A Hugging Face directory to a bundle, with torch and transformers, which are imported only when one is exported.

The graph comes from torch's tracing exporter with eager attention, because the pattern that this leaves is the one that
ONNX Runtime's offline optimizer fuses into its attention operator; from the newer exporter's graphs it fuses none.
Layer normalization and Gelu are left to ONNX Runtime, which fuses them with biases and sums when it loads a graph.
"""

import json
import logging
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from models import golden
from models.build import building
from serving.bundle import (
    GOLDEN_NAME,
    MODEL_NAME,
    TOKENIZER_NAME,
    Kind,
    Manifest,
    SpecialTokens,
    file_entries,
    write_manifest,
)
from serving.errors import Misconfigured
from serving.tokens import FrozenTokenizer

log = logging.getLogger(__name__)

OPSET = 17
DEFAULT_MAX_TOKENS = 512
PROTOBUF_LIMIT = 2**31 - 2**26
"""Bytes of weights above which they go into a file of their own: protobuf's 2 GiB, less room for the graph."""
INPUTS = ("input_ids", "attention_mask")
OUTPUTS: dict[Kind, str] = {"encoder": "vectors", "reranker": "logits"}
TOLERANCES: dict[Kind, float] = {"encoder": 1e-4, "reranker": 1e-3}
PROBE_SHAPES = ((1, 3), (2, 17), (3, 512))
"""Batch and tokens at which an exported graph has to agree with torch: a frozen axis shows at one of these."""
PAD_COUNTED_POSITIONS = ("xlm-roberta",)
"""Architectures whose position table begins after the pad id, so that pad_id + 1 of its rows are never used."""
ARCHITECTURES = ("bert", *PAD_COUNTED_POSITIONS)

Pooling = Literal["mean", "cls"]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What the directory itself does not say."""

    model_id: str
    revision: str
    source: str
    """Where the directory came from, for people."""
    max_tokens: int | None = None
    """Most tokens of a row; None is 512, or what the model can where that is less."""
    pooling: Pooling = "mean"
    query_prefix: str = ""
    passage_prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What a Hugging Face directory says of its model."""

    path: Path
    kind: Kind
    config: dict[str, Any]
    special: SpecialTokens
    max_tokens: int


def export(source: Path, kind: Kind, out: Path, options: ExportOptions, progress: Progress = log.info) -> Path:
    """Make a bundle.

    Args:
        source: Hugging Face directory: `config.json`, weights, tokenizer.
        kind: Encoder or reranker.
        out: The bundle's directory; one that exists is replaced once the new one is complete.
        options: What the directory itself does not say.
        progress: Called with one line for people at each step.

    Returns:
        `out`.

    Raises:
        Misconfigured: The model is of an architecture that is not supported, contradicts its tokenizer, has no
            classification head, cannot take `max_tokens`, or its graph does not agree with torch at every shape.
    """
    from models import torch_model  # noqa: PLC0415 - torch is no dependency of who only serves

    with building(out) as part:
        described = _describe(source, kind, options, part / TOKENIZER_NAME)
        progress(f"{kind}: loading {options.model_id}")
        model = torch_model.load(source, kind, options.pooling)
        progress(f"{kind}: exporting")
        attention = _write_graph(model, described, part)
        progress(f"{kind}: {attention}; comparing with torch")

        def run(ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
            return torch_model.run(model, ids, mask)

        prove(part / MODEL_NAME, run, described, TOLERANCES[kind])
        name = golden.describe(model)
        golden.write(golden.compute(source, kind, described.max_tokens, run, name), part / GOLDEN_NAME)
        write_manifest(part, _manifest(described, options, attention, part))
    return out


def usable_positions(config: dict[str, Any]) -> int:
    """Return how many tokens a model's position table really has room for.

    Source: transformers' XLM-R, whose first token has position pad_token_id + 1.
    """
    rows = int(config["max_position_embeddings"])
    if config["model_type"] in PAD_COUNTED_POSITIONS:
        return rows - int(config["pad_token_id"]) - 1
    return rows


def prove(graph: Path, run: golden.Compute, source: "_Source", tolerance: float) -> float:
    """Run every probe shape, padding in all rows but the first, and compare with the reference.

    Returns:
        The largest absolute difference.

    Raises:
        Misconfigured: A shape does not run, or differs by more than the tolerance.
    """
    import onnxruntime as ort  # noqa: PLC0415 - as above

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


def _describe(source: Path, kind: Kind, options: ExportOptions, tokenizer: Path) -> _Source:
    config = _read_config(source)
    special, limit = _write_tokenizer(source, tokenizer)
    limit = min(limit, usable_positions(config))
    if options.max_tokens is not None and options.max_tokens > limit:
        raise Misconfigured("MAX_TOKENS", f"max_tokens={options.max_tokens} is over the limit of {source}: {limit}")
    max_tokens = options.max_tokens or min(DEFAULT_MAX_TOKENS, limit)
    vocabulary = FrozenTokenizer(tokenizer, special, max_tokens).vocabulary
    if vocabulary > config["vocab_size"]:
        raise Misconfigured(
            "TOKENIZER_MISMATCH",
            f"{source}: the tokenizer has {vocabulary} pieces, the embedding table {config['vocab_size']} rows",
        )
    # Elsewhere padding is known by the mask alone, and some configurations name a pad id that was never used.
    if config["model_type"] in PAD_COUNTED_POSITIONS and config["pad_token_id"] != special.pad:
        raise Misconfigured(
            "TOKENIZER_MISMATCH",
            f"{source}: the tokenizer pads with {special.pad}, the model with {config['pad_token_id']}",
        )
    return _Source(path=source, kind=kind, config=config, special=special, max_tokens=max_tokens)


def _read_config(source: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((source / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise Misconfigured("MODEL_MALFORMED", f"{source} has no readable config.json") from error
    if config.get("model_type") not in ARCHITECTURES:
        raise Misconfigured(
            "MODEL_UNSUPPORTED", f"{source}: model_type is {config.get('model_type')!r}, supported: {ARCHITECTURES}"
        )
    return config


def _write_tokenizer(source: Path, target: Path) -> tuple[SpecialTokens, int]:
    """Write the tokenizer's file and return its special tokens and its own limit in tokens."""
    from transformers import AutoTokenizer  # noqa: PLC0415 - as above

    tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
    if (source / TOKENIZER_NAME).is_file():
        shutil.copyfile(source / TOKENIZER_NAME, target)
    else:
        tokenizer.backend_tokenizer.save(str(target))
    special = SpecialTokens(
        bos=tokenizer.cls_token_id,
        eos=tokenizer.sep_token_id,
        pad=tokenizer.pad_token_id,
        unk=tokenizer.unk_token_id,
    )
    return special, int(tokenizer.model_max_length)


def _write_graph(model: Any, source: _Source, part: Path) -> str:
    """Trace, fuse and save; return how attention is computed, for people."""
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


def _trace(model: Any, source: _Source, target: Path) -> None:
    import torch  # noqa: PLC0415 - as above

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


def _fuse(traced: Path, source: _Source, target: Path, *, external: bool) -> int:
    """Fuse attention and save; return in how many layers it was fused."""
    from onnxruntime.transformers.fusion_options import FusionOptions  # noqa: PLC0415 - as above
    from onnxruntime.transformers.optimizer import optimize_model  # noqa: PLC0415

    fusions = FusionOptions("bert")
    fusions.use_raw_attention_mask()
    fusions.enable_embed_layer_norm = False
    fusions.enable_skip_layer_norm = False
    fusions.enable_bias_skip_layer_norm = False
    fusions.enable_bias_gelu = False
    heads, hidden = source.config["num_attention_heads"], source.config["hidden_size"]
    optimized = optimize_model(
        str(traced), "bert", num_heads=heads, hidden_size=hidden, optimization_options=fusions, opt_level=0
    )
    optimized.save_model_to_file(str(target), use_external_data_format=external)
    return len(optimized.get_nodes_by_op_type("Attention"))


def _probe(source: _Source, batch: int, tokens: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return ids and mask, int64 [batch, tokens]; each row has one token less than the one before."""
    generator = np.random.default_rng(tokens)
    ids = generator.integers(0, source.config["vocab_size"], (batch, tokens))
    # A pad id among the tokens would shift the positions after it, and so would not be what a text can give.
    ids[ids == source.special.pad] = source.special.unk
    mask = np.arange(tokens) < tokens - np.arange(batch)[:, None]
    return np.where(mask, ids, source.special.pad), mask.astype(np.int64)


def _manifest(source: _Source, options: ExportOptions, attention: str, part: Path) -> Manifest:
    from models import torch_model  # noqa: PLC0415 - as above

    encoder = source.kind == "encoder"
    return Manifest(
        kind=source.kind,
        model_id=options.model_id,
        source=options.source,
        revision=options.revision,
        architecture=source.config["architectures"][0],
        precision="fp32",
        weights="fp32",
        vocabulary=source.config["vocab_size"],
        max_tokens=source.max_tokens,
        special_tokens=source.special,
        inputs=INPUTS,
        output=OUTPUTS[source.kind],
        dimension=source.config["hidden_size"] if encoder else None,
        pooling=options.pooling if encoder else None,
        query_prefix=options.query_prefix,
        passage_prefix=options.passage_prefix,
        attention=attention,
        tolerance=TOLERANCES[source.kind],
        tools=torch_model.versions(),
        files=file_entries(part),
    )
