"""The files of the study: pools as they were frozen, and the figures that follow from them.

study-retrieval-pools.json has every option's pool of every question and the logit of every text that was read;
study-retrieval.json is a pure function of it.
"""

from collections.abc import Mapping

from evaluation.figures import Change, DocumentId, Figure, Frozen, Interval
from evaluation.records import Asked, FailedSearch, Record

POOLS = "study-retrieval-pools.json"
STUDY = "study-retrieval.json"


class Member(Frozen):
    """One document of a pool."""

    document: DocumentId
    read: DocumentId
    """What of it the reranker reads: its own id for the whole text, a part's id for a sentence."""
    score: Figure
    """Of the option's own kind: comparable within one pool only."""


class OptionPool(Frozen):
    """What one option found for one question, in its order."""

    members: tuple[Member, ...]
    first_stage_ms: Figure | None = None
    """Encode and search, as the gateway tells; null where the evaluation computed it."""


class ReadText(Frozen):
    """The reranker's answer about one text."""

    id: DocumentId
    """As `Member.read`."""
    logit: Figure
    truncated: bool


class StudiedQuestion(Asked):
    """One question, every option's pool, and one reranking of all their texts together."""

    pools: Mapping[str, OptionPool]
    """Option to pool, in the study's order."""
    texts: tuple[ReadText, ...]
    """Of all pools, highest logit first; a logit does not depend on what else was read."""


class UsedOption(Frozen):
    """An option that was run."""

    name: str
    collection: str
    """Empty where the evaluation computed it."""
    disk_bytes: int
    """Of that collection; 0 where it is not known."""


class DenseWeight(Frozen):
    """The weight of the dense list in the weighted sum, and how it was come by."""

    value: Figure
    tried: Mapping[str, Figure]
    """Weight to MRR@10 on dev, before reranking; empty where there is no dev split to choose on."""
    question_count: int
    """Answerable dev questions that it was chosen on."""


class RetrievalPools(Record):
    """study-retrieval-pools.json."""

    options: tuple[UsedOption, ...]
    left_out: Mapping[str, str]
    """Option to why it was not run."""
    plain_disk_bytes: int
    """Of the same documents without words."""
    dense_weight: DenseWeight | None
    """Null where the weighted sum was not run."""
    questions: tuple[StudiedQuestion, ...]
    """Answerable test questions."""
    failed: tuple[FailedSearch, ...] = ()
    """Those of which a call failed; they count as 0 for every option."""


class OptionFigures(Frozen):
    """What an option is worth and what it costs."""

    name: str
    before: Mapping[str, Interval]
    """Measure to mean and interval, in its own order."""
    after: Mapping[str, Interval]
    """The same pools in the reranker's order."""
    changes_before: tuple[Change, ...]
    """From dense to this, one per compared measure, before reranking; empty for dense."""
    changes_after: tuple[Change, ...]
    first_stage_ms_p50: Figure | None
    disk_bytes: int


class Gap(Frozen):
    """Where the relevant documents are: what neither list has, no fusion of the two can find."""

    vectors: str
    """The option that stands beside the lexical one: "dense", or the weaker vectors of a baseline."""
    pool_size: int
    relevant_count: int
    """Pairs of a question and a relevant document."""
    both: int
    vectors_only: int
    lexical_only: int
    neither: int
    questions: tuple[str, ...]
    """Questions of which no relevant document is in either list."""
    sentence: str


class QuestionRanks(Frozen):
    """Where each option had the relevant documents of one question."""

    id: str
    query: str
    relevant: tuple[DocumentId, ...]
    before: Mapping[str, tuple[int, ...]]
    """Option to the ranks, from 1, of the relevant documents in its pool; none where it has none of them."""
    after: Mapping[str, tuple[int, ...]]


class RetrievalStudy(Record):
    """study-retrieval.json."""

    question_count: int
    failed_count: int
    measures: tuple[str, ...]
    compared: tuple[str, ...]
    """Measures that are compared with dense."""
    options: tuple[OptionFigures, ...]
    left_out: Mapping[str, str]
    plain_disk_bytes: int
    dense_weight: DenseWeight | None
    gaps: tuple[Gap, ...]
    """That of dense and lexical first; none of lists that were not run."""
    word_changes: Mapping[str, tuple[Change, ...]]
    """Option that indexes words in another way, to its changes from `lexical`, before reranking."""
    exact_overlap: Figure | None
    """Share of the exact nearest documents that the dense pool has; null where exact search was not run."""
    questions: tuple[QuestionRanks, ...]
    sentence: str
    """What follows, for people."""
