"""`twostage evaluate study` and `synonyms` on the Italian passages, with real models in servers of their own."""

import json
from pathlib import Path

import pytest
from up_process import twostage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ITALIAN = Path(__file__).parents[3] / "data" / "italian"


def test_a_study_of_some_options(home: Path, tmp_path: Path) -> None:
    """Words, synonyms, sentences and both baselines, from nothing to the record; what cannot be done is named."""
    names = ("lexical", "weighted", "lexical+synonyms", "sentences-rerank-parent", "lsa-12", "lsa-128", "exact")
    options = [word for name in names for word in ("--options", name)]
    place = ("--outputs", str(tmp_path / "outputs"), "--home", str(home))
    done = twostage("evaluate", "study", "retrieval", "--dataset", str(ITALIAN), *place, *options)
    assert done.returncode == 0, done.stderr
    assert "lsa-128 left out: 128 components need more than 18 texts and words" in done.stdout
    study = json.loads((tmp_path / "outputs" / "study-retrieval.json").read_text())
    found = {option["name"]: option for option in study["options"]}
    assert list(found) == ["dense", *(name for name in names if name != "lsa-128")]
    assert study["exact_overlap"] == 1.0
    assert found["exact"]["before"] == found["dense"]["before"]
    assert study["dense_weight"]["question_count"] == 7
    assert study["gaps"][0]["relevant_count"] == study["question_count"] == 8
    assert 0 < study["plain_disk_bytes"] < found["lexical"]["disk_bytes"]
    ranks = {question["id"]: question["before"] for question in study["questions"]}
    assert ranks["IT-12"]["lexical"] == [1]  # a telephone number
    assert ranks["IT-10"]["lexical"] == []  # not a word in common


def test_what_each_synonym_gains(home: Path, tmp_path: Path) -> None:
    """On dev every entry is shown where it fires; the file of the data set is read by a real gateway."""
    place = ("--outputs", str(tmp_path / "outputs"), "--home", str(home))
    done = twostage("evaluate", "synonyms", "--file", str(ITALIAN / "synonyms.yaml"), "--dataset", str(ITALIAN), *place)
    assert done.returncode == 0, done.stderr
    entries = json.loads((tmp_path / "outputs" / "synonyms.json").read_text())["entries"]
    assert [entry["fired"] for entry in entries[:3]] == [["IT-01"], ["IT-01"], ["IT-02"]]
    sofa = entries[0]["moves"]["lexical"][0]
    assert sofa["before"] is None  # not a word in common
    assert sofa["after"] is not None
    assert "sofà = divano = divani" in done.stdout


def test_single_entries_are_refused_on_test(tmp_path: Path) -> None:
    """Nothing is started: one line says that entries are not looked at on test, with status 2."""
    file = ("--file", str(ITALIAN / "synonyms.yaml"), "--dataset", str(ITALIAN), "--outputs", str(tmp_path))
    done = twostage("evaluate", "synonyms", *file, "--split", "test", "--per-entry")
    assert done.returncode == 2
    assert "refuses to tune on test" in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_unknown_option_starts_nothing(tmp_path: Path) -> None:
    """It is refused with those that there are, before models are loaded."""
    done = twostage("evaluate", "study", "retrieval", "--options", "colbert", "--outputs", str(tmp_path))
    assert done.returncode == 2
    assert "there is no 'colbert'; there are dense, lexical" in done.stderr
    assert not list(tmp_path.iterdir())
