"""The vector store on a Qdrant server: the contract on the stand-in, and what a server adds to it."""

import asyncio
import logging
from dataclasses import replace

import numpy as np
import pytest
from contract.collection_suite import CollectionSuite
from contract.lexical_suite import LexicalSuite
from contract.vector_store_suite import (
    DIMENSION,
    ENCODER,
    NAME,
    NORTH,
    OTHER_ENCODER,
    VectorStoreSuite,
    put,
    search,
    soon,
    vector,
)
from qdrant_client import grpc as pb
from qdrant_engine import to_payload
from qdrant_stand_in import CODE, altered, fails, stand_in

from gateway.convert import MAX_POOL_SIZE
from gateway.convert_values import MAX_PAYLOAD_BYTES, MAX_TEXT_BYTES
from gateway.filters import AnyOf, Filter
from gateway.parameters import CollectionParameters, CollectionStatus, IndexKind, PayloadIndex, Quantization
from gateway.ports import Document, Part
from gateway.stored_parts import READ_IDS_PER_CALL
from gateway.stores.point_ids import ID_KEY, to_point_id
from gateway.stores.qdrant import QdrantStore
from gateway.stores.qdrant_collections import MAX_REMEMBERED, METADATA_KEY, Known, Memory, QdrantIndex
from gateway.stores.qdrant_requests import MAX_REQUEST_BYTES
from gateway.stores.qdrant_target import QdrantTarget
from gateway.stores.qdrant_values import LIMITS, from_pb_id
from gateway.stores.records import MAX_TIED, PARENT_TEXT_KEY, PART_KEY, TEXT_KEY
from serving.deadline import Deadline
from serving.errors import InferenceFailed, InvalidRequest, Misconfigured, NotFound, NotReady, Unavailable

LOOK_UP = ["Collections.ListAliases", "Collections.Get"]
"""The calls that tell what a name stands for."""


@pytest.fixture
async def server():
    """A server of its own."""
    async with stand_in() as running:
        yield running


@pytest.fixture
async def store(server):
    """An empty store on the server."""
    async with await QdrantStore.open(target(server)) as opened:
        yield opened


@pytest.fixture
async def filled(store):
    """The store with a collection of two documents."""
    await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
    await put(store, Document(id=1, text="one"), Document(id="two", text="two", payload={"a": 1, "b": 2}))
    return store


def target(server, **others):
    """The stand-in's address."""
    return QdrantTarget(host="127.0.0.1", port=server.port, **others)


def nested(depth):
    """Objects and lists in turn, so many within one another."""
    value = "leaf"
    for level in range(depth - 1):
        value = {"k": value} if level % 2 else [value]
    return {"k": value}


class TestQdrantStore(VectorStoreSuite):
    """The suite on the stand-in."""


class TestQdrantWords(LexicalSuite):
    """The suite of words and several queries on the stand-in."""


class TestQdrantCollections(CollectionSuite):
    """The suite of whole collections on the stand-in."""


async def test_a_search_is_one_call(filled, server):
    """The collection is asked for once and then remembered, also by a store that did not make it."""
    async with await QdrantStore.open(target(server)) as other:
        server.calls.clear()
        for _ in range(3):
            await search(other, NORTH)
    assert [method for method, _ in server.calls] == [*LOOK_UP, *["Points.Query"] * 3]


async def test_a_search_asks_for_no_more_than_it_needs(filled, server):
    """No vectors and only the payload keys that are needed come back (field failure 65)."""
    await search(filled, NORTH, limit=7, payload_fields=("b",), filter=Filter(must=[AnyOf(key="a", values=[1])]))
    request = server.calls[-1][1]
    assert not request.with_vectors.enable
    assert list(request.with_payload.include.fields) == [f'"{key}"' for key in ("b", TEXT_KEY, ID_KEY, PART_KEY)]
    assert (request.limit, request.params.hnsw_ef, request.params.exact) == (8, QdrantIndex().ef, False)


async def test_a_read_by_id_asks_for_whole_texts_only_where_they_are_wanted(filled, server):
    """What a first part keeps of its document does not travel, unless it is asked for (field failure 65)."""
    await filled.get(NAME, [1], deadline=soon())
    assert list(server.calls[-1][1].with_payload.exclude.fields) == [f'"{PARENT_TEXT_KEY}"']
    await filled.get(NAME, [1], with_parent_texts=True, deadline=soon())
    assert server.calls[-1][1].with_payload.enable


