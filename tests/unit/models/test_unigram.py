"""The tokenizer made from the 4-bit file's vocabulary."""

import hashlib
import json
import unicodedata

import pytest
from tiny_models import TinyFile
from tokenizers import Tokenizer

from models import e5file
from models.unigram import compositions, tokenizer_json

FILE_SHA256 = "45b5280f8e9c26b7c7dc819328dbd66950c01185e2ed6a761e679c126f0334d6"
"""Of the real tokenizer.json; changing it makes collections of older encoders unusable, so it is never by accident."""


@pytest.fixture(scope="module")
def tokenizer(tiny: TinyFile) -> Tokenizer:
    """The tiny vocabulary's tokenizer."""
    return Tokenizer.from_str(json.dumps(tokenizer_json(tiny.file.pieces)))


@pytest.fixture(scope="module")
def real() -> e5file.E5File:
    """The package's 4-bit file."""
    return e5file.E5File(e5file.locate())


def test_templates(tokenizer: Tokenizer):
    """Singles and pairs get the special tokens of XLM-R's templates."""
    assert tokenizer.encode("a").tokens == ["<s>", "\u2581", "a", "</s>"]
    assert tokenizer.encode("a", "b").tokens == ["<s>", "\u2581", "a", "</s>", "</s>", "\u2581", "b", "</s>"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        pytest.param("the code", ["\u2581the", "\u2581code"], id="whole pieces"),
        pytest.param("  the \t\n the ", ["\u2581the", "\u2581the"], id="white space"),
        pytest.param("the\u00a0\uff21", ["\u2581the", "\u2581", "a"], id="mapped characters"),
        pytest.param("the\u200bcode", ["\u2581the", "c", "o", "d", "e"], id="deleted characters"),
        pytest.param("e\u0301", ["\u2581", "é"], id="decomposed letter"),
        pytest.param("Ж", ["\u2581", "<unk>"], id="unknown"),
        pytest.param("", [], id="empty"),
    ],
)
def test_tokens(tokenizer: Tokenizer, text: str, tokens: list[str]):
    """Texts are normalized, split at white space and cut into the likeliest pieces."""
    found = tokenizer.encode(text, add_special_tokens=False)
    assert [("<unk>" if token == 3 else piece) for token, piece in zip(found.ids, found.tokens, strict=True)] == tokens


def test_compositions_are_canonical(real: e5file.E5File):
    """Every spelling is canonically equal to the one character it stands for, and none is of one character."""
    found = compositions({})
    assert len(found) > 1000
    assert all(len(key) > 1 and unicodedata.normalize("NFC", key) == target for key, target in found.items())
    assert not compositions(real.pieces.normalizer).keys() & real.pieces.normalizer.keys()


def test_the_real_file_never_changes_by_accident(real: e5file.E5File):
    """The real tokenizer.json has the bytes it always had, under every Python."""
    text = json.dumps(tokenizer_json(real.pieces), ensure_ascii=False, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == FILE_SHA256
