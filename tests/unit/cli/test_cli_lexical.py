"""How words are indexed: what the options mean, what an existing collection may be, and what is counted."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.average_words import average_words
from cli.lexical import Lexical, in_words, lexical_of
from cli.lines import Fields
from cli.long_texts import LongTexts, long_texts
from cli.sources import Source, open_source
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import InvalidRequest, Misconfigured

NOTHING: dict[str, Any] = {
    "words": False,
    "language": "",
    "stem": False,
    "stop_words": False,
    "tokenizer": None,
    "fold_accents": False,
    "k1": None,
    "b": None,
    "average_words": None,
}
KEPT = pb.LexicalParameters(k1=1.5, b=0.75, average_words=50, tokenizer=pb.LEXICAL_TOKENIZER_WORD)


def wanted(count: Callable[[pb.LexicalParameters], float | None] = lambda _: 12.5, **fields: Any) -> Lexical:
    """Make what a run wants."""
    return Lexical(given=pb.LexicalParameters(**fields), count=count)


def collection(lexical: pb.LexicalParameters | None) -> pb.Collection:
    """Make a collection."""
    return pb.Collection(name="c", parameters=pb.CollectionParameters(lexical=lexical))


def file_of(path: Path, *texts: str) -> Path:
    """Write texts as lines of JSON, with one that is none among them."""
    lines = ["{", *(json.dumps({"id": number, "text": text}) for number, text in enumerate(texts))]
    path.write_text("\n".join(lines))
    return path


def counted(path: Path, texts: LongTexts, **lexical: Any) -> float | None:
    """Count the words of a file, and read it as if nobody had."""
    with open_source(str(path), None) as source:
        found = average_words(source, Fields(), texts, pb.LexicalParameters(**lexical))
        assert len(list(source.lines(Fields()))) == len(path.read_text().splitlines())
    return found


def test_words_are_indexed_where_any_option_says_so() -> None:
    """Nothing said is nothing; --lexical alone is every default; an option of it alone means --lexical as well."""
    assert lexical_of(**NOTHING) is None
    assert lexical_of(**{**NOTHING, "words": True}) == pb.LexicalParameters()
    for name, value in (("k1", 0.0), ("stem", True), ("language", "french"), ("tokenizer", "word")):
        given = lexical_of(**{**NOTHING, name: value})
        assert given is not None
        assert [field.name for field, _ in given.ListFields()] == [name]


def test_what_was_not_said_stays_but_for_the_count() -> None:
    """A collection that is made anew keeps its ways; the average is of what it will hold now, unless it was said."""
    old = pb.LexicalParameters(k1=0.9, language="french", stem=True, average_words=70)
    assert wanted(b=0.5).over(old) == pb.LexicalParameters(
        k1=0.9, b=0.5, language="french", stem=True, average_words=12.5
    )
    assert wanted(average_words=99).over(old).average_words == 99
    assert wanted(lambda _: None).over(old).average_words == 70


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"stem": True}, "LANGUAGE_REQUIRED"),
        ({"stem": True, "language": "elvish"}, "LANGUAGE_UNSUPPORTED"),
        ({"k1": 11.0}, "OUT_OF_RANGE"),
    ],
)
def test_what_the_gateway_would_refuse_is_refused_before_anything_is_dropped(fields: Any, reason: str) -> None:
    """The collection that is to be made anew is still there when the options turn out to be wrong."""
    with pytest.raises(InvalidRequest) as caught:
        wanted(**fields).over(pb.LexicalParameters())
    assert caught.value.reason == reason


def test_an_existing_collection_has_to_index_words_in_the_same_way() -> None:
    """What is fixed is not silently something else: without an index, or with another, the run is refused."""
    wanted().require_same(collection(KEPT))
    wanted(k1=1.5, tokenizer=pb.LEXICAL_TOKENIZER_WORD).require_same(collection(KEPT))
    for given, kept, reason in (
        (wanted(), None, "LEXICAL_INDEX_REQUIRED"),
        (wanted(k1=1.2), KEPT, "LEXICAL_INDEX_DIFFERS"),
        (wanted(stem=True, language="english"), KEPT, "LEXICAL_INDEX_DIFFERS"),
    ):
        with pytest.raises(Misconfigured) as caught:
            given.require_same(collection(kept))
        assert caught.value.reason == reason


def test_how_words_are_indexed_is_said_in_words() -> None:
    """A person sees whether they are, and everything that is not a default."""
    assert in_words(pb.CollectionParameters()) == "not indexed"
    assert in_words(pb.CollectionParameters(lexical=KEPT)) == "word tokenizer, k1 1.5, b 0.75, average 50"
    full = pb.LexicalParameters(
        k1=1,
        b=0.5,
        average_words=62.5,
        tokenizer=pb.LEXICAL_TOKENIZER_MULTILINGUAL,
        language="french",
        stem=True,
        stop_words=True,
        extra_stop_words=["x", "y"],
        fold_accents=True,
    )
    assert in_words(pb.CollectionParameters(lexical=full)) == (
        "multilingual tokenizer, k1 1, b 0.5, average 62.5; french stems and stop words; 2 more stop words; "
        "accents dropped"
    )


def test_words_are_counted_as_bm25_counts_them(tmp_path: Path) -> None:
    """Every occurrence counts, punctuation does not, stop words do not, malformed lines are passed over."""
    path = file_of(tmp_path / "a.jsonl", "The fox, the fox!", "a_b c-d e.g. 3.5 x", "jumps")
    assert counted(path, LongTexts()) == round((4 + 9 + 1) / 3, 1)
    assert counted(path, LongTexts(), tokenizer=pb.LEXICAL_TOKENIZER_WHITESPACE) == round((4 + 5 + 1) / 3, 1)
    assert counted(path, LongTexts(), language="english", stop_words=True) < round((4 + 9 + 1) / 3, 1)


def test_the_count_of_one_text_of_many_words_is_exact(tmp_path: Path) -> None:
    """A word that occurs ten thousand times counts ten thousand times."""
    assert counted(file_of(tmp_path / "a.jsonl", "alpha beta " * 5_000), LongTexts()) == 10_000


def test_words_of_texts_that_are_split_are_those_of_their_parts(tmp_path: Path) -> None:
    """A long text counts as the parts that it will become, by tokens or by sentences; a short one as it is."""
    path = file_of(tmp_path / "a.jsonl", "One two three. " * 1_000, "One two three.")
    assert counted(path, LongTexts()) == 1501.5
    by_limit, by_tokens, by_sentence = (
        counted(path, long_texts(**fields))
        for fields in ({"split": True}, {"part_tokens": 100}, {"part_per_sentence": True})
    )
    assert by_limit is not None
    assert by_tokens is not None
    assert by_tokens <= 100 < by_limit <= 512
    assert by_sentence == 3.0


def test_nothing_is_counted_where_nothing_can_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard input is read once, which is said, and a file without words has no average."""
    stdin = Source(path=None, format="jsonl", digest="", line_count=None, stream=io.BytesIO(b"x"))
    assert average_words(stdin, Fields(), LongTexts(), pb.LexicalParameters()) is None
    assert "standard input" in capsys.readouterr().err
    assert counted(file_of(tmp_path / "a.jsonl", "...", "!"), LongTexts()) is None
    assert counted(file_of(tmp_path / "b.jsonl", "...", "!", "one"), LongTexts()) == 1.0


def test_options_of_parts_mean_that_texts_are_split() -> None:
    """A size or sentences alone are enough, and contradict a cut as --split does."""
    assert not long_texts().split
    for fields in ({"split": True}, {"part_tokens": 64}, {"part_per_sentence": True}):
        assert long_texts(**fields).split
        with pytest.raises(Misconfigured) as caught:
            long_texts(truncate=True, **fields)
        assert caught.value.reason == "OPTIONS_CONTRADICT"


def test_journals_of_before_are_known_again() -> None:
    """What was not said is not written, so that a run that an older version began goes on; what was said is."""
    assert long_texts(split=True).in_words() == {"overlong": "split"}
    assert long_texts(part_tokens=64, part_per_sentence=True).in_words() == {
        "overlong": "split",
        "part_tokens": "64",
        "part_per_sentence": "true",
    }
