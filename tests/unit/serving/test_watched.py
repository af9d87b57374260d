"""Files that are read again when they change."""

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from serving.errors import Misconfigured
from serving.watched import Watched


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def numbers(contents: Sequence[bytes]) -> list[int]:
    """Read one number per file."""
    try:
        return [int(content) for content in contents]
    except ValueError as error:
        raise Misconfigured("NUMBER", "no number") from error


def watch(*paths: Path) -> tuple[Watched[list[int]], Clock]:
    """Watch files of numbers under a clock of one's own."""
    clock = Clock()
    return Watched(paths, numbers, clock=clock), clock


def test_a_change_is_seen_when_it_is_time_to_look(tmp_path: Path):
    """Within the interval the old value is given without a look, after it the new one."""
    file = tmp_path / "a"
    file.write_text("1")
    watched, clock = watch(file)
    file.write_text("2")
    assert watched.current() == [1]
    clock.now += 1
    assert watched.current() == [2]


def test_a_symbolic_link_that_is_pointed_elsewhere_is_a_change(tmp_path: Path):
    """What Kubernetes does with a mounted secret, the new file being older and as long, is noticed."""
    (tmp_path / "new").write_text("2")
    (tmp_path / "old").write_text("1")
    (tmp_path / "link").symlink_to("old")
    watched, clock = watch(tmp_path / "link")
    (tmp_path / "next").symlink_to("new")
    (tmp_path / "next").rename(tmp_path / "link")
    clock.now += 1
    assert watched.current() == [2]


def test_what_is_wrong_keeps_the_old_value_and_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A broken file changes nothing, fills no log, and is replaced by the next right one."""
    file = tmp_path / "a"
    file.write_text("1")
    watched, clock = watch(file)
    file.write_text("one")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            clock.now += 1
            assert watched.current() == [1]
    assert [record.getMessage() for record in caplog.records] == [
        "NUMBER: no number; going on with what was read before"
    ]
    file.write_text("3")
    clock.now += 1
    assert watched.current() == [3]


def test_a_file_that_is_gone_keeps_the_old_value(tmp_path: Path):
    """A secret that is unmounted by mistake ends no server."""
    file = tmp_path / "a"
    file.write_text("1")
    watched, clock = watch(file)
    file.unlink()
    clock.now += 1
    assert watched.current() == [1]
    file.write_text("1")
    clock.now += 1
    assert watched.current() == [1]


def test_at_the_start_there_is_nothing_older(tmp_path: Path):
    """A missing or a broken file is the caller's to report then."""
    with pytest.raises(Misconfigured, match="No such file") as caught:
        watch(tmp_path / "none")
    assert caught.value.reason == "FILE_UNREADABLE"
    (tmp_path / "bad").write_text("x")
    with pytest.raises(Misconfigured, match="no number"):
        watch(tmp_path / "bad")
