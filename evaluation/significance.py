"""Whether a difference means anything: intervals, a paired test, and the sentence that says so.

Every resampling starts from a fixed seed, so that equal values give equal figures. The sample is the questions: another
set of questions of the same kind is what the intervals are about, not another run of the same ones.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

from evaluation.figures import DIGITS, Change, Interval

RESAMPLES = 9_999
CONFIDENCE = 0.95
ALPHA = 0.05
SMALLEST_DIFFERENCE = 10.0**-DIGITS

FloatArray = npt.NDArray[np.float64]


def interval(values: Sequence[float], *, seed: int = 0) -> Interval:
    """Return the mean and its 95 % percentile bootstrap interval; of fewer than two values, the mean alone.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, chapter 13; computed by scipy.
    """
    sample = np.asarray(values, np.float64)
    mean = float(sample.mean()) if sample.size else 0.0
    low, high = _bootstrap(sample, seed) if sample.size > 1 else (mean, mean)
    return Interval(mean=mean, low=low, high=high)


def compare(measure: str, before: Mapping[str, float], after: Mapping[str, float], *, seed: int = 0) -> Change:
    """Compare one measure on the same questions.

    Args:
        measure: Its name.
        before: Question to value.
        after: The same questions.
        seed: Of the resampling.

    Raises:
        ValueError: The questions are not the same (our bug: callers pair first).
    """
    if before.keys() != after.keys():
        raise ValueError("a paired comparison needs the same questions on both sides")
    differences = {name: after[name] - before[name] for name in before}
    sample = np.array(list(differences.values()), np.float64)
    spread = interval(sample.tolist(), seed=seed)
    p_value = randomization_p(sample.tolist(), seed=seed)
    wins = _ordered({name: value for name, value in differences.items() if value > SMALLEST_DIFFERENCE})
    losses = _ordered({name: -value for name, value in differences.items() if value < -SMALLEST_DIFFERENCE})
    return Change(
        measure=measure,
        before=_mean(before),
        after=_mean(after),
        difference=spread.mean,
        low=spread.low,
        high=spread.high,
        p_value=p_value,
        wins=wins,
        losses=losses,
        tie_count=len(differences) - len(wins) - len(losses),
        significant=p_value < ALPHA,
        sentence=sentence(measure, spread, p_value, len(sample)),
    )


def randomization_p(differences: Sequence[float], *, seed: int = 0) -> float:
    """Return the two-sided p-value of the paired randomization test: signs flipped, the mean compared.

    Exact where there are few enough questions to try every combination of signs.

    Source: Smucker, Allan and Carterette, CIKM 2007, section 3.2; computed by scipy.
    """
    sample = np.asarray(differences, np.float64)
    sample = sample[np.abs(sample) > SMALLEST_DIFFERENCE]  # the sign of 0 says nothing, and leaving it out is exact
    if not sample.size:
        return 1.0
    if sample.size == 1:
        return 1.0  # both signs are as extreme
    tested = stats.permutation_test(
        (sample,),
        _row_means,
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=1_000,
        rng=np.random.default_rng(seed),
    )
    return min(1.0, float(tested.pvalue))


def sentence(measure: str, spread: Interval, p_value: float, count: int) -> str:
    """Say what a difference is worth.

    Args:
        measure: Its name.
        spread: The mean difference and its interval.
        p_value: Of the randomization test.
        count: Questions compared.
    """
    if not count:
        return f"{measure}: no question to compare."
    if spread.low == spread.high == 0:
        return f"{measure} is the same on {_questions(count)}."
    if abs(spread.mean) <= SMALLEST_DIFFERENCE:
        moves = "is the same on average"
    else:
        moves = f"{'rises' if spread.mean > 0 else 'falls'} by {abs(spread.mean):.3f}"
    facts = f"95 % interval {spread.low:+.3f} to {spread.high:+.3f}, p = {p_value:.3f}, {_questions(count)}"
    if p_value < ALPHA:
        return f"{measure} {moves} ({facts})."
    return f"{measure} {moves} ({facts}): within noise; one question can move it by up to {1 / count:.3f}."


def _questions(count: int) -> str:
    return f"{count} question{'s' * (count != 1)}"


def _bootstrap(sample: FloatArray, seed: int) -> tuple[float, float]:
    found = stats.bootstrap(
        (sample,),
        _row_means,
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=1_000,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)


def _row_means(sample: FloatArray, axis: int = -1) -> FloatArray:
    means: FloatArray = np.mean(sample, axis=axis)
    return means


def _mean(values: Mapping[str, float]) -> float:
    return float(np.mean(list(values.values()))) if values else 0.0


def _ordered(gains: Mapping[str, float]) -> tuple[str, ...]:
    return tuple(sorted(gains, key=lambda name: (-round(gains[name], DIGITS), name)))
