"""`twostage evaluate` on a slice of the help centre, with the real models in servers that it starts itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
HELPCENTRE = ROOT / "data" / "helpcentre"
DOCUMENT_COUNT = 40
QUESTION_COUNT = 12


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def twostage(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from cli.main import app; app()", "evaluate", *arguments]
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=500, env=environment, cwd=ROOT)


def slice_of_the_help_centre(place: Path) -> Path:
    """Write the first documents and the test questions about them, one without an answer, and two for dev."""
    place.mkdir()
    documents = lines(HELPCENTRE / "documents.jsonl")[:DOCUMENT_COUNT]
    ids = {document["id"] for document in documents}
    questions = [one for one in lines(HELPCENTRE / "queries.jsonl") if set(one["relevant"]) <= ids]
    answered = [one for one in questions if one["relevant"]][: QUESTION_COUNT - 3]
    unanswered = [one for one in questions if not one["relevant"]][:3]
    for number, one in enumerate([*answered, *unanswered]):
        one["split"] = "dev" if number in {1, 11} else "test"
    for name, rows in (("documents", documents), ("queries", [*answered, *unanswered])):
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (place / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return place


def test_all_in_one_command_then_again_from_the_files(tmp_path: Path, demo_bundles: Path) -> None:
    """One command from nothing to every file; evaluating again gives the same bytes; a gate fails with status 1."""
    data, outputs = slice_of_the_help_centre(tmp_path / "slice"), tmp_path / "outputs"
    home = demo_bundles.parents[1]
    options = ("--outputs", str(outputs), "--home", str(home))
    done = twostage("all", "--dataset", str(data), "--pool-size", "8", *options)
    assert done.returncode == 0, done.stderr
    for shown in (
        "40 documents, 12 questions: 2 dev, 10 test, of which 8 answerable and 2 not",
        "documents 40, dimension 384, device cpu, points_count 40",
        "12 pools of 8",
        "ok    truncated_pair: truncated: true, cut: ['long'], tokens: 512",
        "REF-000: removed_relevant [0, 1, 2], 5 candidates, returned [], recall 0",
    ):
        assert shown in done.stdout
    evaluation = json.loads((outputs / "evaluation.json").read_text())
    assert evaluation["quality"]["before"]["Recall@8"]["mean"] > 0.8
    assert evaluation["quality"]["after"]["MRR@5"]["mean"] > 0.5
    assert len(evaluation["latency"]["total"]["values"]) == 10
    exercise = json.loads((outputs / "exercise.json").read_text())
    assert (exercise["removed_relevant"], exercise["candidate_count"], exercise["recall"]) == ([0, 1, 2], 5, 0)
    before = (outputs / "evaluation.json").read_bytes()
    again = twostage("evaluate", *options, "--fail-below", "MRR@5=1.1")
    assert (again.returncode, (outputs / "evaluation.json").read_bytes()) == (1, before)
    assert "MRR@5 is" in again.stderr
    assert "below 1.1" in again.stderr
    runs = (str(outputs / "qrels.txt"), str(outputs / "reranked.run"))
    scored = twostage("score", *runs, "--measure", "MRR@5", "--fail-below", "MRR@5=0.5")
    assert scored.returncode == 0, scored.stderr
    assert scored.stdout.startswith("9 answerable questions")  # dev ones are judged too
    same = twostage("compare", str(outputs), str(outputs), "--fail-if-worse", "--fail-below", "MRR@5=0.1")
    assert same.returncode == 0, same.stderr
    assert "Recall@8 is the same on 8 questions." in same.stdout


def test_what_cannot_be_done_is_one_line(tmp_path: Path) -> None:
    """A phase without its input names the one to run first; a data set that is none says so; both with status 2."""
    early = twostage("evaluate", "--outputs", str(tmp_path))
    assert early.returncode == 2
    assert "run `twostage evaluate retrieve` first" in early.stderr
    unknown = twostage("prepare", "--dataset", "nothing", "--outputs", str(tmp_path))
    assert unknown.returncode == 2
    assert "nothing: no such directory or file" in unknown.stderr
    gate = twostage("evaluate", "--outputs", str(tmp_path), "--fail-below", "nDCG=x")
    assert gate.returncode == 2
    assert "is not like nDCG@5=0.9" in gate.stderr
    nobody = twostage("compare", "127.0.0.1:1", "127.0.0.1:1")
    assert nobody.returncode == 69
