"""Words of texts as the sparse vectors that both stores index and search: BM25, all but how rare a word is.

A document holds for each of its words tf x (k1 + 1) / (tf + k1 x (1 - b + b x words / average)), a query 1 for each of
its words. The store multiplies by ln(1 + (N - n + 0.5) / (n + 0.5)), where n of N documents with words have the word,
when it searches (Robertson and Zaragoza 2009, with the 1 that Lucene adds so that no word counts against a document).

What a word is, how it is stemmed and which number it is stored under (a 32-bit hash, so that two words may share one)
is qdrant-edge's. Another version of it might number words otherwise, and stored documents would then not be found: the
version is pinned, a test knows the numbers of some words, and indexing again is the remedy.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import qdrant_edge as edge

from gateway.composition import composed
from gateway.parameters import LexicalParameters, LexicalTokenizer
from serving.errors import InvalidRequest

VECTOR_NAME = "lexical"
"""Name of the sparse vector beside the unnamed dense one."""

_TOKENIZERS = {
    LexicalTokenizer.WORD: edge.TokenizerType.Word,
    LexicalTokenizer.MULTILINGUAL: edge.TokenizerType.Multilingual,
    LexicalTokenizer.WHITESPACE: edge.TokenizerType.Whitespace,
}
_CACHED = 256
_NEVER_ENOUGH = 1e9
"""A k1 with which a word weighs as often as it is there."""


def _by_name(languages: Any) -> Mapping[str, Any]:
    return {name.lower(): getattr(languages, name) for name in dir(languages) if name[0].isupper()}


STEMMERS = _by_name(edge.SnowballLanguage)
"""Languages with a Snowball stemmer, by their English names."""
STOP_WORDS = _by_name(edge.Language)
"""Languages with a list of function words, by their English names."""


class Lexicon:
    """Turns texts into words as a collection's parameters say.

    Accents are folded before stop words are left out, so that under `fold_accents` an extra stop word is given without
    accents, and function words that have some stay.

    Args:
        parameters: The collection's; their language is supported.
    """

    def __init__(self, parameters: LexicalParameters) -> None:
        stop_words = {STOP_WORDS[parameters.language]} if parameters.stop_words else set()
        stem = edge.SnowballParams(STEMMERS[parameters.language]) if parameters.stem else edge.DisabledStemmer()
        # What is left out here is not off but English.
        self._model = edge.Bm25(
            edge.Bm25Config(
                k=parameters.k1,
                b=parameters.b,
                avg_len=parameters.average_words,
                tokenizer=_TOKENIZERS[parameters.tokenizer],
                lowercase=True,
                ascii_folding=parameters.fold_accents,
                stopwords=edge.StopwordsSet(stop_words, {composed(one) for one in parameters.extra_stop_words}),
                stemmer=stem,
            )
        )

    def document(self, text: str) -> edge.SparseVector | None:
        """Return a document's weights by word; None where no word counts."""
        return _with_words(self._model.embed_document(composed(text)))

    def query(self, text: str) -> edge.SparseVector | None:
        """Return a query's words, each with weight 1; None where no word counts."""
        return _with_words(self._model.embed_query(composed(text)))


def lexicon(parameters: LexicalParameters) -> Lexicon:
    """Return the lexicon of parameters; making one takes 20 us, so that some are kept."""
    return _kept(replace(parameters, extra_stop_words=tuple(parameters.extra_stop_words)))


def word_counter(parameters: LexicalParameters) -> Callable[[str], int]:
    """Return what counts the words of a text as BM25 does: repeated ones again, those that are left out not."""
    counting = lexicon(replace(parameters, k1=_NEVER_ENOUGH, b=0.0))

    def count(text: str) -> int:
        words = counting.document(text)
        return 0 if words is None else round(sum(words.values))

    return count


def require_supported(parameters: LexicalParameters | None) -> None:
    """Check that there is what the parameters want of a language.

    Raises:
        InvalidRequest: `LANGUAGE_UNSUPPORTED`, the language is not known, or not for that.
    """
    if parameters is None:
        return
    language = parameters.language
    if parameters.stem and language not in STEMMERS:
        raise _unsupported(f"no stemmer for that language; there is one for {', '.join(sorted(STEMMERS))}")
    if parameters.stop_words and language not in STOP_WORDS:
        raise _unsupported("no list of stop words for that language; docs/retrieval.md names those that have one")
    if language and language not in STEMMERS.keys() | STOP_WORDS.keys():
        raise _unsupported("neither a stemmer nor a list of stop words for that language")


@lru_cache(_CACHED)
def _kept(parameters: LexicalParameters) -> Lexicon:
    return Lexicon(parameters)


def _with_words(vector: edge.SparseVector) -> edge.SparseVector | None:
    return vector if vector.indices else None


def _unsupported(message: str) -> InvalidRequest:
    return InvalidRequest("LANGUAGE_UNSUPPORTED", message, field="parameters.lexical.language")
