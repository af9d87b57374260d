"""`twostage index` and `collections` with words and parts: what is made, kept, refused and shown."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from index_rig import IndexRig, open_index_rig

from retrieval.gateway.v1 import gateway_pb2 as pb

pytestmark = pytest.mark.slow

TEXTS = ["The lost card. It was blue.", "a password of eight", "cards"]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[IndexRig]:
    """A gateway of the test's own."""
    async with open_index_rig(tmp_path / "home") as opened:
        yield opened


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Documents as a file."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines())
    return path


def lines() -> bytes:
    return b"".join(json.dumps({"id": one, "text": text}).encode() + b"\n" for one, text in enumerate(TEXTS, 1))


@pytest.fixture
def stop_words(tmp_path: Path) -> Path:
    """Words to leave out as a file."""
    return leave_out(tmp_path / "stop.txt", "the", "was", "a")


def leave_out(path: Path, *words: str) -> Path:
    path.write_text("\n".join(words))
    return path


async def kept(rig: IndexRig, name: str) -> pb.CollectionParameters:
    described = await rig.collections.DescribeCollection(pb.DescribeCollectionRequest(collection=name))
    return described.collection.parameters


async def found(rig: IndexRig, query: str, name: str = "c") -> list[int]:
    words = pb.Retrieval(mode=pb.RETRIEVAL_MODE_LEXICAL)
    request = pb.SearchRequest(query=query, collection=name, retrieval=words, rerank=pb.RERANK_OFF)
    return [hit.id.number or hit.parent.number for hit in (await rig.search(request, timeout=20)).hits]


async def test_words_are_counted_and_found(rig: IndexRig, file: Path) -> None:
    """--lexical makes a collection that words are found in, with the average of the file, and says what it counted."""
    options = ("--lexical", "--lexical-language", "english", "--lexical-stem", "--lexical-k1", "1.2")
    ended = await rig.run("index", str(file), "-c", "c", *options, "--json")
    assert (ended.status, json.loads(ended.stdout)["complete"]) == (0, True), ended.stderr
    assert "3.7 words a text on average, counted in " in ended.stderr
    assert (await kept(rig, "c")).lexical == pb.LexicalParameters(
        k1=1.2, b=0.75, average_words=3.7, tokenizer=pb.LEXICAL_TOKENIZER_WORD, language="english", stem=True
    )
    assert sorted(await found(rig, "a card?")) == [1, 2, 3]
    again = await rig.run("index", str(file), "-c", "c", *options)
    assert (again.status, "counted" in again.stderr) == (0, False)


async def test_standard_input_is_indexed_with_the_default_average(rig: IndexRig) -> None:
    """What cannot be counted is said, and an average that is given is taken."""
    ended = await rig.run("index", "-", "-c", "c", "--lexical", stdin=lines())
    assert ended.status == 0, ended.stderr
    assert "standard input is read once" in ended.stderr
    assert (await kept(rig, "c")).lexical.average_words == 50
    given = await rig.run("index", "-", "-c", "d", "--lexical-average-words", "9", stdin=lines())
    assert (given.status, "standard input" in given.stderr) == (0, False)
    assert (await kept(rig, "d")).lexical.average_words == 9


async def test_a_collection_without_words_is_not_taken_for_one_with_them(rig: IndexRig, file: Path) -> None:
    """Nothing is indexed otherwise than was asked; --recreate makes the collection anew, and keeps its ways."""
    await rig.run("index", str(file), "-c", "c")
    refused = await rig.run("index", str(file), "-c", "c", "--lexical")
    assert (refused.status, refused.stderr.startswith("error: LEXICAL_INDEX_REQUIRED: ")) == (2, True)
    wrong = await rig.run("index", str(file), "-c", "c", "--lexical-stem", "--recreate")
    assert (wrong.status, wrong.stderr.startswith("error: LANGUAGE_REQUIRED: ")) == (2, True), wrong.stderr
    assert await rig.count("c") == 3
    assert (await rig.run("index", str(file), "-c", "c", "--lexical", "--lexical-b", "0.5", "--recreate")).status == 0
    made = (await kept(rig, "c")).lexical
    assert (made.b, made.average_words) == (0.5, 3.7)
    differs = await rig.run("index", str(file), "-c", "c", "--lexical-b", "0.4")
    assert (differs.status, differs.stderr.startswith("error: LEXICAL_INDEX_DIFFERS: ")) == (2, True)
    assert (await rig.run("index", str(file), "-c", "c", "--recreate")).status == 0
    assert (await kept(rig, "c")).lexical == made


