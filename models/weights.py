"""The demo models' weights under the names that the reference implementation gives them. Knows no ONNX, no torch."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from models.e5file import E5File, Floats

ADAPTER = Path(__file__).parent / "demo_reranker_adapter.safetensors"
"""The demo reranker: low-rank changes to the encoder's linear layers, a pooler and a one-label head."""

LINEAR = {
    "attention.self.query": "q",
    "attention.self.key": "k",
    "attention.self.value": "v",
    "attention.output.dense": "ao",
    "intermediate.dense": "fi",
    "output.dense": "fo",
}
NORM = {"attention.output.LayerNorm": "aln", "output.LayerNorm": "oln"}
WORDS = "embeddings.word_embeddings.weight"

Adapter = Mapping[str, npt.NDArray[np.float16]]


def read_adapter(path: Path = ADAPTER) -> Adapter:
    """Read an adapter: `<layer>.lora_A` [rank, in], `<layer>.lora_B` [out, rank], and the head's tensors."""
    from safetensors.numpy import load_file  # noqa: PLC0415 - only who prepares models has it

    tensors: Adapter = load_file(path)
    return tensors


def embeddings(file: E5File) -> Iterator[tuple[str, Floats]]:
    """Yield what is added and normalized before the first layer, without the word embeddings."""
    shape = file.shape
    yield "embeddings.position_embeddings.weight", file.floats("emb.pos", shape.positions, shape.hidden)
    yield "embeddings.token_type_embeddings.weight", file.floats("emb.type", shape.types, shape.hidden)
    yield "embeddings.LayerNorm.weight", file.floats("emb.ln.w", shape.hidden)
    yield "embeddings.LayerNorm.bias", file.floats("emb.ln.b", shape.hidden)


def layer(file: E5File, index: int, adapter: Adapter | None = None) -> Iterator[tuple[str, Floats]]:
    """Yield one layer's weights, the adapter's change added: linear ones as float32 [out, in], the others flat."""
    prefix = f"encoder.layer.{index}."
    for name, short in LINEAR.items():
        rows, columns = linear_shape(file, short)
        weight = file.blocks(f"l{index}.{short}.w", rows, columns).dequantized()
        yield f"{prefix}{name}.weight", weight + _change(adapter or {}, prefix + name)
        yield f"{prefix}{name}.bias", file.floats(f"l{index}.{short}.b", rows)
    for name, short in NORM.items():
        for kind, letter in (("weight", "w"), ("bias", "b")):
            yield f"{prefix}{name}.{kind}", file.floats(f"l{index}.{short}.{letter}", file.shape.hidden)


def head(adapter: Adapter) -> dict[str, Floats]:
    """Return the reranker's pooler and one-label classifier."""
    names = ("pooler.dense.weight", "pooler.dense.bias", "classifier.weight", "classifier.bias")
    return {name: adapter[name].astype(np.float32) for name in names}


def linear_shape(file: E5File, short: str) -> tuple[int, int]:
    """Return a linear layer's (out, in)."""
    hidden, ffn = file.shape.hidden, file.shape.ffn
    return {"fi": (ffn, hidden), "fo": (hidden, ffn)}.get(short, (hidden, hidden))


def _change(adapter: Adapter, name: str) -> Floats | np.float32:
    if f"{name}.lora_A" not in adapter:
        return np.float32(0)
    change: Floats = adapter[f"{name}.lora_B"].astype(np.float32) @ adapter[f"{name}.lora_A"].astype(np.float32)
    return change
