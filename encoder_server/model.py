"""E5's rules for text: role prefixes, what is blank, what is too long. Texts in, rows of ids out."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from encoder_server.splitting import Measured, Piece, Unsplittable, split, split_sentences
from serving.bundle import Manifest
from serving.errors import InvalidRequest
from serving.tokens import FrozenTokenizer, Tokens


class Role(Enum):
    """What a text is to E5."""

    QUERY = "query"
    PASSAGE = "passage"


def prefix_of(manifest: Manifest, role: Role) -> str:
    """Return what stands in front of every text of a role."""
    return manifest.query_prefix if role is Role.QUERY else manifest.passage_prefix


def tokenize(tokenizer: FrozenTokenizer, texts: Sequence[str], *, prefix: str, truncate: bool) -> list[Tokens]:
    """Turn texts into rows.

    The prefix is always added, also to a text that begins with it: a rule that looks at the text would treat a question
    about prefixes differently from every other.

    Args:
        tokenizer: The bundle's.
        texts: In order.
        prefix: The role's.
        truncate: Whether a row over the limit is cut instead of refused.

    Raises:
        InvalidRequest: A text is blank (`TEXT_BLANK`), or too long and not to be cut (`TEXT_TOO_LONG`).
    """
    bare, *contents = tokenizer.content_ids([prefix, *(prefix + text for text in texts)])
    rows = [tokenizer.single(ids) for ids in contents]
    for index, (ids, row) in enumerate(zip(contents, rows, strict=True)):
        field = f"texts[{index}]"
        if tokenizer.blank(ids[len(bare) :]):
            raise InvalidRequest("TEXT_BLANK", "no visible character", field=field)
        if row.truncated and not truncate:
            message = f"{row.untruncated_count} tokens, the limit is {tokenizer.max_tokens}"
            raise InvalidRequest("TEXT_TOO_LONG", message, field=field)
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """How texts are split."""

    max_tokens: int
    """Most tokens of a passage, prefix and special tokens included."""
    overlap_tokens: int
    """Most tokens that neighbours share."""
    per_sentence: bool
    """Whether every sentence is a passage of its own; neighbours share nothing then."""


def split_text(tokenizer: FrozenTokenizer, text: str, *, prefix: str, how: Splitting, field: str) -> list[Piece]:
    """Split a text into passages that `tokenize` takes whole.

    Args:
        tokenizer: The bundle's.
        text: To be split.
        prefix: The role's.
        how: No limit over the tokenizer's.
        field: Names the text in errors.

    Raises:
        InvalidRequest: The text is blank (`TEXT_BLANK`), or one of its characters is over the limit (`TEXT_TOO_LONG`).
    """
    bare = len(tokenizer.content_ids([prefix])[0])

    def measure(texts: Sequence[str]) -> list[Measured]:
        contents = tokenizer.content_ids([prefix + one for one in texts])
        return [
            Measured(tokenizer.single(ids).untruncated_count, blank=tokenizer.blank(ids[bare:])) for ids in contents
        ]

    if measure([text])[0].blank:
        raise InvalidRequest("TEXT_BLANK", "no visible character", field=field)
    try:
        if how.per_sentence:
            return split_sentences(text, measure, max_tokens=how.max_tokens)
        return split(text, measure, max_tokens=how.max_tokens, overlap_tokens=how.overlap_tokens)
    except Unsplittable as error:
        message = f"one character is over the limit of {how.max_tokens} tokens"
        raise InvalidRequest("TEXT_TOO_LONG", message, field=field) from error