@pytest.mark.slow
@pytest.mark.parametrize(("count", "whole"), [(READ_IDS_PER_CALL, False), (MAX_POOL_SIZE, True)])
async def test_the_largest_first_parts_fit_one_message(filled, count, whole):
    """As many as are ever read at once come back, each with as much as it can hold (field failure 14)."""
    part, payload = Part(parent="x", number=1, count=2), {"k": "p" * (MAX_PAYLOAD_BYTES - 16)}
    large = Document(id=0, text="t" * MAX_TEXT_BYTES, payload=payload, part=part, parent_text="w" * MAX_TEXT_BYTES)
    for begin in range(0, count, 100):
        await put(filled, *[replace(large, id=one) for one in range(begin, min(begin + 100, count))])
    got = await filled.get(NAME, range(count), with_parent_texts=whole, deadline=soon())
    expected = large if whole else replace(large, parent_text=None)
    assert list(got) == [replace(expected, id=one) for one in range(count)]


async def test_the_callers_time_goes_with_every_call(filled, server):
    """The call's deadline travels; the server's own hint is in whole seconds and never less (field failure 13)."""
    await search(filled, NORTH, deadline=Deadline.after(30.5))
    assert 30 < server.timeouts[-1] < 31  # on the wire it is rounded
    assert server.calls[-1][1].timeout == 31


async def test_writes_wait_until_they_are_applied(filled, server):
    """Upserts and deletions are acknowledged when they can be found, in one order for all (field failure 68)."""
    await put(filled, Document(id=3, text="three"))
    await filled.delete(NAME, [3], deadline=soon())
    for _, request in server.calls[-2:]:
        assert (request.wait, request.ordering.type) == (True, pb.WriteOrderingType.Medium)
    server.update_status = pb.UpdateStatus.Acknowledged
    with pytest.raises(InferenceFailed):
        await put(filled, Document(id=4, text="four"))


async def test_the_layout_on_the_server(filled, server):
    """A collection is cosine and carries its encoder; a text id is a UUIDv5 with the original beside it."""
    config = server.shelves[NAME].config
    assert config.params.vectors_config.params.distance == pb.Distance.Cosine
    assert (config.hnsw_config.m, config.hnsw_config.ef_construct) == (16, 128)
    entry = config.metadata[METADATA_KEY].struct_value.fields
    assert entry["encoder_digest"].string_value == ENCODER.digest
    request = next(request for method, request in server.calls if method == "Points.Upsert")
    points = {from_pb_id(one.id): one.payload for one in request.points}
    assert points.keys() == {1, to_point_id("two")}
    assert points[to_point_id("two")] == to_payload({"a": 1, "b": 2, TEXT_KEY: "two", ID_KEY: "two"})


async def test_a_long_tie_is_read_within_limits(filled, server):
    """More equals than are ever read give a full pool, from a known number of calls and candidates."""
    await put(filled, *[Document(id=one, text="t") for one in range(10, 1500)])
    server.calls.clear()
    assert len(await search(filled, NORTH, limit=5)) == 5
    limits = [request.limit for _, request in server.calls]
    assert limits == [6, 24, 96, 384, 5 + MAX_TIED]


async def test_a_collection_made_again_with_another_size_is_noticed(filled, server):
    """What another gateway changes is noticed by the search that the server refuses, and both sizes are named."""
    async with await QdrantStore.open(target(server)) as other:
        await other.drop(NAME, deadline=soon())
        await other.create(NAME, dimension=7, encoder=ENCODER, deadline=soon())
    for call in (search(filled, NORTH), put(filled, Document(id=1, text="a"))):
        with pytest.raises(Misconfigured) as raised:
            await call
        assert raised.value.reason == "VECTOR_SIZE_MISMATCH"
        assert raised.value.metadata == {"actual": "4", "expected": "7"}
    assert await search(filled, vector(*range(1, 8))) == []


