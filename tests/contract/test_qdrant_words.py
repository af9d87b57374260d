"""Words and several queries on a Qdrant server: what is sent, what is asked at once, and servers that are too old."""

import asyncio
from dataclasses import replace

import pytest
from contract.lexical_suite import PLAIN, fresh, put_texts
from contract.vector_store_suite import ENCODER, NAME, NORTH, search, search_all, soon
from fakes import Hang
from qdrant_client import grpc as pb
from qdrant_stand_in import CODE, Late, altered, fails, stand_in

from gateway.filters import Filter, HasId
from gateway.ports import DenseQuery, LexicalQuery
from gateway.stores.lexical import lexicon
from gateway.stores.qdrant import QdrantStore
from gateway.stores.qdrant_target import QdrantTarget
from gateway.stores.records import MAX_TIED, PARENT_TEXT_KEY
from serving.errors import InferenceFailed, InvalidRequest, Misconfigured, Overloaded

BOTH = [DenseQuery(vector=NORTH), LexicalQuery(text="cat")]
SCOPE = Filter(must=[HasId(ids=[1, 2])])


@pytest.fixture
async def server():
    """A server of its own."""
    async with stand_in() as running:
        yield running


@pytest.fixture
async def store(server):
    """A store with a collection of three documents with words."""
    async with await QdrantStore.open(target(server)) as opened:
        await fresh(opened)
        await put_texts(opened, {1: "cat", 2: "cat dog", 3: "?!"})
        yield opened


def target(server):
    """The stand-in's address."""
    return QdrantTarget(host="127.0.0.1", port=server.port)


def methods(server) -> list[str]:
    """What was called."""
    return [method for method, _ in server.calls]


async def test_the_layout_of_words_on_the_server(store, server):
    """Words are a sparse vector beside the unnamed one, weighed by rarity; a text without any has that one alone."""
    sparse = server.shelves[NAME].config.params.sparse_vectors_config.map
    assert {name: one.modifier for name, one in sparse.items()} == {"lexical": pb.Modifier.Idf}
    first, _, last = next(request for method, request in server.calls if method == "Points.Upsert").points
    words = lexicon(PLAIN).document("cat")
    assert first.vectors.vectors.vectors.keys() == {"", "lexical"}
    sent = first.vectors.vectors.vectors["lexical"].sparse
    assert (list(sent.indices), list(sent.values)) == (words.indices, pytest.approx(words.values))
    assert list(last.vectors.vector.dense.data) == NORTH.tolist()


async def test_a_collection_without_words_is_made_as_before(server):
    """Nothing of words is sent for it."""
    async with await QdrantStore.open(target(server)) as opened:
        await fresh(opened, None)
        await put_texts(opened, {1: "cat"})
    assert not server.shelves[NAME].config.params.HasField("sparse_vectors_config")
    (point,) = server.calls[-1][1].points
    assert list(point.vectors.vector.dense.data) == NORTH.tolist()


async def test_each_query_is_a_call_of_its_own(store, server):
    """Several go out at once, one without words not at all, and each asks for no more than it needs."""
    server.calls.clear()
    await search_all(store, *BOTH, LexicalQuery(text="!"), limit=7)
    assert methods(server) == ["Points.Query"] * 2
    by_kind = {request.using: request for _, request in server.calls}
    assert [by_kind[kind].limit for kind in ("", "lexical")] == [8, 8]
    assert not any(one.with_vectors.enable or one.params.HasField("idf") for one in by_kind.values())
    assert not by_kind["lexical"].HasField("params")
    assert by_kind[""].params.hnsw_ef == 128


async def test_all_of_the_payload_is_all_but_the_parents_text(store, server):
    """The whole text of a split document does not travel with a search, whatever is asked for."""
    await search(store, "cat", payload_fields=("*",))
    wanted = server.calls[-1][1].with_payload
    assert list(wanted.exclude.fields) == [f'"{PARENT_TEXT_KEY}"']


async def test_queries_are_under_way_together(store, server):
    """The second is asked before the first is answered, and the search takes as long as the longest."""
    first, second = Late(), Late()
    server.faults.extend([first, second])
    wanted = {"encoder": ENCODER, "limit": 5, "filter": None, "payload_fields": ()}
    waiting = asyncio.create_task(store.search(NAME, BOTH, **wanted, deadline=soon()))
    await asyncio.gather(first.begun.wait(), second.begun.wait())
    second.released.set()
    first.released.set()
    found = await waiting
    assert [[one.id for one in each.candidates] for each in found.lists] == [[1, 2, 3], [1, 2]]
    assert found.time.compute == max(one.compute for one in found.lists) > 0


