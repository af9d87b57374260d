"""What every `gateway.ports.VectorStore` does with words and several queries; a test class inherits it and provides
`store`.
"""

from dataclasses import replace
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from bm25_by_hand import bm25
from contract.vector_store_suite import (
    DIMENSION,
    EAST,
    ENCODER,
    NAME,
    NORTH,
    OTHER_ENCODER,
    put,
    search,
    search_all,
    soon,
    vector,
)

from gateway.filters import AnyOf, Filter, HasId, TextMatch
from gateway.parameters import CollectionParameters, LexicalParameters, LexicalTokenizer
from gateway.ports import DenseQuery, Document, LexicalQuery, Part, VectorStore
from serving.errors import InferenceFailed, InvalidRequest, Misconfigured, NotFound

PLAIN = LexicalParameters(average_words=6)
TOLERANCE = 2e-6
"""Relative, between float32 and float64 sums of a few products."""
TEXTS = {
    1: "the cat sat on the mat",
    2: "the dog sat on the log",
    3: "cats and dogs and cats",
    4: "the cat, the CAT: the Cat!",
    5: "a bird_in the hand is worth 2 in the bush",
    "six": "mat",
    7: "",
    8: "?!",
}
QUERIES = ["cat", "the cat", "the the the cat mat", "cats dogs birds", "bird in", "2", "nothing of it", "SAT!"]
FULL = LexicalParameters(
    k1=0.25,
    b=0.5,
    average_words=12.5,
    tokenizer=LexicalTokenizer.MULTILINGUAL,
    language="italian",
    stem=True,
    stop_words=True,
    extra_stop_words=("ecc", "cioè"),
    fold_accents=True,
)


async def fresh(store: VectorStore, lexical: LexicalParameters | None = PLAIN, name: str = NAME, **changes: Any) -> Any:
    """Make a collection whose words are indexed."""
    parameters = CollectionParameters(lexical=lexical)
    wanted = {"dimension": DIMENSION, "encoder": ENCODER, "parameters": parameters, "deadline": soon()} | changes
    return await store.create(name, **wanted)


async def put_texts(store: VectorStore, texts: dict[Any, str], **payload: Any) -> None:
    """Store texts by id, all in one direction and with one payload."""
    await put(store, *[Document(id=one, text=text, payload=payload) for one, text in texts.items()])


async def found_ids(store: VectorStore, query: str, **changes: Any) -> list[Any]:
    """Return the ids of a list by words."""
    return [one.id for one in await search(store, query, **changes)]


async def check(store: VectorStore, query: str, expected: dict[Any, float], **changes: Any) -> None:
    """Compare a list by words with scores by hand."""
    found = await search(store, query, **changes)
    assert {one.id: one.score for one in found} == pytest.approx(expected, rel=TOLERANCE), query
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


