"""The store as one caller sees it, without the services in front: what they forget to check, this does."""

from collections.abc import Iterator
from typing import Any

import pytest
from fakes import DIMENSION, ENCODER_MODEL, word_vector
from store_fake import MemoryStore

from gateway.filters import AnyOf, Filter
from gateway.parameters import CollectionParameters, LexicalParameters
from gateway.ports import DenseQuery, Document, LexicalQuery, VectorStore
from gateway.scoped_store import ScopedStore
from gateway.scopes import Scope, scope_of
from serving.auth import caller
from serving.deadline import Deadline
from serving.errors import NotFound, PermissionDenied
from serving.keys import Caller

ACME = scope_of("acme", {"collections": {"c": "write"}, "documents": {"tenant": "acme"}, "id_prefix": "acme/"})
SEARCH: dict[str, Any] = {"encoder": ENCODER_MODEL, "limit": 9, "payload_fields": ("*",)}


def soon() -> Deadline:
    """A deadline that no test reaches."""
    return Deadline.after(60)


@pytest.fixture
def _acme() -> Iterator[None]:
    """Be a caller with a scope."""
    token = caller.set(Caller(name="acme", scope=ACME))
    yield
    caller.reset(token)


@pytest.fixture
async def everything() -> MemoryStore:
    """A store with a document of each of two tenants."""
    store = MemoryStore()
    words = CollectionParameters(lexical=LexicalParameters())
    await store.create("c", dimension=DIMENSION, encoder=ENCODER_MODEL, parameters=words, deadline=soon())
    await put(store, Document(id="acme/1", text="alpha", payload={"tenant": "acme"}))
    await put(store, Document(id="beta/1", text="alpha", payload={"tenant": "beta"}))
    return store


async def put(store: VectorStore, *documents: Document) -> None:
    """Store documents."""
    await store.upsert("c", documents, [word_vector(one.text) for one in documents], deadline=soon())


async def test_the_port_is_kept(everything: MemoryStore) -> None:
    """A caller without a scope, as of an open server, sees everything as it is."""
    store: VectorStore = ScopedStore(everything)
    assert store.name == everything.name
    found = await store.search("c", [DenseQuery(vector=word_vector("alpha"))], **SEARCH, filter=None, deadline=soon())
    assert [one.id for one in found.lists[0].candidates] == ["acme/1", "beta/1"]
    assert await store.describe("c", deadline=soon()) == await everything.describe("c", deadline=soon())
    assert await store.list(deadline=soon()) == await everything.list(deadline=soon())


@pytest.mark.usefixtures("_acme")
async def test_reading_is_narrowed(everything: MemoryStore) -> None:
    """Search, scan, count, get, describe and list know of one's own document alone, whatever filter is given."""
    store = ScopedStore(everything)
    for wanted in (None, Filter(should=[AnyOf(key="tenant", values=["beta", "acme"])])):
        queries = [DenseQuery(vector=word_vector("alpha")), LexicalQuery(text="alpha")]
        found = await store.search("c", queries, **SEARCH, filter=wanted, deadline=soon())
        page = await store.scan("c", after=None, limit=9, filter=wanted, deadline=soon())
        ids = [[one.id for one in found] for found in (*(one.candidates for one in found.lists), page.documents)]
        assert ids == [["acme/1"]] * 3
        assert await store.count("c", filter=wanted, deadline=soon()) == 1
    assert [one.id for one in await store.get("c", ["beta/1", "acme/1"], deadline=soon())] == ["acme/1"]
    assert (await store.describe("c", deadline=soon())).document_count == 1
    assert [one.document_count for one in await store.list(deadline=soon())] == [1]


@pytest.mark.usefixtures("_acme")
async def test_writing_is_kept_to_ones_own(everything: MemoryStore) -> None:
    """What is stored gets the tenant; another's id or value stores nothing; deleting another's deletes nothing."""
    store = ScopedStore(everything)
    await put(store, Document(id="acme/2", text="beta"))
    (stored,) = await everything.get("c", ["acme/2"], deadline=soon())
    assert stored.payload == {"tenant": "acme"}
    for wrong in (Document(id="beta/1", text="x"), Document(id="acme/3", text="x", payload={"tenant": "beta"})):
        with pytest.raises(PermissionDenied):
            await put(store, Document(id="acme/4", text="x"), wrong)
    await store.delete("c", ["beta/1", "acme/1"], deadline=soon())
    left = await everything.scan("c", after=None, limit=9, deadline=soon())
    assert [one.id for one in left.documents] == ["beta/1", "acme/2"]


@pytest.mark.usefixtures("_acme")
async def test_what_is_gone_is_named_only_to_those_who_may_know_it(everything: MemoryStore) -> None:
    """A collection that is dropped after an alias was resolved is missed without its own name."""
    store = ScopedStore(everything)
    for name, told in (("c", {"collection": "c"}), ("own-name", {})):
        if name == "c":
            await everything.drop("c", deadline=soon())
        for call in (
            store.scan(name, after=None, limit=9, deadline=soon()),
            store.count(name, deadline=soon()),
            store.upsert(name, [Document(id="acme/1", text="a")], [word_vector("a")], deadline=soon()),
            store.delete(name, ["acme/1"], deadline=soon()),
            store.get(name, ["acme/1"], deadline=soon()),
        ):
            with pytest.raises(NotFound) as raised:
                await call
            assert raised.value.metadata == told
            assert "own-name" not in raised.value.message


def test_a_scope_that_manages_some_does_not_manage_all() -> None:
    """Only the pattern for every name is everything."""
    some: Scope = scope_of("a", {"collections": {"a*": "manage", "*": "read"}})
    assert (some.manages_all, scope_of("b", {"collections": {"*": "manage"}}).manages_all) == (False, True)
