"""The demo models as Hugging Face directories: what the reference implementation needs to compute golden outputs."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from models import weights
from models.e5file import E5File, Floats
from models.unigram import tokenizer_json
from models.weights import Adapter

SPECIAL_NAMES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "cls_token": "<s>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}


def write(file: E5File, out: Path, adapter: Adapter | None = None) -> None:
    """Write configuration, weights (float32) and tokenizer of the encoder or, with an adapter, of the reranker."""
    from safetensors.numpy import save_file  # noqa: PLC0415 - only who prepares models has it

    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors(file, adapter), out / "model.safetensors", metadata={"format": "pt"})
    _write_json(out / "config.json", config(file, adapter))
    write_tokenizer(file, out)


def write_tokenizer(file: E5File, out: Path) -> None:
    """Write the tokenizer alone."""
    _write_json(out / "tokenizer.json", tokenizer_json(file.pieces))
    limits = {"model_max_length": file.shape.positions, "padding_side": "right"}
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    _write_json(out / "tokenizer_config.json", {**SPECIAL_NAMES, **limits, **names})


def tensors(file: E5File, adapter: Adapter | None) -> dict[str, Floats]:
    """Return all weights by the reference implementation's names; the encoder, which pools by itself, has no pooler."""
    shape = file.shape
    found = {weights.WORDS: file.blocks("emb.word", shape.vocabulary, shape.hidden).dequantized()}
    found.update(weights.embeddings(file))
    for index in range(shape.layers):
        found.update(weights.layer(file, index, adapter))
    if adapter is None:
        return found
    head = weights.head(adapter)
    found.update({name: head.pop(name) for name in list(head) if name.startswith("pooler.")})
    return {**{f"bert.{name}": np.ascontiguousarray(value) for name, value in found.items()}, **head}


def config(file: E5File, adapter: Adapter | None) -> dict[str, Any]:
    """Return the configuration as the reference implementation reads it."""
    shape, special = file.shape, file.pieces.special
    label: dict[str, Any] = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    return {
        "architectures": ["BertModel" if adapter is None else "BertForSequenceClassification"],
        "model_type": "bert",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.ffn,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.positions,
        "type_vocab_size": shape.types,
        "layer_norm_eps": float(f"{shape.eps:.6g}"),
        "hidden_act": "gelu",
        "bos_token_id": special.bos,
        "eos_token_id": special.eos,
        "pad_token_id": special.pad,
        **({} if adapter is None else label),
    }


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
