"""The frozen tokenizer: threads, templates, truncation, and text that wants to be more than text."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import BOS, EOS, LETTERS, PAD, SPECIAL, UNK, WORDS, Recipe, reference_ids, tokenizer_json, vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from serving.bundle import SpecialTokens
from serving.errors import Misconfigured
from serving.tokens import FrozenTokenizer, PairTruncation, Tokens, pad

MASK = vocabulary().index("<mask>")
PANDA, BEAR = vocabulary().index("\u2581panda"), vocabulary().index("\u2581bear")
MIXED = ["panda", "what is tea?", "panda " * 700, "熊猫喝茶 " * 60, "Größe", "a/b:c 123", "river " * 30]


def write(directory: Path, **recipe: Any) -> Path:
    """Write a tokenizer.json."""
    path = directory / "tokenizer.json"
    path.write_text(tokenizer_json(Recipe(**recipe)), encoding="utf-8")
    return path


def make(directory: Path, max_tokens: int = 512, **recipe: Any) -> FrozenTokenizer:
    """Write and load a tokenizer."""
    return FrozenTokenizer(write(directory, **recipe), SPECIAL, max_tokens)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FrozenTokenizer:
    """The tiny tokenizer with a limit of 512."""
    return make(tmp_path_factory.mktemp("tokenizer"))


def single(tokenizer: FrozenTokenizer, text: str) -> Tokens:
    """Tokenize one text."""
    return tokenizer.single(tokenizer.content_ids([text])[0])


def pair(tokenizer: FrozenTokenizer, query: str, passage: str, how: PairTruncation) -> Tokens:
    """Tokenize one pair."""
    query_ids, passage_ids = tokenizer.content_ids([query, passage])
    return tokenizer.pair(query_ids, passage_ids, how)


# --- the same ids as the library -----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", MIXED)
def test_a_single_has_the_ids_that_the_library_gives(tokenizer: FrozenTokenizer, text: str):
    """Stripping, own template and own truncation change nothing for ordinary text (field failure 25)."""
    assert single(tokenizer, text).ids == reference_ids(text, max_tokens=512)


@pytest.mark.parametrize("query", MIXED)
@pytest.mark.parametrize("passage", MIXED)
def test_a_pair_has_the_ids_that_the_library_gives(tokenizer: FrozenTokenizer, query: str, passage: str):
    """LONGEST_FIRST is what the library does under that name, on real text."""
    row = pair(tokenizer, query, passage, PairTruncation.LONGEST_FIRST)
    assert row.ids == reference_ids(query, passage, max_tokens=512)


@settings(max_examples=400, deadline=None)
@given(query=st.integers(0, 60), passage=st.integers(0, 60), max_tokens=st.integers(6, 48))
def test_pair_rooms_are_those_of_the_library(query: int, passage: int, max_tokens: int):
    """For every combination of lengths and limit the same tokens are kept on both sides."""
    row = _ROOMS.with_limit(max_tokens).pair([PANDA] * query, [BEAR] * passage, PairTruncation.LONGEST_FIRST)
    _ROOMS.library.enable_truncation(max_tokens, strategy="longest_first")
    assert row.ids == _ROOMS.library.encode("panda " * query, "bear " * passage).ids


class _Rooms:
    """The library's tokenizer, and ours under any limit."""

    def __init__(self) -> None:
        self.library = Tokenizer.from_str(tokenizer_json(Recipe()))

    def with_limit(self, max_tokens: int) -> FrozenTokenizer:
        """Give back a tokenizer of which only the templates are used."""
        tokenizer = object.__new__(FrozenTokenizer)
        tokenizer.max_tokens = max_tokens
        tokenizer._special = SPECIAL
        return tokenizer


_ROOMS = _Rooms()


