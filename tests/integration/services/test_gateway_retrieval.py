"""Every way of filling a pool, over real gRPC and the embedded store: what is found, and what the answer says of it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from rigs import COLLECTION, Rig, document, failure, numbers, open_rig, request

from gateway.convert import hit_bytes
from gateway.convert_retrieval import rank_messages, retrieval_of
from gateway.fusion import ListRank
from gateway.pipeline import Hit
from gateway.pool import MAX_CANDIDATES
from gateway.ports import Candidate
from gateway.stores.edge import EdgeStore
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import InvalidRequest

pytestmark = pytest.mark.timeout(60)
CODE = grpc.StatusCode
TEXTS = ("alpha beta", "alpha alpha gamma", "delta gamma", "epsilon vpn", "zeta")
LEXICAL = pb.Retrieval(mode=pb.RETRIEVAL_MODE_LEXICAL)
HYBRID = pb.Retrieval(mode=pb.RETRIEVAL_MODE_HYBRID)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """A gateway with an embedded store, synonyms, and a collection whose words are indexed."""
    synonyms = tmp_path / "synonyms"
    synonyms.mkdir()
    (synonyms / f"{COLLECTION}.yaml").write_text("- {from: tunnel, to: [vpn]}\n")
    store = await EdgeStore.open(tmp_path / "store", in_process=True)
    async with store, open_rig(store, synonyms_path=synonyms) as opened:
        parameters = pb.CollectionParameters(lexical=pb.LexicalParameters(average_words=2))
        made = pb.CreateCollectionRequest(collection=COLLECTION, parameters=parameters)
        await opened.collections.CreateCollection(made)
        await opened.upsert(
            [document(number, text, source="a" if number < 4 else "b") for number, text in enumerate(TEXTS, 1)]
        )
        yield opened


async def ask(rig: Rig, query: str = "alpha", **fields: Any) -> pb.SearchResponse:
    """Search without reranking."""
    return await rig.ask(query, **{"rerank": pb.RERANK_OFF, "top_k": 5, "pool_size": 5, **fields})


async def test_words_alone_find_what_has_them(rig: Rig) -> None:
    """BM25 orders by the word's weight, leaves out what has none of them, and encodes nothing."""
    answer = await ask(rig, retrieval=LEXICAL)
    assert numbers(answer.hits) == [2, 1]
    assert answer.hits[0].retrieval_score > answer.hits[1].retrieval_score > 0
    assert [(one.name, one.candidate_count) for one in answer.provenance.lists] == [("lexical", 2)]
    assert not answer.provenance.HasField("encoder")
    assert answer.timings.encode.total.ToNanoseconds() == 0
    assert list(answer.hits[0].lists) == []


async def test_a_hybrid_hit_says_where_each_list_had_it(rig: Rig) -> None:
    """The fused score is the sum of what its ranks are worth, and the answer names both lists."""
    by_rank = pb.Fusion(method=pb.FUSION_METHOD_RRF)
    answer = await ask(rig, retrieval=pb.Retrieval(mode=pb.RETRIEVAL_MODE_HYBRID, fusion=by_rank))
    assert [one.name for one in answer.provenance.lists] == ["dense", "lexical"]
    assert answer.provenance.lists[0].compute.ToNanoseconds() > 0
    for hit in answer.hits:
        assert hit.retrieval_score == pytest.approx(sum(0.5 / (60 + one.rank) for one in hit.lists))
    assert {one.list for hit in answer.hits for one in hit.lists} == {"dense", "lexical"}


async def test_lists_are_fused_by_their_scores_unless_said_otherwise(rig: Rig) -> None:
    """Without a method the weighted sum of scaled scores is what counts."""
    weighted = pb.Retrieval(mode=pb.RETRIEVAL_MODE_HYBRID, fusion=pb.Fusion(method=pb.FUSION_METHOD_WEIGHTED))
    plain, said = await ask(rig, retrieval=HYBRID), await ask(rig, retrieval=weighted)
    assert [hit.retrieval_score for hit in plain.hits] == [hit.retrieval_score for hit in said.hits]
    assert plain.hits[0].retrieval_score > 0.5


async def test_the_times_of_a_hybrid_search_add_up(rig: Rig) -> None:
    """All stages and the gateway's own work are the total, exactly."""
    times = (await rig.ask(retrieval=HYBRID)).timings
    parts = (times.write.total, times.dense, times.rerank.total, times.other)
    assert sum(part.ToNanoseconds() for part in parts) == times.total.ToNanoseconds()
    inside = times.encode.total.ToNanoseconds() + times.search.total.ToNanoseconds()
    assert times.dense.ToNanoseconds() == inside