class LexicalSuite:
    """The suite."""

    # --- BM25 ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "lexical",
        [
            PLAIN,
            replace(PLAIN, k1=0.0),
            replace(PLAIN, k1=10.0, b=1.0, average_words=1),
            replace(PLAIN, b=0.0),
            replace(PLAIN, tokenizer=LexicalTokenizer.WHITESPACE),
            replace(PLAIN, extra_stop_words=("the", "on")),
            replace(PLAIN, language="english", stop_words=True),
        ],
    )
    async def test_scores_are_bm25(self, store, lexical):
        """Every score is the formula's, of exactly the documents that share a word, whatever the parameters."""
        await fresh(store, lexical)
        await put_texts(store, TEXTS)
        for query in QUERIES:
            await check(store, query, bm25(query, TEXTS, lexical))

    async def test_many_documents_are_ranked_by_bm25(self, store):
        """Of 300 random texts the list holds the best by the formula, each with its score."""
        rng = np.random.default_rng(5)
        words = [f"w{one}" for one in range(40)]
        texts = {one: " ".join(rng.choice(words, int(rng.integers(1, 30)))) for one in range(300)}
        await fresh(store)
        await put_texts(store, texts)
        for query in ("w1 w2", "w3", "w4 w5 w6 w7 w8 w9"):
            expected = bm25(query, texts, PLAIN)
            found = await search(store, query, limit=25)
            assert [one.score for one in found] == pytest.approx(
                sorted(expected.values())[: -25 - 1 : -1], rel=TOLERANCE
            )
            assert [one.score for one in found] == pytest.approx([expected[one.id] for one in found], rel=TOLERANCE)
            await check(store, query, expected, limit=300)

    @pytest.mark.parametrize("limit", [1, 5, 60])
    async def test_equal_scores_are_ordered_by_id(self, store, limit):
        """Of many documents with equal words the smallest ids get in, whatever the words' order."""
        await fresh(store)
        ids = [*range(40, 0, -1), UUID(int=2), "b", "a", 2**63]
        turned = {one: "red green blue" if number % 2 else "blue red green" for number, one in enumerate(ids)}
        await put_texts(store, turned)
        expected = [*range(1, 41), 2**63, UUID(int=2), "a", "b"]
        assert await found_ids(store, "green red", limit=limit) == expected[:limit]

    async def test_each_word_of_a_query_counts_once(self, store):
        """A query that repeats a word scores as one that does not."""
        await fresh(store)
        await put_texts(store, TEXTS)
        assert await search(store, "cat cat CAT mat") == await search(store, "mat cat")

    @pytest.mark.parametrize("query", ["", " ", "?!", "unknown words only", "the"])
    async def test_a_query_without_words_that_are_there_finds_nothing(self, store, query):
        """No word, stop words alone and words of no document give an empty list."""
        await fresh(store, replace(PLAIN, extra_stop_words=("the",)))
        await put_texts(store, TEXTS)
        assert await search(store, query) == []

    async def test_an_empty_collection_has_empty_lists(self, store):
        """Searching nothing finds nothing."""
        await fresh(store)
        assert await search(store, "cat") == []

    async def test_a_text_without_words_is_found_by_its_vector_alone(self, store):
        """It is stored, read and found by its vector, and no list by words has it."""
        await fresh(store)
        await put_texts(store, TEXTS)
        assert {one.id for one in await search(store, NORTH)} == TEXTS.keys()
        assert not {7, 8} & set(await found_ids(store, "cat dog bird mat ?!"))

    # --- what words are --------------------------------------------------------------------------------------------

    async def test_composed_and_decomposed_letters_are_the_same_word(self, store):
        """An accent that is a character of its own neither ends a word nor makes another one."""
        await fresh(store)
        await put_texts(store, {1: "re\u0301sume\u0301", 2: "résumé", 3: "resume"})
        for query in ("résumé", "re\u0301sume\u0301"):
            assert await found_ids(store, query) == [1, 2]

    async def test_accents_are_folded_where_that_is_asked_for(self, store):
        """With folding "perche" finds "perché" and the other way round; without it does not."""
        texts = {1: "perché", 2: "perche", 3: "PERCHÉ"}
        await fresh(store)
        await put_texts(store, texts)
        assert await found_ids(store, "perche") == [2]
        assert await found_ids(store, "perché") == [1, 3]
        await store.drop(NAME, deadline=soon())
        await fresh(store, replace(PLAIN, fold_accents=True))
        await put_texts(store, texts)
        for query in ("perche", "perché"):
            assert await found_ids(store, query) == [1, 2, 3]

    async def test_words_are_stemmed_where_that_is_asked_for(self, store):
        """With stemming one form of a word finds the others; without it does not."""
        texts = {1: "walking", 2: "walks", 3: "walk", 4: "wall"}
        await fresh(store, replace(PLAIN, language="english"))
        await put_texts(store, texts)
        assert await found_ids(store, "walks") == [2]
        await store.drop(NAME, deadline=soon())
        await fresh(store, replace(PLAIN, language="english", stem=True))
        await put_texts(store, texts)
        for query in ("walk", "walking", "Walks"):
            assert await found_ids(store, query) == [1, 2, 3]

    async def test_stop_words_count_neither_as_words_nor_as_length(self, store):
        """A text with stop words scores as the same text without, and they find nothing."""
        await fresh(store, replace(PLAIN, language="english", stop_words=True, extra_stop_words=("please",)))
        await put_texts(store, {1: "the cat of the house, please", 2: "cat house", 3: "cat house tree"})
        first, second, third = await search(store, "PLEASE the cat")
        assert (first.id, second.id, third.id) == (1, 2, 3)
        assert first.score == second.score > third.score
        assert await search(store, "the please of") == []

    @pytest.mark.parametrize(
        "wrong",
        [
            {"language": "klingon"},
            {"language": "klingon", "stem": True},
            {"language": "English", "stem": True},
            {"stem": True},
            {"stop_words": True},
            {"language": "japanese", "stem": True},
            {"language": "tamil", "stop_words": True},
        ],
    )
    async def test_a_language_that_is_not_supported_is_refused(self, store, wrong):
        """One that is unknown, missing, or has not what is asked for makes no collection."""
        with pytest.raises(InvalidRequest) as raised:
            await fresh(store, replace(PLAIN, **wrong))
        assert (raised.value.reason, raised.value.field) == ("LANGUAGE_UNSUPPORTED", "parameters.lexical.language")
        with pytest.raises(NotFound):
            await store.describe(NAME, deadline=soon())

    # --- writes ----------------------------------------------------------------------------------------------------

    async def test_an_upsert_replaces_the_words(self, store):
        """A document stored again is found by its new words only, also where it has none any more."""
        await fresh(store)
        await put_texts(store, {1: "red", 2: "red blue", 3: "blue"})
        await put_texts(store, {1: "blue", 2: "..."})
        assert await found_ids(store, "red") == []
        assert await found_ids(store, "blue") == [1, 3]

    async def test_deleted_documents_are_not_found_by_their_words(self, store):
        """What is deleted is in no list."""
        await fresh(store)
        await put_texts(store, TEXTS)
        await store.delete(NAME, [1, "six"], deadline=soon())
        assert await found_ids(store, "mat cat") == [4]

    async def test_words_are_indexed_again_from_what_a_scan_gives(self, store):
        """A collection that is filled with another's documents answers as that one, and describes its parameters."""
        await fresh(store)
        await fresh(store, name="docs-2", hidden=True, incarnation="i")
        await put(store, *[Document(id=one, text=text, payload={"n": 1}) for one, text in TEXTS.items()])
        page = await store.scan(NAME, after=None, limit=100, deadline=soon())
        assert all(one.shape == (DIMENSION,) for one in page.vectors)
        await store.upsert("docs-2", page.documents, page.vectors, incarnation="i", deadline=soon())
        revealed = await store.reveal("docs-2", incarnation="i", document_count=len(TEXTS), deadline=soon())
        assert revealed.parameters == CollectionParameters(lexical=PLAIN)
        for query in QUERIES:
            assert await search(store, query, name="docs-2") == await search(store, query)

    async def test_how_words_are_indexed_comes_back(self, store):
        """Every parameter is described as it was given."""
        made = await fresh(store, FULL)
        for one in (made, await store.describe(NAME, deadline=soon()), *await store.list(deadline=soon())):
            assert one.parameters == CollectionParameters(lexical=FULL)

    async def test_the_whole_text_of_a_split_document_stays_with_its_first_part(self, store):
        """It is scanned with that part, read where it is asked for, is in no payload, and is not found by its words."""
        await fresh(store)
        first = Document(id="x#1", text="red", payload={"k": 1}, part=Part(parent="x", number=1, count=2))
        second = Document(id="x#2", text="green", part=Part(parent="x", number=2, count=2))
        await put(store, replace(first, parent_text="red green"), second)
        got = await store.get(NAME, ["x#1", "x#2"], with_parent_texts=True, deadline=soon())
        assert list(got) == [replace(first, parent_text="red green"), second]
        assert list(await store.get(NAME, ["x#1", "x#2"], deadline=soon())) == [first, second]
        page = await store.scan(NAME, after=None, limit=5, deadline=soon())
        assert {one.id: one.parent_text for one in page.documents} == {"x#1": "red green", "x#2": None}
        for payload_fields in ((), ("*",), ("_twostage_parent_text",), ("k", 'q"q')):
            (found,) = await search(store, "green", payload_fields=payload_fields)
            assert (found.id, dict(found.payload)) == ("x#2", {})
            for one in await search(store, NORTH, payload_fields=payload_fields):
                assert "red green" not in str(one)

    # --- which documents count -------------------------------------------------------------------------------------

    async def test_a_filter_holds_for_lists_by_words(self, store):
        """Only what it lets through is found, with the scores that it has without the filter."""
        await fresh(store)
        await put_texts(store, TEXTS)
        scores = bm25("the cat sat", TEXTS, PLAIN)
        some = Filter(must=[HasId(ids=[2, 4, 5])])
        await check(store, "the cat sat", {one: scores[one] for one in (2, 4, 5)}, filter=some)
        assert await found_ids(store, "mat", filter=some) == []

    async def test_the_corpus_alone_decides_how_rare_a_word_is(self, store):
        """Scores are those of a collection with nothing else in it, whatever else is stored, changed or deleted."""
        await fresh(store)
        ours = {1: "red green", 2: "green blue", 3: "green", 4: ""}
        await put_texts(store, ours, tenant="ours")
        scope = Filter(must=[AnyOf(key="tenant", values=["ours"])])
        expected = bm25("red green", ours, PLAIN)
        theirs = dict.fromkeys(range(10, 40), "red red blue")
        for write in (put_texts(store, theirs, tenant="theirs"), store.delete(NAME, [*range(10, 35)], deadline=soon())):
            await check(store, "red green", expected, filter=scope, corpus=scope)
            await write
            await check(store, "red green", expected, filter=scope, corpus=scope)
        left = {**ours, **dict.fromkeys(range(35, 40), "red red blue")}
        assert bm25("red green", left, PLAIN)[1] != pytest.approx(expected[1], rel=1e-2)
        narrower = Filter(must=[HasId(ids=[1])])
        await check(store, "red green", {1: expected[1]}, filter=narrower, corpus=scope)

    async def test_a_corpus_of_nothing_is_no_failure(self, store):
        """Where the corpus is empty, so is what may be found in it."""
        await fresh(store)
        await put_texts(store, TEXTS)
        nobody = Filter(must=[AnyOf(key="tenant", values=["nobody"])])
        assert await found_ids(store, "cat", filter=nobody, corpus=nobody) == []

    async def test_a_corpus_is_checked_as_a_filter_is(self, store):
        """Text is not matched at a key without its index there either."""
        await fresh(store)
        with pytest.raises(InvalidRequest) as raised:
            await search(store, "cat", corpus=Filter(must=[TextMatch(key="a", text="b")]))
        assert raised.value.reason == "TEXT_INDEX_REQUIRED"

    # --- several queries -------------------------------------------------------------------------------------------

    async def test_several_queries_are_answered_in_order(self, store):
        """Each of them has the list that it has alone, whatever its kind, twice where it is there twice."""
        await fresh(store)
        texts = list(TEXTS.items())
        vectors = [vector(np.cos(n), np.sin(n), 0, 0) for n in range(len(texts))]
        await put(store, *[Document(id=one, text=text) for one, text in texts], vectors=vectors)
        queries = [
            LexicalQuery(text="cat"),
            DenseQuery(vector=NORTH),
            LexicalQuery(text="!"),
            DenseQuery(vector=EAST),
            LexicalQuery(text="the dog"),
            DenseQuery(vector=NORTH),
        ]
        some = Filter(must_not=[HasId(ids=[4])])
        lists = await search_all(store, *queries, limit=3, filter=some)
        alone = [(await search_all(store, one, limit=3, filter=some))[0] for one in queries]
        assert lists == alone
        assert [len(one) for one in lists] == [1, 3, 0, 3, 3, 3]
        assert lists[1] == lists[5] != lists[3]

    @pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6])
    async def test_ties_are_cut_by_id_in_each_of_several_lists(self, store, limit):
        """Where equal scores go on beyond the end of a list, ids decide who is in it, whatever kind they are of."""
        await fresh(store)
        tied = [7, 3, UUID(int=9), UUID(int=2), "b", "a"]
        await put(store, *[Document(id=one, text="cat", payload={"n": str(one)}) for one in tied])
        await put(store, Document(id="z", text="cat cat"), vectors=[vector(1, 0.1, 0, 0)])
        lists = await search_all(
            store, LexicalQuery(text="cat"), DenseQuery(vector=NORTH), limit=limit, payload_fields=("n",)
        )
        in_order = [3, 7, UUID(int=2), UUID(int=9), "a", "b"]
        assert [[one.id for one in found] for found in lists] == [["z", *in_order][:limit], in_order[:limit]]
        assert all(one.payload == {"n": str(one.id)} for found in lists for one in found if one.id != "z")

    async def test_every_list_brings_the_payload_asked_for(self, store):
        """Fields, text and part come with candidates of either kind."""
        await fresh(store)
        part = Part(parent=7, number=2, count=3)
        await put(store, Document(id=1, text="cat", payload={"a": 1, "b": 2}, part=part))
        for fields, payload in (((), {}), (("b",), {"b": 2}), (("*",), {"a": 1, "b": 2})):
            by_words, by_vector = await search_all(
                store, LexicalQuery(text="cat"), DenseQuery(vector=NORTH), payload_fields=fields
            )
            for (one,) in (by_words, by_vector):
                assert (one.id, one.text, one.payload, one.part, one.vector) == (1, "cat", payload, part, None)

    @pytest.mark.parametrize("lexical", [PLAIN, None])
    async def test_vectors_come_where_they_are_asked_for(self, store, lexical):
        """Candidates of either kind bring their own, float32 and of length 1, bit for bit as a scan gives it."""
        await fresh(store, lexical)
        rows = np.random.default_rng(3).standard_normal((4, DIMENSION)).astype(np.float32)
        await put(store, *[Document(id=one, text="cat ."[one % 2 :]) for one in range(4)], vectors=list(rows))
        page = await store.scan(NAME, after=None, limit=5, deadline=soon())
        stored = {one.id: row.tobytes() for one, row in zip(page.documents, page.vectors, strict=True)}
        queries = [DenseQuery(vector=NORTH), *([LexicalQuery(text="cat at")] if lexical else ())]
        for found in await search_all(store, *queries, with_vectors=True):
            assert len(found) == 4
            for one in found:
                assert one.vector.dtype == np.float32
                assert one.vector.tobytes() == stored[one.id]
                assert np.linalg.norm(one.vector) == pytest.approx(1, abs=1e-6)

    # --- refusals --------------------------------------------------------------------------------------------------

    async def test_a_collection_without_words_refuses_queries_of_words(self, store):
        """Such a query is refused beside one that could be answered, and the collection is named."""
        await fresh(store, None)
        await put_texts(store, TEXTS)
        for queries in ([LexicalQuery(text="cat")], [DenseQuery(vector=NORTH), LexicalQuery(text="!")]):
            with pytest.raises(Misconfigured) as raised:
                await search_all(store, *queries)
            assert raised.value.reason == "LEXICAL_INDEX_REQUIRED"
            assert f"collection {NAME} " in raised.value.message
        assert len(await search(store, NORTH)) == len(TEXTS)

    async def test_refusals_know_a_collection_by_the_name_asked_for(self, store):
        """Behind an alias neither message nor metadata of a refused search tells the collection's own name."""
        await fresh(store, None)
        await store.assign_alias("view", NAME, deadline=soon())
        for query, encoder in ((LexicalQuery(text="cat"), ENCODER), (DenseQuery(vector=NORTH), OTHER_ENCODER)):
            with pytest.raises(Misconfigured) as raised:
                await search_all(store, query, name="view", encoder=encoder)
            assert "collection view " in raised.value.message
            assert NAME not in f"{raised.value.message} {raised.value.metadata}"

    @pytest.mark.parametrize(
        ("bad", "error", "reason"),
        [
            (vector(1, 2, 3), Misconfigured, "VECTOR_SIZE_MISMATCH"),
            (vector(np.nan, 0, 0, 0), InferenceFailed, "VECTOR_NOT_FINITE"),
            (vector(0, 0, 0, 0), InferenceFailed, "VECTOR_ZERO"),
        ],
    )
    async def test_one_bad_vector_refuses_the_search(self, store, bad, error, reason):
        """It is found among good queries, wherever it stands (field failure 67)."""
        await fresh(store)
        for queries in (
            [LexicalQuery(text="cat"), DenseQuery(vector=bad)],
            [DenseQuery(vector=bad), DenseQuery(vector=NORTH)],
        ):
            with pytest.raises(error) as raised:
                await search_all(store, *queries)
            assert raised.value.reason == reason

    async def test_an_encoder_matters_to_vectors_only(self, store):
        """Queries of words need none; another one than the collection's is refused."""
        await fresh(store)
        await put_texts(store, TEXTS)
        assert await search(store, "cat", encoder=None) == await search(store, "cat")
        with pytest.raises(Misconfigured) as raised:
            await search_all(store, LexicalQuery(text="cat"), DenseQuery(vector=NORTH), encoder=OTHER_ENCODER)
        assert raised.value.reason == "ENCODER_MISMATCH"
