"""The embedded vector store: the contract, and what an engine in a directory adds to it."""

import asyncio
import importlib.metadata
import json
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import pytest
import qdrant_edge as edge
from bm25_by_hand import bm25
from contract.collection_suite import CollectionSuite
from contract.lexical_suite import PLAIN, LexicalSuite, check, fresh
from contract.vector_store_suite import DIMENSION, ENCODER, NAME, NORTH, VectorStoreSuite, put, search, soon, vector
from store_fake import matches

from gateway.filters import AnyOf, DateRange, Filter, Range
from gateway.parameters import CollectionParameters, IndexKind, PayloadIndex
from gateway.ports import ANSWER_TOO_LARGE, DenseQuery, Document, LexicalQuery, Model
from gateway.stores import edge_lists
from gateway.stores.edge import EdgeStore
from gateway.stores.edge_collection import EdgeCollection, engine_errors
from gateway.stores.edge_failure import EngineError
from gateway.stores.edge_indexes import MAX_INDEXES, MAX_USELESS
from gateway.stores.edge_meta import ENGINE
from gateway.stores.point_ids import ID_KEY, to_point_id
from gateway.stores.records import MAX_PAYLOAD_DEPTH, TEXT_KEY, cosine, to_candidate
from serving.deadline import Deadline
from serving.errors import (
    DeadlineSpent,
    InferenceFailed,
    InvalidRequest,
    Misconfigured,
    NotFound,
    NotReady,
    Unavailable,
)

WRITER = """
import asyncio, sys
from pathlib import Path
import numpy as np
from gateway.ports import Document, Model
from gateway.stores.edge import EdgeStore
from serving.deadline import Deadline

async def main():
    store = await EdgeStore.open(Path(sys.argv[1]), in_process=sys.argv[2] == "True")
    encoder = Model(id="m", revision="r", digest="d", precision="fp32")
    await store.create("docs", dimension=4, encoder=encoder, deadline=Deadline.after(60))
    for batch in range(1000):
        documents = [Document(id=f"{batch}/{row}", text=f"text {batch}/{row}") for row in range(7)]
        await store.upsert("docs", documents, [np.ones(4, np.float32)] * 7, deadline=Deadline.after(60))
        print(batch, flush=True)

asyncio.run(main())
"""


@pytest.fixture
async def store(tmp_path):
    """An empty store whose engine runs in this process."""
    async with await EdgeStore.open(tmp_path / "store", in_process=True, patience_s=0) as opened:
        yield opened


@pytest.fixture
async def filled(store):
    """The store with a collection of two documents."""
    await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
    await put(store, Document(id=1, text="one"), Document(id="two", text="two", payload={"a": 1}))
    return store


def shard(store: EdgeStore) -> Any:
    """The engine's handle of the collection, to write what the store itself would not."""
    return store._root.collection(NAME)._shard


