"""Golden outputs: what the fp32 reference model makes of about 20 inputs.

`python -m models.golden` computes those of the demo models again, which needs torch and transformers, and writes them
beside the inputs; preparing the demo models only copies them.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models import e5file, reference, weights
from serving.bundle import Golden, GoldenRow, Kind

DIRECTORY = Path(__file__).parent / "golden"
INPUTS = DIRECTORY / "inputs.json"
DEMO = {"encoder": DIRECTORY / "demo_encoder.json", "reranker": DIRECTORY / "demo_reranker.json"}
DIGITS = 7
"""Significant digits kept: more than float32 holds for sure, and far more than any tolerance needs."""

Pair = tuple[str, str | None]
Compute = Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], npt.NDArray[np.float32]]


def inputs(kind: Kind) -> list[Pair]:
    """Return the inputs: (text, None) for an encoder, (query, passage) for a reranker."""
    found = json.loads(INPUTS.read_bytes())
    if kind == "encoder":
        return [(row["text"] * row["times"], None) for row in found["texts"]]
    return [(row["query"], row["passage"] * row["times"]) for row in found["pairs"]]


def compute(source: Path, kind: Kind, max_tokens: int, run: Compute, name: str) -> Golden:
    """Compute golden outputs, one row at a time, with the tokenizer of the reference implementation.

    Args:
        source: Hugging Face directory whose tokenizer is used.
        kind: Encoder or reranker.
        max_tokens: Most tokens of a row; longer ones are cut, pairs longest first.
        run: int64 [1, tokens] ids and mask to float32 [1, dimension] vectors or float32 [1] logits.
        name: What computes, for people.
    """
    from transformers import AutoTokenizer  # noqa: PLC0415 - the demo profile has no transformers

    tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
    rows = []
    for text, passage in inputs(kind):
        encoded = tokenizer(text, passage, truncation="longest_first", max_length=max_tokens)
        ids = np.array([encoded["input_ids"]], np.int64)
        output = np.atleast_1d(run(ids, np.ones_like(ids))[0])
        rows.append(GoldenRow(text=text, passage=passage, token_count=ids.shape[1], output=_rounded(output)))
    return Golden(reference=name, rows=tuple(rows))


def write(golden: Golden, path: Path) -> None:
    """Write golden outputs, a row to a line."""
    rows = ",\n".join(row.model_dump_json() for row in golden.rows)
    path.write_text(f'{{"reference":{json.dumps(golden.reference)},"rows":[\n{rows}\n]}}\n', encoding="utf-8")


def demo(kind: Kind, directory: Path) -> Golden:
    """Compute the golden outputs of a demo model.

    Args:
        kind: Encoder or reranker.
        directory: Where the model's Hugging Face directory is written.
    """
    from models import torch_model  # noqa: PLC0415 - the demo profile has no torch

    file = e5file.E5File(e5file.locate())
    reference.write(file, directory, weights.read_adapter() if kind == "reranker" else None)
    model = torch_model.load(directory, kind)

    def run(ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        return torch_model.run(model, ids, mask)

    return compute(directory, kind, file.shape.positions, run, describe(model))


def describe(model: Any) -> str:
    """Name the reference, for people, for example "torch 2.13.0, BertModel, fp32"."""
    from models import torch_model  # noqa: PLC0415 - the demo profile has no torch

    return f"torch {torch_model.versions()['torch']}, {type(model.body).__name__}, fp32"


def _rounded(values: Sequence[float] | npt.NDArray[np.float32]) -> tuple[float, ...]:
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)


def main() -> None:
    """Compute and write the golden outputs of both demo models."""
    kinds: tuple[Kind, ...] = ("encoder", "reranker")
    for kind in kinds:
        with tempfile.TemporaryDirectory() as directory:
            write(demo(kind, Path(directory)), DEMO[kind])
        sys.stdout.write(f"{DEMO[kind]}\n")


if __name__ == "__main__":
    main()