async def test_a_collection_made_again_with_another_encoder_is_noticed(filled, server):
    """A search with the new encoder works at once; one with the old is refused once the memory is over."""
    async with await QdrantStore.open(target(server), memory=Memory(kept_s=0)) as forgetful:
        await search(forgetful, NORTH)
        async with await QdrantStore.open(target(server)) as other:
            await other.drop(NAME, deadline=soon())
            await other.create(NAME, dimension=DIMENSION, encoder=OTHER_ENCODER, deadline=soon())
        for store in (forgetful, filled):
            assert await search(store, NORTH, encoder=OTHER_ENCODER) == []
        server.calls.clear()
        with pytest.raises(Misconfigured) as raised:
            await search(forgetful, NORTH)
        assert raised.value.reason == "ENCODER_MISMATCH"
        assert [method for method, _ in server.calls] == LOOK_UP


async def test_a_memory_that_is_over_is_asked_again(server):
    """A store that remembers nothing notices another encoder although nobody told it."""
    async with (
        await QdrantStore.open(target(server)) as maker,
        await QdrantStore.open(target(server), memory=Memory(kept_s=0)) as forgetful,
    ):
        await maker.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
        assert await search(forgetful, NORTH) == []
        await maker.drop(NAME, deadline=soon())
        await maker.create(NAME, dimension=DIMENSION, encoder=OTHER_ENCODER, deadline=soon())
        with pytest.raises(Misconfigured) as raised:
            await search(forgetful, NORTH)
        assert raised.value.reason == "ENCODER_MISMATCH"


async def test_a_collection_dropped_elsewhere_is_not_found(filled, server):
    """A remembered collection that is gone is NotFound, and works when it is made again."""
    async with await QdrantStore.open(target(server)) as other:
        await other.drop(NAME, deadline=soon())
    with pytest.raises(NotFound):
        await search(filled, NORTH)
    await filled.create(NAME, dimension=2, encoder=ENCODER, deadline=soon())
    assert await search(filled, vector(1, 0)) == []


async def test_collections_of_other_programs_are_left_alone(filled, server):
    """A collection without our metadata is not listed, not searched, not written and not dropped."""
    params = pb.VectorsConfig(params=pb.VectorParams(size=DIMENSION, distance=pb.Distance.Cosine))
    request = pb.CreateCollection(collection_name="theirs", vectors_config=params)
    await filled._catalog._calls._collections.Create(request, timeout=60)
    assert [one.name for one in await filled.list(deadline=soon())] == [NAME]
    for call in (
        filled.describe("theirs", deadline=soon()),
        search(filled, NORTH, name="theirs"),
        filled.upsert("theirs", [Document(id=1, text="a")], [NORTH], deadline=soon()),
        filled.drop("theirs", deadline=soon()),
    ):
        with pytest.raises(Misconfigured) as raised:
            await call
        assert raised.value.reason == "COLLECTION_MALFORMED"
    assert server.shelves["theirs"].count() == 0


async def test_another_programs_collection_is_refused_under_the_name_asked_for(filled):
    """Behind an alias that another program made, the refusal does not tell the collection's own name."""
    stub = filled._catalog._calls._collections
    params = pb.VectorsConfig(params=pb.VectorParams(size=DIMENSION, distance=pb.Distance.Cosine))
    await stub.Create(pb.CreateCollection(collection_name="theirs", vectors_config=params), timeout=60)
    alias = pb.AliasOperations(create_alias=pb.CreateAlias(alias_name="view", collection_name="theirs"))
    await stub.UpdateAliases(pb.ChangeAliases(actions=[alias]), timeout=60)
    for call in (filled.describe("view", deadline=soon()), search(filled, NORTH, name="view")):
        with pytest.raises(Misconfigured) as raised:
            await call
        assert (raised.value.reason, raised.value.metadata) == ("COLLECTION_MALFORMED", {"collection": "view"})
        assert "theirs" not in raised.value.message


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, float("nan"), nested(LIMITS.depth)])
async def test_payloads_that_cannot_travel_are_refused(filled, value):
    """What the server's interface would change or cannot read is named, and its batch is not stored."""
    with pytest.raises(InvalidRequest) as raised:
        await put(filled, Document(id=7, text="t"), Document(id=8, text="t", payload={"a": value}))
    assert (raised.value.reason, raised.value.field) == ("PAYLOAD_MALFORMED", "documents[1].payload")
    assert (await filled.describe(NAME, deadline=soon())).document_count == 2


