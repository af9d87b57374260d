"""What answered searches tell of the quality of retrieval and reranking, without anybody's judgement."""

from functools import cache

from prometheus_client import Counter, Histogram

from gateway.pipeline import Result
from gateway.search_query import RerankMode, SearchQuery
from serving.metrics import ServerMetrics

CANDIDATES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
RANKS = (1, 2, 3, 5, 10, 20, 50, 100)
# Cosines of E5 crowd into 0.7 to 1; other encoders may use the rest.
SCORES = (*(step / 10 for step in range(7)), *(step / 50 for step in range(35, 51)))
# Rerankers are sure of most of what they read, so the ends are finer than the middle.
PROBABILITIES = (0.001, 0.01, 0.05, *(step / 10 for step in range(1, 10)), 0.95, 0.99, 0.999, 1.0)


class SearchMetrics:
    """Instruments of answered searches; a stream counts when its last answer is made."""

    def __init__(self, metrics: ServerMetrics) -> None:
        service, registry = metrics.service, metrics.registry

        def histogram(name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"{service}_{name}", documentation, buckets=buckets, registry=registry)

        self._pool = histogram("pool_candidates", "Candidates in the pool.", CANDIDATES)
        self._reranked = histogram(
            "reranked_candidates", "Candidates with a logit, in searches that asked for reranking.", CANDIDATES
        )
        self._retrieval_score = histogram(
            "top_retrieval_score",
            "Cosine similarity of a pool's first candidate where vectors alone filled it; 0 where it is below.",
            SCORES,
        )
        self._probability = histogram("top_probability", "The reranker's probability of the first hit.", PROBABILITIES)
        self._first_hit_rank = histogram(
            "first_hit_retrieval_rank", "Rank in the pool of the hit that the reranker put first.", RANKS
        )
        self._text_missing = Counter(
            f"{service}_text_missing_candidates", "Candidates without a text to score.", registry=registry
        )
        degradations = Counter(
            f"{service}_degradations",
            "Searches in which a stage did less than was asked.",
            ["stage", "reason"],
            registry=registry,
        )
        self._degradation = cache(degradations.labels)
        searches = Counter(f"{service}_searches", "Answered searches by their mode.", ["mode"], registry=registry)
        self._mode = cache(searches.labels)

    def observe(self, search: SearchQuery, result: Result) -> None:
        """Record one answered search."""
        self._mode(search.retrieval.mode.value).inc()
        self._pool.observe(len(result.pool))
        self._text_missing.inc(result.text_missing_count)
        if search.rerank is not RerankMode.OFF:
            self._reranked.observe(result.reranked_count)
        if result.shortfall:
            self._degradation("rerank", result.shortfall).inc()
        if result.search_shortfall:
            self._degradation("search", result.search_shortfall).inc()
        if result.write_skipped_reason:
            self._degradation("write", result.write_skipped_reason).inc()
        # Other lists have scores of other sizes.
        if result.pool and [one.name for one in result.lists] == ["dense"]:
            # The sum of a histogram must not fall.
            self._retrieval_score.observe(max(0.0, result.pool[0].candidate.score))
        if result.hits and (scored := result.hits[0].scored) is not None:
            self._probability.observe(scored.probability)
            self._first_hit_rank.observe(result.hits[0].retrieval_rank)
