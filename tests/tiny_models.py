"""Tiny models in the forms that real ones come in: a 4-bit file, and Hugging Face directories with random weights."""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models import reference
from models.e5file import E5File

HIDDEN, LAYERS, HEADS, FFN, POSITIONS, TYPES = 32, 2, 2, 64, 512, 2
BLOCK, SPARE_ROWS = 32, 3
LETTERS = "abcdefghijklmnopqrstuvwxyzéß0123456789.,?"
PIECES = ["<s>", "<pad>", "</s>", "<unk>", "\u2581", *LETTERS, "\u2581the", "\u2581code", "<mask>"]
NORMALIZER = {"\uff21": "a", "\u00a0": " ", "\u200b": "", "\u00bd": "1/2"}


@dataclass(frozen=True)
class TinyFile:
    path: Path
    tensors: dict[str, np.ndarray]

    @property
    def file(self) -> E5File:
        return E5File(self.path)


def write_e5_file(path: Path, *, magic: bytes = b"E5S1", block: int = BLOCK) -> TinyFile:
    """Write a 4-bit file by its layout, and return the weights that went into it."""
    generator = np.random.default_rng(7)
    vocabulary = len(PIECES) + SPARE_ROWS
    header = magic + struct.pack("<I7ifi", 1, HIDDEN, LAYERS, HEADS, FFN, vocabulary, POSITIONS, TYPES, 1e-12, block)
    directory, blob, tensors = b"", b"", {}
    shapes = _shapes(vocabulary)
    base = len(header) + len(_pieces()) + len(_normalizer()) + 4 + sum(2 + len(name) + 21 for name in shapes)
    for name, shape in shapes.items():
        quantized = (name.endswith(".w") and len(shape) == 2) or name == "emb.word"
        raw, tensors[name] = (_quantized if quantized else _plain)(generator, shape)
        directory += struct.pack("<H", len(name)) + name.encode()
        directory += struct.pack("<BIQQ", int(quantized), int(np.prod(shape)), base + len(blob), len(raw))
        blob += raw
    count = struct.pack("<i", len(shapes))
    path.write_bytes(header + _pieces() + _normalizer() + count + directory + blob)
    return TinyFile(path, tensors)


def write_hub_model(directory: Path, tiny: TinyFile, kind: str, **changes: Any) -> Path:
    """Write a random model in the form a hub has it: a BERT encoder or an XLM-R reranker."""
    import torch  # noqa: PLC0415 - only some tests need it
    import transformers  # noqa: PLC0415

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(11)
    measures = {
        "vocab_size": len(PIECES) + SPARE_ROWS,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": FFN,
        # Far from zero, so that a mistake shows in the outputs.
        "initializer_range": 0.4,
    }
    if kind == "encoder":
        config = transformers.BertConfig(**{**measures, "max_position_embeddings": 512, "pad_token_id": 0, **changes})
        model = transformers.BertModel(config)
    else:
        special = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "max_position_embeddings": 514}
        config = transformers.XLMRobertaConfig(
            **{**measures, **special, "type_vocab_size": 1, "num_labels": 1, **changes}
        )
        model = transformers.XLMRobertaForSequenceClassification(config)
    model.save_pretrained(directory)
    reference.write_tokenizer(tiny.file, directory)
    return directory


def _shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "emb.word": (vocabulary, HIDDEN),
        "emb.pos": (POSITIONS, HIDDEN),
        "emb.type": (TYPES, HIDDEN),
        "emb.ln.w": (HIDDEN,),
        "emb.ln.b": (HIDDEN,),
    }
    for layer in range(LAYERS):
        for name, (rows, columns) in {
            **dict.fromkeys(("q", "k", "v", "ao"), (HIDDEN, HIDDEN)),
            "fi": (FFN, HIDDEN),
            "fo": (HIDDEN, FFN),
        }.items():
            shapes[f"l{layer}.{name}.w"] = (rows, columns)
            shapes[f"l{layer}.{name}.b"] = (rows,)
        for name in ("aln", "oln"):
            shapes[f"l{layer}.{name}.w"] = shapes[f"l{layer}.{name}.b"] = (HIDDEN,)
    return shapes


def _plain(generator: np.random.Generator, shape: tuple[int, ...]) -> tuple[bytes, np.ndarray]:
    values = generator.normal(0.5, 0.5, shape).astype("<f4")
    return values.tobytes(), values


def _quantized(generator: np.random.Generator, shape: tuple[int, ...]) -> tuple[bytes, np.ndarray]:
    rows, columns = shape
    nibbles = generator.integers(0, 16, (rows, columns // BLOCK, BLOCK), np.uint8)
    scales = generator.uniform(0.02, 0.2, (rows, columns // BLOCK)).astype("<f2")
    packed = nibbles[:, :, :16] | nibbles[:, :, 16:] << 4
    raw = np.concatenate([scales[:, :, None].view(np.uint8), packed], axis=2)
    values = (nibbles.astype(np.float32) - 8) * scales.astype(np.float32)[:, :, None]
    return raw.tobytes(), values.reshape(shape)


def _pieces() -> bytes:
    texts = [piece.encode() for piece in PIECES]
    offsets = np.cumsum([0, *map(len, texts)]).astype("<u4")
    scores = np.array([0, 0, 0, 0, *(-2.0 - 0.125 * i for i in range(len(PIECES) - 4))], "<f4")
    head = struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, int(offsets[-1]))
    return head + offsets.tobytes() + scores.tobytes() + b"".join(texts)


def _normalizer() -> bytes:
    rows = b""
    for key, target in NORMALIZER.items():
        rows += struct.pack(f"<IB{len(target)}I", ord(key), len(target), *map(ord, target))
    return struct.pack("<iI", len(NORMALIZER), len(rows)) + rows