async def test_the_deepest_payload_travels(filled):
    """A payload at the limit of depth, and the largest numbers, come back as they were."""
    payload = {"deep": nested(LIMITS.depth - 1), "big": 2**63 - 1, "small": -(2**63)}
    await put(filled, Document(id=7, text="t", payload=payload))
    assert [one.payload for one in await filled.get(NAME, [7], deadline=soon())] == [payload]
    (first, *_) = await search(
        filled, NORTH, payload_fields=["*"], filter=Filter(must=[AnyOf(key="big", values=[2**63 - 1])])
    )
    assert first.payload == payload


async def test_a_batch_over_the_servers_limit_is_refused(filled, server):
    """A batch that the server would not read is the caller's to split, and is not sent."""
    server.calls.clear()
    with pytest.raises(InvalidRequest) as raised:
        await put(filled, Document(id=7, text="t" * MAX_REQUEST_BYTES))
    assert raised.value.reason == "BATCH_TOO_LARGE"
    assert server.calls == []


async def test_a_text_that_is_no_unicode_is_refused(filled):
    """Half a surrogate pair fails its batch and nothing else."""
    with pytest.raises(InferenceFailed):
        await put(filled, Document(id=7, text="t"), Document(id=8, text="\ud800"))
    assert (await filled.describe(NAME, deadline=soon())).document_count == 2


async def test_after_closing_nothing_is_asked(filled, server):
    """A closed store says so, without a call, and closing again is no error."""
    await filled.aclose()
    await filled.aclose()
    server.calls.clear()
    with pytest.raises(NotReady):
        await search(filled, NORTH)
    assert server.calls == []


async def test_the_api_key_goes_with_every_call_and_nowhere_else(server, caplog):
    """The right key is let in, a wrong one is an operator's matter at the start, and neither is ever shown."""
    server.api_key = "right"
    with caplog.at_level(logging.DEBUG):
        with pytest.raises(Misconfigured) as raised:
            await QdrantStore.open(target(server, api_key="wr0ng"))
        async with await QdrantStore.open(target(server, api_key="right")) as opened:
            assert await opened.list(deadline=soon()) == []
    assert raised.value.reason == "STORE_ACCESS_DENIED"
    shown = repr(target(server, api_key="wr0ng")) + str(raised.value) + caplog.text
    assert "wr0ng" not in shown
    assert "in the clear" in caplog.text


@pytest.mark.parametrize("gone", [True, False])
async def test_a_collection_that_goes_while_collections_are_listed(filled, server, gone):
    """One that is dropped between its name and its description is left out; any other failure fails the list."""
    await filled.create("b", dimension=2, encoder=ENCODER, deadline=soon())
    code = CODE.NOT_FOUND if gone else CODE.PERMISSION_DENIED
    server.faults.extend([altered(lambda _: None), altered(lambda _: None), fails(code)])
    if gone:
        assert [one.name for one in await filled.list(deadline=soon())] == [NAME]
        return
    with pytest.raises(Misconfigured) as raised:
        await filled.list(deadline=soon())
    assert raised.value.reason == "STORE_ACCESS_DENIED"


async def test_a_collection_that_another_drops_first_is_not_found(filled, server):
    """Of two who drop a collection at once, one is told that there is none."""
    server.faults.extend([altered(lambda _: None)] * 2 + [altered(lambda answer: setattr(answer, "result", False))])
    with pytest.raises(NotFound):
        await filled.drop(NAME, deadline=soon())


async def test_nothing_to_write_still_needs_a_collection(filled, server):
    """Empty batches ask whether the collection is there, and a batch without its vectors is not sent."""
    await filled.upsert(NAME, [], [], deadline=soon())
    await filled.delete(NAME, [], deadline=soon())
    await filled.drop(NAME, deadline=soon())
    for call in (filled.upsert(NAME, [], [], deadline=soon()), filled.delete(NAME, [], deadline=soon())):
        with pytest.raises(NotFound):
            await call
    with pytest.raises(InferenceFailed) as raised:
        await filled.upsert(NAME, [Document(id=1, text="a")], [], deadline=soon())
    assert raised.value.reason == "VECTOR_COUNT"


