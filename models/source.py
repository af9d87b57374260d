"""What a Hugging Face directory says of its model, checked for contradictions. Knows no graph."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.bundle import TOKENIZER_NAME, Kind, SpecialTokens
from serving.errors import Misconfigured
from serving.tokens import FrozenTokenizer

DEFAULT_MAX_TOKENS = 512
PAD_COUNTED_POSITIONS = ("xlm-roberta",)
"""Architectures whose position table begins after the pad id, so that pad_id + 1 of its rows are never used."""
ARCHITECTURES = ("bert", *PAD_COUNTED_POSITIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a Hugging Face directory says of its model."""

    path: Path
    kind: Kind
    config: dict[str, Any]
    special: SpecialTokens
    max_tokens: int


def describe(path: Path, kind: Kind, max_tokens: int | None, tokenizer: Path) -> Source:
    """Read a Hugging Face directory, and write its tokenizer's file.

    Args:
        path: The directory.
        kind: What the model is to be used as.
        max_tokens: Most tokens of a row; None is 512, or what the model can where that is less.
        tokenizer: Where to write `tokenizer.json`.

    Raises:
        Misconfigured: The architecture is not supported, the tokenizer is another model's, or `max_tokens` is over the
            model's limit.
    """
    config = _read_config(path)
    special, limit = _write_tokenizer(path, tokenizer)
    limit = min(limit, usable_positions(config))
    if max_tokens is not None and max_tokens > limit:
        raise Misconfigured("MAX_TOKENS", f"max_tokens={max_tokens} is over the limit of {path}: {limit}")
    max_tokens = max_tokens or min(DEFAULT_MAX_TOKENS, limit)
    source = Source(path=path, kind=kind, config=config, special=special, max_tokens=max_tokens)
    _check_tokenizer(source, FrozenTokenizer(tokenizer, special, max_tokens).vocabulary)
    return source


def usable_positions(config: dict[str, Any]) -> int:
    """Return how many tokens a model's position table really has room for.

    Source: transformers' XLM-R, whose first token has position pad_token_id + 1.
    """
    rows = int(config["max_position_embeddings"])
    if config["model_type"] in PAD_COUNTED_POSITIONS:
        return rows - int(config["pad_token_id"]) - 1
    return rows


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
    from transformers import AutoTokenizer  # noqa: PLC0415 - torch and its kin are no dependency of who only serves

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


def _check_tokenizer(source: Source, vocabulary: int) -> None:
    rows, pad = source.config["vocab_size"], source.config.get("pad_token_id")
    if vocabulary > rows:
        raise Misconfigured(
            "TOKENIZER_MISMATCH",
            f"{source.path}: the tokenizer has {vocabulary} pieces, the embedding table {rows} rows",
        )
    # Elsewhere padding is known by the mask alone, and some configurations name a pad id that was never used.
    if source.config["model_type"] in PAD_COUNTED_POSITIONS and pad != source.special.pad:
        raise Misconfigured(
            "TOKENIZER_MISMATCH", f"{source.path}: the tokenizer pads with {source.special.pad}, the model with {pad}"
        )
