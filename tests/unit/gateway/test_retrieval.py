"""The first stage over ports in this process: which lists are asked for, and what becomes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import ENCODER_MODEL, SERVER_TIME, EncoderPort, word_vector

from gateway.budget import StageCaps, reserves
from gateway.diversity import Diversity
from gateway.fusion import Fusion, FusionMethod, ListRank
from gateway.pipeline import Pipeline
from gateway.pool import MAX_CANDIDATES, Retrieved
from gateway.ports import (
    ANSWER_TOO_LARGE,
    Candidate,
    DenseQuery,
    Document,
    DocumentId,
    Encoded,
    Found,
    LexicalQuery,
    ListQuery,
    Part,
    RankedList,
)
from gateway.retrieval import FirstStage, Pool
from gateway.search_query import HypotheticalUse, RerankMode, Retrieval, RetrievalMode, SearchQuery, SynonymUse
from gateway.synonyms import NO_SYNONYMS, Synonyms, read_synonyms
from gateway.timings import SearchTimer, StageTime
from serving.batching import Priority
from serving.deadline import Deadline
from serving.errors import (
    DeadlineSpent,
    InferenceFailed,
    InvalidRequest,
    Misconfigured,
    NotFound,
    Overloaded,
    ServiceError,
    Unavailable,
)

BY_RANK = Fusion(method=FusionMethod.RRF)
HYBRID = Retrieval(mode=RetrievalMode.HYBRID, fusion=BY_RANK)
OWN_NAME = "c-2"
"""What the store finds under whatever name it is asked by."""


class ListStore:
    """Answers every dense query with one list and every lexical one with another, as deep as they are asked for."""

    name = "lists"

    def __init__(self, dense: Sequence[Candidate] = (), lexical: Sequence[Candidate] = ()) -> None:
        self.dense, self.lexical = dense, lexical
        self.documents: Sequence[Document] = ()
        self.asked: list[Mapping[str, Any]] = []
        self.errors: list[ServiceError | None] = []
        """What the next searches end with; None is an answer."""
        self.get_error: ServiceError | None = None
        self.got: list[str] = []
        """By which names documents were read."""

    async def search(self, name: str, queries: Sequence[ListQuery], *, limit: int, **rest: Any) -> Found:
        self.asked.append({"name": name, "queries": queries, "limit": limit, **rest})
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        lists = [self.dense if isinstance(query, DenseQuery) else self.lexical for query in queries]
        ranked = [RankedList(candidates=one[:limit], compute=7) for one in lists]
        return Found(lists=ranked, collection=OWN_NAME, time=SERVER_TIME)

    async def get(
        self, name: str, ids: Sequence[DocumentId], *, with_parent_texts: bool = False, deadline: Deadline
    ) -> Sequence[Document]:
        self.got.append(name)
        if self.get_error is not None:
            raise self.get_error
        found = [one for one in self.documents if one.id in ids]
        return found if with_parent_texts else [replace(one, parent_text=None) for one in found]


class WriterPort:
    """The writer port: passages, or an error."""

    def __init__(self, *passages: str, error: ServiceError | None = None) -> None:
        self.passages, self.error = passages, error
        self.deadlines: list[Deadline] = []

    async def write(self, query: str, *, deadline: Deadline) -> Sequence[str]:
        self.deadlines.append(deadline)
        if self.error is not None:
            raise self.error
        return self.passages


class PickyEncoder(EncoderPort):
    """Calls one text of every message too long."""

    def __init__(self, index: int, *, passages: bool = False) -> None:
        super().__init__()
        self.index, self.of_passages = index, passages
        self.refused = f"texts[{index}]"
        self.queries: list[Sequence[str]] = []

    async def encode_queries(self, queries: Sequence[str], **rest: Any) -> Encoded:
        self.queries.append(queries)
        if not self.of_passages:
            self._refuse(queries)
        return await super().encode_queries(queries, **rest)

    async def encode_passages(self, texts: Sequence[str], **rest: Any) -> Encoded:
        if self.of_passages and rest["truncate"]:  # queries, which are never cut, go the same way in the fake
            self._refuse(texts)
        return await super().encode_passages(texts, **rest)

    def _refuse(self, texts: Sequence[str]) -> None:
        if self.index < len(texts):
            raise InvalidRequest("TEXT_TOO_LONG", "600 tokens", field=self.refused)


class OtherEncoder(EncoderPort):
    """Encodes passages with another model than queries."""

    async def encode_passages(self, texts: Sequence[str], **rest: Any) -> Encoded:
        encoded = await super().encode_passages(texts, **rest)
        return replace(encoded, model=replace(encoded.model, digest="sha256:other")) if rest["truncate"] else encoded


class Stage:
    """A first stage over fakes."""

    def __init__(
        self,
        store: ListStore,
        encoder: EncoderPort | None = None,
        writer: WriterPort | None = None,
        synonyms: Synonyms = NO_SYNONYMS,
        write_cap_s: float = 1,
    ) -> None:
        self.store, self.encoder, self.timer = store, encoder or EncoderPort(), SearchTimer()
        self.stage = FirstStage(
            encoder=self.encoder,
            store=store,  # type: ignore[arg-type]
            caps=StageCaps(encode=99, search=99, rerank=99, write=write_cap_s),
            writer=writer,
            synonyms=lambda _: synonyms,
        )

    async def fill(self, retrieval: Retrieval | None = None, *, seconds: float = 60, **fields: Any) -> Pool:
        search = SearchQuery(
            **{"query": "alpha", "collection": "c", "pool_size": 3, "top_k": 3, **fields},
            retrieval=retrieval or Retrieval(),
        )
        deadline = Deadline.after(seconds)
        kept = reserves(deadline.remaining(), self.stage.caps, rerank_required=False)
        return await self.stage.fill(search, kept, deadline, self.timer)

    @property
    def queries(self) -> Sequence[ListQuery]:
        """What the store was asked at last."""
        queries: Sequence[ListQuery] = self.store.asked[-1]["queries"]
        return queries


def found(*ids: int, **fields: Any) -> list[Candidate]:
    """Make a list of documents, best first."""
    return [Candidate(id=one, score=1 - rank / 10, text=f"text {one}", **fields) for rank, one in enumerate(ids)]


def candidates(pool: Pool) -> Sequence[Retrieved]:
    return pool.filled.candidates


def ids(pool: Pool) -> list[DocumentId]:
    return [one.candidate.id for one in candidates(pool)]


def names(pool: Pool) -> list[str]:
    return [one.name for one in pool.filled.lists]


def only_unaccounted(time: StageTime) -> bool:
    """Tell whether what a server did not say of a stage is put down to no network."""
    return time.unaccounted > 0 == time.network


# --- lists ---------------------------------------------------------------------------------------------------------


async def test_by_default_there_is_one_list_of_vectors():
    """Order and scores are the list's own, and a hit says nothing of lists."""
    stage = Stage(ListStore(found(3, 1, 2)))
    pool = await stage.fill()
    assert (ids(pool), names(pool), pool.encoder) == ([3, 1, 2], ["dense"], ENCODER_MODEL)
    assert [(one.candidate.score, one.lists) for one in candidates(pool)] == [(1.0, ()), (0.9, ()), (0.8, ())]
    assert stage.store.asked[0]["limit"] == 3
    assert [one.passage for one in candidates(pool)] == ["text 3", "text 1", "text 2"]


