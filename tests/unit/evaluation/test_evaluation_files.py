"""Files: atomic, sorted, and refused by name where they are not what a phase needs."""

import json
from pathlib import Path

import pytest
from evaluation_fakes import small_plan

from evaluation.files import NotTogether, read, require_same, write, write_text
from evaluation.phases.corpus import prepare
from evaluation.records import PREPARED, Prepared
from serving.errors import Misconfigured


def test_a_record_survives_being_written(tmp_path: Path) -> None:
    """What was written is read as it was; keys are sorted, so that equal records are equal bytes."""
    record = prepare(small_plan(tmp_path))
    assert read(Prepared, tmp_path / PREPARED, "prepare") == record
    first = (tmp_path / PREPARED).read_bytes()
    write(record, tmp_path / PREPARED)
    assert (tmp_path / PREPARED).read_bytes() == first
    keys = list(json.loads(first)["provenance"])
    assert keys == sorted(keys)


def test_a_missing_file_names_the_phase_that_makes_it(tmp_path: Path) -> None:
    """The error says what to run."""
    with pytest.raises(Misconfigured, match="run `twostage evaluate prepare` first"):
        read(Prepared, tmp_path / PREPARED, "prepare")


@pytest.mark.parametrize("content", ["{", "[]", '{"schema_version": 2}', '{"unknown": 1}'])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: str) -> None:
    """Neither half a file nor one of another version is read as if it were right."""
    (tmp_path / PREPARED).write_text(content)
    with pytest.raises(Misconfigured, match=r"prepared\.json: .*run `twostage evaluate prepare` again"):
        read(Prepared, tmp_path / PREPARED, "prepare")


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    """A text that cannot be encoded fails half-way; what was there stays, and no rest beside it."""
    write_text("old", tmp_path / "a")
    with pytest.raises(UnicodeEncodeError):
        write_text("new" * 10_000 + "\ud800", tmp_path / "a")
    assert (tmp_path / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_two_inputs_that_differ_are_refused() -> None:
    """The sentence has both digests, shortened, and what to do."""
    with pytest.raises(
        NotTogether, match="other pools: sha256:aaaaaaaaaaaa against sha256:bbbbbbbbbbbb; do this"
    ) as caught:
        require_same("other pools", "sha256:" + "a" * 64, "sha256:" + "b" * 64, "do this")
    assert caught.value.reason == "INPUTS_DO_NOT_BELONG_TOGETHER"
    require_same("equal", "x", "x", "nothing")
