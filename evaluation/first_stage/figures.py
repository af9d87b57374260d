"""Figures out of the frozen pools alone; equal pools give equal figures."""

from collections.abc import Callable, Mapping, Sequence

from evaluation import pools as frozen
from evaluation import quality
from evaluation.figures import Change, DocumentId
from evaluation.first_stage.options import DENSE, EXACT, LEXICAL, LSA, OTHER_WORDS
from evaluation.first_stage.records import (
    Gap,
    OptionFigures,
    QuestionRanks,
    RetrievalPools,
    RetrievalStudy,
    StudiedQuestion,
)
from evaluation.first_stage.union import ranking, reranking
from evaluation.latency import spread
from evaluation.measures import Ranking, Scores, measure, score_run
from evaluation.significance import ALPHA, compare

READ_FIRST = "nDCG@5"
"""The measure of the conclusion: what a person sees of a list."""
MRR_DEPTH = 10

Order = Callable[[StudiedQuestion, str], Ranking]
"""From a question and an option to documents, best first."""


def figures(found: RetrievalPools) -> RetrievalStudy:
    """Compute everything."""
    size = found.provenance.configuration.pool_size
    before, after = _scored(found, own_order), _scored(found, rerankers_order)
    options = tuple(_option(found, name, before, after) for name in before)
    return RetrievalStudy(
        provenance=found.provenance,
        question_count=_question_count(found),
        failed_count=len(found.failed),
        measures=measures(size),
        compared=compared(size),
        options=options,
        left_out=found.left_out,
        plain_disk_bytes=found.plain_disk_bytes,
        dense_weight=found.dense_weight,
        gaps=tuple(found_gap for vectors in (DENSE, LSA) if (found_gap := gap(found, vectors)) is not None),
        word_changes=_word_changes(found, before),
        exact_overlap=exact_overlap(found),
        questions=tuple(map(_ranks, found.questions)),
        sentence=conclusion(options, _question_count(found)),
    )


def measures(size: int) -> tuple[str, ...]:
    """Return what is measured of pools of that size; MRR without a depth is that of the whole pool."""
    return (f"Recall@{size}", "hit@1", "hit@3", _mrr(size), READ_FIRST, "nDCG@10")


def compared(size: int) -> tuple[str, ...]:
    """Return what is compared with dense: what the pool allows, its order, and what a person sees."""
    return (f"Recall@{size}", _mrr(size), READ_FIRST)


def own_order(question: StudiedQuestion, name: str) -> Ranking:
    """Return an option's own order."""
    return ranking(question.pools[name])


def rerankers_order(question: StudiedQuestion, name: str) -> Ranking:
    """Return the reranker's order of an option's pool."""
    return reranking(question.pools[name], question.texts)


def gap(found: RetrievalPools, vectors: str = DENSE) -> Gap | None:
    """Count in which of two lists, that of an option and the lexical one, the relevant documents are.

    Returns:
        None where one of the lists was not run.
    """
    if not {vectors, LEXICAL} <= {one.name for one in found.options}:
        return None
    size = found.provenance.configuration.pool_size
    places: list[tuple[bool, bool]] = []
    lost: list[str] = []
    for question in found.questions:
        by_vectors, by_words = (set(own_order(question, name)) for name in (vectors, LEXICAL))
        of_this = [(one in by_vectors, one in by_words) for one in question.relevant]
        lost += [] if any(map(any, of_this)) else [question.id]
        places += of_this
    neither = places.count((False, False))
    return Gap(
        vectors=vectors,
        pool_size=size,
        relevant_count=len(places),
        both=places.count((True, True)),
        vectors_only=places.count((True, False)),
        lexical_only=places.count((False, True)),
        neither=neither,
        questions=tuple(lost),
        sentence=(
            f"{neither} of {len(places)} relevant documents are in neither the {vectors} nor the lexical top {size}: "
            f"no fusion of the two finds them; {len(lost)} of {len(found.questions)} questions have no other"
        ),
    )


