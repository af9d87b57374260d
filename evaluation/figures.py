"""The shapes of figures: quality, significance, latency, abstention, studies. Parts of the files in `records`.

Every number is rounded when a shape is built (`DIGITS`), so that equal inputs give equal bytes.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict

DIGITS = 6
"""Decimals of every stored figure; far below any difference that means something."""

DocumentId = int | str
"""A document's id as its data set has it."""


def _rounded(value: float) -> float:
    return round(value, DIGITS) + 0.0  # never -0.0


Figure = Annotated[float, AfterValidator(_rounded)]


class Frozen(BaseModel):
    """Base of everything stored: immutable, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


# --- quality: what evaluation.json calls `quality` ------------------------------------------------------------------


class Interval(Frozen):
    """A mean over questions and its 95 % confidence interval (percentile bootstrap over questions)."""

    mean: Figure
    low: Figure
    high: Figure


class Change(Frozen):
    """One measure before and after reranking, or in run A and run B, on the same questions."""

    measure: str
    """As in `Quality.before`, for example "nDCG@5"."""
    before: Figure
    after: Figure
    difference: Figure
    """after - before."""
    low: Figure
    """95 % paired bootstrap interval of the difference."""
    high: Figure
    p_value: Figure
    """Two-sided paired randomization test (signs flipped at random)."""
    wins: tuple[str, ...]
    """Ids of questions that are better after, largest gain first, then by id."""
    losses: tuple[str, ...]
    """Ids of questions that are worse after, largest loss first, then by id."""
    tie_count: int
    significant: bool
    """Whether the p-value is below 0.05."""
    sentence: str
    """The same for people, in one sentence; says so where the difference is within noise."""


class QuestionFigures(Frozen):
    """One answerable question before and after reranking."""

    id: str
    query: str
    lang: str
    relevant: tuple[DocumentId, ...]
    """Every document that answers it, whether retrieved or not."""
    before: Mapping[str, Figure]
    """Measure to value, in retrieval order."""
    after: Mapping[str, Figure]
    """Measure to value, in reranked order."""
    first_before: int | None
    """Retrieval rank of the first relevant document, from 1; null where none is in the pool."""
    first_after: int | None
    """Reranked rank of the first relevant document."""
    top_before: tuple[DocumentId, ...]
    """The first ten ids in retrieval order."""
    top_after: tuple[DocumentId, ...]
    """The first ten ids in reranked order."""


class Quality(Frozen):
    """Means over the answerable questions of one split, before and after reranking of the same pool."""

    split: str
    question_count: int
    """Answerable questions: what every mean is over, those missing from the run included."""
    skipped_unanswerable_count: int
    """Questions without any relevant document, left out of every mean."""
    missing_count: int
    """Answerable questions that the run has no pool for; each counts as 0."""
    headline: tuple[str, ...]
    """The measures to show first: Recall@20, MRR@5, nDCG@5."""
    before: Mapping[str, Interval]
    """Measure to mean and interval, in retrieval order."""
    after: Mapping[str, Interval]
    """Measure to mean and interval, in reranked order."""
    changes: tuple[Change, ...]
    """One per measure, headline measures first."""
    questions: tuple[QuestionFigures, ...]
    """In the data set's order, those whose search failed last."""


# --- latency: what evaluation.json calls `latency` ------------------------------------------------------------------


class StageTime(Frozen):
    """One stage of one question, milliseconds; network + queue + tokenize + compute = total if all was answered."""

    total: Figure
    network: Figure
    queue: Figure
    tokenize: Figure
    compute: Figure


class Spread(Frozen):
    """A distribution in milliseconds, with every value that it was made from."""

    mean: Figure
    p50: Figure
    p95: Figure
    p99: Figure
    values: tuple[Figure, ...]
    """One per question, in the data set's order."""


class ReferenceTimes(Frozen):
    """Somebody else's means, to stand beside ours."""

    source: str
    dense: Figure
    rerank: Figure
    total: Figure


class Latency(Frozen):
    """All questions of one split, answerable or not, after a warm-up query, model loading excluded."""

    split: str
    question_count: int
    pool_size: int
    dense: Spread
    """A gateway Search without reranking, on the caller's clock."""
    rerank: Spread
    """A Rerank of the frozen pool, on the caller's clock."""
    total: Spread
    """dense + rerank, question by question."""
    stages: Mapping[Literal["encode", "search", "rerank"], StageTime]
    """Means of what the servers say of their parts."""
    other: Figure
    """Mean of what dense has beyond encode + search: the gateway's own work and the wire."""
    reference: ReferenceTimes | None
    """The tutorial's figures; null for other data sets."""


# --- abstention: what evaluation.json calls `abstention` ------------------------------------------------------------


class Histogram(Frozen):
    """Counts of scores in bins of one width, answerable and unanswerable questions apart."""

    edges: tuple[Figure, ...]
    """Bin borders, ascending; one more than there are counts."""
    answerable: tuple[int, ...]
    unanswerable: tuple[int, ...]


class RocPoint(Frozen):
    """What abstaining below a threshold does."""

    threshold: Figure
    answered_answerable: Figure
    """Share of answerable questions with a score of at least the threshold (true positive rate)."""
    answered_unanswerable: Figure
    """Share of unanswerable questions with a score of at least the threshold (false positive rate)."""


class ThresholdResult(Frozen):
    """One threshold on one split."""

    split: str
    threshold: Figure
    answered_answerable_count: int
    answerable_count: int
    abstained_unanswerable_count: int
    unanswerable_count: int
    balanced_accuracy: Figure
    """Mean of the two shares that are right."""


class AbstentionSignal(Frozen):
    """How well the best score of a question's pool tells answerable questions from others."""

    signal: Literal["retrieval_score", "logit"]
    """The highest cosine of the pool, or the highest logit of the reranker."""
    auc: Figure
    """Area under `roc`, test split: 0.5 is chance."""
    auc_low: Figure
    auc_high: Figure
    """95 % bootstrap interval of the area."""
    roc: tuple[RocPoint, ...]
    """Test split, thresholds descending."""
    histogram: Histogram
    """Test split."""
    answerable_scores: tuple[Figure, ...]
    """Test split, in the data set's order."""
    unanswerable_scores: tuple[Figure, ...]
    chosen: ThresholdResult
    """The threshold of the best balanced accuracy on dev."""
    tested: ThresholdResult
    """The same threshold on test."""


class Abstention(Frozen):
    """Whether scores could say "nothing here answers that": a new rule to evaluate, not a validated capability."""

    sentence: str
    """What this is and is not, for people."""
    signals: tuple[AbstentionSignal, ...]


# --- studies: what studies.json holds -------------------------------------------------------------------------------


class DepthPoint(Frozen):
    """The reranker on the first `depth` candidates of one frozen pool."""

    depth: int
    measures: Mapping[str, Interval]
    """After reranking; Recall@depth among them, which is what the pool allows."""
    rerank_ms_mean: Figure
    """Mean time to rerank: measured where `measured`, else the deepest pool's times the share of its tokens."""
    measured: bool
    sentence: str
    """The difference to the smallest depth for people."""


class DenseDepthPoint(Frozen):
    """The first stage alone at one depth."""

    depth: int
    recall: Interval
    hit: Interval


class TruncationPoint(Frozen):
    """One rule of how a pair over the token limit is cut, on the same pool."""

    policy: str
    truncated_pair_count: int
    measures: Mapping[str, Interval]
    sentence: str
    """The difference to the default rule for people."""