def _write_and_be_killed(root: Path, *, in_process: bool) -> list[int]:
    command = [sys.executable, "-c", WRITER, str(root), str(in_process)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as writer:
        acknowledged = [int(writer.stdout.readline()) for _ in range(20)]
        writer.send_signal(signal.SIGKILL)
    return acknowledged


class TestEdgeStore(VectorStoreSuite):
    """The suite on the embedded store."""


class TestEdgeWords(LexicalSuite):
    """The suite of words and several queries on the embedded store."""


class TestEdgeWordsOnce(LexicalSuite):
    """The suite of words and several queries where each document is read once for all lists."""

    @pytest.fixture(autouse=True)
    def _many(self, monkeypatch):
        monkeypatch.setattr(edge_lists, "FEW", 0)


class TestEdgeCollections(CollectionSuite):
    """The suite of whole collections on the embedded store."""


@pytest.fixture
async def apart(tmp_path):
    """A store whose engine runs in a process of its own, with a collection of two documents."""
    async with await EdgeStore.open(tmp_path / "apart", patience_s=0) as opened:
        await opened.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
        await put(opened, Document(id=1, text="one"), Document(id="two", text="two", payload={"a": 1}))
        yield opened


async def test_a_process_of_its_own_answers_the_same(apart):
    """Across the process boundary candidates, documents, collections and times arrive as they are."""
    wanted = {"encoder": ENCODER, "limit": 5, "payload_fields": ["*"]}
    only = Filter(must=[AnyOf(key="a", values=[1])])
    found = await apart.search(NAME, [DenseQuery(vector=NORTH)], filter=only, **wanted, deadline=soon())
    assert [(one.id, one.text, one.payload) for one in found.lists[0].candidates] == [("two", "two", {"a": 1})]
    assert found.time.compute > 0
    assert [one.id for one in await search(apart, NORTH)] == [1, "two"]
    assert [one.id for one in await apart.get(NAME, ["two", 1], deadline=soon())] == ["two", 1]
    await apart.delete(NAME, [1], deadline=soon())
    assert [one.document_count for one in await apart.list(deadline=soon())] == [1]
    await apart.drop(NAME, deadline=soon())
    assert await apart.list(deadline=soon()) == []


async def test_many_candidates_of_a_document_are_one_text(apart):
    """Lists with many candidates in all bring a document across the process boundary once, each with its own score."""
    queries = [DenseQuery(vector=NORTH), DenseQuery(vector=vector(1, 1, 0, 0))]
    wanted = {"encoder": ENCODER, "limit": edge_lists.FEW, "filter": None, "payload_fields": ["*"]}
    found = await apart.search(NAME, queries, **wanted, deadline=soon())
    for one, other in zip(*(ranked.candidates for ranked in found.lists), strict=True):
        assert (one.id, one.text, one.payload) == (other.id, other.text, other.payload)
        assert one.text is other.text
        assert one.score > other.score
    assert found.time.compute == sum(ranked.compute for ranked in found.lists)


async def test_documents_of_several_lists_are_read_no_further_than_an_answer_holds(filled, monkeypatch):
    """What is too large for one is refused before all of it is read; what is not, is the same read in pieces."""
    monkeypatch.setattr(edge_lists, "FEW", 0)
    monkeypatch.setattr(edge_lists, "AT_ONCE", 1)
    wanted = {"encoder": ENCODER, "limit": 5, "filter": None, "payload_fields": ["*"]}
    queries = [DenseQuery(vector=NORTH)] * 2
    found = await filled.search(NAME, queries, **wanted, deadline=soon())
    assert [[one.text for one in ranked.candidates] for ranked in found.lists] == [["one", "two"]] * 2
    monkeypatch.setattr(edge_lists, "MAX_ANSWER_BYTES", 10)
    with pytest.raises(InferenceFailed) as raised:
        await filled.search(NAME, queries, **wanted, deadline=soon())
    assert raised.value.reason == ANSWER_TOO_LARGE


async def test_errors_cross_the_process_boundary_whole(apart):
    """Class, reason, message, field, metadata and the engine's words are what they were on the other side."""
    with pytest.raises(NotFound) as missing:
        await apart.describe("nothing", deadline=soon())
    assert (missing.value.reason, missing.value.metadata) == ("COLLECTION_NOT_FOUND", {"collection": "nothing"})
    with pytest.raises(InvalidRequest) as refused:
        await put(apart, Document(id=-1, text="a"))
    assert (refused.value.field, str(refused.value)) == (
        "documents[0].id",
        "documents[0].id: -1 is not within 0 and 2^64 - 1",
    )
    with pytest.raises(InferenceFailed) as failed:
        await put(apart, Document(id=8, text="\ud800"))
    assert isinstance(failed.value.__cause__, EngineError)
    with pytest.raises(InferenceFailed) as bug:
        await apart._call(soon(), "no such operation")
    assert "AttributeError" in str(bug.value.__cause__)


async def test_a_process_that_died_is_started_again(apart):
    """The call that finds the engine's process dead is Unavailable; the next one works and nothing is lost."""
    apart._root._process.kill()
    with pytest.raises(Unavailable) as raised:
        await apart.describe(NAME, deadline=soon())
    assert raised.value.reason == "STORE_DOWN"
    assert [one.id for one in await search(apart, NORTH)] == [1, "two"]


async def test_closing_ends_the_process(tmp_path):
    """After closing, the process is gone with exit code 0 and another may open the directory."""
    store = await EdgeStore.open(tmp_path, patience_s=0)
    process = store._root._process
    with pytest.raises(Misconfigured) as raised:
        await EdgeStore.open(tmp_path, patience_s=0)
    assert raised.value.reason == "STORE_LOCKED"
    await store.aclose()
    assert process.returncode == 0
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0):
        pass


async def test_everything_survives_reopening(tmp_path):
    """Documents, ids, payloads and the encoder are the same after closing and opening again."""
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
        await put(store, *[Document(id=one, text=f"t{one}", payload={"n": 1}) for one in (2**64 - 1, "a b")])
        before = await store.list(deadline=soon()), await search(store, NORTH, payload_fields=["*"])
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        after = await store.list(deadline=soon()), await search(store, NORTH, payload_fields=["*"])
    assert after[1] == before[1]
    assert [(one.name, one.document_count, one.encoder) for one in after[0]] == [(NAME, 2, ENCODER)]


