"""Synonyms: how a file is read, and what it makes of a query."""

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.composition import MAX_MARKS
from gateway.synonyms import (
    MAX_NAMES,
    MAX_PHRASE_WORDS,
    MAX_TRIED,
    MAX_VARIANTS,
    NO_SYNONYMS,
    SynonymBook,
    read_synonyms,
)
from serving.errors import Misconfigured

FILE = b"""
- any: [sign in, log in, login]
- from: vpn
  to: [remote access, tunnel]
- any: [PC, computer]
  language: en
- {from: sign, to: [poster]}
"""


HINDI = "- any: [क्षमा, माफ़ी]".encode()
COMPOSED, DECOMPOSED = "caf\N{LATIN SMALL LETTER E WITH ACUTE}", "cafe\N{COMBINING ACUTE ACCENT}"


class Clock:
    """Seconds that pass when they are told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class CountedRules(dict[Any, Any]):
    """Rules that count the words of what is looked up in them."""

    asked = 0

    def get(self, phrase: Any, default: Any = None) -> Any:
        self.asked += len(phrase)
        return super().get(phrase, default)


def synonyms():
    return read_synonyms(FILE, "test.yaml")


def words_looked_up(data: bytes, query: str) -> int:
    """Count the words of the phrases that are compared for a query."""
    found = read_synonyms(data, "test.yaml")
    rules = CountedRules(found._rules)
    replace(found, _rules=rules).words(query)
    return rules.asked


def test_two_way_entries_stand_for_one_another():
    """Each phrase of `any` brings in all others, in the order of the file."""
    assert synonyms().words("I cannot log in") == ["sign in", "login"]
    assert synonyms().words("LOGIN fails") == ["sign in", "log in"]


def test_one_way_entries_work_one_way():
    """What stands on the right does not look for what stands on the left."""
    assert synonyms().words("vpn") == ["remote access", "tunnel"]
    assert synonyms().words("remote access by tunnel") == []


def test_the_longest_phrase_counts():
    """A phrase within a longer one that was found does not count, and no word counts twice."""
    assert synonyms().words("sign in here") == ["log in", "login"]
    assert synonyms().words("sign here") == ["poster"]


def test_words_are_compared_whole():
    """A phrase inside a word is not found; punctuation between words does not matter."""
    assert synonyms().words("vpns and blogin") == []
    assert synonyms().words("Sign-in!") == ["log in", "login"]


def test_languages_are_told_apart():
    """An entry of a language applies to queries of that language and to those of none, others to all."""
    assert synonyms().words("my pc", "en") == ["computer"]
    assert synonyms().words("my pc") == ["computer"]
    assert synonyms().words("my pc", "it") == []
    assert synonyms().words("vpn", "it") == ["remote access", "tunnel"]


def test_a_language_is_the_same_in_any_case():
    """A language may be written EN or en, in the file and in the query."""
    assert synonyms().words("my pc", "EN") == ["computer"]
    assert read_synonyms(b"- {any: [PC, computer], language: EN}", "t").words("pc", "en") == ["computer"]


def test_marks_belong_to_words():
    """Hindi's vowel signs and viramas cut no word: whole words match and parts of them do not."""
    hindi = read_synonyms(HINDI, "test.yaml")
    assert hindi.words("मुझे क्षमा करें") == ["माफ़ी"]
    assert hindi.variants("क्षमा!") == ["माफ़ी!"]
    assert hindi.words("क्ष") == hindi.words("क्षमाशील") == []
    assert read_synonyms("- any: [क, ख]".encode(), "t").words("क्ष") == []


def test_a_mark_alone_is_no_word():
    """What only makes an emoji colourful is no word that other emoji share."""
    with pytest.raises(Misconfigured):
        read_synonyms("- any: [\N{HEAVY BLACK HEART}\N{VARIATION SELECTOR-16}, love]".encode(), "test.yaml")


@pytest.mark.parametrize("phrase", [COMPOSED, DECOMPOSED])
@pytest.mark.parametrize("query", [COMPOSED, DECOMPOSED])
def test_an_accent_is_the_same_however_it_was_typed(phrase, query):
    """Phrase and query are composed first, and what is replaced is found in the composed query."""
    book = read_synonyms(f"- any: [{phrase}, bar]".encode(), "test.yaml")
    assert book.words(query) == ["bar"]
    assert book.variants(f"{DECOMPOSED}s {query} {DECOMPOSED}?") == [
        f"{COMPOSED}s bar {COMPOSED}?",
        f"{COMPOSED}s {COMPOSED} bar?",
    ]
    assert book.words("bar") == [COMPOSED]
    assert book.words("cafe") == []


def test_another_case_is_no_synonym():
    """What differs from its phrase in case only, or in how an accent was typed, stands for nothing."""
    book = read_synonyms(f"- any: [VPN, vpn]\n- any: [{COMPOSED}, {DECOMPOSED}]\n".encode(), "test.yaml")
    assert book.words(f"vpn {COMPOSED}") == book.variants(f"Vpn {DECOMPOSED}") == []
    assert read_synonyms(b"- {from: vpn, to: [VPN, tunnel]}", "t").variants("vpn") == ["tunnel"]


