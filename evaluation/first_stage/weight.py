"""The weight of the dense list beside the lexical one, chosen on dev and on nothing else."""

from collections.abc import Mapping

from evaluation.first_stage.options import EVEN
from evaluation.first_stage.records import DenseWeight
from evaluation.measures import Judged, Ranking, measure, score_run

CHOSEN_BY = measure("MRR@10")


def choose(runs: Mapping[float, Mapping[str, Ranking]], judgments: Mapping[str, Judged]) -> DenseWeight:
    """Return the weight of the best MRR@10; of equal ones that which is nearest to even, then the lower.

    Args:
        runs: Weight to the run of dev questions under it.
        judgments: Of dev questions alone; none leaves the weight even.
    """
    if not any(judgments.values()):
        return DenseWeight(value=EVEN, tried={}, question_count=0)
    means = {
        weight: score_run(run, judgments, [CHOSEN_BY]).mean(CHOSEN_BY.name) for weight, run in sorted(runs.items())
    }
    best = min(means, key=lambda weight: (-round(means[weight], 6), round(abs(weight - EVEN), 6), weight))
    return DenseWeight(
        value=best,
        tried={f"{weight:g}": mean for weight, mean in means.items()},
        question_count=sum(bool(judged) for judged in judgments.values()),
    )
