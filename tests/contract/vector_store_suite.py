"""What every `gateway.ports.VectorStore` does; a test class inherits it and provides the fixture `store`."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from gateway import precisions
from gateway.filters import AnyOf, Condition, DateRange, Exists, Filter, HasId, Range
from gateway.ports import Candidate, DenseQuery, Document, LexicalQuery, ListQuery, Model, Part, VectorStore
from serving.deadline import Deadline
from serving.errors import (
    AlreadyExists,
    DeadlineSpent,
    InferenceFailed,
    InvalidRequest,
    Misconfigured,
    NotFound,
    ServiceError,
)

ENCODER = Model(id="test/encoder", revision="r1", digest="sha256:" + "a" * 64, precision="fp32")
OTHER_ENCODER = Model(id="test/other", revision="r1", digest="sha256:" + "b" * 64, precision="fp32")
DIMENSION = 4
NAME = "docs"
SOME_UUID = UUID("550e8400-e29b-41d4-a716-446655440000")
IDS = [0, 7, 9223372036854775813, 2**64 - 1, SOME_UUID, "7", "doc/1 é", "-1"]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged about forms of the encoder."""
    return [record.getMessage() for record in caplog.records if record.name == precisions.__name__]


def soon() -> Deadline:
    """A deadline that no test reaches."""
    return Deadline.after(60)


def vector(*numbers: float) -> Any:
    """A float32 vector."""
    return np.array(numbers, dtype=np.float32)


NORTH = vector(1, 0, 0, 0)
EAST = vector(0, 1, 0, 0)

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
PAYLOADS: dict[Any, dict[str, Any]] = {
    1: {
        "lang": "en",
        "year": 2020,
        "score": 3.0,
        "tags": ["a", "b"],
        "live": True,
        "meta": {"owner": {"id": 5}},
        "at": "2024-05-01",
    },
    2: {
        "lang": "de",
        "year": 2021,
        "score": 3,
        "tags": [],
        "live": False,
        "meta": {"owner": {"id": 6}},
        "at": "2024-04-30T23:59:59",
    },
    3: {"lang": "fr", "year": 2022, "score": 4.5, "tags": None, "live": 1, "meta": {"owner": None}, "at": 1714564800},
    4: {
        "year": [1999, 2021],
        "meta.owner": "dotted",
        "sizes": [0.5, 9.5],
        "at": ["never", "2024-05-01T12:00:00.000001Z"],
    },
    "text": {"lang": "en", "year": "2020", "live": "true", "at": "2024-05-01T14:00:00+02:00"},
}

CONDITIONS: list[tuple[Condition, set[Any]]] = [
    (AnyOf(key="lang", values=["en"]), {1, "text"}),
    (AnyOf(key="lang", values=["de", "fr", "nl"]), {2, 3}),
    (AnyOf(key="year", values=[2021]), {2, 4}),
    (AnyOf(key="year", values=["2020"]), {"text"}),
    (AnyOf(key="tags", values=["b", "z"]), {1}),
    (AnyOf(key="live", values=[True]), {1}),
    (AnyOf(key="live", values=[False]), {2}),
    (AnyOf(key="live", values=[1]), {3}),
    (AnyOf(key="score", values=[3]), {2}),
    (AnyOf(key="score", values=[2**63, 3]), {2}),
    (AnyOf(key="lang", values=[]), set()),
    (AnyOf(key="meta.owner.id", values=[5]), {1}),
    (AnyOf(key="meta.owner", values=["dotted"]), set()),
    (AnyOf(key="no such key", values=["x"]), set()),
    (Range(key="score", gte=3), {1, 2, 3}),
    (Range(key="score", gt=3.0), {3}),
    (Range(key="score", gte=3, lt=4.5), {1, 2}),
    (Range(key="year", lte=2020), {1, 4}),
    (Range(key="year", gt=1999, lt=2021), {1}),
    (Range(key="sizes", gt=1, lt=10), {4}),
    (Range(key="live", gte=0), {3}),
    (DateRange(key="at", gte=NOON, lte=NOON), {"text"}),
    (DateRange(key="at", gt=NOON), {4}),
    (DateRange(key="at", gte=NOON, gt=NOON - timedelta(days=1)), {4, "text"}),
    (DateRange(key="at", lt=NOON), {1, 2}),
    (DateRange(key="at", lt=NOON.replace(hour=1), gte=NOON.replace(hour=0)), {1}),
    (DateRange(key="year", gt=NOON.replace(year=1)), set()),
    (Exists(key="tags"), {1}),
    (Exists(key="lang"), {1, 2, 3, "text"}),
    (Exists(key="meta.owner"), {1, 2}),
    (HasId(ids=[2, "text", 99, "1"]), {2, "text"}),
    (HasId(ids=[]), set()),
    (Filter(), {1, 2, 3, 4, "text"}),
    (Filter(should=[AnyOf(key="lang", values=["de"]), HasId(ids=[4])]), {2, 4}),
    (Filter(must=[Exists(key="lang")], must_not=[AnyOf(key="lang", values=["en"])]), {2, 3}),
    (Filter(must=[Filter(should=[HasId(ids=[1]), HasId(ids=[2])])], must_not=[Filter(must=[HasId(ids=[2])])]), {1}),
]

