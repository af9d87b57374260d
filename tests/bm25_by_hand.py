"""BM25 from its formula, in plain Python: what lists by words are compared with. It knows a little English."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from gateway.parameters import LexicalParameters, LexicalTokenizer

Key = TypeVar("Key")

SOME_STOP_WORDS = frozenset({"a", "and", "in", "is", "of", "on", "the"})


def tokens(text: str, parameters: LexicalParameters) -> list[str]:
    """Return the words of a text that count, in order."""
    text = unicodedata.normalize("NFC", text).lower()
    if parameters.fold_accents:
        text = "".join(one for one in unicodedata.normalize("NFD", text) if not unicodedata.combining(one))
    pattern = r"\S+" if parameters.tokenizer is LexicalTokenizer.WHITESPACE else r"[^\W_]+"
    left_out = {*parameters.extra_stop_words, *(SOME_STOP_WORDS if parameters.stop_words else ())}
    words = [one for one in re.findall(pattern, text) if one not in left_out]
    return [re.sub(r"(ing|s)$", "", one) for one in words] if parameters.stem else words


def idf(word: str, corpus: Iterable[Sequence[str]]) -> float:
    """Return how rare a word is among documents, those without words left out."""
    documents = [one for one in corpus if one]
    having = sum(word in one for one in documents)
    return math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))


def bm25(
    query: str, texts: Mapping[Key, str], parameters: LexicalParameters, corpus: Iterable[str] | None = None
) -> dict[Key, float]:
    """Return the scores of the texts that have a word of the query.

    Args:
        query: The query.
        texts: What is searched.
        parameters: How.
        corpus: The texts that decide how rare a word is; by default those that are searched.
    """
    counted = [tokens(one, parameters) for one in (texts.values() if corpus is None else corpus)]
    rarity = {word: idf(word, counted) for word in set(tokens(query, parameters))}
    scores = {}
    for key, text in texts.items():
        words = tokens(text, parameters)
        norm = parameters.k1 * (1 - parameters.b + parameters.b * len(words) / parameters.average_words)
        found = [(rarity[word], count) for word, count in Counter(words).items() if word in rarity]
        if found:
            scores[key] = sum(rare * count * (parameters.k1 + 1) / (count + norm) for rare, count in found)
    return scores
