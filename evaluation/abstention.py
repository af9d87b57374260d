"""Could a score say "nothing here answers that"? Distributions, ROC, and a threshold chosen on dev and tried on test.

A rule under study, not a capability: nothing that serves uses it. A retrieval score is a cosine that E5 squeezes into
0.7 to 1 whatever is asked, and a logit is trained to order passages of one question, not to compare questions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from evaluation.datasets.model import DEV, TEST
from evaluation.figures import Abstention, AbstentionSignal, Histogram, RocPoint, ThresholdResult
from evaluation.records import Candidates, FrozenPool, Reranked

BINS = 20
RESAMPLES = 2_000
PERCENTILES = (2.5, 97.5)
SENTENCE = (
    "A new rule to evaluate, not a validated capability: a threshold on the best score of the pool, chosen on {dev} "
    "dev questions ({dev_none} without an answer) and tried once on {test} test questions ({test_none} without one)."
)

FloatArray = npt.NDArray[np.float64]
Signal = Literal["retrieval_score", "logit"]
Labelled = tuple[FloatArray, FloatArray]
"""Scores of answerable and of unanswerable questions."""


def abstention(candidates: Candidates, reranked: Reranked) -> Abstention | None:
    """Study both signals; None where a split lacks answerable or unanswerable questions."""
    logits = {pool.id: [pair.score for pair in pool.pairs] for pool in reranked.questions}
    readers: Mapping[Signal, Callable[[FrozenPool], list[float]]] = {
        "retrieval_score": lambda pool: [candidate.score for candidate in pool.candidates],
        "logit": lambda pool: logits.get(pool.id, []),
    }
    signals = []
    for name, read in readers.items():
        dev, test = (_labelled(candidates.questions, split, read) for split in (DEV, TEST))
        if not all(scores.size for scores in (*dev, *test)):
            return None
        signals.append(_signal(name, dev, test, candidates.provenance.configuration.seed))
    sentence = SENTENCE.format(dev=_count(dev), dev_none=len(dev[1]), test=_count(test), test_none=len(test[1]))
    return Abstention(sentence=sentence, signals=tuple(signals))


def area(answerable: FloatArray, unanswerable: FloatArray) -> float:
    """Return the share of (answerable, unanswerable) pairs that scores put in the right order, ties half.

    Source: the equality of the area under the ROC curve and Mann-Whitney's U; Hanley and McNeil, Radiology 1982.
    """
    higher = answerable[:, None] > unanswerable[None, :]
    equal = answerable[:, None] == unanswerable[None, :]
    return float(np.mean(higher + 0.5 * equal))


def roc(answerable: FloatArray, unanswerable: FloatArray) -> list[tuple[float, float, float]]:
    """Return (threshold, share of answerable, share of unanswerable) with a score of at least each, descending."""
    thresholds = np.unique(np.concatenate([answerable, unanswerable]))[::-1]
    return [(float(at), float(np.mean(answerable >= at)), float(np.mean(unanswerable >= at))) for at in thresholds]


def best_threshold(answerable: FloatArray, unanswerable: FloatArray) -> float:
    """Return the threshold of the best balanced accuracy, half-way between two scores; of equals, the lowest.

    The lowest answers most, which is what the system does without such a rule.
    """
    scores = np.unique(np.concatenate([answerable, unanswerable]))
    between = (scores[:-1] + scores[1:]) / 2
    return float(max([scores[0], *between], key=lambda at: (_balanced(answerable, unanswerable, at), -at)))


def _signal(name: Signal, dev: Labelled, test: Labelled, seed: int) -> AbstentionSignal:
    threshold = best_threshold(*dev)
    low, high = _interval(*test, seed)
    return AbstentionSignal(
        signal=name,
        auc=area(*test),
        auc_low=low,
        auc_high=high,
        roc=tuple(
            RocPoint(threshold=at, answered_answerable=good, answered_unanswerable=bad) for at, good, bad in roc(*test)
        ),
        histogram=_histogram(*test),
        answerable_scores=tuple(test[0].tolist()),
        unanswerable_scores=tuple(test[1].tolist()),
        chosen=_result(DEV, threshold, *dev),
        tested=_result(TEST, threshold, *test),
    )


def _labelled(questions: Sequence[FrozenPool], split: str, read: Callable[[FrozenPool], list[float]]) -> Labelled:
    best = [(bool(pool.relevant), max(scores)) for pool in questions if pool.split == split and (scores := read(pool))]
    answerable = [score for relevant, score in best if relevant]
    unanswerable = [score for relevant, score in best if not relevant]
    return np.asarray(answerable, np.float64), np.asarray(unanswerable, np.float64)


def _count(split: Labelled) -> int:
    return sum(map(len, split))


def _balanced(answerable: FloatArray, unanswerable: FloatArray, threshold: float) -> float:
    return float((np.mean(answerable >= threshold) + np.mean(unanswerable < threshold)) / 2)


def _result(split: str, threshold: float, answerable: FloatArray, unanswerable: FloatArray) -> ThresholdResult:
    return ThresholdResult(
        split=split,
        threshold=threshold,
        answered_answerable_count=int(np.sum(answerable >= threshold)),
        answerable_count=len(answerable),
        abstained_unanswerable_count=int(np.sum(unanswerable < threshold)),
        unanswerable_count=len(unanswerable),
        balanced_accuracy=_balanced(answerable, unanswerable, threshold),
    )


def _interval(answerable: FloatArray, unanswerable: FloatArray, seed: int) -> tuple[float, float]:
    """Resample both kinds of questions apart, so that no sample lacks one."""
    generator = np.random.default_rng(seed)
    areas = [
        area(generator.choice(answerable, len(answerable)), generator.choice(unanswerable, len(unanswerable)))
        for _ in range(RESAMPLES)
    ]
    low, high = np.percentile(areas, PERCENTILES)
    return float(low), float(high)


def _histogram(answerable: FloatArray, unanswerable: FloatArray) -> Histogram:
    edges = np.histogram_bin_edges(np.concatenate([answerable, unanswerable]), BINS)
    return Histogram(
        edges=tuple(edges.tolist()),
        answerable=tuple(np.histogram(answerable, edges)[0].tolist()),
        unanswerable=tuple(np.histogram(unanswerable, edges)[0].tolist()),
    )
