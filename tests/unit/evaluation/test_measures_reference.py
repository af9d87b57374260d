"""Measures against trec_eval, over ir-measures, on random runs."""

import ir_measures
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_measures import AP, RR, P, R, Success, nDCG

from evaluation.measures import measure, score_run

DOCUMENTS = [f"d{number}" for number in range(12)]
QUESTIONS = ["q0", "q1", "q2", "q3"]
PAIRS = {
    "nDCG@5": nDCG @ 5,
    "nDCG@10": nDCG @ 10,
    "nDCG": nDCG,
    "MRR": RR,
    "MAP": AP,
    "MAP@5": AP @ 5,
    "Recall@5": R @ 5,
    "Recall@20": R @ 20,
    "P@5": P @ 5,
    "hit@1": Success @ 1,
    "hit@5": Success @ 5,
}
judgments_of = st.fixed_dictionaries(
    {name: st.dictionaries(st.sampled_from(DOCUMENTS), st.integers(0, 4), max_size=6) for name in QUESTIONS}
)
runs_of = st.dictionaries(
    st.sampled_from(QUESTIONS), st.lists(st.sampled_from(DOCUMENTS), unique=True, min_size=1, max_size=12)
)


@settings(max_examples=120, deadline=None)
@given(judgments_of, runs_of)
def test_every_measure_is_trec_evals(judgments: dict[str, dict[str, int]], run: dict[str, list[str]]) -> None:
    """Question by question, our values are trec_eval's wherever it gives one; where it gives none, ours is 0."""
    ours = score_run(run, judgments, [measure(name) for name in PAIRS]).values
    theirs = reference(PAIRS, judgments, run)
    for name, values in ours.items():
        for question, value in values.items():
            assert value == pytest.approx(theirs.get((name, question), 0.0), abs=1e-9), (name, question)


@settings(max_examples=60, deadline=None)
@given(judgments_of, runs_of)
def test_exponential_gain_is_linear_gain_of_other_grades(
    judgments: dict[str, dict[str, int]], run: dict[str, list[str]]
) -> None:
    """trec_eval's nDCG over grades 2^g - 1 is our exponential gain, and over grades of 1 our binary one."""
    ours = score_run(run, judgments, [measure("nDCG_exp@5"), measure("nDCG_bin@5")]).values
    grades = {"nDCG_exp@5": lambda grade: 2**grade - 1, "nDCG_bin@5": lambda grade: int(grade > 0)}
    for name, worth in grades.items():
        changed = {
            question: {document: worth(grade) for document, grade in judged.items()}
            for question, judged in judgments.items()
        }
        theirs = reference({name: nDCG @ 5}, changed, run)
        for question, value in ours[name].items():
            assert value == pytest.approx(theirs.get((name, question), 0.0), abs=1e-9)


def reference(
    pairs: dict[str, ir_measures.measures.Measure], judgments: dict[str, dict[str, int]], run: dict[str, list[str]]
) -> dict[tuple[str, str], float]:
    """Ask trec_eval; scores fall with the place, so that its own order by score is the list's."""
    names = {str(theirs): ours for ours, theirs in pairs.items()}
    judged = {question: grades for question, grades in judgments.items() if grades}
    scored = {question: {found: -place for place, found in enumerate(ranked)} for question, ranked in run.items()}
    if not judged or not scored:
        return {}
    values = ir_measures.pytrec_eval.iter_calc(list(pairs.values()), judged, scored)
    return {(names[str(one.measure)], one.query_id): one.value for one in values}
