"""How words are indexed: what the options mean, what an existing collection may be, and what is counted."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from cli.average_words import average_words
from cli.lexical import Lexical, as_option, in_words
from cli.lexical_options import OPTIONS, lexical_of, read_stop_words
from cli.lines import Fields
from cli.long_texts import LongTexts, long_texts
from cli.main import app
from cli.sources import Source, open_source
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import InvalidRequest, Misconfigured

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
    assert lexical_of() is None
    assert lexical_of(words=True) == pb.LexicalParameters()
    said: list[dict[str, Any]] = [{"k1": 0.0}, {"stem": True}, {"language": "french"}, {"tokenizer": "word"}]
    for options in said:
        given = lexical_of(**options)
        assert given is not None
        assert [field.name for field, _ in given.ListFields()] == list(options)


def test_every_command_that_makes_a_collection_has_the_same_options() -> None:
    """What can be said of words to one can be said to all, in the same words."""
    program = get_command(app)
    assert isinstance(program, TyperGroup)
    collections = program.commands["collections"]
    assert isinstance(collections, TyperGroup)
    makers = (program.commands["index"], program.commands["reindex"], collections.commands["create"])
    names = [
        [name for parameter in maker.params for name in parameter.opts if name.startswith("--lexical")]
        for maker in makers
    ]
    assert len(names[0]) == len(OPTIONS) == 10
    assert names[0] == names[1] == names[2]


def test_words_to_leave_out_are_read_as_a_set(tmp_path: Path) -> None:
    """Order, repetition, blank lines, white space and what an editor puts around lines say nothing."""
    path = tmp_path / "stop.txt"
    path.write_bytes("\ufeffzum\r\n\r\n  der \r\nder\r\nétait".encode())
    assert read_stop_words(path) == ["der", "zum", "était"]
    given = lexical_of(extra_stop_words=path)
    assert given is not None
    assert [(field.name, list(words)) for field, words in given.ListFields()] == [
        ("extra_stop_words", ["der", "zum", "était"])
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", " holds 0 words, 1 to 1000 are wanted"),
        (b" \n\n", " holds 0 words, 1 to 1000 are wanted"),
        ("\n".join(f"w{number}" for number in range(1_001)).encode(), " holds 1001 words, 1 to 1000 are wanted"),
        (b"fine\nSecret\n", ", line 2: one word of at most 128 characters in lower case is wanted"),
        (b"secret words\n", ", line 1: one word of at most 128 characters in lower case is wanted"),
        (b"s" * 129, ", line 1: one word of at most 128 characters in lower case is wanted"),
        (b"secret\xff\n", " cannot be read: it is not UTF-8"),
        (None, " cannot be read: Is a directory"),
    ],
)
def test_a_file_that_is_none_of_words_is_refused(tmp_path: Path, content: bytes | None, said: str) -> None:
    """The file, the line and the limit are named, what is in it is not."""
    path = tmp_path / "stop.txt"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(Misconfigured) as caught:
        read_stop_words(path)
    assert (caught.value.reason, caught.value.message) == ("STOP_WORDS", f"{path}{said}")


def test_as_many_words_as_the_gateway_takes_are_read(tmp_path: Path) -> None:
    """At the limits nothing is refused, here or there."""
    path = tmp_path / "stop.txt"
    path.write_text("\n".join(f"{number:04}" + "w" * 124 for number in range(1_000)))
    over = wanted(extra_stop_words=read_stop_words(path)).over(pb.LexicalParameters())
    assert len(over.extra_stop_words) == 1_000


def test_words_to_leave_out_are_instead_of_the_old_ones() -> None:
    """They are not added to them, and where none are given the old ones stay."""
    old = pb.LexicalParameters(extra_stop_words=["b", "a"])
    assert list(wanted(extra_stop_words=["c"]).over(old).extra_stop_words) == ["c"]
    assert list(wanted(k1=1.0).over(old).extra_stop_words) == ["a", "b"]


def test_the_same_words_again_are_the_same() -> None:
    """A collection that leaves them out is taken for what it is, in whatever order it has them."""
    same = collection(pb.LexicalParameters(k1=1.5, extra_stop_words=["b", "a"]))
    wanted(extra_stop_words=["a", "b"]).require_same(same)
    wanted(k1=1.5).require_same(same)
    for words in (["a"], ["a", "b", "c"]):
        with pytest.raises(Misconfigured) as caught:
            wanted(extra_stop_words=words).require_same(same)
        assert caught.value.reason == "LEXICAL_INDEX_DIFFERS"


def test_a_run_is_known_by_what_was_said_of_words() -> None:
    """Nothing said is not written, so that older journals are known again; every difference makes another run."""
    assert as_option(None) == {}
    said = [
        as_option(pb.LexicalParameters(**fields))
        for fields in (
            {},
            {"k1": 1.5},
            {"k1": 1.25},
            {"stop_words": True},
            {"extra_stop_words": ["secret"]},
            {"extra_stop_words": ["secret", "word"]},
        )
    ]
    assert said[:2] == [{"lexical": "{}"}, {"lexical": '{"k1": 1.5}'}]
    assert len({options["lexical"] for options in said}) == len(said)
    assert "secret" not in str(said)


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
