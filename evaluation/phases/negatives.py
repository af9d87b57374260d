"""negatives: an empty pool, a pair that is too long, a collection without documents."""

from pathlib import Path

from evaluation import pools, records
from evaluation.files import read, require_same, write
from evaluation.phases.rerank import served_reranker
from evaluation.records import Negative, Negatives, Reranked
from evaluation.system import CALL_TIMEOUT_S, RERANK_TIMEOUT_S, System
from retrieval.gateway.v1 import gateway_pb2
from retrieval.reranker.v1 import reranker_pb2

QUESTION = "Which passage is too long?"
LONG_WORDS = 4_000
"""Words of the passage that is too long: some tokens each, against a limit of 512."""
NAME_LIMIT = 128


async def negatives(outputs: Path, system: System) -> Negatives:
    """Check all three against the servers and write negatives.json.

    Raises:
        NotTogether: Another reranker is serving than the one that made reranked.json.
    """
    reranked = read(Reranked, outputs / records.RERANKED, "rerank")
    serving, wanted = await served_reranker(system), reranked.provenance.reranker
    if wanted is not None:
        require_same("another reranker is serving", serving.digest, wanted.digest, pools.RERANK_AGAIN)
    checks = (
        await _empty_pool(system),
        await _truncated_pair(system),
        await _empty_collection(system, f"{reranked.provenance.collection[: NAME_LIMIT - 6]}-empty"),
    )
    found = Negatives(provenance=reranked.provenance, checks=checks, passed=all(check.passed for check in checks))
    write(found, outputs / records.NEGATIVES)
    return found


async def _empty_pool(system: System) -> Negative:
    answer = await system.reranker.Rerank(reranker_pb2.RerankRequest(query=QUESTION), timeout=CALL_TIMEOUT_S)
    ranked = [one.id for one in answer.ranked]
    return Negative(
        name="empty_pool",
        expected="ranked: [], truncated: false",
        found=f"ranked: {ranked}, truncated: {_word(answer.truncated)}",
        passed=not ranked and not answer.truncated,
    )


async def _truncated_pair(system: System) -> Negative:
    limits = (await system.reranker.GetModel(reranker_pb2.GetModelRequest(), timeout=CALL_TIMEOUT_S)).limits
    long = reranker_pb2.Candidate(id="long", text="paper " * LONG_WORDS)
    short = reranker_pb2.Candidate(id="short", text="A short one.")
    answer = await system.reranker.Rerank(
        reranker_pb2.RerankRequest(query=QUESTION, candidates=[long, short]), timeout=RERANK_TIMEOUT_S
    )
    cut = sorted(one.id for one in answer.ranked if one.truncated)
    tokens = max((one.token_count for one in answer.ranked), default=0)
    return Negative(
        name="truncated_pair",
        expected=f"truncated: true, cut: ['long'], tokens: {limits.max_tokens}",
        found=f"truncated: {_word(answer.truncated)}, cut: {cut}, tokens: {tokens}",
        passed=answer.truncated and cut == ["long"] and tokens == limits.max_tokens,
    )


async def _empty_collection(system: System, name: str) -> Negative:
    drop = gateway_pb2.DropCollectionRequest(collection=name)
    listed = await system.collections.ListCollections(gateway_pb2.ListCollectionsRequest(), timeout=CALL_TIMEOUT_S)
    if name in {collection.name for collection in listed.collections}:  # of a run that was killed
        await system.collections.DropCollection(drop, timeout=CALL_TIMEOUT_S)
    create = gateway_pb2.CreateCollectionRequest(collection=name)
    made = (await system.collections.CreateCollection(create, timeout=CALL_TIMEOUT_S)).collection
    try:
        request = gateway_pb2.SearchRequest(query=QUESTION, collection=name, include_pool=True)
        answer = await system.search.Search(request, timeout=CALL_TIMEOUT_S)
    finally:
        await system.collections.DropCollection(drop, timeout=CALL_TIMEOUT_S)
    counts = (made.document_count, len(answer.pool), len(answer.hits))
    return Negative(
        name="empty_collection",
        expected="points_count: 0, pool: 0, hits: 0",
        found="points_count: {}, pool: {}, hits: {}".format(*counts),
        passed=counts == (0, 0, 0),
    )


def _word(value: bool) -> str:  # noqa: FBT001 - the value itself is what is written
    return str(value).lower()
