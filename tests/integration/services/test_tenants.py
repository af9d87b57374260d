"""Tenants of one collection over real gRPC and the embedded store: every way around a scope that we could think of.

"The other's" text holds the word `betaonly`; it must neither be answered nor get as far as the reranker.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from fakes import Hang, sensible
from google.protobuf import struct_pb2
from rigs import COLLECTION, asked, document, failed_as, failure
from tenants import Client, House, id_of, open_house, own

from gateway.scopes import RULES
from retrieval.gateway.v1 import gateway_pb2 as pb

pytestmark = pytest.mark.timeout(60)
CODE = grpc.StatusCode
OTHERS = "betaonly"


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """The gateway with everybody's documents."""
    async with open_house(tmp_path) as opened:
        yield opened


def values(key: str, *texts: str) -> pb.Condition:
    """Make an any_of."""
    return pb.Condition(any_of=pb.AnyOf(key=key, values=[struct_pb2.Value(string_value=text) for text in texts]))


def nested(depth: int, inner: pb.Condition) -> pb.Filter:
    """Wrap a condition into filters."""
    for _ in range(depth - 1):
        inner = pb.Condition(filter=pb.Filter(should=[inner]))
    return pb.Filter(should=[inner])


BETA = values("tenant", "beta")
EVERY_ID = pb.Condition(has_id=pb.HasId(ids=[id_of(f"beta/{number}") for number in range(5)]))
NUMBERED = pb.Condition(range=pb.Range(key="number", gte=0))
FILTERS = {
    "none": None,
    "empty": pb.Filter(),
    "must be the other's": pb.Filter(must=[BETA]),
    "or the other's": pb.Filter(should=[BETA, values("tenant", "acme")]),
    "not one's own": pb.Filter(must_not=[values("tenant", "acme")]),
    "not what nobody is": pb.Filter(must_not=[values("tenant", "gamma")]),
    "deep within": nested(4, BETA),
    "twice not": pb.Filter(must_not=[pb.Condition(filter=pb.Filter(must_not=[BETA]))]),
    "by id": pb.Filter(should=[EVERY_ID]),
    "by number": pb.Filter(must=[NUMBERED]),
    "has a tenant": pb.Filter(must=[pb.Condition(exists=pb.Exists(key="tenant"))]),
    "has none": pb.Filter(must_not=[pb.Condition(exists=pb.Exists(key="tenant"))]),
}


@pytest.mark.parametrize("wanted", FILTERS.values(), ids=FILTERS)
async def test_no_filter_finds_anothers_documents(house: House, wanted: pb.Filter | None) -> None:
    """Whatever is asked for, hits, pool and what the reranker read are of the caller alone."""
    for streamed in (False, True):
        request = pb.SearchRequest(
            query=f"secret alpha {OTHERS}",
            collection=COLLECTION,
            filter=wanted,
            pool_size=200,
            top_k=200,
            include_pool=True,
            payload_fields=["*"],
        )
        if streamed:
            call = house.acme.search.SearchStream(pb.SearchStreamRequest(request=request), timeout=20)
            answers = [getattr(part, part.WhichOneof("part")) async for part in call]
        else:
            answers = [await house.acme.search.Search(request, timeout=20)]
        for answer in answers:
            assert {hit.id.text for hit in [*answer.hits, *answer.pool]} <= set(own("acme"))
            assert OTHERS not in str(answer)
    assert all(OTHERS not in text for text in house.passages())


