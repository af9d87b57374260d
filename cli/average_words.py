"""How many words the texts of a file have on average, as BM25 will count them."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cli.console import note
from cli.lines import Fields, Line
from cli.long_texts import LongTexts
from cli.sources import Source
from retrieval.gateway.v1 import gateway_pb2 as pb

MAX_TOKENS = 512
"""What an encoder reads, where no size of parts was given: E5's limit."""
WORDS_PER_TOKEN = 0.7
"""An estimate for XLM-RoBERTa's tokenizer; all that hangs on it is the default of a collection's average length."""


def average_words(source: Source, fields: Fields, long_texts: LongTexts, lexical: pb.LexicalParameters) -> float | None:
    """Read a file through and count; of texts that will be split, estimate what their parts have.

    Args:
        source: What is going to be indexed. It is opened once more, so that nothing of it is used up.
        fields: Which are id and text.
        long_texts: Whether and how texts are split.
        lexical: What a word is; within the gateway's bounds.

    Returns:
        At least 1; None where nothing can be counted, which is said.

    Raises:
        Misconfigured: The file is not of its format.
    """
    from gateway.convert_lexical import lexical_of  # noqa: PLC0415 - slow to load, and only needed here
    from gateway.stores.lexical import word_counter  # noqa: PLC0415

    if source.path is None:
        note("standard input is read once, so that its words are not counted; --lexical-average-words tells", "yellow")
        return None
    count = word_counter(lexical_of(lexical, "parameters.lexical"))
    word_count = text_count = 0
    for text in _texts(source, source.path, fields):
        words = count(text)
        word_count += words
        text_count += _part_count(text, words, long_texts)
    if not word_count:
        return None
    average = max(1.0, round(word_count / text_count, 1))
    how = "estimated for parts" if long_texts.split else "counted"
    note(f"{average:g} words a text on average, {how} in {source.path}")
    return average


def _texts(source: Source, path: Path, fields: Fields) -> Iterator[str]:
    with path.open("rb") as stream:
        for line in replace(source, stream=stream).lines(fields):
            if isinstance(line, Line):
                yield line.document.text


def _part_count(text: str, word_count: int, long_texts: LongTexts) -> int:
    if not long_texts.split:
        return 1
    room = (long_texts.part_tokens or MAX_TOKENS) * WORDS_PER_TOKEN
    least = math.ceil(word_count / room) or 1
    return max(least, _sentence_count(text)) if long_texts.part_per_sentence else least


def _sentence_count(text: str) -> int:
    from encoder_server.splitting import sentences  # noqa: PLC0415 - as above

    return len(sentences(text))
