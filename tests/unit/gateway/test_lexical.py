"""Words as the stores index them: numbers that have to stay, languages that there are, and how words are counted."""

import importlib.metadata
from dataclasses import replace

import pytest

from gateway.parameters import LexicalParameters, LexicalTokenizer
from gateway.stores.edge_meta import ENGINE
from gateway.stores.lexical import STEMMERS, STOP_WORDS, lexicon, require_supported, word_counter
from serving.errors import InvalidRequest

GOLDEN = [
    (LexicalParameters(), "Hello, world_wide 42 straße", [74040069, 613153351, 1135041482, 1543434194, 2095602437]),
    (LexicalParameters(fold_accents=True), "perché Straße", [175501572, 1932930851]),
    (
        LexicalParameters(language="english", stem=True, stop_words=True),
        "the runners were running",
        [243905464, 946033505],
    ),
    (LexicalParameters(language="italian", stem=True, stop_words=True), "la città delle città", [117485217]),
    (LexicalParameters(tokenizer=LexicalTokenizer.WHITESPACE), "C++ e-mail", [1104843002, 2037534582]),
    (
        LexicalParameters(tokenizer=LexicalTokenizer.MULTILINGUAL),
        "日本語の文章です",
        [274995804, 411188944, 992347838, 1841399256, 2124833454],
    ),
]


@pytest.mark.parametrize(("parameters", "text", "numbers"), GOLDEN)
def test_words_have_the_numbers_that_stored_documents_have(parameters, text, numbers):
    """Another engine that numbers, cuts or stems words otherwise would not find what is stored (field failure 66)."""
    assert sorted(lexicon(parameters).document(text).indices) == numbers, (
        f"{ENGINE} indexes words otherwise than before: collections with `lexical` have to be indexed again"
    )
    assert f"qdrant-edge-py {importlib.metadata.version('qdrant-edge-py')}" == ENGINE


def test_a_query_is_made_of_the_words_that_a_document_is_made_of():
    """The same text gives both the same words; a query's weigh 1 each, however often they come."""
    words = lexicon(LexicalParameters()).query("red Green red")
    assert set(words.indices) == set(lexicon(LexicalParameters()).document("green red").indices)
    assert words.values == [1.0, 1.0]


@pytest.mark.parametrize("text", ["", " \n", "?!", "…"])
def test_a_text_without_words_has_none(text):
    """Neither as a document nor as a query."""
    assert lexicon(LexicalParameters()).document(text) is None
    assert lexicon(LexicalParameters()).query(text) is None


def test_every_language_makes_a_lexicon():
    """Each language with a stemmer or with stop words can be used for that, and no other is accepted."""
    for language in STEMMERS:
        parameters = LexicalParameters(language=language, stem=True)
        require_supported(parameters)
        assert lexicon(parameters).query("word 42") is not None
    for language in STOP_WORDS:
        parameters = LexicalParameters(language=language, stop_words=True)
        require_supported(parameters)
        assert lexicon(parameters).query("word 42") is not None
    assert {"english", "italian"} <= STEMMERS.keys() & STOP_WORDS.keys()
    with pytest.raises(InvalidRequest, match="there is one for arabic, armenian"):
        require_supported(LexicalParameters(language="japanese", stem=True))


def test_what_is_not_asked_for_is_off():
    """No language is assumed: English function words count, and plurals are words of their own."""
    words = lexicon(LexicalParameters())
    assert len(words.query("the cats of a cat").indices) == 5


def test_parameters_that_are_equal_share_a_lexicon():
    """Also where their further stop words come in a list."""
    assert lexicon(LexicalParameters(extra_stop_words=["a"])) is lexicon(LexicalParameters(extra_stop_words=("a",)))


@pytest.mark.parametrize(
    ("changes", "count"),
    [({}, 6), ({"language": "english", "stop_words": True}, 4), ({"extra_stop_words": ("cat",)}, 3)],
)
def test_words_are_counted_as_bm25_counts_them(changes, count):
    """Repeated ones count again, those that are left out do not, and long texts are counted exactly."""
    counter = word_counter(LexicalParameters(**changes))
    assert counter("the cat, the CAT_cat sat") == count
    assert counter("?!") == 0
    assert counter("word " * 5_000) == 5_000


def test_accents_are_folded_before_stop_words_are_left_out():
    """Under folding a further stop word is given without its accents, and a function word that has some stays."""
    assert lexicon(LexicalParameters(fold_accents=True, extra_stop_words=("perche",))).query("perché") is None
    french = LexicalParameters(language="french", stop_words=True)
    assert lexicon(french).query("été") is None
    assert lexicon(replace(french, fold_accents=True)).query("été") is not None
