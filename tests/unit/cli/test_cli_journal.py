"""The journal of a run and its reject file, whatever a crash leaves of them."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.journal import Counts, Journal, Run, _merged
from cli.lines import Line, Malformed
from cli.record import Record
from cli.rejects import Rejects
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import Misconfigured

RUN = Run(
    name="c", collection="c-1", file="f", digest="sha256:1", options={"a": "b"}, encoder_digest="e", before_count=0
)


def write(path: Path) -> None:
    """Write a journal with two acknowledged messages and a refused line."""
    with Journal(path) as journal:
        journal.begin(RUN)
        journal.stored(1, 64, Counts(stored=60, split=2, parts=7, truncated=1))
        journal.refuse(65, "TEXT_BLANK", "blank")
        journal.stored(129, 130, Counts(stored=2))


def test_what_was_acknowledged_is_known_again(tmp_path: Path) -> None:
    """Run, counts, refusals and covered lines come back, and nothing else is covered."""
    write(tmp_path / "j")
    with Journal(tmp_path / "j") as journal:
        assert journal.unfinished == RUN
        assert (journal.counts.stored, journal.counts.entries, journal.counts.truncated) == (62, 67, 1)
        assert journal.refused == {65: ("TEXT_BLANK", "blank")}
        assert {number for number in range(200) if journal.covers(number)} == {*range(1, 66), 129, 130}


def test_a_journal_cut_off_anywhere_is_a_shorter_one(tmp_path: Path) -> None:
    """Whatever byte a crash stops at, whole records count, the torn one does not, and writing goes on behind them."""
    write(tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    begun = data.index(b"\n") + 1
    for length in range(begun, len(data) + 1):
        path = tmp_path / "torn"
        path.write_bytes(data[:length])
        with Journal(path) as journal:
            records = data[:length].count(b"\n") - 1
            assert journal.counts.stored == (0, 60, 60, 62)[records]
            journal.stored(200, 200, Counts(stored=1))
        with Journal(path) as journal:
            assert (journal.counts.stored, journal.covers(200)) == ((1, 61, 61, 63)[records], True)


def test_a_run_that_ended_is_over(tmp_path: Path) -> None:
    """There is nothing to go on with, and the next run writes over it."""
    write(tmp_path / "j")
    with Journal(tmp_path / "j") as journal:
        journal.end(67)
        assert journal.path == tmp_path / "j"
    with Journal(tmp_path / "j") as journal:
        assert journal.unfinished is None
        journal.begin(RUN)
        assert (journal.counts.stored, journal.covers(1), journal.refused) == (0, False, {})
    assert len((tmp_path / "j").read_text().splitlines()) == 1


def test_one_journal_has_one_writer(tmp_path: Path) -> None:
    """A second one is refused while the first is open, and not afterwards."""
    with Journal(tmp_path / "j"), pytest.raises(Misconfigured) as caught:
        Journal(tmp_path / "j")
    assert caught.value.reason == "JOURNAL_LOCKED"
    with Journal(tmp_path / "j"):
        pass


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file where a directory would have to be is a matter of the command line, not a crash."""
    (tmp_path / "file").write_text("")
    with pytest.raises(Misconfigured) as caught:
        Journal(tmp_path / "file" / "j")
    assert caught.value.reason == "JOURNAL_UNUSABLE"


@pytest.mark.parametrize(
    "text",
    ["no json\n", '{"record": "stored"}\n', '{"record": "begin", "version": 2}\n', "[1]\n", '{"record": "other"}\n'],
)
def test_what_is_no_journal_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    """A file that somebody named by mistake is not written over."""
    (tmp_path / "j").write_text(text)
    with pytest.raises(Misconfigured) as caught:
        Journal(tmp_path / "j")
    assert caught.value.reason == "JOURNAL_MALFORMED"
    assert (tmp_path / "j").read_text() == text


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9)).map(lambda pair: (pair[0], sum(pair)))))
def test_merged_ranges_cover_the_same_lines(ranges: list[tuple[int, int]]) -> None:
    """In order, apart from each other, and not a line more or less."""
    merged = _merged(ranges)
    lines = [number for first, last in merged for number in range(first, last + 1)]
    assert lines == sorted({number for first, last in ranges for number in range(first, last + 1)})
    assert all(before[1] + 1 < after[0] for before, after in pairwise(merged))


def line(number: int) -> Line:
    return Line(number=number, document=pb.Document(text="a"), original=f"line {number}")


def test_rejects_are_written_once_with_their_line(tmp_path: Path) -> None:
    """A run that goes on adds what is new to what a torn file still says."""
    path = tmp_path / "rejects"
    with Rejects(path, goes_on=False) as rejects:
        rejects.add(3, "MALFORMED", "not JSON", "li\ufffdne")
        rejects.add(5, "TEXT_BLANK", "blank", "{}")
    path.write_bytes(path.read_bytes()[:-4])
    with Rejects(path, goes_on=True) as rejects:
        for number in (3, 5, 5):
            rejects.add(number, "MALFORMED", "not JSON", "again")
    found = [json.loads(one) for one in path.read_text().splitlines()]
    assert found == [
        {"line": 3, "reason": "MALFORMED", "message": "not JSON", "original": "li\ufffdne"},
        {"line": 5, "reason": "MALFORMED", "message": "not JSON", "original": "again"},
    ]


def test_a_new_run_begins_with_no_rejects(tmp_path: Path) -> None:
    """What an older run has refused is gone, and a run without refusals leaves no file."""
    path = tmp_path / "rejects"
    path.write_text("old")
    with Rejects(path, goes_on=False):
        pass
    assert not path.exists()
    path.write_text("not ours\n")
    with pytest.raises(Misconfigured):
        Rejects(path, goes_on=True)


def test_refusals_are_in_the_reject_file_before_the_journal(tmp_path: Path) -> None:
    """A crash between the two writes leaves a line to be sent again, not one that nobody can find."""

    class Full(Journal):
        def refuse(self, number: int, reason: str, message: str) -> None:
            raise OSError(28, "no space left")

    with Full(tmp_path / "j") as journal, Rejects(tmp_path / "r", goes_on=False) as rejects:
        journal.begin(RUN)
        record = Record(journal, rejects)
        with pytest.raises(OSError, match="no space"):
            record.refused(line(4), "TEXT_BLANK", "blank")
    assert json.loads((tmp_path / "r").read_text())["line"] == 4


def test_an_outcome_counts_everything_and_keeps_the_first(tmp_path: Path) -> None:
    """Problems beyond a thousand are counted and in the reject file, but not held in memory."""
    with Rejects(tmp_path / "r", goes_on=False) as rejects:
        record = Record(None, rejects)
        for number in range(1_005):
            record.malformed(Malformed(number=number, problem="bad", original="x"))
    assert (record.outcome.malformed_count, len(record.outcome.malformed)) == (1_005, 1_000)
    assert len((tmp_path / "r").read_text().splitlines()) == 1_005