async def test_a_filter_is_laid_over_every_list(rig: Rig) -> None:
    """No list brings in what the filter leaves out."""
    wanted = pb.Filter(must_not=[pb.Condition(has_id=pb.HasId(ids=[pb.DocumentId(number=2)]))])
    retrieval = pb.Retrieval(mode=pb.RETRIEVAL_MODE_HYBRID, alternatives=["gamma"])
    answer = await ask(rig, retrieval=retrieval, filter=wanted)
    assert 2 not in numbers(answer.hits)
    assert len(answer.provenance.lists) == 4


async def test_synonyms_bring_in_other_words(rig: Rig) -> None:
    """A word of the collection's synonyms is looked for as well, where that is asked for."""
    plain = await ask(rig, "tunnel", retrieval=LEXICAL)
    wider = pb.Retrieval(mode=pb.RETRIEVAL_MODE_LEXICAL, synonyms=pb.SYNONYM_USE_LEXICAL)
    both = pb.Retrieval(mode=pb.RETRIEVAL_MODE_HYBRID, synonyms=pb.SYNONYM_USE_BOTH)
    assert numbers(plain.hits) == []
    assert numbers((await ask(rig, "tunnel", retrieval=wider)).hits) == [4]
    lists = [one.name for one in (await ask(rig, "tunnel", retrieval=both)).provenance.lists]
    assert lists == ["dense", "dense.synonym.1", "lexical"]


async def test_alternatives_and_passages_have_lists_of_their_own(rig: Rig) -> None:
    """Multi-query and HyDE are one call to the encoder per role, and every list is named."""
    retrieval = pb.Retrieval(
        mode=pb.RETRIEVAL_MODE_HYBRID,
        alternatives=["gamma"],
        hypothetical_passages=["zeta"],
        hypothetical_use=pb.HYPOTHETICAL_USE_FUSE,
    )
    answer = await ask(rig, retrieval=retrieval)
    assert [one.name for one in answer.provenance.lists] == [
        "dense",
        "dense.alternative.1",
        "dense.hypothetical.1",
        "lexical",
        "lexical.alternative.1",
    ]
    assert {1, 2, 3, 5} <= set(numbers(answer.hits))


async def test_a_group_has_so_many_in_the_pool(rig: Rig) -> None:
    """At most one document of each value enters the pool, and the reranker reads no other."""
    answer = await rig.ask(diversity=pb.Diversity(group_by="source"), pool_size=5, top_k=5)
    assert len(answer.hits) == 2
    assert len(rig.reranker.requests[-1].candidates) == 2


async def test_marginal_relevance_over_the_wire(rig: Rig) -> None:
    """A pool that is spread holds as many documents as asked for, none twice."""
    answer = await ask(rig, diversity=pb.Diversity(mmr_lambda=0.3), pool_size=3, top_k=3, retrieval=HYBRID)
    assert len(set(numbers(answer.hits))) == 3


async def test_a_writer_that_is_not_there(rig: Rig) -> None:
    """A gateway without a writer refuses to pretend."""
    failed = await failure(ask(rig, retrieval=pb.Retrieval(write_hypothetical_passages=True)))
    assert (failed.code, failed.reason) == (CODE.FAILED_PRECONDITION, "WRITER_MISSING")


async def test_a_collection_without_words(rig: Rig) -> None:
    """A lexical search of a collection whose words are not indexed is refused, and says what is missing."""
    await rig.collections.CreateCollection(pb.CreateCollectionRequest(collection="plain"))
    failed = await failure(ask(rig, collection="plain", retrieval=HYBRID))
    assert (failed.code, failed.reason) == (CODE.FAILED_PRECONDITION, "LEXICAL_INDEX_REQUIRED")
    assert failed.info["stage"] == "search"


async def test_the_stream_has_both_parts(rig: Rig) -> None:
    """The pool of a hybrid search comes first, then its reranking, with the same lists."""
    call = rig.search.SearchStream(pb.SearchStreamRequest(request=request(retrieval=HYBRID)), timeout=20)
    first, last = [getattr(part, part.WhichOneof("part")) async for part in call]
    assert [one.name for one in first.provenance.lists] == [one.name for one in last.provenance.lists]
    assert all(hit.lists for hit in last.hits)