@pytest.mark.parametrize("in_process", [True, False])
async def test_acknowledged_documents_survive_kill(tmp_path, in_process):
    """What was acknowledged before kill -9 is there afterwards, whole batches only (field failure 68)."""
    acknowledged = _write_and_be_killed(tmp_path, in_process=in_process)
    async with await EdgeStore.open(tmp_path, in_process=True) as store:
        count = (await store.describe("docs", deadline=soon())).document_count
        ids = [f"{batch}/{row}" for batch in acknowledged for row in range(7)]
        got = await store.get("docs", ids, deadline=soon())
    assert [one.text for one in got] == [f"text {one}" for one in ids]
    assert count >= len(ids)
    assert count % 7 == 0


async def test_one_process_at_a_time(store, tmp_path):
    """A second opening is refused with what to do, and works once the first has closed."""
    with pytest.raises(Misconfigured) as raised:
        await EdgeStore.open(tmp_path / "store", in_process=True, patience_s=0)
    assert raised.value.reason == "STORE_LOCKED"
    assert "stop that one" in raised.value.message
    await store.aclose()
    async with await EdgeStore.open(tmp_path / "store", in_process=True, patience_s=0) as second:
        assert await second.list(deadline=soon()) == []


async def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path):
    """A file in the place of the directory is an operator's matter."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(Misconfigured) as raised:
        await EdgeStore.open(tmp_path / "file", in_process=True)
    assert raised.value.reason == "STORE_UNWRITABLE"


async def test_leftovers_of_a_crash_are_swept(tmp_path):
    """Half-made and half-deleted collections disappear; directories that are not ours stay."""
    for name in (".making-docs", ".dropping-docs", "photos"):
        (tmp_path / name / "shard").mkdir(parents=True)
    (tmp_path / ".dropping-docs" / "collection.json").write_text("{}")
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        assert await store.list(deadline=soon()) == []
        await store.create(NAME, dimension=2, encoder=ENCODER, deadline=soon())
    assert sorted(one.name for one in tmp_path.iterdir()) == [".lock", NAME, "photos"]


async def test_dropping_leaves_nothing_behind(filled, tmp_path):
    """After a drop the directory is as if the collection had never been."""
    await filled.drop(NAME, deadline=soon())
    assert [one.name for one in (tmp_path / "store").iterdir()] == [".lock"]


async def test_what_cannot_be_dropped_goes_on(filled, tmp_path):
    """Where its directory cannot be put aside a collection is found as before, and can be dropped later."""
    in_the_way = tmp_path / "store" / f".dropping-{NAME}"
    in_the_way.write_text("no directory")
    with pytest.raises(InferenceFailed):
        await filled.drop(NAME, deadline=soon())
    assert [one.id for one in await search(filled, NORTH)] == [1, "two"]
    await put(filled, Document(id=3, text="three"))
    in_the_way.unlink()
    await filled.drop(NAME, deadline=soon())
    assert [one.name for one in (tmp_path / "store").iterdir()] == [".lock"]


async def test_a_name_is_free_where_its_collection_could_not_be_opened(store, monkeypatch):
    """A collection that cannot be opened right after it was made leaves its name free, and nothing to be found."""

    def refuse(path: Path) -> Any:
        raise Misconfigured("COLLECTION_UNREADABLE", str(path))

    for _ in range(2):  # the second time shows that what the first one left is not in the way
        with monkeypatch.context() as patch:
            patch.setattr(EdgeCollection, "load", refuse)
            with pytest.raises(Misconfigured):
                await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
    assert await store.list(deadline=soon()) == []
    await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
    await store.drop(NAME, deadline=soon())


async def test_a_foreign_meta_file_is_refused(tmp_path):
    """A collection of another schema version stops the start and names the file."""
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        await store.create(NAME, dimension=2, encoder=ENCODER, deadline=soon())
        await store.create("other", dimension=2, encoder=ENCODER, deadline=soon())
    meta = tmp_path / "other" / "collection.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"schema_version": 2}))
    for _ in range(2):  # the second time shows that the first let go of the lock and of the other collection
        with pytest.raises(Misconfigured) as raised:
            await EdgeStore.open(tmp_path, in_process=True, patience_s=0)
        assert raised.value.reason == "COLLECTION_MALFORMED"
        assert str(meta) in raised.value.message


async def test_a_broken_shard_is_refused(tmp_path):
    """A collection that the engine cannot open stops the start and says what to do."""
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        await store.create(NAME, dimension=2, encoder=ENCODER, deadline=soon())
    (tmp_path / NAME / "shard").rename(tmp_path / "gone")
    with pytest.raises(Misconfigured) as raised:
        await EdgeStore.open(tmp_path, in_process=True, patience_s=0)
    assert raised.value.reason == "COLLECTION_UNREADABLE"
    assert "index again" in raised.value.message


@pytest.mark.parametrize("name", ["", ".", "..", ".lock", "a/b", "../a", "-a", "ä", "a\n", "a" * 129])
async def test_names_that_are_no_directories_are_refused(store, name):
    """A collection's name cannot lead out of the store or into its own files."""
    with pytest.raises(InvalidRequest) as raised:
        await store.create(name, dimension=2, encoder=ENCODER, deadline=soon())
    assert raised.value.reason == "COLLECTION_NAME"