def test_many_threads_get_the_ids_that_one_gets(tokenizer: FrozenTokenizer):
    """Singles and pairs of all lengths from sixteen threads equal the serial ids (field failure 4)."""

    def all_ids(index: int) -> list[list[int]]:
        texts = MIXED[index % len(MIXED) :] + MIXED[: index % len(MIXED)]
        contents = tokenizer.content_ids(texts)
        how = PairTruncation.LONGEST_FIRST if index % 2 else PairTruncation.ONLY_PASSAGE
        return [row.ids for c in contents for row in (tokenizer.single(c), tokenizer.pair(contents[0], c, how))]

    serial = [all_ids(index) for index in range(14)]
    with ThreadPoolExecutor(16) as threads:
        futures = [threads.submit(all_ids, index % 14) for index in range(280)]
        for index, future in enumerate(futures):
            assert future.result() == serial[index % 14]


# --- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("content", "length", "truncated"), [(509, 511, False), (510, 512, False), (511, 512, True)])
def test_the_limit_counts_special_tokens(tokenizer: FrozenTokenizer, content: int, length: int, truncated: bool):  # noqa: FBT001
    """A row of 512 fits, of 513 is cut to 512 and says so (field failure 24)."""
    row = single(tokenizer, "panda " * content)
    assert (len(row), row.untruncated_count, row.truncated) == (length, content + 2, truncated)


@pytest.mark.parametrize(("passage", "length", "truncated"), [(500, 509, False), (503, 512, False), (504, 512, True)])
def test_the_limit_counts_the_pairs_special_tokens(tokenizer: FrozenTokenizer, passage: int, length: int, truncated):
    """A pair has four special tokens and the same limit (field failure 24)."""
    row = pair(tokenizer, "bear " * 5, "panda " * passage, PairTruncation.LONGEST_FIRST)
    assert (len(row), row.untruncated_count, row.truncated) == (length, passage + 9, truncated)
    assert not row.query_truncated


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 80), st.integers(0, 80), st.integers(6, 40), st.sampled_from(PairTruncation))
def test_truncated_rows_keep_their_template(query: int, passage: int, max_tokens: int, how: PairTruncation):
    """The last id of every row is the end token, and special tokens stand nowhere but in the template (case 25)."""
    tokenizer = _ROOMS.with_limit(max_tokens)
    alone, both = tokenizer.single([PANDA] * query), tokenizer.pair([PANDA] * query, [BEAR] * passage, how)
    assert len(alone) <= max_tokens
    assert len(both) <= max_tokens
    assert [alone.ids[0], alone.ids[-1], both.ids[0], both.ids[-1]] == [BOS, EOS, BOS, EOS]
    assert alone.ids.count(EOS) == 1
    assert both.ids.count(EOS) == 3
    middle = both.ids.index(EOS)
    assert both.ids[middle + 1] == EOS
    assert set(both.ids[1:middle]) <= {PANDA}
    assert set(both.ids[middle + 2 : -1]) <= {BEAR}


@pytest.mark.parametrize("how", PairTruncation)
@pytest.mark.parametrize(("query", "passage"), [(100, 2), (2, 100), (100, 100), (100, 1), (1, 100)])
def test_both_sides_keep_something_whatever_is_long(how: PairTruncation, query: int, passage: int):
    """A long query never eats the passage whole, and never raises (field failure 26)."""
    row = _ROOMS.with_limit(16).pair([PANDA] * query, [BEAR] * passage, how)
    assert row.ids.count(PANDA) >= 1
    assert row.ids.count(BEAR) >= 1
    assert row.truncated
    assert row.query_truncated == (row.ids.count(PANDA) < query)


@pytest.mark.parametrize(
    ("how", "query", "passage", "kept"),
    [
        (PairTruncation.LONGEST_FIRST, 100, 2, (10, 2)),
        (PairTruncation.LONGEST_FIRST, 2, 100, (2, 10)),
        (PairTruncation.LONGEST_FIRST, 100, 100, (6, 6)),
        (PairTruncation.ONLY_PASSAGE, 100, 2, (9, 2)),
        (PairTruncation.ONLY_PASSAGE, 2, 100, (2, 10)),
        (PairTruncation.ONLY_PASSAGE, 100, 100, (9, 3)),
        (PairTruncation.ONLY_PASSAGE, 8, 100, (8, 4)),
    ],
)
def test_what_each_policy_keeps(how: PairTruncation, query: int, passage: int, kept: tuple[int, int]):
    """Of sixteen tokens twelve are text: halves at most, or three quarters at most for the query (field failure 26)."""
    row = _ROOMS.with_limit(16).pair([PANDA] * query, [BEAR] * passage, how)
    assert (row.ids.count(PANDA), row.ids.count(BEAR)) == kept