FUSED = [pb.FUSION_METHOD_RRF, pb.FUSION_METHOD_WEIGHTED, pb.FUSION_METHOD_DBSF]


@pytest.mark.parametrize("method", FUSED)
async def test_every_method_fuses(rig: Rig, method: pb.FusionMethod.ValueType) -> None:
    """What both lists have first is first, by every method."""
    retrieval = pb.Retrieval(mode=pb.RETRIEVAL_MODE_HYBRID, fusion=pb.Fusion(method=method, dense_weight=0.3))
    assert numbers((await ask(rig, "alpha alpha gamma", retrieval=retrieval)).hits)[0] == 2


WRONG = {
    "mode": (pb.Retrieval(mode=99), "retrieval.mode"),  # type: ignore[arg-type]
    "method": (pb.Retrieval(fusion=pb.Fusion(method=99)), "retrieval.fusion.method"),  # type: ignore[arg-type]
    "k": (pb.Retrieval(fusion=pb.Fusion(rrf_k=0)), "retrieval.fusion.rrf_k"),
    "weight": (pb.Retrieval(fusion=pb.Fusion(dense_weight=1.5)), "retrieval.fusion.dense_weight"),
    "no number": (pb.Retrieval(fusion=pb.Fusion(dense_weight=float("nan"))), "retrieval.fusion.dense_weight"),
    "depth": (pb.Retrieval(depth=2), "retrieval.depth"),
    "deep": (pb.Retrieval(depth=1_001), "retrieval.depth"),
    "alternatives": (pb.Retrieval(alternatives=["a"] * 9), "retrieval.alternatives"),
    "blank": (pb.Retrieval(alternatives=["a", " "]), "retrieval.alternatives[1]"),
    "blank passage": (pb.Retrieval(hypothetical_passages=[" "]), "retrieval.hypothetical_passages[0]"),
    "passages of words": (
        pb.Retrieval(mode=pb.RETRIEVAL_MODE_LEXICAL, hypothetical_passages=["a"]),
        "retrieval.hypothetical_passages",
    ),
    "written words": (
        pb.Retrieval(mode=pb.RETRIEVAL_MODE_LEXICAL, write_hypothetical_passages=True),
        "retrieval.write_hypothetical_passages",
    ),
    "synonyms of vectors": (
        pb.Retrieval(mode=pb.RETRIEVAL_MODE_LEXICAL, synonyms=pb.SYNONYM_USE_BOTH),
        "retrieval.synonyms",
    ),
    "synonyms of words": (pb.Retrieval(synonyms=pb.SYNONYM_USE_LEXICAL), "retrieval.synonyms"),
    "language": (pb.Retrieval(language="x" * 65), "retrieval.language"),
    "the query again": (pb.Retrieval(alternatives=["beta", " alpha\n"]), "retrieval.alternatives[1]"),
    "an alternative again": (pb.Retrieval(alternatives=["beta", "gamma", "beta "]), "retrieval.alternatives[2]"),
    "too many in all": (
        pb.Retrieval(
            mode=pb.RETRIEVAL_MODE_HYBRID,
            alternatives=list("abcdefgh"),
            hypothetical_passages=["a", "b", "c"],
            hypothetical_use=pb.HYPOTHETICAL_USE_FUSE,
            depth=1_000,
        ),
        "retrieval.depth",
    ),
}


@pytest.mark.parametrize(("retrieval", "field"), WRONG.values(), ids=WRONG)
async def test_what_is_wrong_is_named(rig: Rig, retrieval: pb.Retrieval, field: str) -> None:
    """Every field out of range, and every contradiction, is INVALID_ARGUMENT with the field's name."""
    failed = await failure(ask(rig, retrieval=retrieval))
    assert (failed.code, failed.info["field"]) == (CODE.INVALID_ARGUMENT, field)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"diversity": pb.Diversity(mmr_lambda=2)}, "diversity.mmr_lambda"),
        ({"diversity": pb.Diversity(group_by="a", group_size=0)}, "diversity.group_size"),
        ({"diversity": pb.Diversity(group_by="_twostage_text")}, "diversity.group_by"),
        ({"diversity": pb.Diversity(group_by=".a")}, "diversity.group_by"),
        ({"diversity": pb.Diversity(group_by="a..b")}, "diversity.group_by"),
        ({"diversity": pb.Diversity(group_by="a.")}, "diversity.group_by"),
        ({"diversity": pb.Diversity(group_size=2)}, "diversity.group_size"),
        ({"return_parent": True}, "return_parent"),
        ({"rerank_parent": True}, "rerank_parent"),
    ],
)
async def test_what_is_wrong_beside_it_is_named_too(rig: Rig, fields: dict[str, Any], field: str) -> None:
    """The same of what keeps a pool diverse, and of parents without folding."""
    failed = await failure(ask(rig, **fields))
    assert (failed.code, failed.info["field"]) == (CODE.INVALID_ARGUMENT, field)


