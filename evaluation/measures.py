"""Measures of a ranking, one question at a time and over a run: pure arithmetic, no files, no servers.

Conventions, stated because implementations differ:

* A document is relevant where its grade is 1 or more.
* The place in the list is the rank. Scores are not looked at, so ties are whatever the ranker made of them.
* A document that is listed again keeps its place and earns nothing: a repetition can never raise a value.
* The ideal ranking is made of all judgments, not of what was retrieved.
* `@k` divides by what its definition says, however short the list is: precision by k, recall by all relevant documents.
* A question without relevant documents is left out and counted; one that the run lacks counts as 0.

Source: definitions as in trec_eval and ir-measures (nDCG there has linear gain), checked against both in the tests.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evaluation.figures import DocumentId
from serving.errors import InvalidRequest

Gain = Literal["linear", "exponential", "binary"]
"""Grade g is worth g, 2^g - 1, or 1."""

Ranking = Sequence[DocumentId]
Judged = Mapping[DocumentId, int]
"""Document to grade; a missing one is not relevant."""

_FORM = re.compile(r"^(?P<name>[A-Za-z_]+)(?:@(?P<k>[1-9][0-9]*))?$")


def recall(ranked: Ranking, judged: Judged, k: int | None = None) -> float:
    """Return the share of relevant documents among the first k."""
    return sum(_hits(ranked, judged, k)) / _relevant_count(judged)


def precision(ranked: Ranking, judged: Judged, k: int | None = None) -> float:
    """Return the share of the first k places (or of the list) that hold a relevant document."""
    places = len(ranked) if k is None else k
    return sum(_hits(ranked, judged, k)) / places if places else 0.0


def hit(ranked: Ranking, judged: Judged, k: int | None = None) -> float:
    """Return 1 where a relevant document is among the first k, else 0."""
    return float(any(_hits(ranked, judged, k)))


def reciprocal_rank(ranked: Ranking, judged: Judged, k: int | None = None) -> float:
    """Return 1 / rank of the first relevant document among the first k, or 0."""
    rank = first_relevant(ranked[:k], judged)
    return 1 / rank if rank else 0.0


def average_precision(ranked: Ranking, judged: Judged, k: int | None = None) -> float:
    """Return the mean over all relevant documents of the precision at each one's place, 0 for those not listed."""
    found, total = 0, []
    for rank, good in enumerate(_hits(ranked, judged, k), start=1):
        found += good
        total.append(good * found / rank)
    return math.fsum(total) / _relevant_count(judged)


def dcg(gains: Sequence[float]) -> float:
    """Return the sum of gain / log2(rank + 1), gains in rank order."""
    return math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))


def ndcg(ranked: Ranking, judged: Judged, k: int | None = None, *, gain: Gain = "linear") -> float:
    """Return the DCG of the first k over that of the best possible order of all judged documents."""
    worth = _WORTH[gain]
    ideal = sorted((worth(grade) for grade in judged.values() if grade > 0), reverse=True)[:k]
    return dcg([worth(grade) for grade in _grades(ranked, judged, k)]) / dcg(ideal)


def first_relevant(ranked: Ranking, judged: Judged) -> int | None:
    """Return the rank, from 1, of the first relevant document, or None."""
    ranks = (rank for rank, found in enumerate(ranked, start=1) if judged.get(found, 0) > 0)
    return next(ranks, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A named measure with its cut-off."""

    name: str
    """As it is written: "nDCG@5"."""
    k: int | None
    of: Callable[[Ranking, Judged, int | None], float]

    def value(self, ranked: Ranking, judged: Judged) -> float:
        """Return the measure of one ranking; `judged` has a relevant document."""
        return self.of(ranked, judged, self.k)


def measure(name: str) -> Measure:
    """Read a measure's name: Recall, P, hit, MRR, MAP, nDCG, nDCG_exp or nDCG_bin, with @k or without.

    Raises:
        InvalidRequest: There is no such measure.
    """
    form = _FORM.match(name)
    if form is None or form["name"] not in _MEASURES:
        raise InvalidRequest(
            "MEASURE_UNKNOWN",
            f"there is no {name[:40]!r}; there are {', '.join(_MEASURES)}, each with @k",
            field="measure",
        )
    return Measure(name=name, k=int(form["k"]) if form["k"] else None, of=_MEASURES[form["name"]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """A run, measured question by question."""

    values: Mapping[str, Mapping[str, float]]
    """Measure to question to value; questions in the judgments' order."""
    skipped: tuple[str, ...]
    """Questions without a relevant document: in no mean."""
    missing: tuple[str, ...]
    """Questions that the run lacks: 0 in every mean."""
    unjudged: tuple[str, ...]
    """Questions of the run that have no judgments at all: in no mean."""

    def mean(self, name: str) -> float:
        """Return the mean of a measure over the answerable questions, 0 where there are none."""
        values = self.values[name].values()
        return math.fsum(values) / len(values) if values else 0.0


def score_run(
    run: Mapping[str, Ranking],
    judgments: Mapping[str, Judged],
    measures: Sequence[Measure],
    *,
    drop_same_id: bool = False,
) -> Scores:
    """Measure every answerable question.

    Args:
        run: Question to document ids, best first.
        judgments: Question to grades.
        measures: What to measure.
        drop_same_id: Whether a document whose id is the question's is taken out first, as where the questions are
            documents themselves.
    """
    answerable = [name for name, judged in judgments.items() if any(grade > 0 for grade in judged.values())]
    rankings = {name: _without(run.get(name, ()), name if drop_same_id else None) for name in answerable}
    return Scores(
        values={
            wanted.name: {name: wanted.value(rankings[name], judgments[name]) for name in answerable}
            for wanted in measures
        },
        skipped=tuple(name for name in judgments if name not in rankings),
        missing=tuple(name for name in answerable if name not in run),
        unjudged=tuple(sorted(run.keys() - judgments.keys())),
    )


def _grades(ranked: Ranking, judged: Judged, k: int | None) -> list[int]:
    """Return the grade at each of the first k places, 0 where a document is not relevant or is listed again."""
    seen: set[DocumentId] = set()
    grades = []
    for found in ranked[:k]:
        grades.append(0 if found in seen else max(0, judged.get(found, 0)))
        seen.add(found)
    return grades


def _hits(ranked: Ranking, judged: Judged, k: int | None) -> list[bool]:
    return [grade > 0 for grade in _grades(ranked, judged, k)]


def _relevant_count(judged: Judged) -> int:
    return sum(grade > 0 for grade in judged.values())


def _without(ranked: Ranking, dropped: str | None) -> Ranking:
    return ranked if dropped is None else [found for found in ranked if str(found) != dropped]


_WORTH: Mapping[Gain, Callable[[int], float]] = {
    "linear": float,
    "exponential": lambda grade: 2.0**grade - 1,
    "binary": lambda grade: float(grade > 0),
}
_MEASURES: Mapping[str, Callable[[Ranking, Judged, int | None], float]] = {
    "Recall": recall,
    "P": precision,
    "hit": hit,
    "MRR": reciprocal_rank,
    "MAP": average_precision,
    "nDCG": ndcg,
    "nDCG_exp": lambda ranked, judged, k: ndcg(ranked, judged, k, gain="exponential"),
    "nDCG_bin": lambda ranked, judged, k: ndcg(ranked, judged, k, gain="binary"),
}
