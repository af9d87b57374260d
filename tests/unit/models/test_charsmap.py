"""The binary character map says the same to the tokenizers library as the mapping it was made from."""

import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.normalizers import Normalizer, Precompiled

from models.charsmap import precompile

LETTERS = st.characters(blacklist_categories=("Cs",), blacklist_characters="\0")
MAPPINGS = st.dictionaries(LETTERS, st.text(LETTERS, max_size=4), min_size=1, max_size=60)


def normalizer(mapping: dict[str, str]) -> Normalizer:
    """Return the mapping as the tokenizers library reads it."""
    return Precompiled(precompile(mapping))


@settings(max_examples=60, deadline=None)
@given(MAPPINGS)
def test_every_key_is_mapped(mapping: dict[str, str]):
    """Every single-character key becomes its target."""
    built = normalizer(mapping)
    assert {key: built.normalize_str(key) for key in mapping} == mapping


@settings(max_examples=60, deadline=None)
@given(MAPPINGS, LETTERS)
def test_nothing_else_is_mapped(mapping: dict[str, str], other: str):
    """A character that is no key stays as it is."""
    if other not in mapping:
        assert normalizer(mapping).normalize_str(other) == other


def test_sequences_and_shared_beginnings():
    """Keys of several characters are found, also where one key's bytes begin another's."""
    built = normalizer({"e\u0301": "é", "e\u0301\u0323": "ẹ́", "ﬁ": "fi", "\u200b": ""})
    assert built.normalize_str("cafe\u0301 ﬁn\u200b") == "café fin"


def test_a_map_larger_than_a_page():
    """Thousands of keys with the same leading bytes find room, each at a place of its own."""
    mapping = {chr(code): f"<{code}>" for code in range(0x3400, 0x4400)}
    built = normalizer(mapping)
    assert all(built.normalize_str(key) == target for key, target in mapping.items())


@pytest.mark.parametrize("key", ["a", "\u00e9", "\U0001f600"])
def test_is_what_tokenizer_json_carries(key: str):
    """The bytes survive the way through tokenizer.json's base64."""
    state = json.loads(normalizer({key: "x"}).__getstate__())
    assert base64.b64decode(state["precompiled_charsmap"]) == precompile({key: "x"})