REASONS: dict[str, tuple[dict[str, Any], str]] = {
    "duplicate": ({"retrieval": pb.Retrieval(alternatives=["alpha"])}, "TEXT_DUPLICATE"),
    "group": ({"diversity": pb.Diversity(group_size=1)}, "GROUP_BY_REQUIRED"),
    "key": ({"diversity": pb.Diversity(group_by="a..b")}, "KEY"),
}


@pytest.mark.parametrize(("fields", "reason"), REASONS.values(), ids=REASONS)
async def test_what_is_wrong_has_a_reason(rig: Rig, fields: dict[str, Any], reason: str) -> None:
    """A program can tell one refusal from another."""
    assert (await failure(ask(rig, **fields))).reason == reason


async def test_another_case_is_another_phrasing(rig: Rig) -> None:
    """Alternatives are compared exactly: models read upper case differently."""
    answer = await ask(rig, retrieval=pb.Retrieval(alternatives=["Alpha", "ALPHA"]))
    assert len(answer.provenance.lists) == 3


EIGHT = list("abcdefgh")
MOST_LISTS: dict[str, tuple[pb.Retrieval, int]] = {
    "both sides": (pb.Retrieval(mode=pb.RETRIEVAL_MODE_HYBRID, alternatives=EIGHT, depth=1_000), 18),
    "averaged": (
        pb.Retrieval(mode=pb.RETRIEVAL_MODE_HYBRID, alternatives=EIGHT, hypothetical_passages=EIGHT, depth=1_000),
        18,
    ),
    "fused": (
        pb.Retrieval(
            alternatives=EIGHT,
            hypothetical_passages=EIGHT,
            hypothetical_use=pb.HYPOTHETICAL_USE_FUSE,
            synonyms=pb.SYNONYM_USE_DENSE,
        ),
        21,
    ),
    "written": (
        pb.Retrieval(
            mode=pb.RETRIEVAL_MODE_HYBRID,
            hypothetical_use=pb.HYPOTHETICAL_USE_FUSE,
            write_hypothetical_passages=True,
            alternatives=EIGHT,
            synonyms=pb.SYNONYM_USE_BOTH,
        ),
        30,
    ),
}


@pytest.mark.parametrize(("message", "lists"), MOST_LISTS.values(), ids=MOST_LISTS)
def test_a_search_reads_so_many_documents_at_most(message: pb.Retrieval, lists: int) -> None:
    """Depth times the lists that there can be is bounded, to the document; the default depth is not refused."""
    allowed = min(MAX_CANDIDATES // lists, 1_000)
    message.depth = allowed
    assert retrieval_of(message, "q", 5).depth == allowed
    if allowed < 1_000:
        message.depth = allowed + 1
        with pytest.raises(InvalidRequest) as raised:
            retrieval_of(message, "q", 5)
        assert (raised.value.reason, raised.value.field) == ("TOO_MANY_CANDIDATES", "retrieval.depth")
    message.ClearField("depth")
    assert retrieval_of(message, "q", 200).depth is None


def test_where_lists_had_a_hit_counts_in_its_size() -> None:
    """The estimate of a hit grows with the lists that had it as its message does."""
    candidate = Candidate(id=1, score=0.5, text="text", payload={"a": 1})
    ranks = [ListRank(list=f"dense.alternative.{number}", rank=200, score=0.5) for number in range(1, 9)]
    plain, ranked = [Hit(candidate=candidate, retrieval_rank=1, lists=lists) for lists in ((), ranks)]
    more = hit_bytes(ranked, with_text=True) - hit_bytes(plain, with_text=True)
    assert more == sum(len(one.list) + 16 for one in ranks)
    assert more >= sum(pb.Hit(lists=[one]).ByteSize() for one in rank_messages(ranks))