def test_variants_replace_one_phrase_at_a_time():
    """Every variant is the query with one phrase replaced, phrases by turns, and everything else as it was."""
    assert synonyms().variants("Log in over VPN?") == [
        "sign in over VPN?",
        "Log in over remote access?",
        "login over VPN?",
        "Log in over tunnel?",
    ]


def test_a_phrasing_that_the_caller_gave_is_not_made_again():
    """What has a list of its own already is left out before the variants are cut to four, however it was typed."""
    found = read_synonyms(f"- any: [a, b, {COMPOSED}, c, d, e, f]".encode(), "test.yaml")
    assert found.variants("a", besides=[DECOMPOSED, "b"]) == ["c", "d", "e", "f"]


def test_a_query_without_phrases_is_left_alone():
    """Nothing is added where nothing matches, nor where there are no synonyms."""
    assert synonyms().variants("the weather") == []
    assert NO_SYNONYMS.words("vpn") == NO_SYNONYMS.variants("vpn") == []


def test_variants_that_are_not_used_are_not_made():
    """A query that is one phrase over and over takes memory for a few variants, not for one per phrase."""
    query = "vpn " * 4_000
    found = synonyms()
    tracemalloc.start()
    try:
        variants = found.variants(query)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [len(one) for one in variants] == [len(query) + len("remote access") - len("vpn")] * MAX_VARIANTS
    assert peak < 300 * len(query)


def test_variants_that_are_all_the_same_are_given_up():
    """However many phrases there are, only so many replacements are tried for variants that differ."""
    found = read_synonyms(b"- {from: a, to: [a a]}\n- {from: b, to: [c]}\n", "test.yaml")
    many = "a " * MAX_TRIED
    assert found.variants("a " * (MAX_TRIED - 1) + "b") == ["a " * MAX_TRIED + "b", "a " * (MAX_TRIED - 1) + "c"]
    assert found.variants(f"{many}b") == [f"{many}a b"]


def test_a_replacement_that_changes_nothing_is_not_tried():
    """Where a phrase is written as one of its synonyms already, that one takes no room of others."""
    found = read_synonyms(b"- any: [sign in, sign-in]\n- {from: b, to: [c]}\n", "test.yaml")
    many = "sign-in " * (2 * MAX_TRIED)
    assert found.variants(f"{many}b")[0] == f"{many}c"


@pytest.mark.parametrize("times", [1, 2_000])
def test_a_synonym_counts_once_however_often_its_phrase_comes(times: int):
    """A phrase that comes again adds nothing to a lexical query, and what is added is no more than 32 phrases."""
    many = read_synonyms(f"- from: a\n  to: [{', '.join(f'b{number}' for number in range(40))}]".encode(), "t")
    assert many.words("a " * times) == [f"b{number}" for number in range(32)]


def test_only_phrases_that_begin_with_a_word_are_compared():
    """Nothing is looked up at a word that begins no phrase, and else only lengths of phrases that begin with it."""
    longest = " ".join(["a"] * (MAX_PHRASE_WORDS - 1) + ["z"])
    data = f"- from: {longest}\n  to: [x]\n- from: b\n  to: [x]\n".encode()
    assert words_looked_up(data, "c " * 2_000) == 0
    assert words_looked_up(data, "b " * 2_000) == 2_000
    assert words_looked_up(data, "a " * 2_000) <= 2_000 * MAX_PHRASE_WORDS


def test_a_long_phrase_is_found_where_the_query_ends_with_it():
    """A phrase counts at the end of a query too, and a shorter one where too few words are left for a longer one."""
    found = read_synonyms(b"- {from: a b c, to: [x]}\n- {from: a, to: [y]}\n- {from: a b, to: [z], language: it}", "t")
    assert found.words("c a b c") == ["x"]
    assert found.words("c a b", "en") == ["y"]
    assert found.words("c a b", "it") == ["z"]


def test_phrases_that_are_looked_for_have_few_words():
    """A phrase that is looked for may have 16 words and no more; what stands for it may have as many as fit."""
    most, more = (" ".join("abcdefghijklmnopq"[:count]) for count in (MAX_PHRASE_WORDS, MAX_PHRASE_WORDS + 1))
    assert read_synonyms(f"- {{from: {most}, to: [{more}]}}".encode(), "t").words(most) == [more]
    for data in (f"- {{from: {more}, to: [b]}}", f"- any: [b, {more}]"):
        with pytest.raises(Misconfigured) as raised:
            read_synonyms(data.encode(), "test.yaml")
        assert raised.value.reason == "SYNONYMS_MALFORMED"