async def test_a_lexical_search_encodes_nothing():
    """Its one list asks for the words, no encoder is named, and no time is spent on encoding."""
    stage = Stage(ListStore(lexical=found(2, 1)))
    pool = await stage.fill(Retrieval(mode=RetrievalMode.LEXICAL, alternatives=("beta",)))
    assert list(stage.queries) == [LexicalQuery(text="alpha"), LexicalQuery(text="beta")]
    assert (names(pool), pool.encoder, stage.encoder.deadlines) == (["lexical", "lexical.alternative.1"], None, [])
    assert stage.store.asked[0]["encoder"] is None
    assert stage.timer.stop().encode.total == 0


async def test_a_hybrid_search_fuses_both_lists():
    """Ranks of both lists add up, and each hit says where each list had it."""
    stage = Stage(ListStore(found(1, 2, 3), found(3, 4)))
    pool = await stage.fill(HYBRID, pool_size=4)
    assert names(pool) == ["dense", "lexical"]
    assert [one.candidate_count for one in pool.filled.lists] == [3, 2]
    assert ids(pool) == [3, 1, 2, 4]
    best = candidates(pool)[0]
    assert best.candidate.score == pytest.approx(0.5 / 63 + 0.5 / 61)
    assert best.lists == [ListRank(list="dense", rank=3, score=0.8), ListRank(list="lexical", rank=1, score=1.0)]


