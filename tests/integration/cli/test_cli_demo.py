"""`twostage demo` from beginning to end."""

import json
from pathlib import Path

import pytest
from up_process import twostage

from cli.demo_questions import find_data, read_questions


@pytest.fixture
def small_data(tmp_path: Path) -> Path:
    """The help centre with the documents that its ten questions need, and few others."""
    source = find_data(None)
    needed = set(range(30)).union(*(question.relevant for question in read_questions(source)))
    lines = (source / "documents.jsonl").read_text().splitlines()
    (tmp_path / "documents.jsonl").write_text("\n".join(line for line in lines if json.loads(line)["id"] in needed))
    (tmp_path / "queries.jsonl").write_bytes((source / "queries.jsonl").read_bytes())
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_runs_and_says_so_last(home: Path, small_data: Path) -> None:
    """Ten questions are answered, the reranker's order is at least as good, and nothing is left behind."""
    result = twostage("demo", "--home", str(home), "--data", str(small_data))
    assert result.returncode == 0, result.stderr
    printed = result.stdout.splitlines()
    assert printed[-1] == "demo: ok"
    assert sum("REF-" in line for line in printed) == 10
    before, after = (float(word) for word in printed[-2].split()[-2:])
    assert after >= before
    assert list((home / "demo").iterdir()) == []


def test_missing_data_is_named(tmp_path: Path) -> None:
    """Without the help centre's files the demo says where it looked, starts nothing and does not claim success."""
    result = twostage("demo", "--home", str(tmp_path / "home"), "--data", str(tmp_path))
    assert result.returncode == 2
    assert "DEMO_DATA_MISSING" in result.stderr
    assert "demo: ok" not in result.stdout
    assert not (tmp_path / "home").exists()
