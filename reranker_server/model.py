"""The cross-encoder's rules: pairs, truncation, and the order that logits make."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from serving.errors import InvalidRequest
from serving.tokens import FrozenTokenizer, PairTruncation, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The rows of one query's candidates."""

    rows: list[Tokens]
    """One per candidate that is not blank, in order."""
    indices: list[int]
    """Each row's position among the candidates."""
    skipped: list[int]
    """Positions of blank candidates."""


def tokenize(
    tokenizer: FrozenTokenizer,
    query: str,
    passages: Sequence[str],
    *,
    truncation: PairTruncation | None,
    skip_blank: bool,
) -> Pairs:
    """Turn a query and its passages into rows; the query is tokenized once.

    Args:
        tokenizer: The bundle's.
        query: The question.
        passages: In order.
        truncation: How pairs over the limit are cut; None refuses them.
        skip_blank: Whether blank passages are left out instead of refused.

    Raises:
        InvalidRequest: Query or passage is blank (`TEXT_BLANK`), or a pair is too long and not to be cut
            (`PAIR_TOO_LONG`).
    """
    query_ids, *passage_ids = tokenizer.content_ids([query, *passages])
    if tokenizer.blank(query_ids):
        raise InvalidRequest("TEXT_BLANK", "no visible character", field="query")
    blank = [index for index, ids in enumerate(passage_ids) if tokenizer.blank(ids)]
    if blank and not skip_blank:
        raise InvalidRequest("TEXT_BLANK", "no visible character", field=f"candidates[{blank[0]}].text")
    indices = [index for index in range(len(passage_ids)) if index not in set(blank)]
    rows = [
        tokenizer.pair(query_ids, passage_ids[index], truncation or PairTruncation.LONGEST_FIRST) for index in indices
    ]
    for index, row in zip(indices, rows, strict=True):
        if row.truncated and truncation is None:
            message = f"{row.untruncated_count} tokens with the query, the limit is {tokenizer.max_tokens}"
            raise InvalidRequest("PAIR_TOO_LONG", message, field=f"candidates[{index}].text")
    return Pairs(rows=rows, indices=indices, skipped=blank)


def order(logits: Sequence[float], ids: Sequence[str]) -> list[int]:
    """Return positions best first: by logit, then by id (decimal numbers first, as numbers), then by position."""
    return sorted(range(len(logits)), key=lambda index: (-logits[index], _id_key(ids[index]), index))


def sigmoid(logit: float) -> float:
    """Return 1 / (1 + exp(-logit)), in the form whose exponent never overflows."""
    if logit >= 0:
        return 1 / (1 + math.exp(-logit))
    power = math.exp(logit)
    return power / (1 + power)


def _id_key(identifier: str) -> tuple[bool, int, str]:
    numeric = identifier.isascii() and identifier.isdigit()
    return (not numeric, int(identifier) if numeric else 0, identifier)