async def test_the_weight_of_vectors_can_be_everything():
    """With a dense weight of 1 the order is that of the vectors, and what only words found comes last."""
    retrieval = Retrieval(mode=RetrievalMode.HYBRID, fusion=Fusion(dense_weight=1))
    pool = await Stage(ListStore(found(1, 2), found(3, 2))).fill(retrieval)
    assert ids(pool) == [1, 2, 3]


async def test_alternatives_are_encoded_with_the_query_in_one_call():
    """Query and alternatives are one message to the encoder, and a list each."""
    stage = Stage(ListStore(found(1)))
    pool = await stage.fill(Retrieval(alternatives=("beta", "gamma")), priority=Priority.BULK)
    assert names(pool) == ["dense", "dense.alternative.1", "dense.alternative.2"]
    wanted = [word_vector(text) for text in ("alpha", "beta", "gamma")]
    assert np.array_equal([query.vector for query in stage.queries], wanted)
    assert (len(stage.encoder.deadlines), stage.encoder.priorities) == (1, [Priority.BULK])


async def test_hypothetical_passages_are_averaged_with_the_query():
    """One list is searched, with the mean of the vectors of query and passages."""
    stage = Stage(ListStore(found(1)))
    pool = await stage.fill(Retrieval(hypothetical_passages=("beta", "gamma")))
    mean = np.mean([word_vector(text) for text in ("alpha", "beta", "gamma")], axis=0)
    assert names(pool) == ["dense"]
    assert np.allclose(stage.queries[0].vector, mean)


async def test_vectors_that_cancel_each_other_out_leave_the_query():
    """A mean without direction is never sent to a store."""

    class Opposite(EncoderPort):
        async def encode_passages(self, texts: Sequence[str], **rest: Any) -> Encoded:
            encoded = await super().encode_passages(texts, **rest)
            return replace(encoded, vectors=[-word_vector("alpha") for _ in texts]) if rest["truncate"] else encoded

    stage = Stage(ListStore(found(1)), Opposite())
    await stage.fill(Retrieval(hypothetical_passages=("beta",), hypothetical_use=HypotheticalUse.AVERAGE))
    (query,) = stage.queries
    assert isinstance(query, DenseQuery)
    np.testing.assert_array_equal(query.vector, word_vector("alpha"))


async def test_hypothetical_passages_can_have_lists_of_their_own():
    """Fused, each passage is a list beside the query's, whose vector is left alone."""
    stage = Stage(ListStore(found(1)))
    retrieval = Retrieval(hypothetical_passages=("beta", "gamma"), hypothetical_use=HypotheticalUse.FUSE)
    pool = await stage.fill(retrieval)
    assert names(pool) == ["dense", "dense.hypothetical.1", "dense.hypothetical.2"]
    wanted = [word_vector(text) for text in ("alpha", "beta", "gamma")]
    assert np.array_equal([query.vector for query in stage.queries], wanted)


