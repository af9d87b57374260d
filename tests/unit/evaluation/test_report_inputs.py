"""What a report is made of, and what it refuses."""

import pytest
from report_factories import provenance, studies, write_run

from evaluation import records
from evaluation.files import NotTogether, read, write
from evaluation.records import Candidates, Evaluation, Exercise
from evaluation.report.inputs import read_inputs
from serving.errors import Misconfigured


@pytest.fixture
def outputs(tmp_path):
    """An outputs directory with everything."""
    return write_run(tmp_path)


def test_everything_that_is_there_is_read(outputs):
    """With all files of one run, all are read and nothing is left out."""
    found = read_inputs(outputs)
    assert all(file is not None for file in (found.indexed, found.negatives, found.exercise, found.studies))
    assert found.left_out == ()


def test_optional_files_may_be_missing(tmp_path):
    """Three files are enough."""
    found = read_inputs(write_run(tmp_path, beside=False))
    assert {found.indexed, found.negatives, found.exercise, found.studies} == {None}
    assert found.left_out == ()


@pytest.mark.parametrize(
    ("name", "phase"),
    [(records.CANDIDATES, "retrieve"), (records.RERANKED, "rerank"), (records.EVALUATION, "evaluate")],
)
def test_a_missing_file_names_the_phase_that_writes_it(outputs, name, phase):
    """Without one of the three there is no report, and the message says what to run."""
    (outputs / name).unlink()
    with pytest.raises(Misconfigured, match=f"twostage evaluate {phase}"):
        read_inputs(outputs)


def test_pools_that_were_changed_are_refused(outputs):
    """A text that was changed after freezing shows in the digest, and the report is refused."""
    path = outputs / records.CANDIDATES
    candidates = read(Candidates, path, "retrieve")
    first = candidates.questions[0].model_copy(update={"query": "another"})
    write(candidates.model_copy(update={"questions": (first, *candidates.questions[1:])}), path)
    with pytest.raises(NotTogether):
        read_inputs(outputs)


@pytest.mark.parametrize(
    "change",
    [
        {"pool_digest": "sha256:" + "00" * 32},
        {"provenance": provenance().model_copy(update={"reranker": None})},
        {"provenance": provenance(digest="sha256:" + "11" * 32)},
    ],
    ids=["pools", "reranker", "corpus"],
)
def test_an_evaluation_of_another_run_is_refused(outputs, change):
    """Figures are not shown beside pools, models or data that they were not computed from."""
    path = outputs / records.EVALUATION
    write(read(Evaluation, path, "evaluate").model_copy(update=change), path)
    with pytest.raises(NotTogether, match=r"evaluation\.json"):
        read_inputs(outputs)


def test_studies_of_another_run_are_left_out_and_said(outputs):
    """A study that an earlier corpus left does not stop the report and is not shown as if it belonged."""
    write(
        studies().model_copy(update={"provenance": provenance(digest="sha256:" + "22" * 32)}), outputs / "studies.json"
    )
    found = read_inputs(outputs)
    assert found.studies is None
    assert found.left_out == ("studies.json is of another run and is left out; run `twostage evaluate studies` again.",)


def test_an_exercise_on_other_pools_is_left_out(outputs):
    """The exercise is about these pools or is not shown."""
    path = outputs / records.EXERCISE
    write(read(Exercise, path, "exercise").model_copy(update={"pool_digest": "sha256:" + "33" * 32}), path)
    assert read_inputs(outputs).exercise is None


def test_an_optional_file_that_cannot_be_read_is_left_out_and_said(outputs):
    """A broken optional file costs its section, not the report."""
    (outputs / records.NEGATIVES).write_text("{", encoding="utf-8")
    found = read_inputs(outputs)
    assert found.negatives is None
    assert found.left_out[0].startswith("negatives.json cannot be read")
