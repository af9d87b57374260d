"""How words are indexed: messages to records and back."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from gateway.convert_values import MAX_LANGUAGE_CHARACTERS, known
from gateway.parameters import LexicalParameters, LexicalTokenizer
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import InvalidRequest

MAX_STOP_WORDS = 1_000
MAX_WORD_CHARACTERS = 128
DEFAULTS = LexicalParameters()
Numbered: TypeAlias = Literal["k1", "b", "average_words"]
LIMITS: Mapping[Numbered, tuple[int, int]] = {"k1": (0, 10), "b": (0, 1), "average_words": (1, 1_000_000)}
TOKENIZERS = {
    pb.LEXICAL_TOKENIZER_UNSPECIFIED: LexicalTokenizer.WORD,
    pb.LEXICAL_TOKENIZER_WORD: LexicalTokenizer.WORD,
    pb.LEXICAL_TOKENIZER_MULTILINGUAL: LexicalTokenizer.MULTILINGUAL,
    pb.LEXICAL_TOKENIZER_WHITESPACE: LexicalTokenizer.WHITESPACE,
}


def lexical_of(message: pb.LexicalParameters, field: str) -> LexicalParameters:
    """Read how words are indexed, filling in defaults; which languages there are is the store's to say.

    Raises:
        InvalidRequest: Something is out of range, or a language is missing; the field names it.
    """
    numbers: dict[Any, float] = {}
    for name, (least, most) in LIMITS.items():
        numbers[name] = getattr(message, name) if message.HasField(name) else getattr(DEFAULTS, name)
        if not least <= numbers[name] <= most:  # also where it is no number
            wanted = f"{numbers[name]:g}, {least} to {most} is wanted"
            raise InvalidRequest("OUT_OF_RANGE", wanted, field=f"{field}.{name}")
    tokenizer = known(TOKENIZERS, message.tokenizer, f"{field}.tokenizer")
    return LexicalParameters(
        **numbers,
        tokenizer=tokenizer,
        language=_language_of(message, f"{field}.language"),
        stem=message.stem,
        stop_words=message.stop_words,
        extra_stop_words=_words_of(message.extra_stop_words, f"{field}.extra_stop_words"),
        fold_accents=message.fold_accents,
    )


def lexical_message(parameters: LexicalParameters) -> pb.LexicalParameters:
    """Write how words are indexed, defaults included."""
    tokenizers = {kind: value for value, kind in TOKENIZERS.items()}
    return pb.LexicalParameters(
        k1=parameters.k1,
        b=parameters.b,
        average_words=parameters.average_words,
        tokenizer=tokenizers[parameters.tokenizer],
        language=parameters.language,
        stem=parameters.stem,
        stop_words=parameters.stop_words,
        extra_stop_words=parameters.extra_stop_words,
        fold_accents=parameters.fold_accents,
    )


def _language_of(message: pb.LexicalParameters, field: str) -> str:
    if not message.language and (message.stem or message.stop_words):
        raise InvalidRequest("LANGUAGE_REQUIRED", "stem and stop_words need a language", field=field)
    if len(message.language) > MAX_LANGUAGE_CHARACTERS:
        raise InvalidRequest("LANGUAGE_UNSUPPORTED", f"more than {MAX_LANGUAGE_CHARACTERS} characters", field=field)
    return message.language


def _words_of(words: Sequence[str], field: str) -> Sequence[str]:
    if len(words) > MAX_STOP_WORDS:
        raise InvalidRequest("WORD_COUNT", f"{len(words)}, at most {MAX_STOP_WORDS} are allowed", field=field)
    for index, word in enumerate(words):
        if not word.strip() or word != word.lower() or len(word) > MAX_WORD_CHARACTERS:
            wanted = f"1 to {MAX_WORD_CHARACTERS} characters in lower case are wanted"
            raise InvalidRequest("WORD", wanted, field=f"{field}[{index}]")
    return tuple(words)