@pytest.mark.parametrize(
    ("use", "wanted_names", "words"),
    [
        (SynonymUse.NONE, ["dense", "lexical"], "alpha"),
        (SynonymUse.LEXICAL, ["dense", "lexical"], "alpha beta"),
        (SynonymUse.DENSE, ["dense", "dense.synonym.1", "lexical"], "alpha"),
        (SynonymUse.BOTH, ["dense", "dense.synonym.1", "lexical"], "alpha beta"),
    ],
)
async def test_synonyms_go_where_they_are_wanted(use, wanted_names, words):
    """On the lexical side words are added to the query; on the dense side a phrasing is searched as well."""
    stage = Stage(ListStore(found(1), found(1)), synonyms=read_synonyms(b"- any: [alpha, beta]", "t"))
    pool = await stage.fill(Retrieval(mode=RetrievalMode.HYBRID, synonyms=use))
    assert names(pool) == wanted_names
    assert stage.queries[-1] == LexicalQuery(text=words)
    if use.vectors:
        assert np.array_equal(stage.queries[1].vector, word_vector("beta"))


# --- what is wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoder", "field"),
    [
        (PickyEncoder(0), "query"),
        (PickyEncoder(2), "retrieval.alternatives[1]"),
        (PickyEncoder(1, passages=True), "retrieval.hypothetical_passages[1]"),
    ],
)
async def test_a_text_that_is_too_long_is_named_as_the_caller_knows_it(encoder, field):
    """The encoder counts texts of its own messages; the caller hears of its own fields, and of the stage."""
    retrieval = Retrieval(alternatives=("beta", "gamma"), hypothetical_passages=("beta", "gamma"))
    with pytest.raises(InvalidRequest) as raised:
        await Stage(ListStore(), encoder).fill(retrieval)
    assert (raised.value.field, raised.value.metadata["stage"]) == (field, "encode")
    assert raised.value.message == f"{field}: 600 tokens"


async def test_a_phrasing_of_ours_that_is_too_long_is_left_out():
    """A synonym that makes a query too long costs that phrasing and not the search."""
    encoder = PickyEncoder(1)
    stage = Stage(ListStore(found(1)), encoder, synonyms=read_synonyms(b"- any: [alpha, beta]", "t"))
    pool = await stage.fill(Retrieval(synonyms=SynonymUse.DENSE))
    assert only_unaccounted(stage.timer.stop().encode), "the first call was refused"
    assert (names(pool), encoder.queries) == (["dense"], [("alpha", "beta"), ("alpha",)])


async def test_a_refusal_that_names_no_text_is_the_callers_once():
    """An encoder that refuses without saying which text is asked once more at most, and its word is passed on."""
    encoder = PickyEncoder(0)
    encoder.refused = "request"
    stage = Stage(ListStore(found(1)), encoder, synonyms=read_synonyms(b"- any: [alpha, beta]", "t"))
    with pytest.raises(InvalidRequest) as raised:
        await stage.fill(Retrieval(synonyms=SynonymUse.DENSE))
    assert (raised.value.field, len(encoder.queries)) == ("request", 2)


async def test_synonyms_that_nobody_asked_for_are_not_looked_up():
    """A search without synonyms does not fail of them."""

    def broken(_: str) -> Synonyms:
        raise Misconfigured("SYNONYMS_MALFORMED", "c.yaml")

    stage = Stage(ListStore(found(1), found(1)))
    stage.stage = replace(stage.stage, synonyms=broken)
    assert ids(await stage.fill(HYBRID)) == [1]


async def test_vectors_of_two_encoders_are_never_used_together():
    """While encoders are replaced, query and passages that two of them encoded are refused and not averaged."""
    with pytest.raises(Unavailable) as raised:
        await Stage(ListStore(found(1)), OtherEncoder()).fill(Retrieval(hypothetical_passages=("beta",)))
    assert (raised.value.reason, raised.value.metadata["stage"]) == ("ENCODER_CHANGING", "encode")