LISTS = {
    "words": {"retrieval": pb.Retrieval(mode=pb.RETRIEVAL_MODE_LEXICAL)},
    "both": {"retrieval": pb.Retrieval(mode=pb.RETRIEVAL_MODE_HYBRID)},
    "other words": {"retrieval": pb.Retrieval(mode=pb.RETRIEVAL_MODE_HYBRID, alternatives=[OTHERS])},
    "passages": {"retrieval": pb.Retrieval(hypothetical_passages=[f"secret alpha {OTHERS} 1"])},
    "a list each": {
        "retrieval": pb.Retrieval(
            mode=pb.RETRIEVAL_MODE_HYBRID,
            hypothetical_passages=[f"secret alpha {OTHERS} 1"],
            hypothetical_use=pb.HYPOTHETICAL_USE_FUSE,
            depth=1_000,
        )
    },
    "groups": {"diversity": pb.Diversity(group_by="tenant", group_size=200)},
    "spread": {"diversity": pb.Diversity(mmr_lambda=0)},
    "folded": {"fold_to_parent": True},
}


@pytest.mark.parametrize("fields", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("wanted", [None, FILTERS["or the other's"], FILTERS["twice not"]], ids=["all", "or", "not"])
async def test_no_list_finds_anothers_documents(house: House, fields: dict[str, Any], wanted: pb.Filter | None) -> None:
    """The scope is laid over every list of the first stage, and what any list finds is of the caller alone."""
    asked = {"collection": COLLECTION, "filter": wanted, "pool_size": 200, "top_k": 200, "include_pool": True}
    request = pb.SearchRequest(query=f"secret alpha {OTHERS}", payload_fields=["*"], **asked, **fields)
    answer = await house.acme.search.Search(request, timeout=20)
    assert answer.hits
    assert {hit.id.text for hit in [*answer.hits, *answer.pool]} <= set(own("acme"))
    assert OTHERS not in str(answer)
    assert all(one.candidate_count <= len(own("acme")) for one in answer.provenance.lists)
    assert all(OTHERS not in text for text in house.passages())


async def test_scores_of_words_tell_nothing_of_anothers_documents(house: House) -> None:
    """How rare a word is, only the caller's documents decide: what others write moves none of its scores."""

    async def scores() -> list[tuple[str, float]]:
        request = pb.SearchRequest(
            query="secret acmeonly 3",
            collection=COLLECTION,
            pool_size=200,
            top_k=200,
            rerank=pb.RERANK_OFF,
            retrieval=pb.Retrieval(mode=pb.RETRIEVAL_MODE_LEXICAL),
        )
        hits = (await house.acme.search.Search(request, timeout=20)).hits
        return [(hit.id.text, hit.retrieval_score) for hit in hits]

    before = await scores()
    await house.operator.upsert(*(document(f"beta/m{one}", "acmeonly 3", tenant="beta") for one in range(50)))
    assert len(before) == len(own("acme"))
    assert await scores() == before


async def test_a_tenant_finds_all_of_its_own(house: House) -> None:
    """The scope takes away nothing more than others' documents, and the operator sees all of them."""
    assert sorted(await house.acme.find()) == sorted(own("acme"))
    assert sorted(await house.beta.find()) == sorted(own("beta"))
    assert len(await house.operator.find()) == 12
    assert set(await house.acme.find(pool_size=3, top_k=3)) <= set(own("acme"))
    assert len(await house.acme.find(pool_size=3, top_k=3)) == 3
    assert sorted(await house.acme.find(rerank=pb.RERANK_OFF)) == sorted(own("acme"))


async def test_ids_of_others_are_as_those_that_do_not_exist(house: House) -> None:
    """Reading and deleting them gives the same empty answer, and does nothing."""
    assert [one.id.text for one in await house.acme.get("beta/1", "acme/1", "none", "shared", 7)] == [
        "acme/1",
        "shared",
    ]
    assert await house.acme.get("beta/1") == await house.acme.get("beta/none") == []
    await house.acme.delete("beta/1", "none", 7, "shared", "acme/4")
    assert len(await house.operator.find()) == 11
    assert await house.acme.get("acme/4") == []
    assert [one.id.text for one in await house.beta.get("beta/1", "shared")] == ["beta/1", "shared"]


async def test_deleting_ids_of_others_waits_for_nobody(house: House) -> None:
    """While another's write is at work its id is as one that does not exist, and naming it holds up no other write."""
    slow = Hang()
    house.rig.encoder.always = slow
    writing = asyncio.create_task(house.beta.upsert(document("beta/1", "secret alpha betaonly again")))
    await slow.begun.wait()
    await house.acme.delete("beta/1", "beta/none")
    own = Hang()
    house.rig.encoder.always = own
    kept = asyncio.create_task(house.acme.upsert(document("acme/0", "secret alpha acmeonly again")))
    await own.begun.wait()
    waiting = asyncio.create_task(house.acme.delete("acme/0", "beta/2"))
    house.rig.encoder.always = sensible
    stored = await house.beta.upsert(document("beta/2", "secret alpha betaonly again"))
    assert stored.stored.stored_count == 1
    assert not waiting.done()
    for one in (writing, kept, waiting):
        one.cancel()
    await asyncio.gather(writing, kept, waiting, return_exceptions=True)


async def test_what_is_written_is_the_callers(house: House) -> None:
    """A document without a tenant gets the caller's; it is found by the caller and by nobody else."""
    answer = await house.acme.upsert(document("acme/new", "secret alpha acmeonly new", number=9))
    assert answer.stored.stored_count == 1
    assert "acme/new" in await house.acme.find()
    assert "acme/new" not in await house.beta.find()
    (stored,) = await house.operator.get("acme/new")
    assert dict(stored.payload) == {"tenant": "acme", "number": 9}


@pytest.mark.parametrize("overlong", [pb.OVERLONG_REJECT, pb.OVERLONG_SPLIT])
@pytest.mark.parametrize(
    ("identifier", "payload", "reason"),
    [
        ("beta/1", {}, "ID_FORBIDDEN"),
        ("beta/none", {}, "ID_FORBIDDEN"),
        (7, {}, "ID_FORBIDDEN"),
        (999, {}, "ID_FORBIDDEN"),
        ("shared", {}, "ID_FORBIDDEN"),
        ("acme/x", {"tenant": "beta"}, "DOCUMENT_FORBIDDEN"),
        ("acme/x", {"tenant": ["acme", "beta"]}, "DOCUMENT_FORBIDDEN"),
        ("acme/x", {"tenant": None}, "DOCUMENT_FORBIDDEN"),
    ],
)
async def test_nothing_is_written_over_or_as_anothers(
    house: House, identifier: int | str, payload: dict[str, Any], reason: str, overlong: Any
) -> None:
    """Ids of others, taken or free, and others' values are refused alike, before the encoder is asked."""
    encoded = len(house.rig.encoder.requests)
    good = document("acme/good", "alpha")
    bad = pb.Document(id=id_of(identifier), text="planted alpha")
    bad.payload.update(payload)
    answer = await house.acme.upsert(good, bad, overlong=overlong)
    assert (answer.failure.code, answer.failure.reason) == (CODE.PERMISSION_DENIED.value[0], reason)
    assert answer.failure.message.startswith("documents[1].")
    assert len(house.rig.encoder.requests) == encoded
    assert len(await house.operator.find()) == 12
    assert "planted" not in str(await house.operator.get("beta/1", 7, "shared"))


async def test_a_stream_of_writes_goes_on_after_a_refusal(house: House) -> None:
    """A message for a collection that is not the caller's is answered with a failure; those around it are stored."""
    sent = [
        pb.UpsertDocumentsRequest(sequence=one, collection=name, documents=[document(f"acme/s{one}", "alpha")])
        for one, name in enumerate([COLLECTION, "own-1", "none", COLLECTION])
    ]
    answers = [one async for one in house.acme.documents.UpsertDocuments(iter(sent), timeout=20)]
    assert [one.failure.reason for one in answers] == ["", "COLLECTION_FORBIDDEN", "COLLECTION_FORBIDDEN", ""]
    assert answers[1].failure == answers[2].failure


async def test_parts_of_a_split_document_are_the_callers_too(house: House) -> None:
    """Every part has the tenant, folding shows one's own parents only, and deleting takes one's own parts only."""
    text = "secret alpha " * 120
    await house.acme.upsert(document("acme/long", text), overlong=pb.OVERLONG_SPLIT)
    await house.beta.upsert(document("beta/long", text), overlong=pb.OVERLONG_SPLIT)
    request = pb.SearchRequest(query="secret alpha", collection=COLLECTION, pool_size=50, top_k=50, fold_to_parent=True)
    hits = (await house.acme.search.Search(request, timeout=20)).hits
    assert {hit.parent.text for hit in hits if hit.part} == {"acme/long"}
    assert not any("beta" in hit.id.text for hit in hits)
    parts = [f"beta/long#{number}" for number in range(1, 10)]
    assert await house.acme.get(*parts) == []
    before = len(await house.beta.get(*parts))
    assert before > 1
    await house.acme.delete("beta/long", *parts)
    assert len(await house.beta.get(*parts)) == before
    await house.acme.delete("acme/long")
    assert not any("acme/long" in one for one in await house.acme.find())


async def test_counts_and_exports_hold_ones_own_alone(house: House) -> None:
    """Describe and list count, and an export holds, what a search would find; bytes on disk are not told."""
    described = await house.acme.collections.DescribeCollection(pb.DescribeCollectionRequest(collection=COLLECTION))
    assert (described.collection.document_count, described.collection.disk_bytes) == (6, 0)
    listed = await house.acme.collections.ListCollections(pb.ListCollectionsRequest())
    assert [(one.name, one.document_count) for one in listed.collections] == [(COLLECTION, 6)]
    *_, footer = messages = await house.acme.export()
    stored = [one.document.id.text for message in messages for one in message.documents.documents]
    assert (sorted(stored), footer.footer.document_count) == (sorted(own("acme")), 6)
    assert OTHERS not in str(messages)
    whole = await house.operator.export()
    assert whole[-1].footer.document_count == 12


async def test_an_answer_that_is_too_large_is_ones_own(house: House) -> None:
    """How large others' documents are does not show: theirs would be over the limit, and the answer is not."""
    big = "secret alpha " + "x" * 60_000
    for number in range(0, 80, 40):
        await house.beta.upsert(*(document(f"beta/big{number + one}", big) for one in range(40)))
    assert len(await house.acme.find()) == 6
    assert (await failure(house.beta.find())).reason == "ANSWER_TOO_LARGE"


# --- collections ---------------------------------------------------------------------------------------------------

START = pb.ImportCollectionRequest(start=pb.ImportStart(collection="x", header=pb.CollectionHeader(format_version=1)))


def _import(name: str) -> Any:
    message = pb.ImportCollectionRequest()
    message.CopyFrom(START)
    message.start.collection = name
    return iter([message])


Call = Callable[[Client, str], Any]
CALLS: dict[str, Call] = {
    "GatewayService/Search": lambda one, name: one.search.Search(pb.SearchRequest(query="alpha", collection=name)),
    "GatewayService/SearchStream": lambda one, name: one.search.SearchStream(
        pb.SearchStreamRequest(request=pb.SearchRequest(query="alpha", collection=name))
    ),
    "DocumentService/UpsertDocuments": lambda one, name: one.upsert(document("acme/1", "alpha"), collection=name),
    "DocumentService/DeleteDocuments": lambda one, name: one.documents.DeleteDocuments(
        pb.DeleteDocumentsRequest(collection=name, ids=[id_of(1)])
    ),
    "DocumentService/GetDocuments": lambda one, name: one.documents.GetDocuments(
        pb.GetDocumentsRequest(collection=name, ids=[id_of(1)])
    ),
    "CollectionService/CreateCollection": lambda one, name: one.collections.CreateCollection(
        pb.CreateCollectionRequest(collection=name)
    ),
    "CollectionService/DescribeCollection": lambda one, name: one.collections.DescribeCollection(
        pb.DescribeCollectionRequest(collection=name)
    ),
    "CollectionService/ListCollections": lambda one, _name: one.collections.ListCollections(
        pb.ListCollectionsRequest()
    ),
    "CollectionService/DropCollection": lambda one, name: one.collections.DropCollection(
        pb.DropCollectionRequest(collection=name, drop_aliases=True)
    ),
    "CollectionService/AssignAlias": lambda one, name: one.collections.AssignAlias(
        pb.AssignAliasRequest(alias="nothing-here", collection=name)
    ),
    "CollectionService/DeleteAlias": lambda one, name: one.collections.DeleteAlias(pb.DeleteAliasRequest(alias=name)),
    "CollectionService/ExportCollection": lambda one, name: one.collections.ExportCollection(
        pb.ExportCollectionRequest(collection=name)
    ),
    "CollectionService/ImportCollection": lambda one, name: one.collections.ImportCollection(_import(name)),
}


def test_every_method_is_tried_below() -> None:
    """A new RPC has to be added to the attempts."""
    assert {f"/retrieval.gateway.v1.{name}" for name in CALLS} == set(RULES)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_no_method_is_open_to_strangers(house: House, call: Call) -> None:
    """Without a known key nothing is answered, for a collection that exists and for one that does not alike."""
    refused = [await _refusal(call, house.stranger, name) for name in (COLLECTION, "none")]
    assert refused[0] == refused[1]
    assert refused[0][:2] == (CODE.UNAUTHENTICATED, "API_KEY_INVALID")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_missing_and_forbidden_are_the_same(house: House, call: Call) -> None:
    """A caller without rights gets the same words for a collection that exists, an alias and a name that is free."""
    await house.operator.collections.AssignAlias(pb.AssignAliasRequest(alias="pointer", collection=COLLECTION))
    answers = [await _refusal(call, house.nothing, name) for name in (COLLECTION, "pointer", "none", "not a name")]
    assert answers == [answers[0]] * 4
    if call is CALLS["CollectionService/ListCollections"]:
        assert answers[0] == (CODE.OK, "", "")
        return
    assert answers[0][:2] == (CODE.PERMISSION_DENIED, "COLLECTION_FORBIDDEN")
    described = await house.operator.collections.DescribeCollection(pb.DescribeCollectionRequest(collection=COLLECTION))
    assert described.collection.document_count == 12


async def _refusal(call: Call, one: Client, name: str) -> tuple[grpc.StatusCode, str, str]:
    """Return how a call of any kind was refused; a list of collections that is empty counts as OK."""

    async def answered() -> Any:
        made = call(one, name)
        if not hasattr(made, "__aiter__"):
            return await made
        async for part in made:
            pytest.fail(f"answered {part}")
        pytest.fail("ended without a refusal")

    try:
        answer = await asked(answered)
    except grpc.aio.AioRpcError as error:
        failed = failed_as(error)
        return failed.code, failed.reason, failed.details
    if isinstance(answer, pb.UpsertDocumentsResponse):
        code = next(one for one in CODE if one.value[0] == answer.failure.code)
        return code, answer.failure.reason, answer.failure.message
    assert list(answer.collections) == []
    return CODE.OK, "", ""


async def test_managing_needs_the_right_for_every_name(house: House) -> None:
    """With rights to its own names a caller makes, fills and drops them, and cannot reach out from there."""
    collections = house.own.collections
    await collections.CreateCollection(pb.CreateCollectionRequest(collection="own-1"))
    await house.own.upsert(document(7, "mine alpha"), collection="own-1")
    for alias, name in (("own-x", COLLECTION), (COLLECTION, "own-1"), ("other", "own-1"), ("own-x", "none")):
        assign = collections.AssignAlias(pb.AssignAliasRequest(alias=alias, collection=name))
        assert (await failure(assign)).code is CODE.PERMISSION_DENIED
    await collections.AssignAlias(pb.AssignAliasRequest(alias="own-x", collection="own-1"))
    request = pb.SearchRequest(query="alpha", collection="own-x")
    assert [hit.id.number for hit in (await house.own.search.Search(request)).hits] == [7]
    listed = (await collections.ListCollections(pb.ListCollectionsRequest())).collections
    assert [(one.name, list(one.aliases)) for one in listed] == [(COLLECTION, []), ("own-1", ["own-x"])]
    for name in (COLLECTION, "acme-view"):
        assert (await failure(collections.DropCollection(pb.DropCollectionRequest(collection=name)))).code is (
            CODE.PERMISSION_DENIED
        )
    await collections.DropCollection(pb.DropCollectionRequest(collection="own-1", drop_aliases=True))


async def test_an_alias_of_others_is_not_dropped_along(house: House) -> None:
    """Dropping one's own collection with its aliases stops at an alias that one may not manage."""
    collections = house.own.collections
    await collections.CreateCollection(pb.CreateCollectionRequest(collection="own-1"))
    await house.operator.collections.AssignAlias(pb.AssignAliasRequest(alias="public", collection="own-1"))
    refused = await failure(collections.DropCollection(pb.DropCollectionRequest(collection="own-1", drop_aliases=True)))
    assert (refused.code, refused.reason) == (CODE.PERMISSION_DENIED, "ALIAS_FORBIDDEN")
    assert "public" not in refused.details
    await house.operator.collections.DropCollection(pb.DropCollectionRequest(collection="own-1", drop_aliases=True))


async def test_an_alias_lends_its_collection_and_not_its_name(house: House) -> None:
    """A right to an alias reaches the collection behind it, under the scope; its own name and others' stay unknown."""
    operator = house.operator.collections
    for alias in ("acme-view", "others-view"):
        await operator.AssignAlias(pb.AssignAliasRequest(alias=alias, collection=COLLECTION))
    assert sorted(await house.acme.find(collection="acme-view")) == sorted(own("acme"))
    await operator.CreateCollection(pb.CreateCollectionRequest(collection="hidden-name"))
    await operator.AssignAlias(pb.AssignAliasRequest(alias="acme-view", collection="hidden-name"))
    described = await house.acme.collections.DescribeCollection(pb.DescribeCollectionRequest(collection="acme-view"))
    assert (described.collection.name, list(described.collection.aliases)) == ("acme-view", ["acme-view"])
    (header, *_) = await house.acme.export("acme-view")
    assert header.header.collection == "acme-view"
    listed = (await house.acme.collections.ListCollections(pb.ListCollectionsRequest())).collections
    assert [one.name for one in listed] == ["acme-view", COLLECTION]
    assert (await failure(house.acme.find(collection="hidden-name"))).code is CODE.PERMISSION_DENIED


async def test_refusals_behind_an_alias_do_not_tell_its_collection(house: House) -> None:
    """Searches and writes that its collection cannot serve are refused under the name that was asked for."""
    (part, *_) = await house.operator.export()
    part.header.encoder.digest = "sha256:" + "f" * 64
    part.header.parameters.ClearField("lexical")
    await house.operator.collections.ImportCollection(
        iter(
            [
                pb.ImportCollectionRequest(start=pb.ImportStart(collection="hidden-name", header=part.header)),
                pb.ImportCollectionRequest(footer=pb.CollectionFooter()),
            ]
        )
    )
    for alias in ("acme-view", "own-view"):
        await house.operator.collections.AssignAlias(pb.AssignAliasRequest(alias=alias, collection="hidden-name"))
    words = pb.Retrieval(mode=pb.RETRIEVAL_MODE_LEXICAL)
    for retrieval, reason in ((words, "LEXICAL_INDEX_REQUIRED"), (pb.Retrieval(), "ENCODER_MISMATCH")):
        refused = await failure(house.acme.find(collection="acme-view", retrieval=retrieval))
        assert refused.reason == reason
        assert "collection acme-view " in refused.details
        assert "hidden-name" not in str(refused)
    answer = await house.own.upsert(document(1, "text"), collection="own-view")
    assert answer.failure.reason == "ENCODER_MISMATCH"
    assert "collection own-view " in answer.failure.message
    assert "hidden-name" not in str(answer)
