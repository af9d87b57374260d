"""The files in an outputs directory, as models: what each phase leaves and the next one reads.

==================  ==========  ======================================================================
file                phase       holds
==================  ==========  ======================================================================
prepared.json       prepare     the data set's population and digest
indexed.json        index       the collection that was made of it
candidates.json     retrieve    the frozen pools, with texts and retrieval scores, and dense latency
reranked.json       rerank      the reranker's order of exactly those pools, and rerank latency
negatives.json      negatives   what the system answers where there is nothing to rank
evaluation.json     evaluate    quality, latency and abstention, computed from the files alone
exercise.json       exercise    one question without its relevant documents
studies.json        studies     pool depth, truncation, dense depth
==================  ==========  ======================================================================

The files of the study of what fills the pool are in `evaluation.first_stage.records` and `synonym_records`.
"""

from collections.abc import Mapping
from typing import Literal

from evaluation.figures import (
    Abstention,
    DenseDepthPoint,
    DepthPoint,
    DocumentId,
    Figure,
    Frozen,
    Latency,
    Quality,
    StageTime,
    TruncationPoint,
)

PREPARED = "prepared.json"
INDEXED = "indexed.json"
CANDIDATES = "candidates.json"
RERANKED = "reranked.json"
NEGATIVES = "negatives.json"
EVALUATION = "evaluation.json"
EXERCISE = "exercise.json"
STUDIES = "studies.json"


# --- provenance: in every file --------------------------------------------------------------------------------------


class Population(Frozen):
    """How many of what: the help centre has 200/80/20/60/48/12."""

    document_count: int
    question_count: int
    dev_count: int
    test_count: int
    answerable_test_count: int
    unanswerable_test_count: int


class Corpus(Frozen):
    """Which data, exactly."""

    name: str
    digest: str
    """"sha256:" and 64 hexadecimal digits over every document, question and judgment."""
    population: Population


class ModelUsed(Frozen):
    """Which model, exactly, and where it ran."""

    id: str
    revision: str
    digest: str
    """Of the served bundle: "sha256:" and 64 hexadecimal digits."""
    precision: str
    device: str
    """Where the server says it really runs: "cpu" or "cuda"."""


class Configuration(Frozen):
    """What was chosen for a run; results under two configurations are two results."""

    pool_size: int
    passage: Literal["text", "title+text"] = "text"
    """What of a document is encoded and reranked."""
    truncation: str = "longest_first"
    seed: int = 0
    """Of every resampling; and of the sample, where one was taken."""
    question_limit: int | None = None
    """Questions of a sample drawn with `seed`; null: all."""


class Provenance(Frozen):
    """What produced a file."""

    corpus: Corpus
    configuration: Configuration
    versions: Mapping[str, str]
    """Of twostage, Python and the libraries that shape figures; name to version, sorted."""
    machine: str
    """Processor and usable CPUs of the machine that measured, for people."""
    collection: str = ""
    """Name of the collection that was searched; empty before there is one."""
    store: str = ""
    """The vector store: "qdrant-edge" or "qdrant"; empty before a search."""
    encoder: ModelUsed | None = None
    reranker: ModelUsed | None = None


class Record(Frozen):
    """Base of every file."""

    schema_version: Literal[1] = 1
    provenance: Provenance


# --- before there are pools -----------------------------------------------------------------------------------------


class Prepared(Record):
    """prepared.json: the data set was read and is what it says it is."""

    languages: Mapping[str, int]
    """Language to number of questions."""
    unknown_relevant_count: int
    """Judgments of documents that the data set does not have: no search can find them."""


class Indexed(Record):
    """indexed.json: every document is in the collection."""

    document_count: int
    dimension: int
    device: str
    points_count: int
    """Documents in the collection, counted by the store."""
    truncated_count: int
    """Documents over the encoder's limit, of which only the beginning was encoded."""
    seconds: Figure


# --- candidates.json ------------------------------------------------------------------------------------------------


class FrozenCandidate(Frozen):
    """One candidate of a frozen pool."""

    id: DocumentId
    rank: int
    """In retrieval order, from 1."""
    score: Figure
    """Cosine similarity; E5 crowds into 0.7 to 1, so compare and never threshold."""
    text: str
    """What the reranker reads."""