# --- the writer ----------------------------------------------------------------------------------------------------


async def test_what_the_writer_writes_is_used_like_what_the_caller_sent():
    """Written passages follow those of the request, are counted, and have a stage of their own."""
    stage = Stage(ListStore(found(1)), writer=WriterPort("gamma"))
    retrieval = Retrieval(hypothetical_passages=("beta",), hypothetical_use=HypotheticalUse.FUSE, write=True)
    pool = await stage.fill(retrieval)
    assert names(pool) == ["dense", "dense.hypothetical.1", "dense.hypothetical.2"]
    assert (pool.written_count, pool.write_skipped_reason) == (1, "")
    time = stage.timer.stop()
    assert (time.encode.unaccounted, time.search.unaccounted) == (0, 0)
    assert only_unaccounted(time.write), "a writer does not say where its time went"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unavailable("WRITER_UNAVAILABLE", "gone"), "WRITER_UNAVAILABLE"),
        (Overloaded("WRITER_OVERLOADED", "full", retry_after_s=1), "WRITER_UNAVAILABLE"),
        (DeadlineSpent("DEADLINE_SPENT", "late"), "DEADLINE_SPENT"),
        (InferenceFailed("WRITER_FAILED", "odd"), "WRITER_FAILED"),
    ],
)
async def test_a_writer_that_fails_costs_its_passages_only(error, reason):
    """The search goes on without them and says why."""
    pool = await Stage(ListStore(found(1)), writer=WriterPort(error=error)).fill(Retrieval(write=True))
    assert (ids(pool), names(pool)) == ([1], ["dense"])
    assert (pool.written_count, pool.write_skipped_reason) == (0, reason)


async def test_what_was_written_and_cannot_be_encoded_costs_itself_only():
    """A written passage that the encoder refuses leaves the caller's own passages and the search as they are."""
    encoder = PickyEncoder(0, passages=True)
    stage = Stage(ListStore(found(1)), encoder, WriterPort("gamma"))
    pool = await stage.fill(Retrieval(write=True))
    assert (ids(pool), names(pool)) == ([1], ["dense"])
    assert (pool.written_count, pool.write_skipped_reason) == (0, "WRITER_FAILED")
    assert only_unaccounted(stage.timer.stop().encode)


async def test_a_gateway_without_a_writer_says_so():
    """Passages that nobody can write are an operator's to mend and not silently missing."""
    with pytest.raises(Misconfigured) as raised:
        await Stage(ListStore(found(1))).fill(Retrieval(write=True))
    assert raised.value.reason == "WRITER_MISSING"


async def test_the_writer_leaves_time_for_the_search():
    """It gets its cap, and never more than half of what a search has."""
    writer = WriterPort("beta")
    stage = Stage(ListStore(found(1)), writer=writer, write_cap_s=50)
    for seconds, writing in ((600, 50), (60, 30)):
        begun = Deadline.after(writing)
        await stage.fill(Retrieval(write=True), seconds=seconds)
        assert begun <= writer.deadlines.pop() <= Deadline.after(writing)


# --- what the pool is made of --------------------------------------------------------------------------------------


async def test_groups_are_limited_and_the_pool_is_filled_all_the_same():
    """At most so many documents of one value enter; more is read until the pool is full."""
    many = [Candidate(id=one, score=-one, text="t", payload={"source": "a", "n": one}) for one in range(20)]
    rest = [Candidate(id=one, score=-one, text="t", payload={"source": f"s{one}"}) for one in range(20, 30)]
    stage = Stage(ListStore([*many, *rest]))
    pool = await stage.fill(diversity=Diversity(group_by="source"), payload_fields=("n",))
    assert ids(pool) == [0, 20, 21]
    assert [asked["limit"] for asked in stage.store.asked] == [12, 48]
    assert [one.compute for one in pool.filled.lists] == [14]  # of both reads
    assert stage.store.asked[0]["payload_fields"] == ("n", "source")


