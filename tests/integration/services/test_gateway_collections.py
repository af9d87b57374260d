"""Collections over gRPC: parameters, aliases and what is refused of them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from qdrant_stand_in import stand_in
from rigs import COLLECTION, Rig, document, failure, numbers, open_rig
from store_fake import MemoryStore

from gateway.stores.edge import EdgeStore
from gateway.stores.qdrant import QdrantStore
from gateway.stores.qdrant_target import QdrantTarget
from retrieval.gateway.v1 import gateway_pb2 as pb

CODE = grpc.StatusCode
FULL = pb.CollectionParameters(
    hnsw_m=24,
    hnsw_ef_construct=200,
    on_disk=True,
    quantization=pb.QUANTIZATION_BINARY,
    shard_count=1,
    replication_factor=1,
    payload_indexes=[pb.PayloadIndex(key=f"k.{value}", type=value) for value in pb.PayloadIndexType.values() if value],
)


@pytest.fixture(params=["memory", "edge", "qdrant"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """Every store: what holds for one has to hold for the others."""
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "edge":
        async with await EdgeStore.open(tmp_path / "store", in_process=True) as edge:
            yield edge
    else:
        async with (
            stand_in() as server,
            await QdrantStore.open(QdrantTarget(host="127.0.0.1", port=server.port)) as qdrant,
        ):
            yield qdrant


async def create(rig: Rig, name: str = COLLECTION, **parameters: Any) -> pb.Collection:
    """Create a collection."""
    made = pb.CollectionParameters(**parameters)
    request = pb.CreateCollectionRequest(collection=name, parameters=made)
    return (await rig.collections.CreateCollection(request)).collection


async def described(rig: Rig, name: str = COLLECTION) -> pb.Collection:
    """Describe a collection."""
    return (await rig.collections.DescribeCollection(pb.DescribeCollectionRequest(collection=name))).collection


async def assign(rig: Rig, alias: str, name: str) -> None:
    """Point an alias at a collection."""
    await rig.collections.AssignAlias(pb.AssignAliasRequest(alias=alias, collection=name))


async def test_everything_said_at_creation_is_described(store: Any) -> None:
    """Parameters, the encoder's prefix, schema version and status are told by create and describe alike."""
    async with open_rig(store) as rig:
        request = pb.CreateCollectionRequest(collection=COLLECTION, parameters=FULL)
        made = (await rig.collections.CreateCollection(request)).collection
        for one in (made, await described(rig)):
            assert one.parameters == FULL
            assert (one.passage_prefix, one.schema_version) == ("passage: ", 1)
            assert one.status == pb.COLLECTION_STATUS_GREEN


async def test_defaults_are_filled_in() -> None:
    """What was not said is described as the documented default."""
    async with open_rig() as rig:
        assert (await create(rig)).parameters == pb.CollectionParameters(
            hnsw_m=16, hnsw_ef_construct=128, quantization=pb.QUANTIZATION_NONE, shard_count=1, replication_factor=1
        )


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"hnsw_m": 3}, "hnsw_m"),
        ({"hnsw_m": 0}, "hnsw_m"),
        ({"hnsw_ef_construct": 2_049}, "hnsw_ef_construct"),
        ({"shard_count": 0}, "shard_count"),
        ({"replication_factor": 17}, "replication_factor"),
        ({"quantization": 9}, "quantization"),
        ({"payload_indexes": [pb.PayloadIndex(key="a")]}, "payload_indexes[0].type"),
        ({"payload_indexes": [pb.PayloadIndex(key="a", type=1), pb.PayloadIndex(type=1)]}, "payload_indexes[1].key"),
        ({"payload_indexes": [pb.PayloadIndex(key='a"', type=1)]}, "payload_indexes[0].key"),
        ({"payload_indexes": [pb.PayloadIndex(key="_twostage_text", type=6)]}, "payload_indexes[0].key"),
        ({"payload_indexes": [pb.PayloadIndex(key="a", type=1), pb.PayloadIndex(key="a", type=2)]}, "payload_indexes"),
        ({"payload_indexes": [pb.PayloadIndex(key=str(one), type=1) for one in range(33)]}, "payload_indexes"),
    ],
)
async def test_parameters_out_of_range_are_named(parameters: dict[str, Any], field: str) -> None:
    """The field is named with its place, and nothing is made."""
    async with open_rig() as rig:
        failed = await failure(create(rig, **parameters))
        assert (failed.code, failed.info["field"]) == (CODE.INVALID_ARGUMENT, f"parameters.{field}")
        assert (await failure(described(rig))).code is CODE.NOT_FOUND