def test_memory_has_a_limit():
    """However many collections are asked for, no more than so many are remembered."""
    memory = Memory()
    for number in range(MAX_REMEMBERED + 1):
        memory.put(str(number), Known(name=str(number), dimension=1, encoder=ENCODER))
    assert memory.get("0") is None
    assert memory.get(str(MAX_REMEMBERED)) is not None
    assert len(memory._seen) <= MAX_REMEMBERED


async def test_proxies_in_the_environment_are_not_for_it(server, monkeypatch):
    """A proxy that is set for other traffic is bypassed (field failure 61)."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with await QdrantStore.open(target(server)) as opened:
        assert await opened.list(deadline=soon()) == []


def test_every_loop_has_its_own_channel():
    """A store is made, used and closed in each of two loops, one after the other (field failure 64)."""

    async def life() -> int:
        async with stand_in() as server, await QdrantStore.open(target(server)) as opened:
            await opened.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
            await put(opened, Document(id=1, text="one"))
            return len(await search(opened, NORTH))

    assert [asyncio.run(life()) for _ in range(2)] == [1, 1]


async def test_one_point_twice_in_a_batch_is_sent_once(filled, server):
    """Which of two documents with one id stays does not depend on the server."""
    await put(filled, Document(id="x", text="first"), Document(id="x", text="second"), vectors=[NORTH, -NORTH])
    (point,) = server.calls[-1][1].points
    assert point.payload[TEXT_KEY].string_value == "second"
    assert np.array_equal(point.vectors.vector.dense.data, -NORTH)


async def test_parameters_are_the_servers(store, server):
    """Index, quantization, shards, copies and payload indexes are made as asked for; most copies have every write."""
    indexes = tuple(PayloadIndex(key=f"a.{kind.value}", kind=kind) for kind in IndexKind)
    wanted = CollectionParameters(
        hnsw_m=32,
        hnsw_ef_construct=256,
        on_disk=True,
        quantization=Quantization.BINARY,
        shard_count=6,
        replication_factor=3,
        payload_indexes=indexes,
    )
    await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, parameters=wanted, deadline=soon())
    config = server.shelves[NAME].config
    assert (config.hnsw_config.m, config.hnsw_config.ef_construct) == (32, 256)
    assert config.params.vectors_config.params.on_disk
    assert config.quantization_config.binary.always_ram
    params = config.params
    assert (params.shard_number, params.replication_factor, params.write_consistency_factor) == (6, 3, 2)
    assert server.shelves[NAME].indexed() == {f"a.{kind.value}" for kind in IndexKind}
    assert (await store.describe(NAME, deadline=soon())).parameters == wanted


@pytest.mark.parametrize("quantization", Quantization)
async def test_quantized_candidates_are_scored_by_their_whole_vectors(store, server, quantization):
    """Only where vectors are quantized the server is asked to compare more of them, and again by the whole ones."""
    parameters = CollectionParameters(quantization=quantization)
    await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, parameters=parameters, deadline=soon())
    await search(store, NORTH)
    asked = server.calls[-1][1].params
    assert asked.HasField("quantization") == (quantization is not Quantization.NONE)
    if asked.HasField("quantization"):
        assert (asked.quantization.rescore, asked.quantization.oversampling) == (True, 3.0)


@pytest.mark.parametrize(("code", "error"), [(CODE.INTERNAL, InferenceFailed), (CODE.UNAVAILABLE, Unavailable)])
async def test_a_collection_whose_index_cannot_be_made_is_not_left_behind(store, server, code, error):
    """A failure after the server has made the collection, and before it is whole, deletes it again."""
    parameters = CollectionParameters(payload_indexes=(PayloadIndex(key="a", kind=IndexKind.KEYWORD),))
    server.faults.extend([altered(lambda _: None)] * 2 + [fails(code)])
    with pytest.raises(error):
        await store.create(NAME, dimension=2, encoder=ENCODER, parameters=parameters, deadline=soon())
    assert server.shelves == {}


@pytest.mark.parametrize("colour", ["Green", "Yellow", "Grey", "Red"])
async def test_the_status_is_the_servers(filled, server, colour):
    """Each of the server's colours is told in words; one that we do not know is unknown."""
    server.shelves[NAME].status = getattr(pb.CollectionStatus, colour)
    assert (await filled.describe(NAME, deadline=soon())).status.value == colour.lower()
    server.shelves[NAME].status = pb.CollectionStatus.UnknownCollectionStatus
    assert (await filled.describe(NAME, deadline=soon())).status is CollectionStatus.UNKNOWN


