"""How the words of a collection are indexed: options of the commands that make one, and the same in words."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

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

Count = Callable[[pb.LexicalParameters], float | None]
"""Counts the average number of words; None where that cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lexical:
    """How a run wants words to be indexed."""

    given: pb.LexicalParameters
    """What was said."""
    count: Count

    def over(self, old: pb.LexicalParameters) -> pb.LexicalParameters:
        """Return it with everything that was not said as before, but the average counted anew.

        Raises:
            InvalidRequest: It cannot be, and the gateway would refuse it.
        """
        wanted = _merged(old, self.given)
        _require_possible(wanted)
        if not self.given.HasField("average_words") and (counted := self.count(wanted)) is not None:
            wanted.average_words = counted
        return wanted

    def require_same(self, collection: pb.Collection) -> None:
        """Check that a collection's words are indexed in that way.

        Raises:
            Misconfigured: `LEXICAL_INDEX_REQUIRED`, they are not; `LEXICAL_INDEX_DIFFERS`, they are in another.
        """
        remedy = "which is fixed when it is made; name another, or make it anew with --recreate"
        kept = collection.parameters
        if not kept.HasField("lexical"):
            raise Misconfigured("LEXICAL_INDEX_REQUIRED", f"{collection.name} indexes no words, {remedy}")
        if _merged(kept.lexical, self.given) != kept.lexical:
            raise Misconfigured("LEXICAL_INDEX_DIFFERS", f"{collection.name} indexes words otherwise, {remedy}")


def lexical_of(
    *,
    words: bool,
    language: str,
    stem: bool,
    stop_words: bool,
    tokenizer: Tokenizer | None,
    fold_accents: bool,
    k1: float | None,
    b: float | None,
    average_words: float | None,
) -> pb.LexicalParameters | None:
    """Write what the options say; None where words are not to be indexed."""
    given = pb.LexicalParameters(
        language=language,
        stem=stem,
        stop_words=stop_words,
        tokenizer=TOKENIZERS[tokenizer] if tokenizer else pb.LEXICAL_TOKENIZER_UNSPECIFIED,
        fold_accents=fold_accents,
        k1=k1,
        b=b,
        average_words=average_words,
    )
    return given if words or given != pb.LexicalParameters() else None


def in_words(parameters: pb.CollectionParameters) -> str:
    """Return how words are indexed."""
    if not parameters.HasField("lexical"):
        return "not indexed"
    found = parameters.lexical
    tokenizer = {value: name for name, value in TOKENIZERS.items()}.get(found.tokenizer, "word")
    said = [f"{tokenizer} tokenizer, k1 {found.k1:g}, b {found.b:g}, average {found.average_words:g}"]
    if found.language:
        uses = [use for use, done in (("stems", found.stem), ("stop words", found.stop_words)) if done]
        said.append(f"{found.language} {' and '.join(uses) or 'without stems and stop words'}")
    if found.extra_stop_words:
        said.append(f"{len(found.extra_stop_words)} more stop words")
    if found.fold_accents:
        said.append("accents dropped")
    return "; ".join(said)


def _merged(old: pb.LexicalParameters, given: pb.LexicalParameters) -> pb.LexicalParameters:
    merged = pb.LexicalParameters()
    merged.CopyFrom(old)
    merged.MergeFrom(given)
    return merged


def _require_possible(wanted: pb.LexicalParameters) -> None:
    """Refuse what the gateway would refuse, before a collection is dropped for it."""
    from gateway.convert_lexical import lexical_of as read  # noqa: PLC0415 - slow to load, and only needed here
    from gateway.stores.lexical import require_supported  # noqa: PLC0415

    require_supported(read(wanted, "parameters.lexical"))
