"""What every `gateway.ports.VectorStore` does with whole collections; a test class inherits it and provides `store`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from contract.vector_store_suite import (
    CONDITIONS,
    DIMENSION,
    ENCODER,
    IDS,
    NAME,
    NORTH,
    OTHER_ENCODER,
    PAYLOADS,
    put,
    search,
    soon,
)

from gateway.filters import Condition, Filter, TextMatch
from gateway.parameters import (
    CollectionParameters,
    CollectionStatus,
    IndexKind,
    PayloadIndex,
    Quantization,
)
from gateway.ports import DenseQuery, Document, VectorStore
from gateway.transfer import importing
from serving.deadline import Deadline
from serving.errors import (
    AlreadyExists,
    DeadlineSpent,
    InferenceFailed,
    InvalidRequest,
    Misconfigured,
    NotFound,
    Unavailable,
)

ALIAS = "current"
OLD, NEW = "docs", "docs-2"
MINE, OTHER = "a1", "b2"
"""Incarnations."""
FULL = CollectionParameters(
    hnsw_m=24,
    hnsw_ef_construct=200,
    on_disk=True,
    quantization=Quantization.INT8,
    payload_indexes=tuple(PayloadIndex(key=f"k.{kind.value}", kind=kind) for kind in IndexKind),
)
INDEXED = CollectionParameters(
    payload_indexes=(
        PayloadIndex(key="lang", kind=IndexKind.KEYWORD),
        PayloadIndex(key="year", kind=IndexKind.INTEGER),
        PayloadIndex(key="score", kind=IndexKind.FLOAT),
        PayloadIndex(key="live", kind=IndexKind.BOOL),
        PayloadIndex(key="meta.owner.id", kind=IndexKind.INTEGER),
        PayloadIndex(key="at", kind=IndexKind.DATETIME),
        PayloadIndex(key="body", kind=IndexKind.TEXT),
        PayloadIndex(key="meta.note", kind=IndexKind.TEXT),
    )
)
TEXTS: dict[Any, dict[str, Any]] = {
    1: {"body": "Über den Wolken, muß die Freiheit"},
    2: {"body": "clouds_over the SEA 42"},
    3: {"body": ["the sea", "and clouds"], "meta": {"note": "seaside"}},
    4: {"body": 42, "meta": {"note": "by the sea"}},
    "none": {},
}
MATCHES: list[tuple[TextMatch, set[Any]]] = [
    (TextMatch(key="body", text="wolken über"), {1}),
    (TextMatch(key="body", text="MUß!"), {1}),
    (TextMatch(key="body", text="muss"), set()),
    (TextMatch(key="body", text="sea clouds"), {2, 3}),
    (TextMatch(key="body", text="sea"), {2, 3}),
    (TextMatch(key="body", text="se"), set()),
    (TextMatch(key="body", text="42"), {2}),
    (TextMatch(key="body", text="over-the"), {2}),
    (TextMatch(key="meta.note", text="sea"), {4}),
]

CALLS: list[Callable[[VectorStore, str], Awaitable[Any]]] = [
    lambda store, name: store.describe(name, deadline=soon()),
    lambda store, name: store.get(name, [1], deadline=soon()),
    lambda store, name: store.delete(name, [1], deadline=soon()),
    lambda store, name: store.scan(name, after=None, limit=1, deadline=soon()),
    lambda store, name: store.assign_alias("a", name, deadline=soon()),
    lambda store, name: store.upsert(name, [Document(id=1, text="a")], [NORTH], deadline=soon()),
    lambda *wanted: find(*wanted),  # noqa: PLW0108 - it is defined below
]


async def make(store: VectorStore, name: str, **changes: Any) -> Any:
    """Create a collection with the usual arguments."""
    wanted = {"dimension": DIMENSION, "encoder": ENCODER, "deadline": soon()} | changes
    return await store.create(name, **wanted)


async def find(store: VectorStore, name: str, encoder: Any = ENCODER) -> list[Any]:
    """Return the texts of the first ten documents."""
    return [one.text for one in await search(store, NORTH, name=name, encoder=encoder, limit=10)]


async def fill(store: VectorStore, name: str, text: str, *, encoder: Any = ENCODER) -> None:
    """Make a collection of ten documents that all have one text."""
    await make(store, name, encoder=encoder)
    await store.upsert(name, [Document(id=one, text=text) for one in range(10)], [NORTH] * 10, deadline=soon())


async def counted(store: VectorStore, name: str) -> int:
    """Return how many documents a collection holds."""
    return (await store.describe(name, deadline=soon())).document_count


class CollectionSuite:
    """The suite."""

    # --- parameters and filters ------------------------------------------------------------------------------------

    async def test_what_a_collection_is_made_with_is_described(self, store):
        """Parameters, prefix, version and status come back from create, describe and list."""
        made = await make(store, NAME, parameters=FULL, passage_prefix="passage: ")
        for one in (made, await store.describe(NAME, deadline=soon()), *await store.list(deadline=soon())):
            assert (one.name, one.document_count, one.parameters) == (NAME, 0, FULL)
            assert (one.passage_prefix, one.schema_version, list(one.aliases)) == ("passage: ", 1, [])
            assert (one.status, one.encoder) == (CollectionStatus.GREEN, ENCODER)

    async def test_what_is_not_said_has_its_default(self, store):
        """A collection made without parameters has the documented ones."""
        await make(store, NAME)
        described = await store.describe(NAME, deadline=soon())
        assert (described.parameters, described.passage_prefix) == (CollectionParameters(), "")

    async def test_declared_indexes_change_no_answer(self, store):
        """Every filter finds with indexes what it finds without, alone and negated."""
        await make(store, NAME, parameters=INDEXED)
        await put(store, *[Document(id=one, text="t", payload=payload) for one, payload in PAYLOADS.items()])
        for condition, expected in CONDITIONS:
            await _check(store, condition, expected, set(PAYLOADS))

    async def test_text_is_matched_by_whole_words(self, store):
        """All words have to be there, whole, whatever their case and order; elements of a list count together."""
        await make(store, NAME, parameters=INDEXED)
        await put(store, *[Document(id=one, text="t", payload=payload) for one, payload in TEXTS.items()])
        for condition, expected in MATCHES:
            await _check(store, condition, expected, set(TEXTS))

    @pytest.mark.parametrize("key", ["lang", "other", "body.part"])
    async def test_text_is_not_matched_without_its_index(self, store, key):
        """A key without a text index is refused, deep in a filter too, for stores would compare differently."""
        await make(store, NAME, parameters=INDEXED)
        await put(store, Document(id=1, text="t", payload={"lang": "de"}))
        deep = Filter(should=[Filter(must_not=[TextMatch(key=key, text="de")])])
        with pytest.raises(InvalidRequest) as raised:
            await search(store, NORTH, filter=deep)
        assert (raised.value.reason, raised.value.field) == ("TEXT_INDEX_REQUIRED", "filter")

    # --- aliases ---------------------------------------------------------------------------------------------------

    async def test_an_alias_stands_for_its_collection(self, store):
        """Everything done under the alias is done to the collection, which goes by its own name in answers."""
        await make(store, NAME)
        await store.assign_alias(ALIAS, NAME, deadline=soon())
        await store.upsert(ALIAS, [Document(id=1, text="a"), Document(id=2, text="b")], [NORTH] * 2, deadline=soon())
        await store.delete(ALIAS, [2], deadline=soon())
        described = await store.describe(ALIAS, deadline=soon())
        assert (described.name, described.document_count, list(described.aliases)) == (NAME, 1, [ALIAS])
        assert await find(store, ALIAS) == await find(store, NAME) == ["a"]
        asked = {"encoder": ENCODER, "limit": 5, "filter": None, "payload_fields": (), "deadline": soon()}
        for queries in ([DenseQuery(vector=NORTH)], [DenseQuery(vector=NORTH)] * 2):
            assert (await store.search(ALIAS, queries, **asked)).collection == NAME
        assert [one.text for one in await store.get(ALIAS, [1], deadline=soon())] == ["a"]
        page = await store.scan(ALIAS, after=None, limit=5, deadline=soon())
        assert [one.id for one in page.documents] == [1]
        listed = await store.list(deadline=soon())
        assert [(one.name, list(one.aliases)) for one in listed] == [(NAME, [ALIAS])]

    async def test_an_alias_is_pointed_elsewhere_and_deleted(self, store):
        """Assigning again moves it; deleting it leaves the collections; deleting it again is not found."""
        for name in (OLD, NEW):
            await fill(store, name, name)
        for name in (OLD, NEW, OLD):
            await store.assign_alias(ALIAS, name, deadline=soon())
            assert await find(store, ALIAS) == [name] * 10
        await store.delete_alias(ALIAS, deadline=soon())
        with pytest.raises(NotFound) as raised:
            await find(store, ALIAS)
        assert raised.value.reason == "COLLECTION_NOT_FOUND"
        with pytest.raises(NotFound) as raised:
            await store.delete_alias(ALIAS, deadline=soon())
        assert raised.value.reason == "ALIAS_NOT_FOUND"
        assert await counted(store, OLD) == await counted(store, NEW) == 10

    async def test_one_name_is_a_collection_or_an_alias(self, store):
        """No alias takes a collection's name, no collection an alias's, and no alias points at nothing or an alias."""
        await make(store, NAME)
        await make(store, NEW)
        await store.assign_alias(ALIAS, NAME, deadline=soon())
        for call in (make(store, ALIAS), store.assign_alias(NEW, NAME, deadline=soon())):
            with pytest.raises(AlreadyExists) as raised:
                await call
            assert raised.value.reason == "COLLECTION_EXISTS"
        for target in ("nothing", ALIAS):
            with pytest.raises(NotFound):
                await store.assign_alias("b", target, deadline=soon())
        assert (await store.describe(ALIAS, deadline=soon())).name == NAME

    async def test_a_collection_with_an_alias_is_not_dropped_unasked(self, store):
        """It is kept, and named with its alias; asked for, both go; an alias is no name to drop by."""
        await fill(store, NAME, "t")
        await store.assign_alias(ALIAS, NAME, deadline=soon())
        with pytest.raises(Misconfigured) as refused:
            await store.drop(NAME, deadline=soon())
        assert refused.value.reason == "COLLECTION_ALIASED"
        assert ALIAS in refused.value.message
        with pytest.raises(InvalidRequest) as wrong:
            await store.drop(ALIAS, with_aliases=True, deadline=soon())
        assert wrong.value.reason == "NAME_IS_ALIAS"
        assert await find(store, ALIAS) == ["t"] * 10
        await store.drop(NAME, with_aliases=True, deadline=soon())
        await make(store, ALIAS)
        assert [(one.name, list(one.aliases)) for one in await store.list(deadline=soon())] == [(ALIAS, [])]

    async def test_searches_during_switches_see_one_collection_whole(self, store):
        """While an alias goes to and fro, every pool is wholly of one collection, and no search fails."""
        await fill(store, OLD, "old")
        await fill(store, NEW, "new")
        await store.assign_alias(ALIAS, OLD, deadline=soon())
        pools = await _while_switching(store, lambda: find(store, ALIAS))
        assert {tuple(pool) for pool in pools} == {("old",) * 10, ("new",) * 10}

    async def test_switches_never_mix_encoders(self, store):
        """Where the collections have different encoders, a search finds its own encoder's documents or is refused."""
        await fill(store, OLD, "old")
        await fill(store, NEW, "new", encoder=OTHER_ENCODER)
        await store.assign_alias(ALIAS, OLD, deadline=soon())
        for encoder, text in ((ENCODER, "old"), (OTHER_ENCODER, "new")):
            results = await _while_switching(store, lambda encoder=encoder: find(store, ALIAS, encoder))
            pools = [one for one in results if isinstance(one, list)]
            assert pools
            assert all(one == [text] * 10 for one in pools)
            refused = [one for one in results if not isinstance(one, list)]
            assert {one.reason for one in refused} == {"ENCODER_MISMATCH"}

    async def test_a_reindex_is_not_noticed(self, store):
        """Build, switch, drop the old one, again and again: searches through the alias never fail."""
        await fill(store, "g0", "g0")
        await store.assign_alias(ALIAS, "g0", deadline=soon())
        over = asyncio.Event()
        seen: list[Any] = []

        async def keep_searching() -> None:
            while not over.is_set():
                seen.append(await find(store, ALIAS))
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(keep_searching())
            for number in range(1, 5):
                await fill(store, f"g{number}", f"g{number}")
                await store.assign_alias(ALIAS, f"g{number}", deadline=soon())
                await store.drop(f"g{number - 1}", deadline=soon())
            over.set()
        assert await find(store, ALIAS) == ["g4"] * 10
        assert all(len(pool) == 10 and len(set(pool)) == 1 for pool in seen)
        await store.drop("g4", with_aliases=True, deadline=soon())

    # --- hidden collections and scans ------------------------------------------------------------------------------

    async def test_a_hidden_collection_is_found_by_nobody(self, store):
        """It is written by its import, and neither listed nor described, searched or aliased; its name is taken."""
        await make(store, NAME, hidden=True, incarnation=MINE)
        await put(store, Document(id=1, text="a"), incarnation=MINE)
        assert await store.list(deadline=soon()) == []
        for call in CALLS:
            with pytest.raises(NotFound):
                await call(store, NAME)
        with pytest.raises(AlreadyExists):
            await make(store, NAME)
        await store.drop(NAME, deadline=soon())
        await make(store, NAME)
        assert await counted(store, NAME) == 0

    async def test_a_collection_is_revealed_with_all_its_documents_or_not(self, store):
        """Another number of documents than was written keeps it hidden; the right one shows it whole."""
        await make(store, NAME, hidden=True, incarnation=MINE, parameters=FULL, passage_prefix="p")
        await put(store, *[Document(id=one, text="t") for one in range(3)], incarnation=MINE)
        for wrong in (2, 4):
            with pytest.raises(InferenceFailed) as raised:
                await store.reveal(NAME, incarnation=MINE, document_count=wrong, deadline=soon())
            assert raised.value.reason == "COUNT_MISMATCH"
        with pytest.raises(NotFound):
            await find(store, NAME)
        revealed = await store.reveal(NAME, incarnation=MINE, document_count=3, deadline=soon())
        assert (revealed.document_count, revealed.parameters, revealed.passage_prefix) == (3, FULL, "p")
        assert revealed.incarnation == MINE
        assert await find(store, NAME) == ["t"] * 3

    async def test_an_import_touches_no_collection_but_its_own(self, store):
        """Where its collection is gone, visible, or another one by that name, it is told so and nothing changes."""
        await _lost(store)
        await fill(store, NAME, "precious")
        await _lost(store)
        await make(store, NEW)
        await store.assign_alias(ALIAS, NEW, deadline=soon())
        await _lost(store, ALIAS)
        assert await find(store, NAME) == ["precious"] * 10
        await store.drop(NAME, deadline=soon())
        await make(store, NAME, hidden=True, incarnation=OTHER)
        await _lost(store)
        await store.reveal(NAME, incarnation=OTHER, document_count=0, deadline=soon())
        await _lost(store, incarnation=OTHER)
        assert await counted(store, NAME) == await counted(store, NEW) == 0

    async def test_an_import_writes_what_was_visible_before(self, store):
        """A collection that was just dropped by others does not stand in the way of an import under its name."""
        await fill(store, NAME, "old")
        assert await find(store, NAME) == ["old"] * 10
        await store.drop(NAME, deadline=soon())
        await make(store, NAME, hidden=True, incarnation=MINE)
        await put(store, Document(id=1, text="new"), incarnation=MINE)
        await store.reveal(NAME, incarnation=MINE, document_count=1, deadline=soon())
        assert await find(store, NAME) == ["new"]

    async def test_an_import_that_is_cut_off_at_any_moment_leaves_its_name_free(self, store):
        """Cancelled before, while and after its collection is made, it leaves nothing."""

        async def start(name: str) -> None:
            wanted = {"dimension": DIMENSION, "encoder": ENCODER, "passage_prefix": "", "parameters": FULL}
            async with importing(store, name, **wanted, deadline=soon()):
                await asyncio.Event().wait()

        for turns in (1, 2, 3, 5, 8, 13, 21, 34, 55):
            name = f"cut-{turns}"
            task = asyncio.create_task(start(name))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await make(store, name)
            await store.drop(name, deadline=soon())

    async def test_a_collection_made_again_is_another_one(self, store):
        """A scan goes on in the collection that it began in, and is told where another one has its name."""
        await fill(store, NAME, "old")
        before = await store.describe(NAME, deadline=soon())
        assert before.incarnation
        one = {"limit": 3, "incarnation": before.incarnation}
        page = await store.scan(NAME, after=None, **one, deadline=soon())
        page = await store.scan(NAME, after=page.next, **one, deadline=soon())
        assert [document.text for document in page.documents] == ["old"] * 3
        await store.drop(NAME, deadline=soon())
        await fill(store, NAME, "new")
        assert (await store.describe(NAME, deadline=soon())).incarnation != before.incarnation
        with pytest.raises(Unavailable) as raised:
            await store.scan(NAME, after=page.next, **one, deadline=soon())
        assert raised.value.reason == "COLLECTION_REPLACED"

    @pytest.mark.parametrize("limit", [1, 3, 100])
    async def test_a_scan_gives_every_document_once(self, store, limit):
        """Pages of any size hold each document once, whole, with its vector; an empty collection is one empty page."""
        await make(store, NAME)
        empty = await store.scan(NAME, after=None, limit=limit, deadline=soon())
        assert (list(empty.documents), list(empty.vectors), empty.next) == ([], [], None)
        documents = [Document(id=one, text=f"t{one}", payload={"n": [str(one), None]}) for one in IDS]
        vectors = list(np.random.default_rng(5).standard_normal((len(documents), DIMENSION)).astype(np.float32))
        await store.upsert(NAME, documents, vectors, deadline=soon())
        seen = await _scanned(store, NAME, limit)
        assert {one.id: one for one, _ in seen} == {one.id: one for one in documents}
        assert len(seen) == len(documents)
        expected = {one.id: vector / np.linalg.norm(vector) for one, vector in zip(documents, vectors, strict=True)}
        for document, scanned in seen:
            assert scanned.dtype == np.float32
            assert scanned == pytest.approx(expected[document.id], abs=1e-6)

    @pytest.mark.parametrize(("count", "dimension"), [(2_000, 3), (200, 384)])
    async def test_a_vector_that_was_stored_is_stored_again_bit_for_bit(self, store, count, dimension):
        """What a scan gives and another collection is filled with comes out of that one unchanged."""
        rows = np.random.default_rng(6).standard_normal((count, dimension)).astype(np.float32)
        documents = [Document(id=one, text="t") for one in range(count)]
        for name in (OLD, NEW):
            await make(store, name, dimension=dimension)
            await store.upsert(name, documents, list(rows), deadline=soon())
            scanned = sorted(await _scanned(store, name, 500), key=lambda pair: pair[0].id)
            before, rows = rows, np.stack([vector for _, vector in scanned])
        assert rows.tobytes() == before.tobytes()

    async def test_a_spent_deadline_changes_nothing(self, store):
        """None of the methods starts work when no time is left."""
        await make(store, NAME)
        await make(store, NEW, hidden=True, incarnation=MINE)
        await store.assign_alias(ALIAS, NAME, deadline=soon())
        over = Deadline.after(-1)
        for call in (
            store.reveal(NEW, incarnation=MINE, document_count=0, deadline=over),
            store.assign_alias("b", NAME, deadline=over),
            store.delete_alias(ALIAS, deadline=over),
            store.scan(NAME, after=None, limit=1, deadline=over),
        ):
            with pytest.raises(DeadlineSpent):
                await call
        assert [(one.name, list(one.aliases)) for one in await store.list(deadline=soon())] == [(NAME, [ALIAS])]