async def test_an_alias_that_another_gateway_moves(filled, server):
    """It is searched as remembered until that is dropped, then as it is; a write always goes where it points now."""
    await filled.assign_alias("current", NAME, deadline=soon())
    assert len(await search(filled, NORTH, name="current")) == 2
    async with await QdrantStore.open(target(server)) as other:
        await other.create("new", dimension=DIMENSION, encoder=OTHER_ENCODER, deadline=soon())
        await other.assign_alias("current", "new", deadline=soon())
        assert len(await search(filled, NORTH, name="current")) == 2
        await filled.upsert("current", [Document(id=9, text="nine")], [NORTH], deadline=soon())
        assert [server.shelves[name].count() for name in (NAME, "new")] == [2, 1]
        await filled.assign_alias("current", NAME, deadline=soon())
        await search(filled, NORTH, name="current")
        await other.assign_alias("current", "new", deadline=soon())
        await other.drop(NAME, deadline=soon())
    with pytest.raises(Misconfigured) as raised:  # by the check of the new one, not an error of the old one
        await search(filled, NORTH, name="current")
    assert raised.value.reason == "ENCODER_MISMATCH"
    assert [one.id for one in await search(filled, NORTH, name="current", encoder=OTHER_ENCODER)] == [9]


async def test_a_switch_is_one_request(filled, server):
    """Deleting the old alias and making the new one travel together, so that no search finds neither."""
    await filled.create("new", dimension=DIMENSION, encoder=ENCODER, deadline=soon())
    await filled.assign_alias("current", NAME, deadline=soon())
    server.calls.clear()
    await filled.assign_alias("current", "new", deadline=soon())
    (request,) = [request for method, request in server.calls if method == "Collections.UpdateAliases"]
    assert [one.WhichOneof("action") for one in request.actions] == ["delete_alias", "create_alias"]


async def test_a_collection_without_an_incarnation_is_one_too(filled, server):
    """What an older gateway made is scanned as it is described, until another gateway gives its name to another one."""
    del server.shelves[NAME].config.metadata[METADATA_KEY].struct_value.fields["incarnation"]
    described = await filled.describe(NAME, deadline=soon())
    page = {"after": None, "limit": 9, "incarnation": described.incarnation, "deadline": soon()}
    assert len((await filled.scan(NAME, **page)).documents) == 2
    async with await QdrantStore.open(target(server)) as other:
        await other.drop(NAME, deadline=soon())
        await other.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
    with pytest.raises(Unavailable) as raised:
        await filled.scan(NAME, **page)
    assert raised.value.reason == "COLLECTION_REPLACED"


async def test_an_import_is_not_taken_for_what_is_remembered(filled, server):
    """What another gateway dropped is still remembered here, and an import under its name works all the same."""
    async with await QdrantStore.open(target(server)) as other:
        await other.drop(NAME, deadline=soon())
    wanted = {"dimension": DIMENSION, "encoder": ENCODER, "hidden": True, "incarnation": "i"}
    await filled.create(NAME, **wanted, deadline=soon())
    await put(filled, Document(id=1, text="one"), incarnation="i")
    revealed = await filled.reveal(NAME, incarnation="i", document_count=1, deadline=soon())
    assert revealed.document_count == 1


async def test_vectors_of_an_older_server_are_read(filled, server):
    """Where a server fills the field that was there before, a scan reads that."""

    def change(answer) -> None:
        for one in answer.result:
            numbers = list(one.vectors.vector.dense.data)
            one.vectors.vector.Clear()
            one.vectors.vector.data.extend(numbers)

    server.faults.append(altered(change))
    page = await filled.scan(NAME, after=None, limit=5, deadline=soon())
    assert [one.tolist() for one in page.vectors] == [NORTH.tolist()] * 2
