"""Two runs side by side on the same questions, and gates that a build can fail at."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evaluation import records
from evaluation.figures import Change, Quality, QuestionFigures
from evaluation.files import read, require_same
from evaluation.measures import measure
from evaluation.records import Evaluation
from evaluation.significance import compare
from serving.errors import InvalidRequest, Misconfigured

Side = Literal["before", "after"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Run B against run A."""

    changes: tuple[Change, ...]
    """Measures that both have; `before` is A, `after` is B."""
    question_count: int
    only_a: tuple[str, ...]
    """Questions that B lacks: in no figure."""
    only_b: tuple[str, ...]
    same_pools: bool
    """Whether both reranked the same frozen pools, so that only the second stage differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A measure and the value below which a build fails."""

    measure: str
    least: float


def compare_runs(first: Path, second: Path, side: Side = "after") -> Comparison:
    """Compare two outputs directories.

    Args:
        first: Run A.
        second: Run B.
        side: Which order of each run: as retrieved, or as reranked.

    Raises:
        NotTogether: They are of different corpora.
        Misconfigured: A run has no evaluation.json, or they share no question.
    """
    a, b = (read(Evaluation, place / records.EVALUATION, "evaluate") for place in (first, second))
    require_same(
        "the runs are of different corpora",
        b.provenance.corpus.digest,
        a.provenance.corpus.digest,
        "compare runs of one data set",
    )
    return compare_evaluations(a, b, side)


def compare_evaluations(a: Evaluation, b: Evaluation, side: Side = "after") -> Comparison:
    """Compare two evaluations of one corpus on the questions that both have.

    Raises:
        Misconfigured: They share no question.
    """
    ours, theirs = (_by_id(run.quality) for run in (a, b))
    shared = [name for name in ours if name in theirs]
    if not shared:
        raise Misconfigured("NOTHING_TO_COMPARE", "the runs have no answerable question in common")
    seed = a.provenance.configuration.seed
    return Comparison(
        changes=tuple(
            compare(name, _values(ours, shared, side, name), _values(theirs, shared, side, name), seed=seed)
            for name in _measures(a.quality, b.quality)
        ),
        question_count=len(shared),
        only_a=tuple(name for name in ours if name not in theirs),
        only_b=tuple(name for name in theirs if name not in ours),
        same_pools=a.pool_digest == b.pool_digest,
    )


def gate(text: str) -> Gate:
    """Read "nDCG@5=0.9".

    Raises:
        InvalidRequest: It has another form.
    """
    name, _, value = text.partition("=")
    try:
        return Gate(measure=measure(name.strip()).name, least=_finite(value))
    except ValueError as error:
        raise InvalidRequest("GATE_MALFORMED", f"{text[:40]!r} is not like nDCG@5=0.9", field="fail-below") from error


def failures(means: Mapping[str, float], gates: Sequence[Gate]) -> tuple[str, ...]:
    """Return one sentence for every gate that is not met.

    Raises:
        InvalidRequest: A gate names a measure that was not measured.
    """
    found = []
    for wanted in gates:
        if wanted.measure not in means:
            raise InvalidRequest(
                "GATE_UNKNOWN",
                f"{wanted.measure[:40]} was not measured; there are {', '.join(means)}",
                field="fail-below",
            )
        if means[wanted.measure] < wanted.least:
            found.append(f"{wanted.measure} is {means[wanted.measure]:.4f}, below {wanted.least:g}")
    return tuple(found)


def _finite(value: str) -> float:
    found = float(value)
    if not math.isfinite(found):  # nothing is below "nan"
        raise ValueError(value)
    return found


def _by_id(quality: Quality) -> Mapping[str, QuestionFigures]:
    return {question.id: question for question in quality.questions}


def _measures(a: Quality, b: Quality) -> list[str]:
    both = {change.measure for change in b.changes}
    return [change.measure for change in a.changes if change.measure in both]


def _values(run: Mapping[str, QuestionFigures], names: Sequence[str], side: Side, name: str) -> Mapping[str, float]:
    return {question: getattr(run[question], side)[name] for question in names}