def exact_overlap(found: RetrievalPools) -> float | None:
    """Return the mean share of the exact pool that the dense one has, None where exact search was not run."""
    if EXACT not in {one.name for one in found.options} or not found.questions:
        return None
    shares = []
    for question in found.questions:
        exact = set(own_order(question, EXACT))
        shares.append(len(exact & set(own_order(question, DENSE))) / len(exact) if exact else 1.0)
    return sum(shares) / len(shares)


def conclusion(options: Sequence[OptionFigures], question_count: int) -> str:
    """Say which options differ from dense by more than noise, before and after reranking."""
    sides = [
        ("before reranking", {one.name: _read_first(one.changes_before) for one in options}),
        ("after reranking", {one.name: _read_first(one.changes_after) for one in options}),
    ]
    said = []
    for when, changes in sides:
        better = [name for name, change in changes.items() if change and change.significant and change.difference > 0]
        worse = [name for name, change in changes.items() if change and change.significant and change.difference < 0]
        words = [f"{', '.join(names)} {verb}" for names, verb in ((better, "rises"), (worse, "falls")) if names]
        said.append(f"{when} {READ_FIRST} of {' and of '.join(words)}" if words else f"{when} all are within noise")
    return (
        f"Against dense, {'; '.join(said)} ({question_count} questions; p below {ALPHA:g}, not corrected for looking "
        f"at {len(options) - 1} options)."
    )


def _scored(found: RetrievalPools, order: Order) -> Mapping[str, Scores]:
    """Measure every option in some order; questions that failed count as 0."""
    judgments = {one.id: frozen.judged(one) for one in (*found.questions, *found.failed)}
    wanted = [measure(name) for name in measures(found.provenance.configuration.pool_size)]
    return {
        option.name: score_run(
            {question.id: order(question, option.name) for question in found.questions}, judgments, wanted
        )
        for option in found.options
    }


def _option(
    found: RetrievalPools, name: str, before: Mapping[str, Scores], after: Mapping[str, Scores]
) -> OptionFigures:
    seed, size = found.provenance.configuration.seed, found.provenance.configuration.pool_size
    times = [pool.first_stage_ms for pool in (question.pools[name] for question in found.questions)]
    known = [time for time in times if time is not None]
    return OptionFigures(
        name=name,
        before=quality.intervals(before[name], seed),
        after=quality.intervals(after[name], seed),
        changes_before=_changes(before, name, size, seed),
        changes_after=_changes(after, name, size, seed),
        first_stage_ms_p50=spread(known).p50 if known else None,
        disk_bytes=next(option.disk_bytes for option in found.options if option.name == name),
    )


def _changes(scores: Mapping[str, Scores], name: str, size: int, seed: int) -> tuple[Change, ...]:
    return () if name == DENSE else _from(DENSE, scores, name, size, seed)


def _word_changes(found: RetrievalPools, scores: Mapping[str, Scores]) -> dict[str, tuple[Change, ...]]:
    seed, size = found.provenance.configuration.seed, found.provenance.configuration.pool_size
    names = [name for name in OTHER_WORDS if name in scores and LEXICAL in scores]
    return {name: _from(LEXICAL, scores, name, size, seed) for name in names}


def _from(base: str, scores: Mapping[str, Scores], name: str, size: int, seed: int) -> tuple[Change, ...]:
    before, after = scores[base].values, scores[name].values
    return tuple(compare(what, before[what], after[what], seed=seed) for what in compared(size))


def _read_first(changes: Sequence[Change]) -> Change | None:
    return next((change for change in changes if change.measure == READ_FIRST), None)


def _ranks(question: StudiedQuestion) -> QuestionRanks:
    def places(order: Order) -> dict[str, tuple[int, ...]]:
        return {name: _places(order(question, name), question.relevant) for name in question.pools}

    return QuestionRanks(
        id=question.id,
        query=question.query,
        relevant=question.relevant,
        before=places(own_order),
        after=places(rerankers_order),
    )


def _places(ranked: Ranking, relevant: Sequence[DocumentId]) -> tuple[int, ...]:
    return tuple(rank for rank, document in enumerate(ranked, 1) if document in relevant)


def _mrr(size: int) -> str:
    return f"MRR@{MRR_DEPTH}" if size > MRR_DEPTH else "MRR"


def _question_count(found: RetrievalPools) -> int:
    return len(found.questions) + len(found.failed)
