"""Options that say how the words of a collection are indexed, and the message that they make."""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli.calls import reported
from cli.text_file import read_lines
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import Misconfigured

Tokenizer = Literal["word", "multilingual", "whitespace"]
TOKENIZERS: dict[Tokenizer, pb.LexicalTokenizer.ValueType] = {
    "word": pb.LEXICAL_TOKENIZER_WORD,
    "multilingual": pb.LEXICAL_TOKENIZER_MULTILINGUAL,
    "whitespace": pb.LEXICAL_TOKENIZER_WHITESPACE,
}

Words = Annotated[
    bool,
    typer.Option(
        "--lexical", help="Index words as well as vectors, for searches by words (BM25). Implied by --lexical-*."
    ),
]
Language = Annotated[
    str, typer.Option("--lexical-language", metavar="NAME", help="Of stems and stop words, for example english.")
]
Stem = Annotated[bool, typer.Option("--lexical-stem", help="Reduce words to their stems.")]
StopWords = Annotated[bool, typer.Option("--lexical-stop-words", help="Leave the language's function words out.")]
ExtraStopWords = Annotated[
    Path | None,
    typer.Option(
        "--lexical-extra-stop-words", metavar="FILE", help="Leave these words out: one a line, in lower case, UTF-8."
    ),
]
GivenTokenizer = Annotated[Tokenizer | None, typer.Option("--lexical-tokenizer", help="What a word is.")]
FoldAccents = Annotated[bool, typer.Option("--lexical-fold-accents", help="Drop accents.")]
K1 = Annotated[
    float | None,
    typer.Option("--lexical-k1", min=0, max=10, help="How fast further occurrences of a word stop counting."),
]
B = Annotated[float | None, typer.Option("--lexical-b", min=0, max=1, help="How much a text over the average loses.")]
AverageWords = Annotated[
    float | None,
    typer.Option("--lexical-average-words", min=1, max=1_000_000, help="Words in a text of average length."),
]


def lexical_of(
    *,
    words: Words = False,
    language: Language = "",
    stem: Stem = False,
    stop_words: StopWords = False,
    extra_stop_words: ExtraStopWords = None,
    tokenizer: GivenTokenizer = None,
    fold_accents: FoldAccents = False,
    k1: K1 = None,
    b: B = None,
    average_words: AverageWords = None,
) -> pb.LexicalParameters | None:
    """Write what the options say; None where words are not to be indexed.

    Raises:
        Misconfigured: `STOP_WORDS`, the file is none of words.
    """
    given = pb.LexicalParameters(
        language=language,
        stem=stem,
        stop_words=stop_words,
        extra_stop_words=read_stop_words(extra_stop_words) if extra_stop_words else (),
        tokenizer=TOKENIZERS[tokenizer] if tokenizer else pb.LEXICAL_TOKENIZER_UNSPECIFIED,
        fold_accents=fold_accents,
        k1=k1,
        b=b,
        average_words=average_words,
    )
    return given if words or given != pb.LexicalParameters() else None


OPTIONS = inspect.signature(lexical_of).parameters


def lexical_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options in place of its parameter `lexical`, which gets what they say."""
    declared = dict(inspect.signature(command).parameters)
    kind = declared["lexical"].kind

    @wraps(command)
    def told(**given: Any) -> None:
        with reported():
            lexical = lexical_of(**{name: given.pop(name) for name in OPTIONS})
        command(**given, lexical=lexical)

    shown: list[inspect.Parameter] = []
    for name, parameter in declared.items():
        shown += [one.replace(kind=kind) for one in OPTIONS.values()] if name == "lexical" else [parameter]
    told.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # which is where typer looks
    return told


def read_stop_words(path: Path) -> Sequence[str]:
    """Read a file of words to leave out, one a line; blank lines are passed over.

    Returns:
        Each word once, sorted, so that their order in the file says nothing.

    Raises:
        Misconfigured: `STOP_WORDS`, it cannot be read, holds no word or too many, or a line is not one word.
    """
    from gateway.convert_lexical import MAX_STOP_WORDS, MAX_WORD_CHARACTERS  # noqa: PLC0415 - slow, and only needed here

    words: set[str] = set()
    for number, line in enumerate(read_lines(path, reason="STOP_WORDS"), 1):
        word = line.strip()
        if len(word) > MAX_WORD_CHARACTERS or len(word.split()) > 1 or word != word.lower():
            wanted = f"one word of at most {MAX_WORD_CHARACTERS} characters in lower case is wanted"
            raise Misconfigured("STOP_WORDS", f"{path}, line {number}: {wanted}")
        words.add(word)
    words.discard("")
    if not 1 <= len(words) <= MAX_STOP_WORDS:
        raise Misconfigured("STOP_WORDS", f"{path} holds {len(words)} words, 1 to {MAX_STOP_WORDS} are wanted")
    return sorted(words)