async def test_one_query_that_fails_ends_the_others(store, server):
    """The error is that of the one; the server is told that nobody waits for the other, and the next search is fine."""
    hang = Hang()
    server.faults.extend([hang, fails(CODE.RESOURCE_EXHAUSTED)])
    with pytest.raises(Overloaded):
        await search_all(store, *BOTH)
    await hang.cancelled.wait()
    assert [len(one) for one in await search_all(store, *BOTH)] == [3, 2]


async def test_a_caller_who_leaves_ends_every_query(store, server):
    """Cancelling a search cancels each of its calls on the server."""
    hangs = [Hang(), Hang()]
    server.faults.extend(hangs)
    waiting = asyncio.create_task(search_all(store, *BOTH))
    await asyncio.gather(*[one.begun.wait() for one in hangs])
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.gather(*[one.cancelled.wait() for one in hangs])


async def test_a_long_tie_of_words_is_read_within_limits(store, server):
    """More equals than are ever read give a full list, from a known number of calls and candidates."""
    await put_texts(store, dict.fromkeys(range(10, 1500), "tree"))
    server.calls.clear()
    assert len(await search(store, "tree", limit=5)) == 5
    assert [request.limit for _, request in server.calls] == [6, 24, 96, 384, 5 + MAX_TIED]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
async def test_a_score_of_words_that_is_no_number_never_leaves(store, server, number):
    """A score of NaN or infinity fails its search only; a large one is a score."""

    def change(answer) -> None:
        answer.result[0].score = number

    server.faults.append(altered(change))
    with pytest.raises(InferenceFailed) as raised:
        await search(store, "cat")
    assert raised.value.reason == "SCORE_NOT_FINITE"
    assert len(await search(store, "cat")) == 2


# --- servers that are too old --------------------------------------------------------------------------------------


async def test_the_corpus_goes_with_queries_of_words_only(store, server):
    """It is sent as what rarity is counted over, and needs no question to a server that is known to be new enough."""
    server.calls.clear()
    await search_all(store, *BOTH, filter=SCOPE, corpus=SCOPE)
    assert methods(server) == ["Points.Query"] * 2
    by_kind = {request.using: request for _, request in server.calls}
    assert by_kind["lexical"].params.idf.corpus == by_kind["lexical"].filter
    assert not by_kind[""].params.HasField("idf")


@pytest.mark.parametrize("version", ["1.16.3", "1.18.9", "unknown"])
async def test_a_server_that_would_count_others_documents_is_not_asked(server, version):
    """One before 1.19 ignores the corpus in silence: the search is refused, while others are answered."""
    server.version = version
    async with await QdrantStore.open(target(server)) as opened:
        await fresh(opened)
        await put_texts(opened, {1: "cat", 2: "cat dog"})
        server.shelves[NAME].counts_corpora = False
        server.calls.clear()
        with pytest.raises(Misconfigured) as raised:
            await search_all(opened, *BOTH, filter=SCOPE, corpus=SCOPE)
        assert raised.value.reason == "STORE_TOO_OLD"
        assert "Points.Query" not in methods(server)
        assert [len(one) for one in await search_all(opened, *BOTH, filter=SCOPE)] == [2, 2]
        assert len(await search(opened, NORTH, filter=SCOPE, corpus=SCOPE)) == 2


async def test_a_version_is_asked_for_until_it_will_do(server):
    """A server that started after the gateway, or was upgraded since, is found to be new enough, once."""
    server.version = "1.18.0"
    async with await QdrantStore.open(target(server)) as opened:
        await fresh(opened)
        server.version = "1.20.1"
        for _ in range(2):
            assert await search(opened, "cat", filter=SCOPE, corpus=SCOPE) == []
    assert methods(server).count("Qdrant.HealthCheck") == 2  # when it was opened, and once more


async def test_what_is_not_understood_of_words_is_not_ours(store, server):
    """A collection whose entry speaks of words in another way is refused, not searched."""
    entry = server.shelves[NAME].config.metadata["twostage"].struct_value.fields["lexical"].struct_value
    entry.fields["another"].bool_value = True
    async with await QdrantStore.open(target(server)) as other:
        with pytest.raises(Misconfigured) as raised:
            await search(other, "cat")
    assert raised.value.reason == "COLLECTION_MALFORMED"


async def test_a_language_that_is_not_supported_is_not_sent(server):
    """It is refused before the server is asked to make anything."""
    async with await QdrantStore.open(target(server)) as opened:
        server.calls.clear()
        with pytest.raises(InvalidRequest) as raised:
            await fresh(opened, replace(PLAIN, language="klingon"))
    assert raised.value.reason == "LANGUAGE_UNSUPPORTED"
    assert server.calls == []