async def test_a_directory_of_someone_else_is_not_taken_over(store, tmp_path):
    """A name under which some directory lies already is taken."""
    (tmp_path / "store" / "photos").mkdir()
    with pytest.raises(Exception, match="there is a collection"):
        await store.create("photos", dimension=2, encoder=ENCODER, deadline=soon())


@pytest.mark.parametrize("stored", [{}, {TEXT_KEY: None}, {TEXT_KEY: ""}, {TEXT_KEY: " "}, {TEXT_KEY: ["a"]}, {"b": 1}])
async def test_points_without_usable_text_are_candidates_without_text(filled, stored):
    """A point that another program wrote without a text is found, and has none (field failure 33)."""
    shard(filled).update(edge.UpdateOperation.upsert_points([edge.Point(9, [0.0, 1.0, 0.0, 0.0], stored)]))
    first = (await search(filled, vector(0, 1, 0, 0), payload_fields=["*"]))[0]
    assert (first.id, first.text) == (9, None)
    assert not any(key.startswith("_twostage") for key in first.payload)
    (got,) = await filled.get(NAME, [9], deadline=soon())
    assert got.text == ""


async def test_a_text_id_is_stored_beside_its_uuid(filled):
    """The layout on disk: a UUIDv5 of our namespace, the text and the original id under our keys."""
    point_id = to_point_id("two")
    (record,) = shard(filled).retrieve([point_id], with_payload=True, with_vector=False)
    assert str(point_id) == "e7334179-3006-584a-9ba9-4242de35214b"
    assert record.payload == {"a": 1, TEXT_KEY: "two", ID_KEY: "two"}


async def test_a_stored_vector_of_nan_is_never_found(filled):
    """A vector of NaN, which the engine accepts from other programs, is not among the candidates."""
    shard(filled).update(edge.UpdateOperation.upsert_points([edge.Point(9, [float("nan")] * 4, {})]))
    assert {one.id for one in await search(filled, NORTH)} == {1, "two"}


def test_a_score_that_is_not_finite_never_leaves():
    """A score of NaN is an error; a cosine that rounding carried past 1 is 1."""
    with pytest.raises(InferenceFailed) as raised:
        to_candidate(1, float("nan"), {}, ())
    assert raised.value.reason == "SCORE_NOT_FINITE"
    assert [cosine(score) for score in (1.0000001, -1.0000001, 0.5)] == [1.0, -1.0, 0.5]


async def test_errors_of_the_engine_do_not_leak(filled):
    """Whatever the engine raises becomes InferenceFailed with a fixed message and the cause attached."""
    shard(filled).close()
    for call in (
        search(filled, NORTH),
        put(filled, Document(id=5, text="a")),
        filled.describe(NAME, deadline=soon()),
        filled.get(NAME, [1], deadline=soon()),
        filled.delete(NAME, [1], deadline=soon()),
    ):
        with pytest.raises(InferenceFailed) as raised:
            await call
        assert raised.value.message == "the vector store failed; details are in the log"
        assert "not initialized" in str(raised.value.__cause__)
    filled._root._collections.clear()


async def test_a_panic_of_the_engine_does_not_leak():
    """Rust's panics, which are no Exception, are translated; an interrupt is not."""
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(InferenceFailed), engine_errors():
        raise panic
    with pytest.raises(KeyboardInterrupt), engine_errors():
        raise KeyboardInterrupt


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, {1: 2}, 2**64, -(2**63) - 1, b"x"])
async def test_payloads_that_are_no_json_are_refused(filled, value):
    """A payload the engine would refuse or change is named, and its batch is not stored."""
    with pytest.raises(InvalidRequest) as raised:
        await put(filled, Document(id=7, text="t"), Document(id=8, text="t", payload={"a": [value]}))
    assert (raised.value.reason, raised.value.field) == ("PAYLOAD_MALFORMED", "documents[1].payload")
    assert (await filled.describe(NAME, deadline=soon())).document_count == 2