async def test_filters_by_date_and_words_through_the_gateway(store: Any) -> None:
    """Both conditions find the right documents in every store; without its index a word is refused."""
    async with open_rig(store) as rig:
        await create(
            rig,
            payload_indexes=[
                pb.PayloadIndex(key="at", type=pb.PAYLOAD_INDEX_TYPE_DATETIME),
                pb.PayloadIndex(key="note", type=pb.PAYLOAD_INDEX_TYPE_TEXT),
            ],
        )
        payloads = [
            {"at": "2024-05-01", "note": "The sea"},
            {"at": "2024-05-02T00:00:00+02:00"},
            {"note": ["sea", "the"]},
        ]
        stored = [document(one, "alpha", **payload) for one, payload in enumerate(payloads, 1)]
        await rig.upsert(stored)
        bounds = pb.DateRange(key="at")
        bounds.gt.FromJsonString("2024-05-01T00:00:00Z")
        bounds.lte.FromJsonString("2024-05-01T22:00:00Z")
        words = pb.TextMatch(key="note", text="SEA, the")
        for condition, expected in ((pb.Condition(date_range=bounds), [2]), (pb.Condition(text_match=words), [1, 3])):
            found = await rig.ask(rerank=pb.RERANK_OFF, filter=pb.Filter(must=[condition]))
            assert numbers(found.hits) == expected
        wrong = pb.Filter(must=[pb.Condition(text_match=pb.TextMatch(key="at", text="2024"))])
        failed = await failure(rig.ask(filter=wrong))
        assert (failed.code, failed.reason) == (CODE.INVALID_ARGUMENT, "TEXT_INDEX_REQUIRED")


async def test_a_new_generation_takes_over(store: Any) -> None:
    """Documents go through the alias to where it points; the old collection is dropped once it is not pointed at."""
    async with open_rig(store) as rig:
        for name in ("one", "two"):
            await create(rig, name)
        await assign(rig, COLLECTION, "one")
        await rig.upsert([document(1, "alpha")])
        assert ((await described(rig)).name, list((await described(rig)).aliases)) == ("one", [COLLECTION])
        await assign(rig, COLLECTION, "two")
        await rig.upsert([document(2, "alpha")])
        assert numbers((await rig.ask()).hits) == [2]
        await rig.collections.DropCollection(pb.DropCollectionRequest(collection="one"))
        refused = await failure(rig.collections.DropCollection(pb.DropCollectionRequest(collection="two")))
        assert (refused.code, refused.reason) == (CODE.FAILED_PRECONDITION, "COLLECTION_ALIASED")
        by_alias = await failure(rig.collections.DropCollection(pb.DropCollectionRequest(collection=COLLECTION)))
        assert (by_alias.code, by_alias.reason) == (CODE.INVALID_ARGUMENT, "NAME_IS_ALIAS")
        await rig.collections.DropCollection(pb.DropCollectionRequest(collection="two", drop_aliases=True))
        assert (await failure(rig.ask())).reason == "COLLECTION_NOT_FOUND"


async def test_what_is_wrong_with_an_alias_is_said(store: Any) -> None:
    """Names that are no names, names that are taken, and collections that are not there have each their status."""
    async with open_rig(store) as rig:
        await create(rig)
        await create(rig, "other")
        bad = await failure(assign(rig, ".x", COLLECTION))
        assert (bad.code, bad.info["field"]) == (CODE.INVALID_ARGUMENT, "alias")
        assert (await failure(assign(rig, "other", COLLECTION))).code is CODE.ALREADY_EXISTS
        assert (await failure(assign(rig, "a", "none"))).reason == "COLLECTION_NOT_FOUND"
        await assign(rig, "a", COLLECTION)
        assert (await failure(create(rig, "a"))).code is CODE.ALREADY_EXISTS
        await rig.collections.DeleteAlias(pb.DeleteAliasRequest(alias="a"))
        gone = await failure(rig.collections.DeleteAlias(pb.DeleteAliasRequest(alias="a")))
        assert (gone.code, gone.reason) == (CODE.NOT_FOUND, "ALIAS_NOT_FOUND")
        assert list((await described(rig)).aliases) == []


async def test_no_more_collections_are_made_than_are_allowed() -> None:
    """Creating and importing stop at the limit with the reason; after a drop there is room again."""
    async with open_rig(max_collections=2) as rig:
        for name in ("a", "b"):
            await rig.collections.CreateCollection(pb.CreateCollectionRequest(collection=name))
        create = pb.CreateCollectionRequest(collection="c")
        refused = await failure(rig.collections.CreateCollection(create))
        assert (refused.code, refused.reason) == (CODE.FAILED_PRECONDITION, "TOO_MANY_COLLECTIONS")
        header = pb.CollectionHeader(format_version=1, dimension=4, encoder=pb.ModelReference(digest="d"))
        start = pb.ImportCollectionRequest(start=pb.ImportStart(collection="c", header=header))
        assert (await failure(rig.collections.ImportCollection(iter([start])))).reason == "TOO_MANY_COLLECTIONS"
        await rig.collections.DropCollection(pb.DropCollectionRequest(collection="a"))
        await rig.collections.CreateCollection(create)