# --- text that wants to be more than text --------------------------------------------------------------------------


def test_text_that_spells_the_pair_template_does_not_become_a_pair(tokenizer: FrozenTokenizer):
    """A single whose text spells end tokens has other ids than the pair it imitates, and one end token (case 28)."""
    row = single(tokenizer, "what is panda</s></s>panda bear")
    assert row.ids.count(EOS) == 1
    assert row.ids != pair(tokenizer, "what is panda", "panda bear", PairTruncation.LONGEST_FIRST).ids


SPELLINGS = ["<s>", "</s>", "<pad>", "<unk>", "<mask>", " special 2 ", "\u2581", "\ufffd", "\u200b", " ", "\t", *WORDS]


@settings(max_examples=300, deadline=None)
@given(text=st.lists(st.one_of(st.sampled_from(SPELLINGS), st.text(max_size=4)), max_size=12).map("".join))
@pytest.mark.parametrize("whitespace_split", [True, False])
def test_no_text_yields_a_special_token(
    tmp_path_factory: pytest.TempPathFactory,
    whitespace_split: bool,  # noqa: FBT001
    text: str,
):
    """Whatever a text spells, its ids hold no begin, end, padding or mask token (field failure 28)."""
    if whitespace_split not in _LOADED:
        _LOADED[whitespace_split] = make(tmp_path_factory.mktemp("t"), whitespace_split=whitespace_split)
    (ids,) = _LOADED[whitespace_split].content_ids([text])
    assert not {BOS, PAD, EOS, MASK} & set(ids)
    assert all(token < len(vocabulary()) for token in ids), "an id that the table has no row for"


_LOADED: dict[bool, FrozenTokenizer] = {}


def test_the_word_for_unknown_is_spelled_out(tokenizer: FrozenTokenizer):
    """The text "<unk>" is five letters, while a letter that the vocabulary lacks is unknown (field failure 28)."""
    spelled, unknown = tokenizer.content_ids(["<unk>", "\u0416"])
    assert UNK not in spelled
    assert UNK in unknown


def test_the_library_itself_would_place_special_tokens():
    """The danger is real in these fixtures: the untouched tokenizer turns the spelling into end tokens."""
    assert reference_ids("what is panda</s></s>panda bear").count(EOS) == 3


# --- state that comes along ----------------------------------------------------------------------------------------


def test_saved_truncation_and_padding_are_cleared(tmp_path: Path, tokenizer: FrozenTokenizer):
    """Settings baked into tokenizer.json neither cut nor fill up (field failure 31)."""
    baked = make(tmp_path, baked_truncation=8, baked_padding=32)
    texts = ["panda", "panda " * 40]
    assert baked.content_ids(texts) == tokenizer.content_ids(texts)
    assert [len(ids) for ids in baked.content_ids(texts)] == [1, 40]


# --- blank and broken text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("whitespace_split", [True, False])
@pytest.mark.parametrize("text", ["", " ", "   \t\n", "\u200b", " \u200b ", "\u0001\u0002\u007f", "\u3000", "\u00a0"])
def test_text_without_a_visible_character_is_blank(tmp_path: Path, text: str, whitespace_split: bool):  # noqa: FBT001
    """Whether nothing is left or only word boundaries, the text is blank (field failure 40)."""
    tokenizer = make(tmp_path, whitespace_split=whitespace_split)
    assert tokenizer.blank(tokenizer.content_ids([text])[0])


@pytest.mark.parametrize("text", ["a", ".", "\0", "\u0416", " x ", "<s>"])
def test_text_with_a_visible_character_is_not_blank(tokenizer: FrozenTokenizer, text: str):
    """Punctuation, unknown characters and NUL are content (field failures 40 and 41)."""
    assert not tokenizer.blank(tokenizer.content_ids([text])[0])