async def test_texts_that_are_no_unicode_are_refused(filled):
    """Half a surrogate pair, which cannot be written down, fails its batch and nothing else."""
    with pytest.raises(InferenceFailed):
        await put(filled, Document(id=7, text="t"), Document(id=8, text="\ud800"))
    assert (await filled.describe(NAME, deadline=soon())).document_count == 2


async def test_deep_payloads_are_refused_before_they_break_the_collection(tmp_path):
    """The deepest payload we accept can be read again after a restart; one level more is refused."""

    def nested(levels: int) -> Any:
        return {"a": nested(levels - 1)} if levels else 1

    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
        await put(store, Document(id=1, text="t", payload=nested(MAX_PAYLOAD_DEPTH)))
        with pytest.raises(InvalidRequest, match="nested deeper"):
            await put(store, Document(id=2, text="t", payload=nested(MAX_PAYLOAD_DEPTH + 1)))
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        (got,) = await store.get(NAME, [1], deadline=soon())
    assert got.payload == nested(MAX_PAYLOAD_DEPTH)


async def test_vectors_and_documents_go_in_pairs(filled):
    """An encoder that answers too few vectors stores nothing."""
    with pytest.raises(InferenceFailed) as raised:
        await put(filled, Document(id=7, text="t"), Document(id=8, text="t"), vectors=[NORTH])
    assert raised.value.reason == "VECTOR_COUNT"


async def test_an_overrun_is_answered_and_what_waits_is_never_started(filled):
    """While the engine is busy a short deadline is kept, and the late write does not happen afterwards."""
    release = threading.Event()
    blocker = filled._thread.submit(release.wait)
    with pytest.raises(DeadlineSpent) as raised:
        await filled.upsert(NAME, [Document(id=7, text="t")], [NORTH], deadline=Deadline.after(0.01))
    assert (raised.value.reason, raised.value.metadata) == ("DEADLINE_SPENT", {"stage": "upsert"})
    release.set()
    assert blocker.result()
    assert (await filled.describe(NAME, deadline=soon())).document_count == 2