async def test_a_short_pool_is_worth_more_than_none():
    """Where the time ends while more is read to fill a pool, what was found is the answer, and says so."""
    many = [Candidate(id=one, score=-one, text="t", payload={"source": "a"}) for one in range(20)]
    store = ListStore(many)
    store.errors = [None, DeadlineSpent("DEADLINE_SPENT", "late")]
    stage = Stage(store)
    pool = await stage.fill(diversity=Diversity(group_by="source"))
    assert (ids(pool), pool.filled.shortfall) == ([0], "DEADLINE_SPENT")
    assert only_unaccounted(stage.timer.stop().search)


@pytest.mark.parametrize(("pool_size", "depths"), [(50, [200, 769]), (200, [769])])
async def test_many_lists_are_read_no_deeper_than_all_of_them_may_be(pool_size, depths):
    """Neither the first read nor one to fill the pool brings more of all lists than a search may read."""
    many = [Candidate(id=one, score=-one, text="t", payload={"source": "a"}) for one in range(1_000)]
    eight = [f"alpha {one}" for one in range(8)]
    lists = replace(HYBRID, alternatives=eight, hypothetical_passages=eight, hypothetical_use=HypotheticalUse.FUSE)
    stage = Stage(ListStore(many, many))
    pool = await stage.fill(lists, pool_size=pool_size, diversity=Diversity(group_by="source"))
    assert [asked["limit"] for asked in stage.store.asked] == depths
    assert len(stage.queries) * depths[-1] <= MAX_CANDIDATES
    assert (ids(pool), pool.filled.shortfall) == ([0], "")


async def test_what_is_too_large_to_read_on_leaves_the_pool_as_it_was():
    """A further read that no message holds costs what it would have found; the first one's failure is the search's."""
    too_large = InferenceFailed(ANSWER_TOO_LARGE, "too large")
    store = ListStore([Candidate(id=one, score=-one, text="t", payload={"source": "a"}) for one in range(20)])
    store.errors = [None, too_large, too_large, None, InferenceFailed("STORE_FAILED", "broken")]
    grouped = Diversity(group_by="source")
    pool = await Stage(store).fill(diversity=grouped)
    assert (ids(pool), pool.filled.shortfall) == ([0], ANSWER_TOO_LARGE)
    for _ in range(2):
        with pytest.raises(InferenceFailed):
            await Stage(store).fill(diversity=grouped)


async def test_the_first_read_has_no_second_best():
    """Without any pool the store's failure is the search's."""
    store = ListStore(found(1))
    store.errors = [Unavailable("STORE_UNAVAILABLE", "gone")]
    with pytest.raises(Unavailable):
        await Stage(store).fill()


async def test_large_lists_are_fused_like_small_ones():
    """Thousands of candidates, which are fused beside the event loop, give the same order and the same ranks."""
    dense, lexical = found(*range(1_500)), found(*range(1_499, -1, -1))
    pool = await Stage(ListStore(dense, lexical)).fill(
        Retrieval(mode=RetrievalMode.HYBRID, depth=1_000), pool_size=200, diversity=Diversity(group_by="none")
    )
    assert len(ids(pool)) == 200
    assert [[one.rank for one in hit.lists] for hit in candidates(pool)][:2] == [[1], [1]]


async def test_what_was_read_to_group_by_is_not_returned():
    """The payload of a hit has the keys that were asked for, unless everything was."""
    store = ListStore([Candidate(id=1, score=1, text="t", payload={"source": {"name": "a"}, "n": 1})])
    diversity = Diversity(group_by="source.name")
    some = await Stage(store).fill(diversity=diversity, payload_fields=("n",))
    everything = await Stage(store).fill(diversity=diversity, payload_fields=("*",))
    assert candidates(some)[0].candidate.payload == {"n": 1}
    assert candidates(everything)[0].candidate.payload == {"source": {"name": "a"}, "n": 1}