def test_marks_that_pile_up_are_not_sorted():
    """A query with more marks in a row than any language has stays as it was typed; with as many it is composed."""
    below, above = "\N{COMBINING DOT BELOW}", "\N{COMBINING ACUTE ACCENT}"
    language, pile = (f"e{(above + below) * (count // 2)}" for count in (MAX_MARKS, MAX_MARKS + 2))
    assert synonyms().variants(f"VPN {language}")[0] == f"remote access {normalize('NFC', language)}"
    assert synonyms().variants(f"VPN {pile}")[0] == f"remote access {pile}"
    assert normalize("NFC", pile) != pile


@given(st.text(max_size=200))
def test_any_text_can_be_asked(query):
    """No text breaks the search for phrases, and variants stay few and are never the query itself."""
    variants = synonyms().variants(query)
    assert len(variants) <= MAX_VARIANTS
    assert query not in variants


@pytest.mark.parametrize(
    "data",
    [
        b"- any: [alone]",
        b"- from: a",
        b"- {from: a, to: [b], any: [c, d]}",
        b"- any: ['!', '?']",
        b"- surprise: [a, b]",
        b"any: [a, b]",
        b"- any: [a, b",
        b"\xff\xfe\xff",
        b"- 2024-13-45",
        b"[" * 10_000,
    ],
)
def test_a_malformed_file_is_refused(data):
    """What is no list of entries is named as malformed, never read in part."""
    with pytest.raises(Misconfigured) as raised:
        read_synonyms(data, "test.yaml")
    assert raised.value.reason == "SYNONYMS_MALFORMED"


@pytest.mark.parametrize(
    "data", ["- any: [hush, '...']", "- {hush: [a, b]}", "- any: [hush", "- any: [a, {hush: b}]", "- any: [hush]"]
)
def test_a_complaint_says_nothing_of_what_is_in_a_file(data):
    """Errors name the place and never a phrase: logs are for more eyes than a help centre's words."""
    with pytest.raises(Misconfigured) as raised:
        read_synonyms(data.encode(), "test.yaml")
    assert "test.yaml" in str(raised.value)
    assert "hush" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_book_finds_files_when_they_come(tmp_path: Path):
    """A collection without a file has no synonyms until it gets one; other collections are not touched."""
    clock = Clock()
    book = SynonymBook(tmp_path, clock=clock)
    assert book.of("help") is NO_SYNONYMS
    (tmp_path / "help.yaml").write_bytes(FILE)
    clock.now = 1.0
    assert book.of("help").words("vpn") == ["remote access", "tunnel"]
    assert book.of("other") is NO_SYNONYMS
    assert SynonymBook(None).of("help") is NO_SYNONYMS


def test_a_file_that_is_not_there_is_looked_for_once_a_second(tmp_path: Path):
    """Searches of a collection without a file do not ask the file system each time."""
    clock = Clock()
    book = SynonymBook(tmp_path, clock=clock)
    assert book.of("help") is NO_SYNONYMS
    (tmp_path / "help.yaml").write_bytes(FILE)
    clock.now = 0.9
    assert book.of("help") is NO_SYNONYMS
    clock.now = 1.0
    assert book.of("help") is not NO_SYNONYMS


def test_names_that_callers_make_up_are_forgotten(tmp_path: Path):
    """However many names are asked for, few are remembered, and the one asked for last is."""
    book = SynonymBook(tmp_path)
    for number in range(MAX_NAMES + 10):
        book.of(f"c{number}")
    assert len(book._looks) == MAX_NAMES
    assert f"c{MAX_NAMES + 9}" in book._looks


def test_a_malformed_file_that_comes_later_fails_no_search(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """It is complained of once and counts for nothing until it is right."""
    clock = Clock()
    book = SynonymBook(tmp_path, clock=clock)
    (tmp_path / "help.yaml").write_text("- any: [alone]")
    for second in range(1, 4):
        clock.now = float(second)
        assert book.of("help") is NO_SYNONYMS
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "SYNONYMS_MALFORMED" in caplog.text
    (tmp_path / "help.yaml").write_bytes(FILE)
    clock.now = 4.0
    assert book.of("help").words("vpn") == ["remote access", "tunnel"]


def test_a_file_that_goes_stays_in_force_and_an_empty_one_does_not(tmp_path: Path):
    """A file that is gone may be one that is just being replaced; without entries it says that there are none."""
    clock = Clock()
    (tmp_path / "help.yaml").write_bytes(FILE)
    book = SynonymBook(tmp_path, clock=clock)
    (tmp_path / "help.yaml").unlink()
    clock.now = 2.0
    assert book.of("help").words("vpn") == ["remote access", "tunnel"]
    (tmp_path / "help.yaml").write_bytes(b"")
    clock.now = 4.0
    assert book.of("help").words("vpn") == []


def test_a_broken_file_stops_a_gateway_that_starts(tmp_path: Path):
    """At the start a malformed file is an operator's to mend, and is not found only by the first search."""
    (tmp_path / "help.yaml").write_text("nonsense: [")
    with pytest.raises(Misconfigured):
        SynonymBook(tmp_path)
