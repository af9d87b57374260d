"""Where the first relevant document of each question stood before and after: the rows of the slope chart."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from evaluation.figures import QuestionFigures
from evaluation.report import numbers

Direction = Literal["better", "same", "worse"]
DIRECTIONS: tuple[Direction, ...] = ("better", "same", "worse")
SINGLE = 10
"""Ranks up to this one have a place of their own; deeper ones share."""
SHARED_ENDS = (15, 20, 30, 50, 100, 200, 500, 1_000)
WITHIN = (1, 3, 5, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Questions whose first relevant document went from one place to another."""

    before: str
    """The place in retrieval order: "3", "11\N{EN DASH}15" or that there is none."""
    after: str
    direction: Direction
    questions: tuple[str, ...]
    """Their ids, in the data set's order."""

    @property
    def sentence(self) -> str:
        """Say it for people."""
        moved = f"rank {self.before} \N{RIGHTWARDS ARROW} {self.after}"
        return f"{numbers.count(len(self.questions), 'question')}, {moved}: {numbers.listed(self.questions)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """All of them."""

    flows: tuple[Flow, ...]
    places: tuple[str, ...]
    """Every place of the chart, best first."""
    before: Counter[str]
    """Place to number of questions."""
    after: Counter[str]
    directions: Counter[Direction]
    within: tuple[tuple[int, int, int], ...]
    """(k, questions before, questions after) whose first relevant document is among the first k."""


def ranks(questions: Sequence[QuestionFigures]) -> Ranks:
    """Bring questions of equal moves together."""
    grouped: defaultdict[tuple[str, str, Direction], list[str]] = defaultdict(list)
    for question in questions:
        first, then = question.first_before, question.first_after
        grouped[place(first), place(then), direction(first, then)].append(question.id)
    flows = tuple(
        Flow(before=before, after=after, direction=way, questions=tuple(names))
        for (before, after, way), names in grouped.items()
    )
    deepest = max(
        (rank or 0 for question in questions for rank in (question.first_before, question.first_after)), default=0
    )
    return Ranks(
        flows=tuple(sorted(flows, key=lambda flow: (DIRECTIONS.index(flow.direction), -len(flow.questions)))),
        places=_places(max(deepest, SINGLE)),
        before=Counter(place(question.first_before) for question in questions),
        after=Counter(place(question.first_after) for question in questions),
        within=tuple((limit, *_within(questions, limit)) for limit in WITHIN),
        directions=Counter(direction(question.first_before, question.first_after) for question in questions),
    )


def place(rank: int | None) -> str:
    """Return the place of a rank: itself, or the group of deep ranks that it falls in."""
    if rank is None:
        return numbers.NOT_FOUND
    if rank <= SINGLE:
        return str(rank)
    start = SINGLE
    for end in SHARED_ENDS:
        if rank <= end:
            return f"{start + 1}\N{EN DASH}{end}"
        start = end
    return f"over {start}"


def direction(before: int | None, after: int | None) -> Direction:
    """Say whether a rank got better; no rank is worse than any."""
    first, then = (float("inf") if rank is None else rank for rank in (before, after))
    return "better" if then < first else "worse" if then > first else "same"


def _within(questions: Sequence[QuestionFigures], limit: int) -> tuple[int, int]:
    before = sum(question.first_before is not None and question.first_before <= limit for question in questions)
    after = sum(question.first_after is not None and question.first_after <= limit for question in questions)
    return before, after


def _places(deepest: int) -> tuple[str, ...]:
    singles = [str(rank) for rank in range(1, SINGLE + 1)]
    shared = [place(end) for start, end in zip((SINGLE, *SHARED_ENDS), SHARED_ENDS, strict=False) if start < deepest]
    over = [place(deepest)] if deepest > SHARED_ENDS[-1] else []
    return (*singles, *shared, *over, numbers.NOT_FOUND)
