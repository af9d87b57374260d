"""A gateway measured as callers see it: one whole search per question, for comparing two deployments.

Quality of one deployment is measured on frozen pools; this is for two that may differ in both stages.
"""

from evaluation import pools
from evaluation.abstention import abstention
from evaluation.datasets.model import Question
from evaluation.latency import latency
from evaluation.phases.retrieve import Progress, pool_of, silent
from evaluation.plan import Plan
from evaluation.quality import quality
from evaluation.records import Candidates, Evaluation, FailedSearch, FrozenPool, Reranked, RerankedPool, ScoredPair
from evaluation.system import (
    RERANK_TIMEOUT_S,
    QuestionFailed,
    System,
    document_id,
    milliseconds,
    model_used,
    stage_time,
    timed,
)
from retrieval.gateway.v1 import gateway_pb2 as pb


async def searched(plan: Plan, system: System, progress: Progress = silent) -> Evaluation:
    """Search every question of a collection that exists, after one warm-up that is not counted.

    Args:
        plan: The run; `plan.collection_name` is searched and left as it is.
        system: The gateway; its reranker is reached through it.
        progress: Told after every question.
    """
    questions = plan.dataset.questions
    warm_up = await system.search.Search(_request(plan, questions[0]), timeout=RERANK_TIMEOUT_S)
    found: list[tuple[FrozenPool, RerankedPool]] = []
    failed: list[FailedSearch] = []
    for number, question in enumerate(questions, start=1):
        try:
            found.append(await _ask(plan, system, question))
        except QuestionFailed as error:
            failed.append(FailedSearch(**pools.asked(question), error=str(error)))
        progress(number, len(questions))
    provenance = plan.provenance().model_copy(
        update={
            "collection": warm_up.provenance.collection,
            "store": warm_up.provenance.store,
            "encoder": model_used(warm_up.provenance.encoder),
            "reranker": model_used(warm_up.provenance.reranker),
        }
    )
    before = tuple(pool for pool, _ in found)
    digest = pools.digest(before, failed)
    candidates = Candidates(provenance=provenance, pool_digest=digest, questions=before, failed=tuple(failed))
    after = tuple(pool for _, pool in found)
    return _evaluation(candidates, Reranked(provenance=provenance, pool_digest=digest, questions=after))


def _evaluation(candidates: Candidates, reranked: Reranked) -> Evaluation:
    return Evaluation(
        provenance=reranked.provenance,
        pool_digest=candidates.pool_digest,
        quality=quality(candidates, reranked),
        latency=latency(candidates, reranked),
        abstention=abstention(candidates, reranked),
        truncated_pair_count=sum(pool.truncated_count for pool in reranked.questions),
        pair_count=sum(len(pool.pairs) for pool in reranked.questions),
    )


async def _ask(plan: Plan, system: System, question: Question) -> tuple[FrozenPool, RerankedPool]:
    call = system.search.Search(_request(plan, question), timeout=RERANK_TIMEOUT_S)
    answer, wall = await timed("gateway", call)
    rerank_ms = milliseconds(answer.timings.rerank.total)
    pool = pool_of(question, answer, wall - rerank_ms)
    pairs = tuple(
        ScoredPair(
            id=document_id(hit.id),
            text=hit.text,
            score=hit.logit,
            truncated=hit.truncated,
            token_count=0,  # the gateway does not tell
            retrieval_rank=hit.retrieval_rank,
        )
        for hit in answer.hits
        if hit.HasField("logit")
    )
    return pool, RerankedPool(
        id=question.id,
        ranked=tuple(document_id(hit.id) for hit in answer.hits),
        pairs=pairs,
        truncated=any(pair.truncated for pair in pairs),
        truncated_count=sum(pair.truncated for pair in pairs),
        rerank_ms=rerank_ms,
        stage=stage_time(answer.timings.rerank),
    )


def _request(plan: Plan, question: Question) -> pb.SearchRequest:
    size = plan.configuration.pool_size
    return pb.SearchRequest(
        query=question.query,
        collection=plan.collection_name,
        pool_size=size,
        top_k=size,
        rerank=pb.RERANK_REQUIRED,
        include_pool=True,
    )
