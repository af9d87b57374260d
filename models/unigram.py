"""The tokenizer of multilingual-e5-small as the tokenizers library reads it, made from the 4-bit file's vocabulary."""

import base64
import unicodedata
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from models.charsmap import precompile
from models.e5file import Pieces

BOUNDARY = "\u2581"
MASK = "<mask>"
COMPOSED = tuple(chain(range(0xA0, 0xAC00), range(0xE000, 0x11350), range(0x114BB, 0x115BC)))
"""Where Unicode 12 has characters with a canonical composition, Hangul aside, which the vocabulary spells composed.

Later versions add compositions elsewhere only, so that every Python makes the same file.
"""


def tokenizer_json(pieces: Pieces) -> dict[str, Any]:
    """Return the contents of `tokenizer.json`: normalizer, pre-tokenizer, Unigram model, templates, special tokens."""
    charsmap = precompile({**compositions(pieces.normalizer), **pieces.normalizer})
    metaspace = {"type": "Metaspace", "replacement": BOUNDARY, "prepend_scheme": "always", "split": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(pieces),
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        "post_processor": _templates(pieces),
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": pieces.special.unk,
            "byte_fallback": False,
            "vocab": list(zip(pieces.texts, pieces.scores, strict=True)),
        },
    }


def compositions(normalizer: Mapping[str, str]) -> dict[str, str]:
    """Return what decomposed spellings (a letter, then its marks) are composed to.

    The 4-bit file maps single code points only, while sentencepiece's nmt_nfkc rule composes sequences too.
    """
    return {
        spelling: normalizer.get(composed, composed)
        for composed in map(chr, COMPOSED)
        for spelling in _spellings(composed)
    }


def _spellings(composed: str) -> Iterator[str]:
    """Yield a character's spellings in two or more code points, partly composed ones among them."""
    full = unicodedata.normalize("NFD", composed)
    if len(full) == 1 or unicodedata.normalize("NFC", full) != composed:
        return
    for split in range(1, len(full)):
        spelling = unicodedata.normalize("NFC", full[:split]) + full[split:]
        if len(spelling) > 1:
            yield spelling


def _added_tokens(pieces: Pieces) -> list[dict[str, Any]]:
    ids = sorted([*dict(pieces.special).values(), pieces.texts.index(MASK)])
    flags = {"single_word": False, "rstrip": False, "normalized": False, "special": True}
    return [
        {"id": token, "content": pieces.texts[token], "lstrip": pieces.texts[token] == MASK, **flags} for token in ids
    ]


def _templates(pieces: Pieces) -> dict[str, Any]:
    bos, eos = (pieces.texts[token] for token in (pieces.special.bos, pieces.special.eos))

    def special(name: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": 0}}

    def sequence(name: str) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": 0}}

    return {
        "type": "TemplateProcessing",
        "single": [special(bos), sequence("A"), special(eos)],
        "pair": [special(bos), sequence("A"), special(eos), special(eos), sequence("B"), special(eos)],
        "special_tokens": {
            name: {"id": name, "ids": [token], "tokens": [name]}
            for name, token in ((bos, pieces.special.bos), (eos, pieces.special.eos))
        },
    }
