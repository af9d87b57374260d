"""exercise: one question's pool without its relevant documents, which no reranker can bring back."""

from pathlib import Path

from evaluation import measures, pools, records
from evaluation.files import read, write
from evaluation.phases.rerank import rerank_pool, reranked_provenance, served_reranker
from evaluation.records import Candidates, Exercise, FrozenPool
from evaluation.system import QuestionFailed, System
from serving.errors import InferenceFailed, NotFound

QUESTION = "REF-000"
"""The tutorial's; another data set takes its first question with a relevant document in its pool."""


async def exercise(outputs: Path, system: System, question: str | None = None) -> Exercise:
    """Take the relevant documents out of a pool, rerank the rest, and write exercise.json.

    Args:
        outputs: The outputs directory.
        system: The servers.
        question: Its id; None takes `QUESTION` or the first that will do.

    Raises:
        NotFound: There is no such question.
        InferenceFailed: The reranker did not answer it.
    """
    candidates = read(Candidates, outputs / records.CANDIDATES, "retrieve")
    pools.require_untouched(candidates)
    pool = _chosen(candidates, question)
    left = tuple(candidate for candidate in pool.candidates if candidate.id not in pool.relevant)
    policy = candidates.provenance.configuration.truncation
    model = await served_reranker(system)
    try:
        answer = await rerank_pool(system, pool.id, pool.query, left, policy)
    except QuestionFailed as error:
        raise InferenceFailed("EXERCISE_FAILED", f"{pool.id}: {error}") from error
    returned = tuple(found for found in answer.ranked if found in pool.relevant)
    recall = measures.recall(answer.ranked, pools.judged(pool), candidates.provenance.configuration.pool_size)
    found = Exercise(
        provenance=reranked_provenance(candidates.provenance, model, policy),
        pool_digest=candidates.pool_digest,
        question=pool.id,
        query=pool.query,
        removed_relevant=tuple(found for found in pool.relevant if found in pools.ids(pool)),
        candidate_count=len(left),
        ranked=answer.ranked,
        pairs=answer.pairs,
        truncated=answer.truncated,
        returned_relevant=returned,
        recall=recall,
        passed=not returned and recall == 0 and len(answer.ranked) == len(left),
    )
    write(found, outputs / records.EXERCISE)
    return found


def _chosen(candidates: Candidates, question: str | None) -> FrozenPool:
    by_id = {pool.id: pool for pool in candidates.questions if set(pool.relevant) & set(pools.ids(pool))}
    wanted = question or (QUESTION if QUESTION in by_id else next(iter(by_id), ""))
    if wanted not in by_id:
        raise NotFound("QUESTION_NOT_FOUND", f"no question {wanted or 'at all'} has a relevant document in its pool")
    return by_id[wanted]
