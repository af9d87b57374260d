"""evaluate: figures out of candidates.json and reranked.json alone; no server is asked."""

from pathlib import Path

from evaluation import pools, records
from evaluation.abstention import abstention
from evaluation.datasets import trec
from evaluation.files import read, write, write_text
from evaluation.latency import latency
from evaluation.quality import quality
from evaluation.records import Candidates, Evaluation, Reranked

QRELS, RUN_BEFORE, RUN_AFTER = "qrels.txt", "retrieved.run", "reranked.run"
"""The same judgments and orders in TREC's formats, for other people's tools."""


def evaluate(outputs: Path) -> Evaluation:
    """Write evaluation.json, and judgments and runs in TREC's formats beside it.

    Raises:
        NotTogether: The two files are of different pools, corpora or encoders.
    """
    candidates = read(Candidates, outputs / records.CANDIDATES, "retrieve")
    reranked = read(Reranked, outputs / records.RERANKED, "rerank")
    found = evaluated(candidates, reranked)
    write(found, outputs / records.EVALUATION)
    write_text(trec.qrels_text(pools.judgments(candidates)), outputs / QRELS)
    write_text(trec.run_text(pools.retrieved(candidates), "retrieved"), outputs / RUN_BEFORE)
    write_text(trec.run_text(pools.reranking(reranked), "reranked"), outputs / RUN_AFTER)
    return found


def evaluated(candidates: Candidates, reranked: Reranked) -> Evaluation:
    """Compute everything; equal arguments give equal results.

    Raises:
        NotTogether: They are of different pools, corpora or encoders.
    """
    pools.require_reranking_of(candidates, reranked)
    return Evaluation(
        provenance=reranked.provenance,
        pool_digest=candidates.pool_digest,
        quality=quality(candidates, reranked),
        latency=latency(candidates, reranked),
        abstention=abstention(candidates, reranked),
        truncated_pair_count=sum(pool.truncated_count for pool in reranked.questions),
        pair_count=sum(len(pool.pairs) for pool in reranked.questions),
    )
