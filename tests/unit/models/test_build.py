"""A directory appears under its name only when it is complete."""

from pathlib import Path

import pytest

from models.build import building


def test_success_replaces_what_was_there(tmp_path: Path):
    """A finished build takes the place of the old directory, of which nothing stays."""
    target = tmp_path / "deep" / "bundle"
    for name in ("old", "new"):
        with building(target) as part:
            (part / name).touch()
    assert [path.name for path in target.iterdir()] == ["new"]
    assert list(target.parent.iterdir()) == [target]


def test_failure_leaves_what_was_there(tmp_path: Path):
    """A build that fails changes nothing and leaves nothing."""
    target = tmp_path / "bundle"
    with building(target) as part:
        (part / "old").touch()
    with pytest.raises(FileExistsError), building(target) as part:
        part.mkdir()
    assert [path.name for path in target.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [target]


def test_leftovers_of_a_killed_build_are_not_built_on(tmp_path: Path):
    """What a killed build left is removed before the next one begins."""
    leftover = tmp_path / ".bundle.part" / "half"
    leftover.parent.mkdir()
    leftover.touch()
    with building(tmp_path / "bundle") as part:
        assert list(part.iterdir()) == []
