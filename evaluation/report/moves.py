"""The questions that reranking changed most, with the documents that moved and their texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluation.figures import DIGITS, DocumentId, QuestionFigures
from evaluation.records import Candidates, Reranked
from evaluation.report import numbers

MOST = 10
TOP = 3
"""Places of either order whose documents are shown; relevant ones are shown wherever they are."""
PASSAGES = 8
TEXT_LIMIT = 320


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One document of a question's pool, where it was and where it went."""

    id: DocumentId
    before: int
    after: int | None
    """None where the question was not reranked."""
    relevant: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One question."""

    question: QuestionFigures
    change: float
    """Of the measure that the moves are sorted by."""
    passages: tuple[Passage, ...]
    """In reranked order."""
    absent_count: int
    """Relevant documents that are not in the pool."""
    error: str
    """Why there is no pool or no reranked order; empty where there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """The largest changes in either direction, largest first."""

    measure: str
    best: tuple[Move, ...]
    worst: tuple[Move, ...]
    better_count: int
    """Questions that got better, shown or not."""
    worse_count: int


def moves(candidates: Candidates, reranked: Reranked, questions: Sequence[QuestionFigures], measure: str) -> Moves:
    """Choose the questions that changed most: by a measure, then by the rank of the first relevant document.

    Args:
        candidates: The pools.
        reranked: Their reranking.
        questions: Figures of the questions to choose from.
        measure: Which one, for example "nDCG@5".
    """
    changed = {question.id: _change(question, measure) for question in questions}
    better = sorted((q for q in questions if changed[q.id] > (0, 0)), key=lambda q: (_opposite(changed[q.id]), q.id))
    worse = sorted((q for q in questions if changed[q.id] < (0, 0)), key=lambda q: (changed[q.id], q.id))
    texts = _Texts(candidates, reranked, measure)
    return Moves(
        measure=measure,
        best=tuple(texts.move(question) for question in better[:MOST]),
        worst=tuple(texts.move(question) for question in worse[:MOST]),
        better_count=len(better),
        worse_count=len(worse),
    )


def _change(question: QuestionFigures, measure: str) -> tuple[float, float]:
    first = [1 / rank if rank else 0.0 for rank in (question.first_before, question.first_after)]
    return _difference(question, measure), round(first[1] - first[0], DIGITS)


def _difference(question: QuestionFigures, measure: str) -> float:
    return round(question.after[measure] - question.before[measure], DIGITS)


def _opposite(change: tuple[float, float]) -> tuple[float, float]:
    return -change[0], -change[1]


class _Texts:
    """Finds a question's documents."""

    def __init__(self, candidates: Candidates, reranked: Reranked, measure: str) -> None:
        self._pools = {pool.id: pool for pool in candidates.questions}
        self._ranked = {pool.id: pool.ranked for pool in reranked.questions}
        self._errors = {failed.id: failed.error for failed in candidates.failed} | dict(reranked.failed)
        self._measure = measure

    def move(self, question: QuestionFigures) -> Move:
        passages = self._passages(question)
        there = {passage.id for passage in passages if passage.relevant}
        return Move(
            question=question,
            change=_difference(question, self._measure),
            passages=_shown(passages),
            absent_count=len(set(question.relevant) - there),
            error=self._errors.get(question.id, ""),
        )

    def _passages(self, question: QuestionFigures) -> list[Passage]:
        pool = self._pools.get(question.id)
        if pool is None:
            return []
        after: Mapping[DocumentId, int] = {
            found: rank for rank, found in enumerate(self._ranked.get(question.id, ()), start=1)
        }
        return [
            Passage(
                id=candidate.id,
                before=candidate.rank,
                after=after.get(candidate.id),
                relevant=candidate.id in question.relevant,
                text=numbers.clipped(candidate.text, TEXT_LIMIT),
            )
            for candidate in pool.candidates
        ]


def _shown(passages: Sequence[Passage]) -> tuple[Passage, ...]:
    """Keep relevant ones and the top of both orders, relevant ones first where there are too many."""
    top = [one for one in passages if one.relevant or one.before <= TOP or (one.after or TOP + 1) <= TOP]
    kept = sorted(top, key=lambda one: (not one.relevant, _place(one)))[:PASSAGES]
    return tuple(sorted(kept, key=_place))


def _place(passage: Passage) -> int:
    return passage.before if passage.after is None else passage.after