async def test_an_abandoned_call_is_cancelled(filled):
    """Cancelling the caller goes through, and its call does not run afterwards."""
    release = threading.Event()
    filled._thread.submit(release.wait)
    task = asyncio.create_task(put(filled, Document(id=7, text="t")))
    await asyncio.wait([task], timeout=0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    assert (await filled.describe(NAME, deadline=soon())).document_count == 2


async def test_the_wait_for_the_thread_is_queue_time(filled):
    """Time spent waiting for the engine's thread is reported as queue, not as compute."""
    release = threading.Event()
    filled._thread.submit(release.wait)
    wanted = {"encoder": ENCODER, "limit": 1, "filter": None, "payload_fields": ()}
    task = asyncio.create_task(filled.search(NAME, [DenseQuery(vector=NORTH)], **wanted, deadline=soon()))
    await asyncio.wait([task], timeout=0)
    waiting_since = perf_counter_ns()
    await asyncio.wait([task], timeout=0.01)
    waited = perf_counter_ns() - waiting_since
    release.set()
    time = (await task).time
    assert time.queue > waited
    assert time.compute > 0


async def test_closing_finishes_what_was_accepted(tmp_path):
    """Writes under way when the store closes are done; later calls are refused; closing again is no error."""
    store = await EdgeStore.open(tmp_path, in_process=True, patience_s=0)
    await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
    writes = [asyncio.create_task(put(store, Document(id=one, text="t"))) for one in range(5)]
    await asyncio.wait(writes, timeout=0)
    await asyncio.gather(store.aclose(), *writes)
    await store.aclose()
    with pytest.raises(NotReady):
        await search(store, NORTH)
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as again:
        assert (await again.describe(NAME, deadline=soon())).document_count == 5


async def test_search_is_exact(store):
    """Every one of 40 pools out of 3,000 random vectors is the true one, after deletions and compaction too."""
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((3000, 32)).astype(np.float32)
    await store.create(NAME, dimension=32, encoder=ENCODER, deadline=soon())
    await put(store, *[Document(id=one, text="t") for one in range(3000)], vectors=list(rows))
    await store.delete(NAME, list(range(0, 3000, 2)), deadline=soon())
    kept = np.arange(1, 3000, 2)
    units = rows[kept] / np.linalg.norm(rows[kept], axis=1, keepdims=True)
    for query in rng.standard_normal((40, 32)).astype(np.float32):
        best = kept[np.argsort(-(units @ query))[:20]]
        assert [one.id for one in await search(store, query)] == best.tolist()


async def test_filters_give_the_same_answer_indexed(tmp_path):
    """In a collection large enough for payload indexes, filters find what they should, after a restart too."""
    payloads = [
        {"n": one % 50 / 2 if one % 3 else one % 50, "t": f"t{one % 7}", "l": [one % 5, "x"]}
        | {f"key {key}": "x" for key in range(40)}
        for one in range(1500)
    ]
    wanted = [
        Filter(must=[AnyOf(key="n", values=[3, 4, 5]), AnyOf(key="t", values=["t1", "t2"])]),
        Filter(must=[Range(key="n", gt=2, lte=7.5)], must_not=[AnyOf(key="l", values=[1])]),
        Filter(must=[AnyOf(key="t", values=[1])], should=[AnyOf(key="n", values=["3"])]),
    ]
    expected = [[one for one in range(1500) if matches(each, one, payloads[one])] for each in wanted]
    assert [bool(one) for one in expected] == [True, True, False]
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
        await put(store, *[Document(id=one, text="t", payload=payload) for one, payload in enumerate(payloads)])
        for _ in range(2):
            found = [await search(store, NORTH, filter=each, limit=1500) for each in wanted]
            assert [[one.id for one in pool] for pool in found] == expected
        for one in range(40):
            await search(store, NORTH, filter=Filter(must=[AnyOf(key=f"key {one}", values=["x"])]))
        assert len(shard(store).info().payload_schema) == MAX_INDEXES
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        found = [await search(store, NORTH, filter=each, limit=1500) for each in wanted]
        assert {"n", "t", "l"} <= set(shard(store).info().payload_schema)
    assert [[one.id for one in pool] for pool in found] == expected


async def test_space_of_deleted_documents_is_won_back_on_opening(tmp_path):
    """A collection emptied of most of its documents is smaller after a restart, and still right."""
    rows = np.random.default_rng(7).standard_normal((3000, 256)).astype(np.float32)
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        await store.create(NAME, dimension=256, encoder=ENCODER, deadline=soon())
        await put(store, *[Document(id=one, text="t" * 300) for one in range(3000)], vectors=list(rows))
        await store.delete(NAME, list(range(2900)), deadline=soon())
        before = (await store.describe(NAME, deadline=soon())).disk_bytes
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        described = await store.describe(NAME, deadline=soon())
        first = (await search(store, rows[2950], limit=1))[0]
    assert described.document_count == 100
    assert described.disk_bytes < before - 2_000_000
    assert (first.id, first.score) == (2950, pytest.approx(1, abs=1e-6))


async def test_disk_bytes_are_what_the_disk_gives(filled):
    """An almost empty collection takes kilobytes, although the engine's sparse files are long."""
    assert 10_000 < (await filled.describe(NAME, deadline=soon())).disk_bytes < 10_000_000


async def test_the_device_of_the_encoder_is_not_kept(store):
    """A collection belongs to a model, wherever it runs."""
    encoder = Model(id="m", revision="r", digest="d", precision="fp32", device="cuda:0")
    made = await store.create(NAME, dimension=2, encoder=encoder, deadline=soon())
    assert made.encoder == Model(id="m", revision="r", digest="d", precision="fp32")


def test_the_engine_recorded_is_the_engine_installed():
    """The version written into new collections is the one that is pinned and running (field failure 66)."""
    assert f"qdrant-edge-py {importlib.metadata.version('qdrant-edge-py')}" == ENGINE


@pytest.mark.parametrize("field", ["shard_count", "replication_factor"])
async def test_what_one_machine_cannot_keep_is_refused(store, field):
    """More shards or copies than one are no promise that a directory can keep, and nothing is made."""
    parameters = CollectionParameters(**{field: 2})
    with pytest.raises(InvalidRequest) as raised:
        await store.create(NAME, dimension=2, encoder=ENCODER, parameters=parameters, deadline=soon())
    assert (raised.value.reason, raised.value.field) == ("PARAMETER_UNSUPPORTED", f"parameters.{field}")
    assert await store.list(deadline=soon()) == []


async def test_aliases_and_parameters_survive_reopening(tmp_path):
    """Aliases, parameters, prefix and indexes are the same after closing and opening again."""
    kinds = (IndexKind.TEXT, IndexKind.KEYWORD)
    wanted = CollectionParameters(
        on_disk=True, payload_indexes=tuple(PayloadIndex(key=kind.value, kind=kind) for kind in kinds)
    )
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        await store.create(
            NAME, dimension=2, encoder=ENCODER, parameters=wanted, passage_prefix="passage: ", deadline=soon()
        )
        await store.assign_alias("current", NAME, deadline=soon())
        before = await store.describe("current", deadline=soon())
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        after = await store.describe("current", deadline=soon())
        assert set(shard(store).info().payload_schema) == {"text", "keyword"}
    assert (after.name, after.parameters, after.passage_prefix, after.aliases) == (
        NAME,
        wanted,
        "passage: ",
        ["current"],
    )
    assert (after.parameters, after.aliases) == (before.parameters, ["current"])


async def test_an_import_that_was_cut_off_is_swept(tmp_path):
    """What is still hidden when the directory is opened disappears, and its name is free."""
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, hidden=True, incarnation="i", deadline=soon())
        await put(store, Document(id=1, text="a"), incarnation="i")
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        assert not (tmp_path / NAME).exists()
        await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
        assert (await store.describe(NAME, deadline=soon())).document_count == 0