class DenseTime(Frozen):
    """First stage of one question, milliseconds."""

    dense: Figure
    """The whole call on the caller's clock."""
    encode: StageTime
    search: StageTime
    """The parts as the gateway says."""


class Asked(Frozen):
    """A question and its judgments."""

    id: str
    split: str
    lang: str
    query: str
    relevant: tuple[DocumentId, ...]
    """Every document that answers it; empty where none does."""
    grades: tuple[int, ...] = ()
    """Parallel to `relevant`: how well; empty where every one is 1."""


class FrozenPool(Asked):
    """One question and its candidates, in retrieval order."""

    candidates: tuple[FrozenCandidate, ...]
    latency: DenseTime


class FailedSearch(Asked):
    """A question whose search failed: it counts as 0 and is not dropped."""

    error: str
    """Status code and message of the call."""


class Candidates(Record):
    """candidates.json: everything after this works on these pools and never searches again."""

    pool_digest: str
    """See `evaluation.pools.digest`: over questions, judgments, ids and texts of every pool; no scores, no times."""
    questions: tuple[FrozenPool, ...]
    failed: tuple[FailedSearch, ...] = ()


# --- reranked.json --------------------------------------------------------------------------------------------------


class ScoredPair(Frozen):
    """A question and a passage as the reranker read them."""

    id: DocumentId
    text: str
    score: Figure
    """The raw logit, unbounded."""
    truncated: bool
    token_count: int
    retrieval_rank: int


class RerankedPool(Frozen):
    """The reranker's order of one frozen pool."""

    id: str
    ranked: tuple[DocumentId, ...]
    """Best first."""
    pairs: tuple[ScoredPair, ...]
    """In the order of `ranked`."""
    truncated: bool
    """Whether any pair was cut."""
    truncated_count: int
    rerank_ms: Figure
    """The whole call on the caller's clock."""
    stage: StageTime
    """Its parts as the server says; `network` is what it does not account for."""


class Reranked(Record):
    """reranked.json: `pool_digest` says of which pools."""

    pool_digest: str
    questions: tuple[RerankedPool, ...]
    failed: Mapping[str, str] = {}
    """Id of a question whose reranking failed -> status code and message; it counts as 0 and is not dropped."""


# --- negatives.json -------------------------------------------------------------------------------------------------


class Negative(Frozen):
    """One thing that must not go wrong where there is nothing to rank."""

    name: Literal["empty_pool", "truncated_pair", "empty_collection"]
    expected: str
    found: str
    passed: bool


class Negatives(Record):
    """negatives.json."""

    checks: tuple[Negative, ...]
    passed: bool


# --- evaluation.json ------------------------------------------------------------------------------------------------


class Evaluation(Record):
    """evaluation.json: a pure function of candidates.json and reranked.json; equal inputs give equal bytes."""

    pool_digest: str
    quality: Quality
    """The test split."""
    latency: Latency
    """The test split, all questions; for another machine this differs and `quality` does not."""
    abstention: Abstention | None
    """Null where the data set has no unanswerable questions in both splits."""
    truncated_pair_count: int
    pair_count: int


# --- exercise.json --------------------------------------------------------------------------------------------------


class Exercise(Record):
    """exercise.json: no reranker finds what the pool does not have."""

    pool_digest: str
    """Of the pools that this one was taken from."""
    question: str
    query: str
    removed_relevant: tuple[DocumentId, ...]
    """Relevant documents that were taken out of the pool."""
    candidate_count: int
    """Candidates that were left and reranked."""
    ranked: tuple[DocumentId, ...]
    pairs: tuple[ScoredPair, ...]
    truncated: bool
    returned_relevant: tuple[DocumentId, ...]
    """Removed documents that came back: none."""
    recall: Figure
    passed: bool


# --- studies.json ---------------------------------------------------------------------------------------------------


class Studies(Record):
    """studies.json: one variable at a time, on one frozen pool."""

    pool_digest: str
    """Of the deep pools of the study, which are kept in studies-candidates.json."""
    question_count: int
    pool_depth: tuple[DepthPoint, ...]
    """Ascending depth; all derived from one reranking of the deepest."""
    dense_depth: tuple[DenseDepthPoint, ...]
    truncation: tuple[TruncationPoint, ...]
    """The default rule first; empty where the study was left out."""
