"""retrieve: one search per question without reranking, whose pool is frozen with its texts, scores and time."""

from collections.abc import Callable

from evaluation import pools, records
from evaluation.datasets.model import Question
from evaluation.files import read, require_same, write
from evaluation.phases.corpus import require_corpus
from evaluation.plan import Plan
from evaluation.records import Candidates, DenseTime, FailedSearch, FrozenCandidate, FrozenPool, Indexed
from evaluation.system import CALL_TIMEOUT_S, QuestionFailed, System, document_id, model_used, stage_time, timed
from retrieval.gateway.v1 import gateway_pb2 as pb

Progress = Callable[[int, int], None]
"""Told how many of how many questions are done."""


def silent(_done: int, _count: int) -> None:
    """Show no progress."""


async def retrieve(plan: Plan, system: System, progress: Progress = silent) -> Candidates:
    """Freeze the pools and write candidates.json.

    Raises:
        NotTogether: The collection is of another corpus or another encoder.
    """
    indexed = read(Indexed, plan.outputs / records.INDEXED, "index")
    require_corpus(plan, indexed, records.INDEXED, "index")
    candidates = await freeze(plan, system, indexed, progress)
    write(candidates, plan.outputs / records.CANDIDATES)
    return candidates


async def freeze(plan: Plan, system: System, indexed: Indexed, progress: Progress = silent) -> Candidates:
    """Search every question, after one warm-up that is not counted.

    Args:
        plan: The run; its configuration says how deep.
        system: The servers.
        indexed: Which collection.
        progress: Told after every question.

    Raises:
        NotTogether: The collection is of another encoder.
    """
    collection, size = indexed.provenance.collection, plan.configuration.pool_size
    warm_up = await system.search.Search(
        _request(plan.dataset.questions[0].query, collection, size), timeout=CALL_TIMEOUT_S
    )
    encoder = model_used(warm_up.provenance.encoder)
    if indexed.provenance.encoder is not None:
        require_same(
            f"{collection} was indexed with another encoder",
            encoder.digest,
            indexed.provenance.encoder.digest,
            "run `twostage evaluate index` again",
        )
    found: list[FrozenPool] = []
    failed: list[FailedSearch] = []
    for number, question in enumerate(plan.dataset.questions, start=1):
        try:
            found.append(await _pool(system, question, collection, size))
        except QuestionFailed as error:
            failed.append(FailedSearch(**pools.asked(question), error=str(error)))
        progress(number, len(plan.dataset.questions))
    return Candidates(
        provenance=plan.provenance().model_copy(
            update={"collection": collection, "store": warm_up.provenance.store, "encoder": encoder}
        ),
        pool_digest=pools.digest(found, failed),
        questions=tuple(found),
        failed=tuple(failed),
    )


def pool_of(question: Question, answer: pb.SearchResponse, dense_ms: float) -> FrozenPool:
    """Freeze the pool of an answer.

    Args:
        question: What was asked.
        answer: With the whole pool and its texts.
        dense_ms: What the caller waited for the first stage.
    """
    return FrozenPool(
        **pools.asked(question),
        candidates=tuple(
            FrozenCandidate(id=document_id(hit.id), rank=hit.retrieval_rank, score=hit.retrieval_score, text=hit.text)
            for hit in answer.pool
        ),
        latency=DenseTime(
            dense=dense_ms, encode=stage_time(answer.timings.encode), search=stage_time(answer.timings.search)
        ),
    )


async def _pool(system: System, question: Question, collection: str, size: int) -> FrozenPool:
    call = system.search.Search(_request(question.query, collection, size), timeout=CALL_TIMEOUT_S)
    return pool_of(question, *await timed("gateway", call))


def _request(query: str, collection: str, size: int) -> pb.SearchRequest:
    return pb.SearchRequest(
        query=query, collection=collection, pool_size=size, top_k=1, rerank=pb.RERANK_OFF, include_pool=True
    )