async def test_a_collection_without_an_incarnation_is_one_too(tmp_path):
    """What an older gateway made is scanned as it is described, until another one has its name."""
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
        await put(store, Document(id=1, text="a"))
    meta = tmp_path / NAME / "collection.json"
    meta.write_text(json.dumps({key: one for key, one in json.loads(meta.read_text()).items() if key != "incarnation"}))
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        described = await store.describe(NAME, deadline=soon())
        page = {"after": None, "limit": 9, "incarnation": described.incarnation, "deadline": soon()}
        assert [one.id for one in (await store.scan(NAME, **page)).documents] == [1]
        await store.drop(NAME, deadline=soon())
        await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
        with pytest.raises(Unavailable) as raised:
            await store.scan(NAME, **page)
        assert raised.value.reason == "COLLECTION_REPLACED"


async def test_foreign_aliases_are_refused_and_stale_ones_forgotten(tmp_path):
    """A file of another version stops the start and is named; an alias of a collection that is gone is none."""
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        for name in (NAME, "gone"):
            await store.create(name, dimension=2, encoder=ENCODER, deadline=soon())
            await store.assign_alias(f"of-{name}", name, deadline=soon())
    (tmp_path / "gone").rename(tmp_path.parent / f"{tmp_path.name}-gone")
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        assert [list(one.aliases) for one in await store.list(deadline=soon())] == [[f"of-{NAME}"]]
        await store.create("of-gone", dimension=2, encoder=ENCODER, deadline=soon())
    path = tmp_path / ".aliases.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 2}))
    for _ in range(2):  # the second time shows that the first let go of the lock
        with pytest.raises(Misconfigured) as raised:
            await EdgeStore.open(tmp_path, in_process=True, patience_s=0)
        assert raised.value.reason == "ALIASES_MALFORMED"
        assert str(path) in raised.value.message


async def test_dates_are_right_where_numbers_have_been_looked_for(store):
    """An index that a range of numbers has brought does not answer for dates afterwards, nor come back."""
    payloads = [{"at": f"2024-05-01T00:00:{one % 60:02d}Z" if one % 2 else one} for one in range(1200)]
    await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
    await put(store, *[Document(id=one, text="t", payload=payload) for one, payload in enumerate(payloads)])
    numbers = Filter(must=[Range(key="at", gte=1000)])
    dates = Filter(must=[DateRange(key="at", gte=datetime(2024, 5, 1, 0, 0, 30, tzinfo=UTC))])
    for wanted in (numbers, dates, numbers, dates, Filter(must=[Filter(should=[numbers, dates])]), numbers):
        expected = [one for one, payload in enumerate(payloads) if matches(wanted, one, payload)]
        assert expected
        assert [one.id for one in await search(store, NORTH, filter=wanted, limit=1200)] == expected
    assert "at" not in shard(store).info().payload_schema


@pytest.fixture
async def many(store):
    """The store with a collection large enough for payload indexes: texts that are dates, and numbers."""
    await store.create(NAME, dimension=DIMENSION, encoder=ENCODER, deadline=soon())
    payloads = [{"day": f"2024-05-{1 + one % 30:02d}", "n": one} for one in range(1200)]
    await put(store, *[Document(id=one, text="t", payload=payload) for one, payload in enumerate(payloads)])
    return store


async def test_keys_that_no_document_has_bring_nothing_and_leave_nothing(many):
    """However many keys callers make up, the key that documents have is indexed, and what is kept stays bounded."""
    since = datetime(2024, 5, 1, tzinfo=UTC)
    for one in range(20):
        keys = [f"made up {one} {key}" for key in range(60)]
        await search(many, NORTH, filter=Filter(should=[DateRange(key=key, gte=since) for key in keys]))
        await search(many, NORTH, filter=Filter(should=[AnyOf(key=key, values=["x"]) for key in keys]))
    assert shard(many).info().payload_schema == {}
    indexes = many._root.collection(NAME)._indexes
    assert max(len(kept) for kept in (indexes._kinds, indexes._dated, indexes._useless)) <= MAX_USELESS
    keys = [AnyOf(key=key, values=["2024-05-01"]) for key in ("made up", "day")]
    assert len(await search(many, NORTH, filter=Filter(should=keys), limit=50)) == 40
    assert set(shard(many).info().payload_schema) == {"day"}