async def test_a_reindex_keeps_how_words_are_indexed(rig: IndexRig, file: Path) -> None:
    """The new collection behind the alias is found by words as the old one was."""
    options = ("--lexical-fold-accents", "--lexical-tokenizer", "multilingual", "--lexical-average-words", "12")
    await rig.run("collections", "create", "first", *options)
    await rig.run("collections", "alias", "live", "first")
    assert (await rig.run("reindex", str(file), "-c", "live")).status == 0
    lexical = (await kept(rig, "live")).lexical
    assert lexical == (await kept(rig, "first")).lexical
    assert (lexical.tokenizer, lexical.fold_accents, lexical.average_words) == (
        pb.LEXICAL_TOKENIZER_MULTILINGUAL,
        True,
        12,
    )
    assert await found(rig, "password", "live") == [2]


async def test_a_reindex_indexes_words_as_it_is_told(rig: IndexRig, file: Path, tmp_path: Path) -> None:
    """What is said goes over what the old collection had, with an average of the new file; unsaid, all of it stays."""
    assert (await rig.run("reindex", str(file), "-c", "live", "--drop-old")).status == 0
    assert not (await kept(rig, "live")).HasField("lexical")
    options = ("--lexical-language", "english", "--lexical-stem", "--lexical-k1", "1.2")
    ended = await rig.run("reindex", str(file), "-c", "live", *options)
    assert (ended.status, "3.7 words a text on average, counted in " in ended.stderr) == (0, True), ended.stderr
    first = (await kept(rig, "live")).lexical
    assert (first.k1, first.b, first.language, first.stem, first.average_words) == (1.2, 0.75, "english", True, 3.7)
    assert sorted(await found(rig, "a card?", "live")) == [1, 2, 3]
    longer = tmp_path / "longer.jsonl"
    longer.write_text(json.dumps({"id": 1, "text": "lost cards " * 10}))
    assert (await rig.run("reindex", str(longer), "-c", "live", "--lexical-b", "0.5")).status == 0
    second = (await kept(rig, "live")).lexical
    assert (second.k1, second.b, second.language, second.stem, second.average_words) == (1.2, 0.5, "english", True, 20)
    assert (await rig.run("reindex", str(file), "-c", "live")).status == 0
    assert (await kept(rig, "live")).lexical == second


async def test_a_reindex_that_cannot_be_makes_and_moves_nothing(rig: IndexRig, file: Path) -> None:
    """What the gateway would refuse is refused before anything is made, moved, or dropped of an abandoned run."""
    command = ("reindex", str(file), "-c", "live")
    await rig.run(*command)
    journal = ("--journal", str(file.with_name("journal")))
    await rig.kill(1, *command, *journal)
    before = (await rig.collections.ListCollections(pb.ListCollectionsRequest())).collections
    assert len(before) == 2
    wrong = await rig.run(*command, *journal, "--restart", "--lexical-stem")
    assert (wrong.status, wrong.stderr.startswith("error: LANGUAGE_REQUIRED: ")) == (2, True), wrong.stderr
    assert (await rig.collections.ListCollections(pb.ListCollectionsRequest())).collections == before


async def test_words_of_a_file_are_left_out(rig: IndexRig, file: Path, stop_words: Path) -> None:
    """They are neither counted nor found; in another order they are the same, with another one they are not."""
    options = ("--lexical-extra-stop-words", str(stop_words))
    ended = await rig.run("index", str(file), "-c", "c", *options)
    assert (ended.status, "2.7 words a text on average" in ended.stderr) == (0, True), ended.stderr
    assert list((await kept(rig, "c")).lexical.extra_stop_words) == ["a", "the", "was"]
    assert await found(rig, "the blue") == [1]
    assert await found(rig, "the") == []
    leave_out(stop_words, "was", "a", "the")
    assert (await rig.run("index", str(file), "-c", "c", *options)).status == 0
    assert (await rig.run("reindex", str(file), "-c", "live", *options)).status == 0
    leave_out(stop_words, "blue")
    differs = await rig.run("index", str(file), "-c", "c", *options)
    assert (differs.status, differs.stderr.startswith("error: LEXICAL_INDEX_DIFFERS: ")) == (2, True), differs.stderr
    assert (await rig.run("reindex", str(file), "-c", "live", *options)).status == 0
    assert list((await kept(rig, "live")).lexical.extra_stop_words) == ["blue"]


async def test_a_file_that_is_none_of_words_stops_everything(rig: IndexRig, file: Path, tmp_path: Path) -> None:
    """Before anything is made it is one line that names the file, for each command that makes a collection."""
    options = ("--lexical-extra-stop-words", str(tmp_path / "none"))
    for command in (("index", str(file), "-c", "c"), ("reindex", str(file), "-c", "c"), ("collections", "create", "c")):
        ended = await rig.run(*command, *options)
        assert (ended.status, ended.stdout) == (2, "")
        assert ended.stderr == f"error: STOP_WORDS: {tmp_path / 'none'} cannot be read: No such file or directory\n"
    assert (await rig.collections.ListCollections(pb.ListCollectionsRequest())).collections == []


