"""Synonyms: how a file is read, and what it makes of a query."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.synonyms import MAX_VARIANTS, NO_SYNONYMS, SynonymBook, read_synonyms
from serving.errors import Misconfigured

FILE = b"""
- any: [sign in, log in, login]
- from: vpn
  to: [remote access, tunnel]
- any: [PC, computer]
  language: en
- {from: sign, to: [poster]}
"""


def synonyms():
    return read_synonyms(FILE, "test.yaml")


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


def test_variants_replace_one_phrase_at_a_time():
    """Every variant is the query with one phrase replaced, phrases by turns, and everything else as it was."""
    assert synonyms().variants("Log in over VPN?") == [
        "sign in over VPN?",
        "Log in over remote access?",
        "login over VPN?",
        "Log in over tunnel?",
    ]


def test_a_query_without_phrases_is_left_alone():
    """Nothing is added where nothing matches, nor where there are no synonyms."""
    assert synonyms().variants("the weather") == []
    assert NO_SYNONYMS.words("vpn") == NO_SYNONYMS.variants("vpn") == []


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
    ],
)
def test_a_malformed_file_is_refused(data):
    """What is no list of entries is named as malformed, never read in part."""
    with pytest.raises(Misconfigured) as raised:
        read_synonyms(data, "test.yaml")
    assert raised.value.reason == "SYNONYMS_MALFORMED"


def test_a_book_finds_files_when_they_come(tmp_path: Path):
    """A collection without a file has no synonyms until it gets one; other collections are not touched."""
    book = SynonymBook(tmp_path)
    assert book.of("help") is NO_SYNONYMS
    (tmp_path / "help.yaml").write_bytes(FILE)
    assert book.of("help").words("vpn") == ["remote access", "tunnel"]
    assert book.of("other") is NO_SYNONYMS
    assert SynonymBook(None).of("help") is NO_SYNONYMS


def test_a_broken_file_stops_a_gateway_that_starts(tmp_path: Path):
    """At the start a malformed file is an operator's to mend, and is not found only by the first search."""
    (tmp_path / "help.yaml").write_text("nonsense: [")
    with pytest.raises(Misconfigured):
        SynonymBook(tmp_path)