CALLS_ON_A_COLLECTION: list[Callable[[VectorStore], Awaitable[Any]]] = [
    lambda store: store.describe(NAME, deadline=soon()),
    lambda store: store.drop(NAME, deadline=soon()),
    lambda store: store.upsert(NAME, [Document(id=1, text="a")], [NORTH], deadline=soon()),
    lambda store: store.upsert(NAME, [], [], deadline=soon()),
    lambda store: store.delete(NAME, [1], deadline=soon()),
    lambda store: store.get(NAME, [1], deadline=soon()),
    lambda store: search(store, NORTH),
]


async def search(store: VectorStore, query: Any, **changes: Any) -> list[Candidate]:
    """Search for the nearest documents, or those with the words of a text, with the usual arguments."""
    wanted: Any = LexicalQuery(text=query) if isinstance(query, str) else DenseQuery(vector=query)
    (found,) = await search_all(store, wanted, **changes)
    return found


async def search_all(
    store: VectorStore, *queries: ListQuery, name: str = NAME, **changes: Any
) -> list[list[Candidate]]:
    """Search with several queries and the usual arguments."""
    wanted = {"encoder": ENCODER, "limit": 20, "filter": None, "payload_fields": (), "deadline": soon()} | changes
    return [list(one.candidates) for one in (await store.search(name, queries, **wanted)).lists]


async def put(store: VectorStore, *documents: Document, vectors: Any = None, incarnation: str | None = None) -> None:
    """Store documents, by default all in one direction."""
    given = vectors or [NORTH] * len(documents)
    await store.upsert(NAME, documents, given, incarnation=incarnation, deadline=soon())


