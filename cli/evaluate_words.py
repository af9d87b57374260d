"""How words are indexed in a study's collections: by the language of its questions, their average number counted."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from retrieval.gateway.v1 import gateway_pb2 as pb

if TYPE_CHECKING:
    from evaluation.first_stage.options import Kept
    from evaluation.plan import Plan

LANGUAGES = {
    "ar": "arabic",
    "da": "danish",
    "de": "german",
    "en": "english",
    "es": "spanish",
    "fi": "finnish",
    "fr": "french",
    "hu": "hungarian",
    "it": "italian",
    "nl": "dutch",
    "no": "norwegian",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sv": "swedish",
    "tr": "turkish",
}
"""ISO 639-1 to the name of what has both a stemmer and a list of function words."""
WITHOUT_SPACES = frozenset({"ja", "ko", "th", "zh"})
"""Languages whose words a tokenizer has to find."""


def words_of(plan: "Plan", kept: "Kept") -> pb.LexicalParameters | None:
    """Return how words are indexed in a collection that is kept so; None where the questions' language has no list."""
    from evaluation.first_stage.options import Kept  # noqa: PLC0415 - see cli.evaluate

    languages = {question.lang for question in plan.dataset.questions}
    found = pb.LexicalParameters()
    if languages & WITHOUT_SPACES:
        found.tokenizer = pb.LEXICAL_TOKENIZER_MULTILINGUAL
    if kept in {Kept.NO_FUNCTION_WORDS, Kept.STEMS}:
        language = LANGUAGES.get(*languages) if len(languages) == 1 else None
        if language is None:
            return None
        found.language = language
        found.stop_words, found.stem = kept is Kept.NO_FUNCTION_WORDS, kept is Kept.STEMS
    found.average_words = _average([plan.passage(document) for document in plan.dataset.documents], found)
    return found


def _average(texts: Sequence[str], lexical: pb.LexicalParameters) -> float:
    """Count words as the gateway will; at least 1."""
    from gateway.convert_lexical import lexical_of  # noqa: PLC0415 - slow to load, and only needed here
    from gateway.stores.lexical import word_counter  # noqa: PLC0415

    count = word_counter(lexical_of(lexical, "parameters.lexical"))
    return max(1.0, round(sum(map(count, texts)) / len(texts), 1))
