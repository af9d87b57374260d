"""The frozen tokenizer: text to ids, single and pair templates, truncation. Knows no model and no request.

The tokenizers library keeps truncation and padding as mutable state of a shared object, and lets text that spells a
special token become one. Here a tokenizer is stripped at load of everything but normalizer, pre-tokenizer and
vocabulary, and never reconfigured; templates and truncation are ours, on plain lists of ids.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from serving.bundle import SpecialTokens
from serving.errors import Misconfigured

SINGLE_SPECIALS = 2
PAIR_SPECIALS = 4
# XLM-R's piece for a word boundary: what is left of a text that has no visible character.
BOUNDARY_PIECE = "\u2581"
# FlagEmbedding's reranker cuts the query to three quarters of the limit before the passage gets the rest
# (inference/reranker/encoder_only/base.py).
QUERY_SHARE = 0.75
SURROGATE = re.compile("[\ud800-\udfff]")

Ids = list[int]


class PairTruncation(Enum):
    """How a pair over the limit is cut."""

    LONGEST_FIRST = "longest_first"
    ONLY_PASSAGE = "only_passage"


@dataclass(frozen=True, slots=True)
class Tokens:
    """One row for the model: ids with the template's special tokens, and what was cut."""

    ids: Ids
    untruncated_count: int
    """Tokens the row would have without a limit, special tokens included."""
    truncated: bool = False
    query_truncated: bool = False

    def __len__(self) -> int:
        """Tokens in the row."""
        return len(self.ids)


class FrozenTokenizer:
    """Text to ids, safe to call from any number of threads.

    Args:
        path: `tokenizer.json` of a Unigram (sentencepiece) model.
        special: Ids of the template's tokens.
        max_tokens: Most tokens of a row, special tokens included.

    Raises:
        Misconfigured: The file is no such tokenizer, or its vocabulary contradicts `special`.
    """

    def __init__(self, path: Path, special: SpecialTokens, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._special = special
        config = _strip(path, special)
        self.vocabulary = len(config["model"]["vocab"])
        try:
            self._tokenizer = Tokenizer.from_str(json.dumps(config))
        except Exception as error:  # the library raises nothing narrower
            raise Misconfigured("TOKENIZER_MALFORMED", f"{path} is no tokenizer that tokenizers can read") from error
        self._boundary = self._tokenizer.token_to_id(BOUNDARY_PIECE)

    def content_ids(self, texts: Sequence[str]) -> list[Ids]:
        """Tokenize texts without templates; the GIL is released meanwhile.

        A lone surrogate, which no UTF-8 text holds, is read as U+FFFD.
        """
        clean = [text if text.isascii() else SURROGATE.sub("\ufffd", text) for text in texts]
        encodings = self._tokenizer.encode_batch_fast(clean, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def blank(self, ids: Ids) -> bool:
        """Tell whether ids hold nothing but word boundaries, as those of "" and of white space do."""
        return all(token == self._boundary for token in ids)

    def single(self, ids: Ids) -> Tokens:
        """Put ids into `<s> text </s>`, cutting the text's end where the row is over the limit."""
        room = self.max_tokens - SINGLE_SPECIALS
        kept = ids[:room]
        return Tokens(
            [self._special.bos, *kept, self._special.eos],
            untruncated_count=len(ids) + SINGLE_SPECIALS,
            truncated=len(kept) < len(ids),
        )

    def pair(self, query: Ids, passage: Ids, truncation: PairTruncation) -> Tokens:
        """Put ids into `<s> query </s></s> passage </s>`, cutting the ends where the row is over the limit."""
        room = self.max_tokens - PAIR_SPECIALS
        query_room, passage_room = _pair_room(len(query), len(passage), room, truncation)
        bos, eos = self._special.bos, self._special.eos
        untruncated = len(query) + len(passage) + PAIR_SPECIALS
        return Tokens(
            [bos, *query[:query_room], eos, eos, *passage[:passage_room], eos],
            untruncated_count=untruncated,
            truncated=untruncated > self.max_tokens,
            query_truncated=query_room < len(query),
        )


def pad(rows: Sequence[Tokens], pad_id: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Lay rows out as one rectangle.

    Returns:
        Ids, int64 [batch, tokens], filled up with `pad_id`, and the mask, int64 [batch, tokens], 1 on real tokens.
    """
    lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, pad_id, np.int64)
    ids[mask] = np.fromiter(chain.from_iterable(row.ids for row in rows), np.int64, int(lengths.sum()))
    return ids, mask.astype(np.int64)


def _pair_room(query: int, passage: int, room: int, truncation: PairTruncation) -> tuple[int, int]:
    """Return how many ids of query and passage are kept.

    LONGEST_FIRST is what tokenizers does under that name: the shorter side is kept whole where it fits into half of the
    room, else both get half, and the passage the odd one.
    """
    if query + passage <= room:
        return query, passage
    if truncation is PairTruncation.ONLY_PASSAGE:
        query = min(query, int(room * QUERY_SHARE))
        return query, room - query
    shorter = min(query, passage)
    if 2 * shorter > room:
        # tokenizers gives the odd token to whichever side was longer.
        half, odd = divmod(room, 2)
        return (half + odd, half) if query > passage else (half, half + odd)
    return (room - shorter, shorter) if query > passage else (shorter, room - shorter)


def _strip(path: Path, special: SpecialTokens) -> dict[str, Any]:
    """Read a tokenizer and take from it all state and every way for text to become a special token.

    A Unigram vocabulary holds the special tokens as ordinary pieces too, so they are renamed to strings with a space in
    them, which the pre-tokenizer can never hand to the model.
    """
    try:
        config: dict[str, Any] = json.loads(path.read_bytes())
        vocabulary = [(str(piece), float(score)) for piece, score in config["model"]["vocab"]]
        added = {entry["id"]: entry["content"] for entry in config["added_tokens"]}
        kind = config["model"]["type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Misconfigured("TOKENIZER_MALFORMED", f"{path} is no tokenizer.json of a Unigram model") from error
    if kind != "Unigram":
        raise Misconfigured("TOKENIZER_MALFORMED", f"{path}: model type is {kind}, not Unigram")
    for name, token in special:
        if not 0 <= token < len(vocabulary) or token not in added:
            raise Misconfigured("TOKENIZER_MISMATCH", f"{path}: {name} id {token} is no special token of the tokenizer")
    for token in added.keys() & range(len(vocabulary)):
        vocabulary[token] = (f" special {token} ", vocabulary[token][1])
    config["model"]["vocab"] = vocabulary
    config.update(truncation=None, padding=None, post_processor=None, added_tokens=[])
    return config
