"""Splitting texts at sentence ends under a token limit."""

import re
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoder_server.splitting import Measured, Piece, Unsplittable, split, split_sentences

LIMIT = 20
ROW = 3
"""Tokens of a row without content, as of a prefix and two special tokens."""


def by_words(texts: Sequence[str]) -> list[Measured]:
    """Measure as a tokenizer that splits at white space, a token for four characters of a word."""
    counts = [sum(-(-len(word) // 4) for word in text.split()) for text in texts]
    return [Measured(ROW + count, blank=count == 0) for count in counts]


def by_runs(texts: Sequence[str]) -> list[Measured]:
    """Measure as a tokenizer whose counts do not add up: a token at every text's beginning, and one for a pair."""
    counts = [bool(text.strip()) + -(-len(text.strip()) // 2) for text in texts]
    return [Measured(ROW + count, blank=count == 0) for count in counts]


def cut(text: str, pieces: Sequence[Piece]) -> list[str]:
    return [text[piece.begin : piece.end] for piece in pieces]


def sentences(count: int, words: int = 4) -> list[str]:
    """Sentences of so many one-token words each."""
    return [" ".join([f"W{number:02}"] * (words - 1) + ["end."]) for number in range(count)]


ALPHABET = st.sampled_from(
    [*"ab é字。！.!?\n\t \N{ZERO WIDTH SPACE}", ". ", "e.g. ", "\n\n", "word ", "longword" * 3, "\u0301"]  # noqa: RUF001
)
TEXTS = st.lists(ALPHABET, max_size=400).map("".join).filter(lambda text: bool(text.strip()))


@given(text=TEXTS, overlap=st.integers(0, LIMIT // 2), measure=st.sampled_from([by_words, by_runs]))
def test_no_text_is_lost_and_no_passage_is_over_the_limit(text: str, overlap: int, measure: object) -> None:
    """Passages keep order, move on, fit, begin and end with something visible, and leave white space out at most."""
    pieces = split(text, measure, max_tokens=LIMIT, overlap_tokens=overlap)  # type: ignore[arg-type]
    rows = measure(cut(text, pieces))  # type: ignore[operator]
    assert [row.token_count for row in rows] == [piece.token_count for piece in pieces]
    if len(pieces) == 1 and (pieces[0].begin, pieces[0].end) == (0, len(text)):
        return
    assert all(row.token_count <= LIMIT and not row.blank for row in rows)
    assert all(before.begin < after.begin for before, after in pairwise(pieces))
    assert all(before.end < after.end for before, after in pairwise(pieces))
    covered = {index for piece in pieces for index in range(piece.begin, piece.end)}
    assert not "".join(text[index] for index in range(len(text)) if index not in covered).strip()


@given(text=TEXTS, limit=st.integers(8, LIMIT), measure=st.sampled_from([by_words, by_runs]))
def test_every_visible_character_is_in_one_sentence(text: str, limit: int, measure: object) -> None:
    """Sentences keep order, fit, begin and end visibly, share nothing, and leave out nothing but white space."""
    pieces = split_sentences(text, measure, max_tokens=limit)  # type: ignore[arg-type]
    rows = measure(cut(text, pieces))  # type: ignore[operator]
    assert [row.token_count for row in rows] == [piece.token_count for piece in pieces]
    assert all(row.token_count <= limit and not row.blank for row in rows)
    assert all(before.end <= after.begin for before, after in pairwise(pieces))
    assert all(passage == passage.strip() for passage in cut(text, pieces))
    assert "".join("".join(cut(text, pieces)).split()) == "".join(text.split())


@given(count=st.integers(1, 60))
def test_every_sentence_is_a_passage(count: int) -> None:
    """Sentences that fit are passages as they are, also where the whole text is within the limit."""
    parts = sentences(count)
    text = " ".join(parts)
    assert cut(text, split_sentences(text, by_words, max_tokens=LIMIT)) == parts


def test_a_sentence_over_the_limit_is_cut_between_words_and_its_neighbours_are_not_touched() -> None:
    """Only the long one is in several passages, none of which has a word of a neighbour."""
    text = f"First one. {'Word ' * 30}end. Last one."
    passages = cut(text, split_sentences(text, by_words, max_tokens=LIMIT))
    assert [len(passage.split()) for passage in passages] == [2, 17, 14, 2]
    assert (passages[0], passages[-1]) == ("First one.", "Last one.")


@pytest.mark.parametrize(
    ("text", "passages"),
    [
        ("1. Open it. 2. Close it.", ["1. Open it.", "2. Close it."]),
        ("Really?! . . .", ["Really?! . . ."]),
        ("42. 43. 44.", ["42. 43. 44."]),
        ("  One.\n\n* Two\n\n- - -\n\nThree ", ["One.", "* Two", "- - -\n\nThree"]),
        ("熊猫喝茶。你好！", ["熊猫喝茶。", "你好！"]),  # noqa: RUF001 - meant
    ],
)
def test_what_has_no_letter_is_no_sentence(text: str, passages: list[str]) -> None:
    """Numbers of lists and lone marks stay with a sentence, so that none is encoded alone."""
    assert cut(text, split_sentences(text, by_words, max_tokens=LIMIT)) == passages


@given(count=st.integers(5, 60), overlap=st.integers(0, LIMIT // 2))
def test_neighbours_share_whole_sentences_up_to_the_overlap(count: int, overlap: int) -> None:
    """Of sentences that fit, as many are repeated as the overlap has room for, and every cut is a sentence's end."""
    parts = sentences(count)
    text = " ".join(parts)
    pieces = split(text, by_words, max_tokens=LIMIT, overlap_tokens=overlap)
    passages = cut(text, pieces)
    assert all(passage.endswith("end.") for passage in passages)
    told = [[sentence for sentence in parts if sentence in passage] for passage in passages]
    for before, after in pairwise(told):
        shared = min(overlap // 4, len(before) - 1)
        assert before[len(before) - shared :] == after[:shared]
        assert after[shared] not in before


def test_a_text_within_the_limit_stays_whole() -> None:
    """What fits is not touched, white space included."""
    assert split(" a b. c ", by_words, max_tokens=LIMIT, overlap_tokens=5) == [Piece(begin=0, end=8, token_count=6)]


def test_a_long_sentence_is_cut_between_words() -> None:
    """Where no sentence ends in time, words stay whole."""
    text = " ".join(["word"] * 100)
    passages = cut(text, split(text, by_words, max_tokens=LIMIT, overlap_tokens=0))
    assert [len(passage.split()) for passage in passages] == [17] * 5 + [15]
    assert set(" ".join(passages).split()) == {"word"}


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("First one. " * 12, "one."),
        ("Das kostet z.B. fünf Euro im Jahr 3.5 mal. " * 4, "mal."),
        ("電話をなくしました。" * 12, "。"),
        ("He said “stop.” " * 9, "stop.”"),
        ("यह एक वाक्य है। " * 12, "है।"),
    ],
)
def test_sentences_end_where_a_reader_ends_them(text: str, ends: str) -> None:
    """Passages end with a sentence, whatever the script, and not within an abbreviation or a number."""
    measure = by_runs if "。" in text else by_words
    assert all(
        passage.endswith(ends) for passage in cut(text, split(text, measure, max_tokens=LIMIT, overlap_tokens=0))
    )


def test_a_blank_line_ends_what_stands_before_it() -> None:
    """Headings and list items without a full stop are not torn."""
    text = "\n\n".join(["a heading of five words"] * 8)
    assert set(cut(text, split(text, by_words, max_tokens=13, overlap_tokens=0))) == {"a heading of five words"}


def test_marks_stay_with_the_letter_they_belong_to() -> None:
    """A combining mark does not begin a passage."""
    text = "e\u0301" * 200
    passages = cut(text, split(text, by_runs, max_tokens=LIMIT, overlap_tokens=0))
    assert "".join(passages) == text
    assert not any(passage.startswith("\u0301") for passage in passages)


def test_a_character_over_the_limit_cannot_be_split() -> None:
    """Where one character alone makes too many tokens the text is refused instead of being sent to fail."""

    def measure(texts: Sequence[str]) -> list[Measured]:
        return [Measured(ROW + 30 * text.count("X") + len(text), blank=not text) for text in texts]

    with pytest.raises(Unsplittable):
        split("aaXaa" * 9, measure, max_tokens=LIMIT, overlap_tokens=0)


@pytest.mark.parametrize("unit", [".", ".)", "\n \n", "。", " ", "\n", "a. \n"])
def test_long_runs_of_marks_take_no_more_than_linear_time(unit: str) -> None:
    """A text of nothing but sentence ends is split without scanning any run again and again."""
    steps = 0

    def measure(texts: Sequence[str]) -> list[Measured]:
        nonlocal steps
        steps += sum(map(len, texts))
        return by_words(texts)

    text = "word " * 30 + unit * 2_000 + " word" * 30
    for pieces in (
        split(text, measure, max_tokens=LIMIT, overlap_tokens=2),
        split_sentences(text, measure, max_tokens=LIMIT),
    ):
        assert "".join(re.findall(r"\S", "".join(cut(text, pieces)))).count("word") >= 60
        assert steps < 60 * len(text)
        steps = 0
