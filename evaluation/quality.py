"""Quality of frozen pools before and after reranking: means with intervals, changes, each question's own figures."""

from collections.abc import Mapping, Sequence

from evaluation import pools
from evaluation.datasets.model import TEST
from evaluation.figures import Interval, Quality, QuestionFigures
from evaluation.measures import Judged, Measure, Ranking, Scores, first_relevant, measure, score_run
from evaluation.records import Asked, Candidates, Reranked
from evaluation.significance import compare, interval

TOP = 10
"""Ids of a question that are kept for people."""
DEPTH = 5
BESIDE = ("hit@1", "hit@5", "Recall@5", "P@5", "MRR@10", "nDCG@10", "MAP")
GRADED = ("nDCG_exp@5", "nDCG_bin@5")
"""Only where grades differ; with grades of 1 all three are the same."""


def headline(pool_size: int) -> tuple[str, ...]:
    """Return the measures to show first, for example Recall@20, MRR@5 and nDCG@5."""
    return (f"Recall@{pool_size}", f"MRR@{DEPTH}", f"nDCG@{DEPTH}")


def measures_of(pool_size: int, judgments: Mapping[str, Judged]) -> list[Measure]:
    """Return what is measured: the headline first."""
    graded = any(grade > 1 for judged in judgments.values() for grade in judged.values())
    names = (*headline(pool_size), *BESIDE, *(GRADED if graded else ()))
    return [measure(name) for name in dict.fromkeys(names)]


def quality(candidates: Candidates, reranked: Reranked, split: str = TEST) -> Quality:
    """Measure one split of pools and of the reranking of the same pools.

    Args:
        candidates: The pools.
        reranked: Their reranking; see `pools.require_reranking_of`.
        split: Which questions.
    """
    configuration = candidates.provenance.configuration
    judgments = pools.judgments(candidates, split)
    wanted = measures_of(configuration.pool_size, judgments)
    runs = _only(pools.retrieved(candidates), judgments), _only(pools.reranking(reranked), judgments)
    before, after = (score_run(run, judgments, wanted) for run in runs)
    seed = configuration.seed
    return Quality(
        split=split,
        question_count=len(before.values[wanted[0].name]),
        skipped_unanswerable_count=len(before.skipped),
        missing_count=len(set(before.missing) | set(after.missing)),
        headline=headline(configuration.pool_size),
        before=intervals(before, seed),
        after=intervals(after, seed),
        changes=tuple(compare(one.name, before.values[one.name], after.values[one.name], seed=seed) for one in wanted),
        questions=_questions(candidates, judgments, runs, (before, after)),
    )


def intervals(scores: Scores, seed: int) -> Mapping[str, Interval]:
    """Return measure to mean and interval."""
    return {name: interval(list(values.values()), seed=seed) for name, values in scores.values.items()}


def _only(run: Mapping[str, Ranking], judgments: Mapping[str, Judged]) -> Mapping[str, Ranking]:
    return {name: ranked for name, ranked in run.items() if name in judgments}


def _questions(
    candidates: Candidates,
    judgments: Mapping[str, Judged],
    runs: tuple[Mapping[str, Ranking], Mapping[str, Ranking]],
    scores: tuple[Scores, Scores],
) -> tuple[QuestionFigures, ...]:
    everything: Sequence[Asked] = (*candidates.questions, *candidates.failed)
    figures = []
    for asked in everything:
        if not judgments.get(asked.id):
            continue
        rankings = [run.get(asked.id, ()) for run in runs]
        values = [_of(scored, asked.id) for scored in scores]
        firsts = [first_relevant(ranked, judgments[asked.id]) for ranked in rankings]
        figures.append(
            QuestionFigures(
                id=asked.id,
                query=asked.query,
                lang=asked.lang,
                relevant=asked.relevant,
                before=values[0],
                after=values[1],
                first_before=firsts[0],
                first_after=firsts[1],
                top_before=tuple(rankings[0][:TOP]),
                top_after=tuple(rankings[1][:TOP]),
            )
        )
    return tuple(figures)


def _of(scores: Scores, question: str) -> Mapping[str, float]:
    return {name: values[question] for name, values in scores.values.items()}