async def test_a_killed_index_goes_on_as_it_was_told_only(rig: IndexRig, file: Path, stop_words: Path) -> None:
    """Other options do not continue into the collection that the killed run made; the same ones do."""
    command = ("index", str(file), "-c", "c", "--lexical-extra-stop-words", str(stop_words))
    await rig.kill(1, *command)
    differs = await rig.run(*command, "--lexical-k1", "2")
    assert (differs.status, differs.stderr.startswith("error: LEXICAL_INDEX_DIFFERS: ")) == (2, True), differs.stderr
    ended = await rig.run(*command)
    assert (ended.status, "going on after 0 documents" in ended.stderr) == (0, True), ended.stderr


async def test_a_killed_reindex_goes_on_as_it_was_told_only(rig: IndexRig, file: Path, stop_words: Path) -> None:
    """Other options, or other words in that file, begin another collection; one journal does not take both."""
    words = ("--lexical-extra-stop-words", str(stop_words))
    command, journal = ("reindex", str(file), "-c", "live"), ("--journal", str(stop_words.with_name("journal")))
    await rig.kill(1, *command, *words)
    await rig.kill(1, *command, *words, *journal)
    assert (await rig.run(*command)).status == 0
    assert not (await kept(rig, "live")).HasField("lexical")
    leave_out(stop_words, "blue")
    other = await rig.run(*command, *words)
    assert (other.status, "going on" in other.stderr) == (0, False), other.stderr
    assert list((await kept(rig, "live")).lexical.extra_stop_words) == ["blue"]
    refused = await rig.run(*command, *words, *journal)
    assert (refused.status, refused.stderr.startswith("error: JOURNAL_OF_ANOTHER_RUN: ")) == (2, True), refused.stderr
    leave_out(stop_words, "a", "was", "the")
    ended = await rig.run(*command, *words)
    assert (ended.status, "going on after 0 documents" in ended.stderr) == (0, True), ended.stderr
    assert list((await kept(rig, "live")).lexical.extra_stop_words) == ["a", "the", "was"]


async def test_whether_words_are_indexed_is_shown(rig: IndexRig) -> None:
    """The description says how, the list says whether, and JSON has every field."""
    await rig.run("collections", "create", "plain")
    made = await rig.run("collections", "create", "worded", "--lexical", "--lexical-k1", "0.9")
    assert "word tokenizer, k1 0.9, b 0.75, average 50" in made.stdout
    assert "not indexed" in (await rig.run("collections", "describe", "plain")).stdout
    listed = (await rig.run("collections", "list")).stdout.splitlines()
    rows = {row.split()[0]: row.split() for row in listed}
    assert ("indexed" in rows["worded"], "indexed" in rows["plain"]) == (True, False)
    described = json.loads((await rig.run("collections", "describe", "worded", "--json")).stdout)
    assert described["parameters"]["lexical"]["k1"] == 0.9
    unsupported = await rig.run("collections", "create", "odd", "--lexical-stem", "--lexical-language", "elvish")
    assert (unsupported.status, "LANGUAGE_UNSUPPORTED" in unsupported.stderr) == (2, True), unsupported.stderr


@pytest.mark.parametrize(
    ("options", "parts"), [(("--part-per-sentence",), 2), (("--part-tokens", "16"), 7), (("--split",), 0)]
)
async def test_parts_are_as_small_as_asked(rig: IndexRig, tmp_path: Path, options: Any, parts: int) -> None:
    """The options of parts split what would have been stored whole, and the count is exact with them."""
    text = "one. two three." if parts == 2 else "word " * 100 if parts else "short"
    (tmp_path / "b.jsonl").write_text(json.dumps({"id": 1, "text": text}))
    report = json.loads((await rig.run("index", str(tmp_path / "b.jsonl"), "-c", "c", *options, "--json")).stdout)
    assert (report["part_count"], report["complete"], report["exact"]) == (parts, True, True)
    assert report["document_count"] == (parts or 1)


async def test_a_cut_and_parts_contradict_each_other(rig: IndexRig, file: Path) -> None:
    """Both at once are refused before anything is stored, and so is a part of no room."""
    ended = await rig.run("index", str(file), "-c", "c", "--truncate", "--part-tokens", "64")
    assert (ended.status, ended.stderr.startswith("error: OPTIONS_CONTRADICT: ")) == (2, True)
    assert (await rig.run("index", str(file), "-c", "c", "--part-tokens", "15")).status == 2
    assert (await rig.collections.ListCollections(pb.ListCollectionsRequest())).collections == []