async def test_groups_come_before_marginal_relevance():
    """A document whose group is full is not there to be chosen, nor to be differed from."""
    rows = np.eye(3, dtype=np.float32)[[0, 1, 2, 2]]
    store = ListStore(
        [
            Candidate(id=number, score=4.0 - number, text="t", payload={"a": group}, vector=row)
            for number, (group, row) in enumerate(zip("xxyz", rows, strict=True))
        ]
    )
    both = await Stage(store).fill(diversity=Diversity(mmr_lambda=0, group_by="a"))
    spread = await Stage(store).fill(diversity=Diversity(mmr_lambda=0))
    assert (ids(both), ids(spread)) == ([0, 2, 3], [0, 1, 2])


async def test_marginal_relevance_reads_vectors_and_returns_none():
    """Among four times the pool a document unlike those before it is preferred; its vector goes no further."""
    east, north = np.array([1, 0], np.float32), np.array([0, 1], np.float32)
    vectors = [east, east, east, north]
    store = ListStore(
        [Candidate(id=one, score=1 - one / 10, text="t", vector=vector) for one, vector in enumerate(vectors)]
    )
    pool = await Stage(store).fill(diversity=Diversity(mmr_lambda=0.5), pool_size=2)
    assert ids(pool) == [0, 3]
    assert (store.asked[0]["with_vectors"], store.asked[0]["limit"]) == (True, 8)
    assert all(one.candidate.vector is None for one in candidates(pool))


async def test_a_depth_that_is_named_is_read():
    """The caller's depth is what each list is asked for, and the pool is no larger for it."""
    stage = Stage(ListStore(found(1, 2, 3, 4, 5), found(5)))
    pool = await stage.fill(replace(HYBRID, depth=5))
    assert stage.store.asked[0]["limit"] == 5
    assert ids(pool) == [5, 1, 2]


async def test_documents_that_were_never_split_are_read_once():
    """Whole texts are asked of the store only where the pool has parts; without, it has said where all time went."""
    stage = Stage(store := ListStore(found(3)))
    await stage.fill(fold_to_parent=True, return_parent=True)
    assert (store.got, stage.timer.stop().search.unaccounted) == ([], 0)


@pytest.mark.parametrize(
    ("returned", "reranked", "identifier", "text", "passage"),
    [
        (False, False, "9#2", "child", "child"),
        (True, False, 9, "whole", "child"),
        (False, True, "9#2", "child", "whole"),
        (True, True, 9, "whole", "whole"),
    ],
)
async def test_a_part_can_stand_for_its_document(returned, reranked, identifier, text, passage):
    """What is returned and what the reranker reads are each the best part or the whole, the score is the part's."""
    parts = [
        Candidate(id=f"9#{number}", score=score, text="child", part=Part(parent=9, number=number, count=2))
        for number, score in ((2, 0.9), (1, 0.8))
    ]
    store = ListStore([*parts, *found(4)])
    part = Part(parent=9, number=1, count=2)
    store.documents = [Document(id="9#1", text="child", part=part, parent_text="whole")]
    stage = Stage(store)
    pool = await stage.fill(fold_to_parent=True, return_parent=returned, rerank_parent=reranked)
    read_whole = returned or reranked
    assert store.got == [OWN_NAME] * read_whole  # where the alias points by now is another matter
    # A store does not say where the time of the second read goes.
    assert only_unaccounted(stage.timer.stop().search) == read_whole
    best, other = candidates(pool)
    assert (best.candidate.id, best.candidate.text, best.passage) == (identifier, text, passage)
    assert (best.candidate.score, best.candidate.part) == (0.9, Part(parent=9, number=2, count=2))
    assert (other.candidate.id, other.passage) == (4, "text 4")


