"""How words are indexed: messages to records and back."""

import math
from typing import Any

import pytest

from gateway.convert_collections import parameters_message, parameters_of
from gateway.parameters import DEFAULT_PARAMETERS, LexicalParameters, LexicalTokenizer
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import InvalidRequest

FULL = pb.LexicalParameters(
    k1=0.9,
    b=0.4,
    average_words=123.5,
    tokenizer=pb.LEXICAL_TOKENIZER_WHITESPACE,
    language="french",
    stem=True,
    stop_words=True,
    extra_stop_words=["perch\u00e9", "na"],
    fold_accents=True,
)


def read(**fields: Any) -> LexicalParameters:
    """Read parameters of a collection."""
    found = parameters_of(pb.CollectionParameters(lexical=pb.LexicalParameters(**fields))).lexical
    assert found is not None
    return found


def test_words_are_indexed_only_where_that_is_said() -> None:
    """Unset is not at all, and is described as unset; an empty message is everything at its default."""
    assert parameters_of(pb.CollectionParameters()).lexical is None
    assert not parameters_message(DEFAULT_PARAMETERS).HasField("lexical")
    assert read() == LexicalParameters()
    assert (read().k1, read().b, read().average_words) == (1.5, 0.75, 50.0)
    assert read().tokenizer is LexicalTokenizer.WORD


def test_everything_that_is_said_is_described() -> None:
    """Every field comes back as it was given, and what was not given as the documented default."""
    message = pb.CollectionParameters(lexical=FULL)
    assert parameters_message(parameters_of(message)).lexical == FULL
    described = parameters_message(parameters_of(pb.CollectionParameters(lexical=pb.LexicalParameters()))).lexical
    assert described == pb.LexicalParameters(k1=1.5, b=0.75, average_words=50, tokenizer=pb.LEXICAL_TOKENIZER_WORD)


@pytest.mark.parametrize("tokenizer", [value for value in pb.LexicalTokenizer.values() if value])
def test_every_tokenizer_comes_back(tokenizer: Any) -> None:
    """No kind of word is left without a record."""
    message = pb.CollectionParameters(lexical=pb.LexicalParameters(tokenizer=tokenizer))
    assert parameters_message(parameters_of(message)).lexical.tokenizer == tokenizer


def test_zero_is_not_taken_for_unset() -> None:
    """A k1 and a b of 0 mean 0: presence alone and no length normalization."""
    assert (read(k1=0.0, b=0.0).k1, read(k1=0.0, b=0.0).b) == (0.0, 0.0)


def test_the_largest_legal_values_pass() -> None:
    """The documented limits themselves are allowed."""
    words = [f"w{number}" for number in range(1_000)]
    found = read(k1=10.0, b=1.0, average_words=1e6, extra_stop_words=words)
    assert (found.k1, found.b, found.average_words, len(found.extra_stop_words)) == (10.0, 1.0, 1e6, 1_000)


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"k1": -0.1}, "OUT_OF_RANGE", "k1"),
        ({"k1": 10.1}, "OUT_OF_RANGE", "k1"),
        ({"k1": math.nan}, "OUT_OF_RANGE", "k1"),
        ({"b": 1.01}, "OUT_OF_RANGE", "b"),
        ({"b": -math.inf}, "OUT_OF_RANGE", "b"),
        ({"average_words": 0.0}, "OUT_OF_RANGE", "average_words"),
        ({"average_words": 1_000_001.0}, "OUT_OF_RANGE", "average_words"),
        ({"tokenizer": 9}, "ENUM_UNKNOWN", "tokenizer"),
        ({"stem": True}, "LANGUAGE_REQUIRED", "language"),
        ({"stop_words": True}, "LANGUAGE_REQUIRED", "language"),
        ({"language": "x" * 65}, "LANGUAGE_UNSUPPORTED", "language"),
        ({"extra_stop_words": ["w"] * 1_001}, "WORD_COUNT", "extra_stop_words"),
        ({"extra_stop_words": ["fine", "The"]}, "WORD", "extra_stop_words[1]"),
        ({"extra_stop_words": [" "]}, "WORD", "extra_stop_words[0]"),
        ({"extra_stop_words": ["w" * 129]}, "WORD", "extra_stop_words[0]"),
    ],
)
def test_what_is_out_of_range_is_named(fields: dict[str, Any], reason: str, field: str) -> None:
    """The error says which of the lexical parameters it is; not a number is no number."""
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    assert (caught.value.reason, caught.value.field) == (reason, f"parameters.lexical.{field}")
