"""A Hugging Face directory to a bundle, with torch and transformers, which are imported only when one is exported."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from models import golden, half
from models.build import building
from models.golden import Compute
from models.source import Source, describe
from models.tracing import INPUTS, OUTPUTS, prove, write_graph
from serving.bundle import (
    GOLDEN_NAME,
    MODEL_NAME,
    TOKENIZER_NAME,
    Form,
    Kind,
    Manifest,
    Precision,
    file_entries,
    write_manifest,
)
from serving.errors import Misconfigured

log = logging.getLogger(__name__)

TOLERANCES: dict[Kind, float] = {"encoder": 1e-4, "reranker": 1e-3}

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
    fp16: bool = False
    """Whether the bundle gets an fp16 form too, which is what a GPU runs; one that is too far off is left out."""
    int8: bool = False
    """Whether it gets an int8 form too, which is what a CPU with VNNI runs; one that is too far off is left out."""


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
            classification head, cannot take `max_tokens`, or a graph of it does not agree with torch at every shape.
    """
    from models import torch_model  # noqa: PLC0415 - torch is no dependency of who only serves

    with building(out) as part:
        described = describe(source, kind, options.max_tokens, part / TOKENIZER_NAME)
        progress(f"{kind}: loading {options.model_id}")
        model = torch_model.load(source, kind, options.pooling)
        progress(f"{kind}: exporting")
        attention = write_graph(model, described, part)
        progress(f"{kind}: {attention}; comparing with torch")

        def run(ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
            return torch_model.run(model, ids, mask)

        prove(part / MODEL_NAME, run, described, TOLERANCES[kind])
        forms: dict[Precision, Form] = {}
        for precision, write in _writers(options).items():
            progress(f"{kind}: converting to {precision}; comparing with torch")
            forms.update(_form(precision, write, part, described, run, progress))
        name = golden.describe(model)
        golden.write(golden.compute(source, kind, described.max_tokens, run, name), part / GOLDEN_NAME)
        manifest = _manifest(described, options, attention, part)
        write_manifest(part, manifest.model_copy(update={"forms": forms}))
    return out


def _writers(options: ExportOptions) -> dict[Precision, Callable[[Path, Kind], Form]]:
    """Return what writes each further form that is wanted."""
    from models import quantize  # noqa: PLC0415 - onnx is no dependency of who only serves

    writers: dict[Precision, Callable[[Path, Kind], Form]] = {}
    if options.fp16:
        writers["fp16"] = half.write_half
    if options.int8:
        writers["int8"] = quantize.write_int8
    return writers


def _form(
    precision: Precision,
    write: Callable[[Path, Kind], Form],
    part: Path,
    source: Source,
    run: Compute,
    progress: Progress,
) -> dict[Precision, Form]:
    """Write a form; how much a model loses by it is known only afterwards, and fp32 serves as well."""
    form = write(part, source.kind)
    try:
        prove(part / form.file, run, source, form.tolerance)
    except Misconfigured as error:
        progress(f"{source.kind}: without the {precision} form: {error.message}")
        for path in part.glob(f"{form.file}*"):
            path.unlink()
        return {}
    return {precision: form}


def _manifest(source: Source, options: ExportOptions, attention: str, part: Path) -> Manifest:
    from models import torch_model  # noqa: PLC0415 - torch is no dependency of who only serves

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