async def _lost(store: VectorStore, name: str = NAME, incarnation: str = MINE) -> None:
    """Assert that an import finds its collection gone, whatever it does."""
    mine = {"incarnation": incarnation, "deadline": soon()}
    for call in (
        store.upsert(name, [Document(id=1, text="mine")], [NORTH], **mine),
        store.upsert(name, [], [], **mine),
        store.reveal(name, document_count=0, **mine),
        store.drop(name, **mine),
    ):
        with pytest.raises(Unavailable) as raised:
            await call
        assert raised.value.reason == "IMPORT_LOST"


async def _check(store: VectorStore, condition: Condition, expected: set[Any], everything: set[Any]) -> None:
    found = await search(store, NORTH, filter=Filter(must=[condition]))
    assert {one.id for one in found} == expected, condition
    left_out = await search(store, NORTH, filter=Filter(must_not=[condition]))
    assert {one.id for one in left_out} == everything - expected, condition


async def _scanned(store: VectorStore, name: str, limit: int) -> list[tuple[Document, Any]]:
    seen: list[tuple[Document, Any]] = []
    after = None
    while True:
        page = await store.scan(name, after=after, limit=limit, deadline=soon())
        assert len(page.documents) <= limit
        seen += zip(page.documents, page.vectors, strict=True)
        after = page.next
        if after is None:
            return seen


async def _while_switching(store: VectorStore, work: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Return what searches give while the alias goes to and fro; those refused, as their errors."""
    over, ended = asyncio.Event(), asyncio.Event()
    results: list[Any] = []

    async def keep_going() -> None:
        while not over.is_set():
            try:
                results.append(await work())
            except Misconfigured as error:
                results.append(error)
            ended.set()
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(keep_going())
        for name in (NEW, OLD) * 10:
            await store.assign_alias(ALIAS, name, deadline=soon())
            ended.clear()
            await ended.wait()  # at least one search ends in between
        over.set()
    return results