class VectorStoreSuite:
    """The suite."""

    @pytest.fixture(autouse=True)
    async def _collection(self, store):
        """Every test finds one empty collection."""
        await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())

    async def test_a_new_collection_is_empty_and_knows_its_encoder(self, store):
        """Creating a collection shows it, empty, with dimension and encoder."""
        described = await store.describe(NAME, deadline=soon())
        assert (described.name, described.document_count, described.dimension) == (NAME, 0, DIMENSION)
        assert described.encoder == ENCODER

    async def test_collections_are_listed_by_name(self, store):
        """The list names every collection once, sorted."""
        for name in ("zeta", "Alpha.1"):
            await store.create(name, dimension=2, encoder=OTHER_ENCODER, deadline=soon())
        listed = await store.list(deadline=soon())
        assert [(one.name, one.dimension) for one in listed] == [("Alpha.1", 2), (NAME, DIMENSION), ("zeta", 2)]

    async def test_a_name_is_taken_once(self, store):
        """Creating a collection again is refused and leaves the first alone."""
        await put(store, Document(id=1, text="a"))
        with pytest.raises(AlreadyExists) as raised:
            await store.create(NAME, dimension=9, encoder=OTHER_ENCODER, deadline=soon())
        assert raised.value.reason == "COLLECTION_EXISTS"
        assert (await store.describe(NAME, deadline=soon())).document_count == 1

    @pytest.mark.parametrize("call", CALLS_ON_A_COLLECTION)
    async def test_a_missing_collection_is_not_found(self, store, call):
        """Every method that names a collection reports one that does not exist (field failure 32)."""
        await store.drop(NAME, deadline=soon())
        with pytest.raises(NotFound) as raised:
            await call(store)
        assert raised.value.reason == "COLLECTION_NOT_FOUND"

    async def test_a_dropped_collection_can_be_made_again(self, store):
        """A collection made under a dropped one's name holds none of its documents."""
        await put(store, Document(id=1, text="a"))
        await store.drop(NAME, deadline=soon())
        await store.create(NAME, dimension=2, encoder=OTHER_ENCODER, deadline=soon())
        described = await store.describe(NAME, deadline=soon())
        assert (described.document_count, described.dimension, described.encoder) == (0, 2, OTHER_ENCODER)

    async def test_nearest_first_by_cosine(self, store):
        """Scores are cosines of the vectors as given, whatever their length, and order the pool."""
        documents = [Document(id=index, text=f"text {index}") for index in range(4)]
        await put(store, *documents, vectors=[vector(0, -9, 0, 0), vector(5, 5, 0, 0), vector(0, 0.01, 0, 0), NORTH])
        pool = await search(store, vector(0, 3, 0, 0))
        assert [one.id for one in pool] == [2, 1, 3, 0]
        assert [one.score for one in pool] == pytest.approx([1, 0.5**0.5, 0, -1], abs=1e-6)
        assert [one.text for one in pool] == ["text 2", "text 1", "text 3", "text 0"]

    async def test_the_pool_is_cut_at_its_size(self, store):
        """No more than `limit` candidates come back, and they are the nearest."""
        angles = np.linspace(0, 1, 30)
        documents = [Document(id=index, text="t") for index in range(30)]
        await put(store, *documents, vectors=[vector(np.cos(a), np.sin(a), 0, 0) for a in angles])
        assert [one.id for one in await search(store, NORTH, limit=5)] == [0, 1, 2, 3, 4]
        assert len(await search(store, NORTH, limit=200)) == 30

    async def test_an_empty_collection_gives_an_empty_pool(self, store):
        """Searching nothing finds nothing."""
        assert await search(store, NORTH) == []

    async def test_equal_scores_are_ordered_by_id(self, store):
        """Among equals numbers come first, then UUIDs, then text, each in order."""
        ids = ["b", UUID(int=2), 10, "a", UUID(int=1), 9, 2**63]
        await put(store, *[Document(id=one, text="t") for one in ids])
        pool = await search(store, NORTH)
        assert [one.id for one in pool] == [9, 10, 2**63, UUID(int=1), UUID(int=2), "a", "b"]

    @pytest.mark.parametrize("limit", [1, 3, 17, 40])
    async def test_a_tie_across_the_edge_of_the_pool_is_cut_by_id(self, store, limit):
        """Of many equals the smallest ids get in, in whatever order they were stored."""
        ids = np.random.default_rng(3).permutation(100).tolist()
        await put(store, *[Document(id=one, text="t") for one in ids])
        pool = await search(store, vector(1, 1, 0, 0), limit=limit)
        assert [one.id for one in pool] == list(range(limit))

    async def test_ids_come_back_as_they_were_given(self, store):
        """Numbers beyond 2^63, UUIDs and any text survive search and get unchanged (field failure 34)."""
        await put(store, *[Document(id=one, text=f"t{index}") for index, one in enumerate(IDS)])
        assert {one.id: one.text for one in await search(store, NORTH)} == {x: f"t{i}" for i, x in enumerate(IDS)}
        got = await store.get(NAME, IDS[::-1], deadline=soon())
        assert [(type(one.id), one.id) for one in got] == [(type(one), one) for one in IDS[::-1]]

    @pytest.mark.parametrize("bad", [-1, 2**64])
    async def test_numbers_that_are_no_ids_are_refused(self, store, bad):
        """An id outside the unsigned 64-bit numbers is named, and its batch is not stored (field failure 34)."""
        with pytest.raises(InvalidRequest) as raised:
            await put(store, Document(id=1, text="a"), Document(id=bad, text="b"))
        assert (raised.value.reason, raised.value.field) == ("DOCUMENT_ID_RANGE", "documents[1].id")
        assert (await store.describe(NAME, deadline=soon())).document_count == 0

    async def test_an_upsert_replaces(self, store):
        """A document stored again has its new vector, text and payload, and only those."""
        await put(store, Document(id="x", text="old", payload={"a": 1, "b": 2}), Document(id=2, text="other"))
        await put(store, Document(id="x", text="new", payload={"b": 3}), vectors=[EAST])
        assert (await store.describe(NAME, deadline=soon())).document_count == 2
        first = (await search(store, EAST, payload_fields=["*"]))[0]
        assert (first.id, first.text, first.payload) == ("x", "new", {"b": 3})
        assert first.score == pytest.approx(1, abs=1e-6)

    async def test_the_later_of_two_with_one_id_stays(self, store):
        """Where a batch names an id twice, the later document is stored."""
        await put(store, Document(id=1, text="first"), Document(id=1, text="second"))
        assert [one.text for one in await store.get(NAME, [1], deadline=soon())] == ["second"]

    @pytest.mark.parametrize(
        ("bad", "error", "reason"),
        [
            (vector(1, 2, 3), Misconfigured, "VECTOR_SIZE_MISMATCH"),
            (vector(1, 2, 3, 4, 5), Misconfigured, "VECTOR_SIZE_MISMATCH"),
            (vector(1, np.nan, 0, 0), InferenceFailed, "VECTOR_NOT_FINITE"),
            (vector(np.inf, 0, 0, 0), InferenceFailed, "VECTOR_NOT_FINITE"),
            (vector(0, 0, 0, 0), InferenceFailed, "VECTOR_ZERO"),
        ],
    )
    async def test_a_bad_vector_is_neither_stored_nor_searched(self, store, bad, error, reason):
        """One bad vector refuses its whole batch, and a search (field failures 67 and 68)."""
        await put(store, Document(id=5, text="before"))
        with pytest.raises(error) as raised:
            await put(store, *[Document(id=one, text="t") for one in (1, 2, 5)], vectors=[NORTH, bad, EAST])
        assert raised.value.reason == reason
        assert [(one.id, one.text) for one in await search(store, NORTH)] == [(5, "before")]
        with pytest.raises(error) as raised:
            await search(store, bad)
        assert raised.value.reason == reason

    @pytest.mark.parametrize("scale", [1e-30, 1e30])
    async def test_the_length_of_a_vector_does_not_matter(self, store, scale):
        """Vectors whose squares leave float32 still have a direction."""
        await put(store, Document(id=1, text="a"), Document(id=2, text="b"), vectors=[EAST * np.float32(scale), NORTH])
        pool = await search(store, vector(1, 3, 0, 0) * np.float32(scale))
        assert [one.id for one in pool] == [1, 2]
        assert [one.score for one in pool] == pytest.approx([3 / 10**0.5, 1 / 10**0.5], abs=1e-6)

    async def test_another_encoder_is_refused(self, store):
        """A query vector from another encoder is not compared, and the message names both."""
        with pytest.raises(Misconfigured) as raised:
            await search(store, NORTH, encoder=OTHER_ENCODER)
        assert raised.value.reason == "ENCODER_MISMATCH"
        assert ENCODER.digest[:19] in raised.value.message
        assert OTHER_ENCODER.digest[:19] in raised.value.message

    async def test_another_form_of_the_encoder_is_searched_and_said_once(self, store, caplog):
        """The same bundle in int8 finds what fp32 made, with one line in the log for collection and form."""
        precisions._warn.cache_clear()
        await put(store, Document(id=1, text="a"), vectors=[NORTH])
        await search(store, NORTH)
        assert said(caplog) == []
        for _ in range(2):
            assert [one.id for one in await search(store, NORTH, encoder=replace(ENCODER, precision="int8"))] == [1]
        (line,) = said(caplog)
        assert NAME in line
        assert "made with the encoder in fp32, which now runs in int8" in line

    async def test_filters_mean_what_the_port_says(self, store):
        """Each kind of condition lets exactly the right documents through, alone and negated."""
        await put(store, *[Document(id=one, text="t", payload=payload) for one, payload in PAYLOADS.items()])
        for condition, expected in CONDITIONS:
            found = await search(store, NORTH, filter=Filter(must=[condition]))
            assert {one.id for one in found} == expected, condition
            left_out = await search(store, NORTH, filter=Filter(must_not=[condition]))
            assert {one.id for one in left_out} == PAYLOADS.keys() - expected, condition

    async def test_a_filter_does_not_shrink_the_pool(self, store):
        """The pool is filled from the documents that match, however far they are."""
        near = [Document(id=one, text="t", payload={"far": False}) for one in range(50)]
        far = [Document(id=one, text="t", payload={"far": True}) for one in range(50, 60)]
        await put(store, *near, *far, vectors=[NORTH] * 50 + [vector(1, 9, 0, 0)] * 10)
        pool = await search(store, NORTH, limit=5, filter=Filter(must=[AnyOf(key="far", values=[True])]))
        assert [one.id for one in pool] == [50, 51, 52, 53, 54]

    async def test_only_the_payload_asked_for_comes_back(self, store):
        """Payload fields are whole top-level keys, taken literally, and never ours."""
        payload = {"a": 1, 'q"q': 2, "x.y": 3, "x": {"y": 4}}
        await put(store, Document(id="id", text="t", payload=payload))
        for fields, expected in (
            ((), {}),
            (("a",), {"a": 1}),
            (("a", "no such key", 'q"q', "_twostage_text"), {"a": 1, 'q"q': 2}),
            (("x.y",), {"x.y": 3}),
            (("x",), {"x": {"y": 4}}),
            (("*",), payload),
        ):
            found = (await search(store, NORTH, payload_fields=fields))[0]
            assert (found.id, found.text, found.payload) == ("id", "t", expected)

    async def test_payloads_keep_their_types(self, store):
        """Whole numbers stay whole, others stay fractions, and nothing else changes either."""
        payload = {
            "i": 3,
            "f": 3.0,
            "big": 2**53 + 1,
            "n": None,
            "t": True,
            "l": [1, "a", [], {}],
            "o": {"": {"é": ""}},
        }
        await put(store, Document(id=1, text="a", payload=payload))
        (got,) = await store.get(NAME, [1], deadline=soon())
        assert got.payload == payload
        assert [type(got.payload[key]) for key in ("i", "f", "t")] == [int, float, bool]

    @pytest.mark.parametrize("parent", [2**64 - 1, UUID(int=7), "text:7", "7"])
    async def test_what_a_document_is_a_part_of_comes_back(self, store, parent):
        """Part and parent are read and found as they were stored, whatever kind of id the parent has."""
        part = Part(parent=parent, number=2, count=3)
        await put(store, Document(id="x#2", text="a", payload={"k": 1}, part=part), Document(id=1, text="b"))
        got = await store.get(NAME, ["x#2", 1], deadline=soon())
        assert [(one.id, one.part, dict(one.payload)) for one in got] == [("x#2", part, {"k": 1}), (1, None, {})]
        for payload_fields in ((), ("k",), ("*",)):
            found = await search(store, NORTH, payload_fields=payload_fields)
            assert {one.id: one.part for one in found} == {"x#2": part, 1: None}

    async def test_reserved_payload_keys_are_refused(self, store):
        """A payload cannot pass for our own keys."""
        with pytest.raises(InvalidRequest) as raised:
            await put(store, Document(id=1, text="a", payload={"_twostage_id": "b"}))
        assert raised.value.field == "documents[0].payload"

    @pytest.mark.parametrize("text", ["", " \n\t", "\u3000"])
    async def test_a_blank_text_is_no_text(self, store, text):
        """A document without visible text has none as a candidate and an empty one when read (field failure 33)."""
        await put(store, Document(id=1, text=text))
        assert [one.text for one in await search(store, NORTH)] == [None]
        assert [one.text for one in await store.get(NAME, [1], deadline=soon())] == [""]

    async def test_deleting_removes_what_is_there(self, store):
        """Deleted documents are gone, and unknown ids are no error."""
        await put(store, *[Document(id=one, text="t") for one in IDS])
        await store.delete(NAME, ["7", SOME_UUID, 0, "unknown", 12345], deadline=soon())
        left = [one for one in IDS if one not in ("7", SOME_UUID, 0)]
        assert {one.id for one in await search(store, NORTH)} == set(left)
        assert (await store.describe(NAME, deadline=soon())).document_count == len(left)

    async def test_get_keeps_the_order_and_leaves_out_the_missing(self, store):
        """Documents are returned in the order asked for; unknown ids are skipped."""
        await put(store, *[Document(id=one, text=str(one), payload={"n": one}) for one in range(5)])
        got = await store.get(NAME, [3, 99, 0, "x", 4], deadline=soon())
        assert [(one.id, one.text, one.payload) for one in got] == [(n, str(n), {"n": n}) for n in (3, 0, 4)]

    async def test_a_filter_holds_for_scans_and_counts(self, store):
        """Page by page and by number, only what the filter lets through is there, as in a search."""
        tenants = ["acme", "beta", ["beta", "acme"], None, "acme"] * 5
        await put(store, *[Document(id=one, text="t", payload={"tenant": who}) for one, who in enumerate(tenants)])
        acme = Filter(must=[AnyOf(key="tenant", values=["acme"])])
        seen, after = [], None
        while True:
            page = await store.scan(NAME, after=after, limit=4, filter=acme, deadline=soon())
            seen += [one.id for one in page.documents]
            after = page.next
            if after is None:
                break
        assert seen == [one for one in range(25) if one % 5 in (0, 2, 4)]
        assert await store.count(NAME, filter=acme, deadline=soon()) == 15
        assert await store.count(NAME, deadline=soon()) == 25
        assert {one.id for one in await search(store, NORTH, filter=acme, limit=50)} == set(seen)

    async def test_a_spent_deadline_does_nothing(self, store):
        """No method starts work when no time is left."""
        await put(store, Document(id=2, text="a"))
        over = Deadline.after(-1)
        for call in (
            store.list(deadline=over),
            store.describe(NAME, deadline=over),
            store.create("b", dimension=1, encoder=ENCODER, deadline=over),
            store.drop(NAME, deadline=over),
            store.upsert(NAME, [Document(id=1, text="a")], [NORTH], deadline=over),
            store.delete(NAME, [2], deadline=over),
            store.get(NAME, [2], deadline=over),
            search(store, NORTH, deadline=over),
        ):
            with pytest.raises(DeadlineSpent):
                await call
        assert [(one.name, one.document_count) for one in await store.list(deadline=soon())] == [(NAME, 1)]

    async def test_times_are_whole_nanoseconds(self, store):
        """The server's times are integers and not negative."""
        await put(store, Document(id=1, text="a"))
        wanted = {"encoder": ENCODER, "limit": 1, "filter": None, "payload_fields": ()}
        found = await store.search(NAME, [DenseQuery(vector=NORTH)] * 2, **wanted, deadline=soon())
        times = found.time
        assert all(isinstance(one.compute, int) and 0 <= one.compute <= times.compute for one in found.lists)
        assert all(isinstance(one, int) and one >= 0 for one in (times.queue, times.tokenize, times.compute))

    async def test_everything_at_once(self, store):
        """Searches, writes and a drop side by side give right answers or NotFound, and nothing else."""
        await put(store, *[Document(id=one, text="t") for one in range(30)])
        batch = [Document(id=one, text="t") for one in range(100, 164)]
        calls: list[Any] = []
        for _ in range(10):
            calls += [search(store, NORTH, limit=5), put(store, *batch), search(store, NORTH, limit=200)]
        calls.insert(20, store.drop(NAME, deadline=soon()))
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(one) for one in results if isinstance(one, BaseException)} <= {NotFound}
        pools = [one for one in results if isinstance(one, list)]
        assert {len(one) for one in pools} <= {5, 30, 94}
        assert all([one.id for one in pool][:5] == [0, 1, 2, 3, 4] for pool in pools)
        assert all(isinstance(one, ServiceError) or not isinstance(one, BaseException) for one in results)