async def test_a_key_is_indexed_once_a_document_has_it(many):
    """A filter that found nothing to index before a write finds it afterwards."""
    wanted = Filter(must=[AnyOf(key="new", values=["x"])])
    assert await search(many, NORTH, filter=wanted) == []
    await put(many, Document(id=5000, text="t", payload={"new": "x"}))
    assert [one.id for one in await search(many, NORTH, filter=wanted)] == [5000]
    assert set(shard(many).info().payload_schema) == {"new"}


async def test_dates_leave_an_index_of_texts_alone(many):
    """A filter of dates is right at a key whose texts are indexed, and the index stays."""
    texts = Filter(must=[AnyOf(key="day", values=["2024-05-02"])])
    dates = Filter(must=[DateRange(key="day", gte=datetime(2024, 5, 30, tzinfo=UTC))])
    for _ in range(2):
        assert [one.id for one in await search(many, NORTH, filter=texts, limit=50)] == list(range(1, 1200, 30))
        assert [one.id for one in await search(many, NORTH, filter=dates, limit=50)] == list(range(29, 1200, 30))
        assert set(shard(many).info().payload_schema) == {"day"}


async def test_a_filter_of_another_type_does_not_take_the_place_of_an_index(many):
    """Numbers looked for among texts and texts among numbers bring no index, which would bar the right one."""
    wrong = [AnyOf(key="day", values=[1]), AnyOf(key="n", values=["1"])]
    assert await search(many, NORTH, filter=Filter(should=wrong)) == []
    assert shard(many).info().payload_schema == {}
    await search(many, NORTH, filter=Filter(must=[AnyOf(key="day", values=["x"]), Range(key="n", gte=1)]))
    kinds = {path: index.data_type for path, index in shard(many).info().payload_schema.items()}
    assert kinds == {"day": edge.PayloadSchemaType.Keyword, "n": edge.PayloadSchemaType.Float}


async def test_what_was_deleted_or_replaced_no_longer_counts_as_a_word(tmp_path):
    """How rare a word is follows every write, before and after the store is opened again."""
    texts = {one: "red green" if one % 3 else "red" for one in range(1, 1500)}
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        await fresh(store)
        await put(store, *[Document(id=one, text=text) for one, text in texts.items()])
        for one in range(1, 1400):
            del texts[one]
        await store.delete(NAME, list(range(1, 1400)), deadline=soon())
        texts[1499] = texts[1498] = "blue"
        await put(store, Document(id=1499, text="blue"), Document(id=1498, text="blue"))
        expected = bm25("red green", texts, PLAIN)
        await check(store, "red green", expected, limit=200)
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        await check(store, "red green", expected, limit=200)
        assert (await store.describe(NAME, deadline=soon())).parameters.lexical == PLAIN


async def test_a_collection_of_before_has_no_words(tmp_path):
    """One whose file does not speak of words opens, is searched by vectors, and refuses queries of words."""
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        await fresh(store, None)
        await put(store, Document(id=1, text="cat"))
    path = tmp_path / NAME / "collection.json"
    meta = json.loads(path.read_text())
    del meta["parameters"]["lexical"]
    path.write_text(json.dumps(meta))
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        assert [one.id for one in await search(store, NORTH)] == [1]
        with pytest.raises(Misconfigured) as raised:
            await search(store, "cat")
    assert raised.value.reason == "LEXICAL_INDEX_REQUIRED"
    assert NAME in raised.value.message


async def test_a_query_that_is_no_unicode_is_refused(store):
    """Half a surrogate pair in a query of words fails its search and nothing else."""
    await fresh(store)
    with pytest.raises(InferenceFailed):
        await search(store, "\ud800")
    assert await search(store, "cat") == []


async def test_the_time_of_a_search_is_the_sum_of_its_lists(store):
    """One query is answered after the other; one without words takes none."""
    await fresh(store)
    await put(store, Document(id=1, text="cat"))
    queries = [LexicalQuery(text="cat"), LexicalQuery(text="!"), DenseQuery(vector=NORTH)]
    wanted = {"encoder": ENCODER, "limit": 5, "filter": None, "payload_fields": ()}
    found = await store.search(NAME, queries, **wanted, deadline=soon())
    first, none, last = [one.compute for one in found.lists]
    assert min(first, last) > none == 0
    assert found.time.compute == first + last