async def test_lists_that_found_other_parts_agree_on_their_document():
    """A document that each list finds by another part is one candidate with both ranks; its best part stands for it."""

    def part(parent: int, number: int, score: float) -> Candidate:
        belongs = Part(parent=parent, number=number, count=2)
        return Candidate(id=f"{parent}#{number}", score=score, text="t", part=belongs)

    store = ListStore([part(9, 1, 0.9), part(8, 1, 0.8)], [part(9, 2, 7.0), part(8, 1, 6.0)])
    pool = await Stage(store).fill(HYBRID, fold_to_parent=True)
    assert ids(pool) == ["9#1", "8#1"]
    assert [(one.list, one.rank) for one in candidates(pool)[0].lists] == [("dense", 1), ("lexical", 1)]


async def test_a_document_that_was_split_before_texts_were_kept_is_named():
    """Where the whole text was never kept nothing else is passed off as it."""
    part = Part(parent=9, number=1, count=2)
    store = ListStore([Candidate(id="9#1", score=1, text="child", part=part)])
    store.documents = [Document(id="9#1", text="child", part=part)]
    with pytest.raises(Misconfigured) as raised:
        await Stage(store).fill(fold_to_parent=True, return_parent=True)
    assert raised.value.reason == "PARENT_TEXT_MISSING"


async def test_a_document_that_is_gone_since_the_search_is_its_part():
    """What was deleted between search and read costs its whole text and not the search."""
    store = ListStore([Candidate(id="9#1", score=1, text="child", part=Part(parent=9, number=1, count=2))])
    pool = await Stage(store).fill(fold_to_parent=True, return_parent=True, rerank_parent=True)
    assert [(one.candidate.id, one.passage) for one in candidates(pool)] == [("9#1", "child")]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unavailable("STORE_UNAVAILABLE", "gone"), "STORE_UNAVAILABLE"),
        (NotFound("COLLECTION_NOT_FOUND", "dropped since the search"), "COLLECTION_REPLACED"),
    ],
)
@pytest.mark.parametrize(
    ("rerank", "returned", "kept"),
    [
        (RerankMode.BEST_EFFORT, False, True),
        (RerankMode.REQUIRED, False, False),
        (RerankMode.BEST_EFFORT, True, False),
    ],
)
async def test_whole_texts_that_cannot_be_read_cost_the_pool_only_where_they_must(
    rerank, returned, kept, error, reason
):
    """Parts stand in for what only the reranker was to read, and the answer says so; never for what is returned."""
    store = ListStore([Candidate(id="9#1", score=1, text="child", part=Part(parent=9, number=1, count=2))])
    store.get_error = error
    stage = Stage(store)
    filling = stage.fill(fold_to_parent=True, rerank=rerank, rerank_parent=True, return_parent=returned)
    if not kept:
        with pytest.raises(Unavailable) as raised:
            await filling
        assert raised.value.reason == reason
        return
    pool = await filling
    assert [(one.candidate.id, one.passage) for one in candidates(pool)] == [("9#1", "child")]
    assert pool.filled.shortfall == reason
    assert only_unaccounted(stage.timer.stop().search)


async def test_the_reranker_reads_what_the_pool_says():
    """A pipeline's hits carry the passage to read and the ranks of the lists."""
    stage = Stage(ListStore(found(1, 2), found(2)))
    pipeline = Pipeline(first=stage.stage, reranker=None)  # type: ignore[arg-type]
    search = SearchQuery(query="alpha", collection="c", pool_size=2, top_k=1, retrieval=HYBRID)
    result = await pipeline.retrieve(search, Deadline.after(60), stage.timer)
    assert [(hit.candidate.id, hit.retrieval_rank, hit.passage) for hit in result.pool] == [
        (2, 1, "text 2"),
        (1, 2, "text 1"),
    ]
    assert [one.list for one in result.hits[0].lists] == ["dense", "lexical"]
