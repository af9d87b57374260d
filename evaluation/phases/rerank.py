"""rerank: the real reranker server orders exactly the frozen pools; nothing is searched a second time."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from evaluation import pools, records
from evaluation.figures import StageTime
from evaluation.files import read, write
from evaluation.phases.retrieve import Progress, silent
from evaluation.plan import machine, versions
from evaluation.records import Candidates, FrozenCandidate, ModelUsed, Provenance, Reranked, RerankedPool, ScoredPair
from evaluation.system import (
    CALL_TIMEOUT_S,
    RERANK_TIMEOUT_S,
    QuestionFailed,
    System,
    milliseconds,
    model_used,
    timed,
)
from retrieval.reranker.v1 import reranker_pb2 as pb
from serving.errors import InvalidRequest, Unavailable

POLICIES = {
    "longest_first": pb.TRUNCATION_LONGEST_FIRST,
    "only_passage": pb.TRUNCATION_ONLY_PASSAGE,
}
"""How a pair over the token limit is cut: name to value of the request's field."""


async def rerank(
    outputs: Path, system: System, *, truncation: str | None = None, progress: Progress = silent
) -> Reranked:
    """Rerank the pools of candidates.json and write reranked.json.

    Args:
        outputs: The outputs directory.
        system: The servers.
        truncation: A key of `POLICIES`; None takes what the pools' configuration says.
        progress: Told after every question.

    Raises:
        NotTogether: The pools were changed after they were frozen.
    """
    candidates = read(Candidates, outputs / records.CANDIDATES, "retrieve")
    pools.require_untouched(candidates)
    policy = truncation or candidates.provenance.configuration.truncation
    reranked = await rerank_all(candidates, system, policy, progress)
    write(reranked, outputs / records.RERANKED)
    return reranked


async def rerank_all(candidates: Candidates, system: System, policy: str, progress: Progress = silent) -> Reranked:
    """Rerank every pool, one after the other, after one warm-up that is not counted."""
    model = await served_reranker(system)
    if candidates.questions:
        first = candidates.questions[0]
        with suppress(QuestionFailed):  # told when its turn comes
            await _call(system, first.query, first.candidates, policy)
    found: list[RerankedPool] = []
    failed: dict[str, str] = {}
    for number, pool in enumerate(candidates.questions, start=1):
        try:
            found.append(await rerank_pool(system, pool.id, pool.query, pool.candidates, policy))
        except QuestionFailed as error:
            failed[pool.id] = str(error)
        progress(number, len(candidates.questions))
    return Reranked(
        provenance=reranked_provenance(candidates.provenance, model, policy),
        pool_digest=candidates.pool_digest,
        questions=tuple(found),
        failed=failed,
    )


async def rerank_pool(
    system: System, name: str, query: str, candidates: Sequence[FrozenCandidate], policy: str
) -> RerankedPool:
    """Rerank one pool; an empty one is an empty ranking.

    Raises:
        QuestionFailed: The reranker refused or failed this one.
    """
    answer, wall = await _call(system, query, candidates, policy)
    pairs = tuple(_pair(one, candidates[one.index]) for one in answer.ranked)
    return RerankedPool(
        id=name,
        ranked=tuple(pair.id for pair in pairs),
        pairs=pairs,
        truncated=answer.truncated,
        truncated_count=answer.truncated_count,
        rerank_ms=wall,
        stage=_stage(answer.timings, wall),
    )


async def served_reranker(system: System) -> ModelUsed:
    """Ask the reranker which model it serves.

    Raises:
        Unavailable: It does not say.
    """
    try:
        answer, _ = await timed("reranker", system.reranker.GetModel(pb.GetModelRequest(), timeout=CALL_TIMEOUT_S))
    except QuestionFailed as error:
        message = f"the reranker does not say what it serves: {error}"[:250]
        raise Unavailable("RERANKER_UNAVAILABLE", message) from error
    return model_used(answer.model)


def reranked_provenance(before: Provenance, reranker: ModelUsed, policy: str) -> Provenance:
    """Add to the pools' provenance who reranked them, how, and on which machine."""
    configuration = before.configuration.model_copy(update={"truncation": policy})
    return before.model_copy(
        update={
            "configuration": configuration,
            "reranker": reranker,
            "versions": versions(),
            "machine": machine(),
        }
    )


async def _call(
    system: System, query: str, candidates: Sequence[FrozenCandidate], policy: str
) -> tuple[pb.RerankResponse, float]:
    if policy not in POLICIES:
        raise InvalidRequest(
            "TRUNCATION_UNKNOWN", f"there is no {policy!r}; there are {', '.join(POLICIES)}", field="truncation"
        )
    request = pb.RerankRequest(
        query=query,
        candidates=[pb.Candidate(id=str(candidate.id), text=candidate.text) for candidate in candidates],
        truncation=POLICIES[policy],
    )
    return await timed("reranker", system.reranker.Rerank(request, timeout=RERANK_TIMEOUT_S))


def _pair(one: pb.RankedCandidate, candidate: FrozenCandidate) -> ScoredPair:
    return ScoredPair(
        id=candidate.id,
        text=candidate.text,
        score=one.logit,
        truncated=one.truncated,
        token_count=one.token_count,
        retrieval_rank=candidate.rank,
    )


def _stage(timings: pb.Timings, wall: float) -> StageTime:
    """Split the caller's time; what the server does not account for is the wire's."""
    parts = {part: milliseconds(getattr(timings, part)) for part in ("queue", "tokenize", "compute")}
    return StageTime(total=wall, network=wall - sum(parts.values()), **parts)