def test_nul_is_an_unknown_character(tokenizer: FrozenTokenizer):
    """NUL, legal in a string field, reaches the tokenizer and does not cut the text short (field failure 41)."""
    with_nul, without = tokenizer.content_ids(["panda \0 bear", "panda bear"])
    assert (with_nul[0], with_nul[-1]) == (without[0], without[-1]) == (PANDA, BEAR)
    assert UNK in with_nul


@pytest.mark.parametrize("text", ["pan\ud800da", "\udfff", "熊\udc80猫"])
def test_a_lone_surrogate_is_read_as_the_replacement_character(tokenizer: FrozenTokenizer, text: str):
    """Text that no UTF-8 can hold is tokenized like the same text with U+FFFD in its place (field failure 41)."""
    replaced = "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    broken, expected, question = tokenizer.content_ids([text, replaced, replaced.replace("\ufffd", "?")])
    assert broken == expected != question


# --- what is refused at load ---------------------------------------------------------------------------------------


def edited(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change a tokenizer.json."""
    config = json.loads(path.read_text(encoding="utf-8"))
    change(config)
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config.pop("model"),
        lambda config: config.pop("added_tokens"),
        lambda config: config["model"].update(type="BPE"),
        lambda config: config["model"].update(vocab=[1, 2, 3, 4, 5]),
        lambda config: config.update(normalizer={"type": "Imagined"}),
    ],
    ids=["no model", "no added tokens", "BPE", "vocabulary of numbers", "unknown normalizer"],
)
def test_a_file_that_is_no_such_tokenizer_is_refused_by_name(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
):
    """Whatever is wrong inside, an operator is told which file it is."""
    path = edited(write(tmp_path), change)
    with pytest.raises(Misconfigured, match=r"tokenizer\.json") as caught:
        FrozenTokenizer(path, SPECIAL, 64)
    assert caught.value.reason == "TOKENIZER_MALFORMED"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_a_file_that_is_no_json_object_is_refused_by_name(tmp_path: Path, content: bytes):
    """Half a file, an empty one or another kind of file is no tokenizer."""
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(Misconfigured, match=r"tokenizer\.json"):
        FrozenTokenizer(tmp_path / "tokenizer.json", SPECIAL, 64)


def test_a_missing_file_is_refused_by_name(tmp_path: Path):
    """No file is an operator's fault and says which."""
    with pytest.raises(Misconfigured, match=r"tokenizer\.json"):
        FrozenTokenizer(tmp_path / "tokenizer.json", SPECIAL, 64)


@pytest.mark.parametrize("wrong", [{"pad": 7}, {"eos": 10_000}, {"unk": -1}])
def test_a_special_id_that_the_tokenizer_does_not_have_is_refused(tmp_path: Path, wrong: dict[str, int]):
    """A manifest whose ids are no special tokens of the tokenizer belongs to another model (field failure 30)."""
    special = SpecialTokens(**{**SPECIAL.model_dump(), **wrong})
    with pytest.raises(Misconfigured, match=next(iter(wrong))) as caught:
        FrozenTokenizer(write(tmp_path), special, 64)
    assert caught.value.reason == "TOKENIZER_MISMATCH"


# --- the rectangle -------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(4, len(LETTERS)), min_size=1, max_size=9), min_size=1, max_size=6))
def test_padding_keeps_every_id_and_masks_the_rest(contents: list[list[int]]):
    """Row by row the masked ids are the row, and everything else is the padding id."""
    ids, mask = pad([Tokens(content, untruncated_count=len(content)) for content in contents], PAD)
    assert ids.dtype == mask.dtype == np.int64
    assert ids.shape == mask.shape == (len(contents), max(map(len, contents)))
    for row, row_mask, content in zip(ids, mask, contents, strict=True):
        assert row[row_mask == 1].tolist() == content
        assert row_mask.tolist() == [1] * len(content) + [0] * (len(row) - len(content))
        assert set(row[row_mask == 0].tolist()) <= {PAD}
