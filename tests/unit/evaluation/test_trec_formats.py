"""TREC's run and judgment formats, written and read."""

from pathlib import Path

from evaluation.datasets.trec import qrels_text, read_qrels, read_run, run_text


def test_a_run_survives_being_written(tmp_path: Path) -> None:
    """Ids become text, the order stays, and scores fall with the rank so that a sort by score changes nothing."""
    (tmp_path / "a.run").write_text(run_text({"q2": [3, "x", 1], "q1": ["y"]}, "tag"))
    assert read_run(tmp_path / "a.run") == {"q2": ["3", "x", "1"], "q1": ["y"]}
    rows = [line.split() for line in (tmp_path / "a.run").read_text().splitlines()]
    assert rows[:3] == [
        ["q2", "Q0", "3", "1", "3", "tag"],
        ["q2", "Q0", "x", "2", "2", "tag"],
        ["q2", "Q0", "1", "3", "1", "tag"],
    ]


def test_a_run_is_read_by_rank_not_by_line(tmp_path: Path) -> None:
    """Lines may come in any order; the rank column decides, not the score."""
    (tmp_path / "a.run").write_text("q Q0 b 2 9.0 t\nq Q0 a 1 0.5 t\n\n")
    assert read_run(tmp_path / "a.run") == {"q": ["a", "b"]}


def test_judgments_survive_being_written(tmp_path: Path) -> None:
    """Grades are kept, a question without any has no line."""
    (tmp_path / "qrels").write_text(qrels_text({"q": {1: 2, "x": 1}, "none": {}}))
    assert read_qrels(tmp_path / "qrels") == {"q": {"1": 2, "x": 1}}
