"""Searches over gRPC with healthy backends: the answer, its order, its size, and where its time went.

Numbers in brackets are those of field failures.
"""

from typing import Any
from uuid import UUID

import grpc
import pytest
from fakes import ENCODER_MODEL, altered, status, word_vector
from google.protobuf.duration_pb2 import Duration
from rigs import COLLECTION, Rig, document, failure, numbers, open_rig, request, stream_failure
from store_fake import MemoryStore

from gateway.convert import struct_of
from gateway.ports import Document, DocumentId, VectorStore
from gateway.stores.edge import EdgeStore
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.deadline import Deadline

CODE = grpc.StatusCode
TEXT_ID = "0b5f2a6e-9f1c-4d21-8a77-3f0c5e6a1b2d"
STAGES = ("encode", "search", "rerank")
PARTS = ("network", "queue", "tokenize", "compute")
"""Of a stage whose calls were all answered."""


@pytest.fixture(params=["memory", "edge"])
async def store(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """Both stores: what holds for the one has to hold for the other."""
    if request.param == "memory":
        yield MemoryStore()
        return
    async with await EdgeStore.open(tmp_path / "store", in_process=True) as edge:
        yield edge


async def put(store: VectorStore, *documents: tuple[DocumentId, str]) -> None:
    """Store texts past the gateway and its checks."""
    deadline = Deadline.after(60)
    await store.create(COLLECTION, dimension=16, encoder=ENCODER_MODEL, deadline=deadline)
    records = [Document(id=identifier, text=text) for identifier, text in documents]
    await store.upsert(COLLECTION, records, [word_vector(record.text) for record in records], deadline=deadline)


async def test_a_search_goes_through_both_stages(store: VectorStore) -> None:
    """The reranker's order wins, both ranks and scores are told, and the provenance names both models."""
    async with open_rig(store) as rig:
        await rig.fill("alpha", "alpha beta", "gamma delta")
        rig.reranker.logits = {"alpha": -3.0, "alpha beta": 4.0, "gamma delta": 0.5}
        answer = await rig.ask("alpha", include_pool=True)
        assert numbers(answer.hits) == [2, 3, 1]
        assert numbers(answer.pool) == [1, 2, 3]
        assert [(hit.retrieval_rank, hit.rerank_rank, hit.logit) for hit in answer.hits] == [
            (2, 1, 4.0),
            (3, 2, 0.5),
            (1, 3, -3.0),
        ]
        assert [hit.text for hit in answer.hits] == ["alpha beta", "gamma delta", "alpha"]
        scores = [hit.retrieval_score for hit in answer.pool]
        assert scores == sorted(scores, reverse=True)
        assert scores[0] == pytest.approx(1, abs=1e-6)
        (dense,) = answer.provenance.lists
        assert (dense.name, dense.candidate_count) == ("dense", 3)
        del answer.provenance.lists[:]
        assert answer.provenance == pb.Provenance(
            encoder=pb.ModelReference(
                id="fake-encoder", revision="1", digest=ENCODER_MODEL.digest, precision="fp32", device="cpu"
            ),
            reranker=pb.ModelReference(
                id="fake-reranker", revision="2", digest=rig.reranker.model.digest, precision="fp32", device="cpu"
            ),
            collection=COLLECTION,
            store=store.name,
        )
        assert not answer.HasField("degradation")


async def test_a_stream_gives_the_pool_and_then_what_search_gives() -> None:
    """The first part is the answer under RERANK_OFF, the last the answer of Search, degradation included."""
    async with open_rig() as rig:
        await rig.fill("alpha", "alpha beta", "gamma delta")
        rig.reranker.logits = {"alpha": -3.0, "alpha beta": 4.0}
        message = pb.SearchStreamRequest(request=request(include_pool=True))
        first, last = [part async for part in rig.search.SearchStream(message)]
        off, whole = await rig.ask(include_pool=True, rerank=pb.RERANK_OFF), await rig.ask(include_pool=True)
        assert first.retrieved.timings.rerank.total == Duration()
        for answer in (first.retrieved, last.final, off, whole):
            answer.ClearField("timings")
        assert first.retrieved == off
        assert last.final == whole
        assert not off.provenance.HasField("reranker")


async def test_both_parts_of_a_stream_count_documents_without_text() -> None:
    """What Search says under RERANK_OFF about missing text, the stream's first part says too (33)."""
    store = MemoryStore()
    await put(store, (1, "alpha"), (2, "  "))
    async with open_rig(store) as rig:
        parts = [part async for part in rig.search.SearchStream(pb.SearchStreamRequest(request=request()))]
        off = await rig.ask(rerank=pb.RERANK_OFF)
        degradations = [parts[0].retrieved.degradation, parts[1].final.degradation, off.degradation]
        assert [one.text_missing_count for one in degradations] == [1, 1, 1]
        assert [hit.text_missing for hit in parts[0].retrieved.hits] == [False, True]


async def test_documents_without_text_come_last_and_flagged(store: VectorStore) -> None:
    """Points whose stored text is blank are not scored, stand behind the scored ones, and the call is OK (33)."""
    await put(store, (1, " "), (2, "alpha"), (3, "\n"), (4, "alpha beta"))
    async with open_rig(store) as rig:
        answer = await rig.ask()
        assert numbers(answer.hits)[:2] == [2, 4]
        assert sorted(numbers(answer.hits)[2:]) == [1, 3]
        assert [hit.text_missing for hit in answer.hits] == [False, False, True, True]
        assert not any(hit.HasField("logit") or hit.HasField("text") for hit in answer.hits[2:])
        assert answer.degradation == pb.Degradation(text_missing_count=2)
        assert len(rig.reranker.requests[0].candidates) == 2


async def test_ids_come_back_exactly(store: VectorStore) -> None:
    """A number beyond 2^63, a UUID and any text pass through store and search unchanged (field failure 34)."""
    async with open_rig(store) as rig:
        await rig.fill()
        ids = [9_223_372_036_854_775_813, 2**64 - 1, 0, TEXT_ID.upper(), "12", "\u718a / text", "x" * 512]
        stored = await rig.upsert([document(one, "alpha") for one in ids])
        assert stored.stored.stored_count == len(ids)
        answer = await rig.ask(top_k=7)
        texts = sorted(["12", "\u718a / text", "x" * 512])
        assert [_plain(hit.id) for hit in answer.hits] == [0, *sorted(ids[:2]), TEXT_ID, *texts]
        wanted = [pb.DocumentId(number=ids[0]), pb.DocumentId(text=TEXT_ID), pb.DocumentId(text="12")]
        got = await rig.documents.GetDocuments(pb.GetDocumentsRequest(collection=COLLECTION, ids=wanted))
        assert [one.id for one in got.documents] == wanted


def _plain(identifier: pb.DocumentId) -> int | str:
    return identifier.number if identifier.HasField("number") else identifier.text


async def test_a_passage_over_every_limit_is_scored_and_marked(store: VectorStore) -> None:
    """A stored passage of 70,000 characters is cut before it is sent, scored, and says so (field failure 27)."""
    long = "alpha \u718a" * 8_750
    await put(store, (1, "alpha"), (2, long))
    async with open_rig(store) as rig:
        answer = await rig.ask(include_text=False)
        assert {hit.id.number: hit.truncated for hit in answer.hits} == {1: False, 2: True}
        assert all(hit.HasField("logit") for hit in answer.hits)
        sent = next(one.text for one in rig.reranker.requests[0].candidates if len(one.text) > 10)
        assert len(sent.encode()) <= 65_536
        assert long.startswith(sent)


async def test_what_was_asked_of_the_reranker() -> None:
    """The reranker gets query and texts as they are, in retrieval order, and is told to cut and skip."""
    async with open_rig() as rig:
        await rig.fill("alpha", "alpha beta")
        await rig.ask("alpha")
        (asked,) = rig.reranker.requests
        assert (asked.query, [one.text for one in asked.candidates]) == ("alpha", ["alpha", "alpha beta"])
        assert asked.skip_blank
        assert not asked.HasField("top_n")


async def test_filters_reach_the_store(store: VectorStore) -> None:
    """Each kind of condition selects what it says, over the wire and through the store."""
    async with open_rig(store) as rig:
        await rig.fill()
        await rig.upsert(
            [
                document(1, "alpha", lang="de", year=2020, tags=["a", "b"], deep={"k": True}),
                document(2, "alpha", lang="fr", year=2021.5),
                document(3, "alpha", lang="de", year=2022),
            ]
        )
        german = pb.Condition(any_of=pb.AnyOf(key="lang", values=struct_of({"v": "de"}).fields.values()))
        cases = {
            (1, 3): pb.Filter(must=[german]),
            (2,): pb.Filter(must_not=[german]),
            (2, 3): pb.Filter(must=[pb.Condition(range=pb.Range(key="year", gt=2020))]),
            (1,): pb.Filter(must=[pb.Condition(exists=pb.Exists(key="deep.k"))]),
            (3,): pb.Filter(
                must=[german, pb.Condition(any_of=pb.AnyOf(key="year", values=struct_of({"v": 2022}).fields.values()))]
            ),
            (1, 2): pb.Filter(
                should=[
                    pb.Condition(has_id=pb.HasId(ids=[pb.DocumentId(number=2)])),
                    pb.Condition(filter=pb.Filter(must=[pb.Condition(exists=pb.Exists(key="tags"))])),
                ]
            ),
            (): pb.Filter(must=[pb.Condition(exists=pb.Exists(key="none"))]),
        }
        for wanted, chosen in cases.items():
            assert sorted(numbers((await rig.ask(filter=chosen)).hits)) == list(wanted)


async def test_nothing_found_is_an_empty_answer(store: VectorStore) -> None:
    """An empty collection gives an OK answer without hits, and the reranker is not asked."""
    async with open_rig(store) as rig:
        await rig.fill()
        answer = await rig.ask(include_pool=True)
        assert (len(answer.hits), len(answer.pool)) == (0, 0)
        assert not rig.reranker.requests
        assert answer.provenance.encoder.id


async def test_payload_comes_back_as_it_was_stored(store: VectorStore) -> None:
    """Only the keys asked for, numbers as numbers, and nothing of the store's own keys."""
    payload = {"n": 3, "f": 1.5, "t": True, "s": "x", "l": [1, "a", None], "o": {"k": 7}}
    async with open_rig(store) as rig:
        await rig.fill()
        await rig.upsert([document("text id", "alpha", **payload)])
        (every,) = (await rig.ask(payload_fields=["*"])).hits
        (some,) = (await rig.ask(payload_fields=["n", "absent"])).hits
        (none,) = (await rig.ask()).hits
        assert every.payload == struct_of(payload)
        assert some.payload == struct_of({"n": 3})
        assert not none.HasField("payload")
        key = pb.DocumentId(text="text id")
        got = await rig.documents.GetDocuments(pb.GetDocumentsRequest(collection=COLLECTION, ids=[key]))
        assert got.documents[0].payload == struct_of(payload)


async def test_an_answer_too_large_is_said_before_the_expensive_stage() -> None:
    """Where hits or pool may exceed what clients accept, the caller is told at once what to do (field failure 14)."""
    async with open_rig() as rig:
        await rig.fill()
        for batch in range(4):
            await rig.upsert([document(batch * 25 + one, "alpha" + "x" * 60_000) for one in range(25)])
        failed = await failure(rig.ask(pool_size=100, top_k=100))
        assert (failed.code, failed.reason) == (CODE.INVALID_ARGUMENT, "ANSWER_TOO_LARGE")
        with_pool = await failure(rig.ask(pool_size=100, include_pool=True))
        assert with_pool.reason == "ANSWER_TOO_LARGE"
        streamed = rig.search.SearchStream(pb.SearchStreamRequest(request=request(pool_size=100, include_pool=True)))
        parts, _ = await stream_failure(streamed)
        assert not parts
        assert not rig.reranker.requests
        small = await rig.ask(pool_size=100, top_k=100, include_text=False, include_pool=True)
        assert (len(small.hits), len(small.pool)) == (100, 100)
        assert len((await rig.ask(pool_size=100, top_k=50)).hits) == 50


async def test_payload_counts_towards_the_size_of_an_answer() -> None:
    """Without texts the largest payloads are what is measured, wherever they stand in the pool (14)."""
    async with open_rig() as rig:
        await rig.fill()
        await rig.upsert([document(one, "alpha" + "x" * 65_000) for one in range(100)])
        await rig.upsert([document(1_000 + one, "alpha", big="y" * 60_000) for one in range(100)])
        failed = await failure(rig.ask(pool_size=200, top_k=100, include_text=False, payload_fields=["big"]))
        assert failed.reason == "ANSWER_TOO_LARGE"


def nanoseconds(duration: Duration) -> int:
    """Return a duration as a whole number."""
    return duration.seconds * 10**9 + duration.nanos


def spans_of(timings: pb.Timings) -> dict[tuple[str, str], int]:
    """Return every number of the message under the names that trailers and metrics use."""
    spans = {
        ("all", "total"): nanoseconds(timings.total),
        ("all", "other"): nanoseconds(timings.other),
        ("dense", "total"): nanoseconds(timings.dense),
    }
    for stage in STAGES:
        for part in ("total", *PARTS):
            spans[stage, part] = nanoseconds(getattr(getattr(timings, stage), part))
    return spans


def trailed(trailers: Any) -> dict[tuple[str, str], int]:
    """Return every number of the trailing metadata, in nanoseconds."""
    found = {}
    for key, value in trailers:
        if key.startswith("twostage-"):
            _, stage, part, _ = key.split("-")
            found[stage, part] = int(value) * 1_000
    return found


def metered(rig: Rig) -> dict[tuple[str, str], float]:
    """Return every sum of the stage histogram, in seconds."""
    samples = next(one for one in rig.metrics.registry.collect() if one.name == "gateway_stage_seconds").samples
    return {
        (one.labels["stage"], one.labels["part"]): one.value for one in samples if one.name.endswith("_seconds_sum")
    }


def check_sums(spans: dict[tuple[str, str], int]) -> None:
    """Check both sums, exactly."""
    assert len(spans) == 18
    assert spans["encode", "total"] + spans["search", "total"] == spans["dense", "total"]
    assert spans["dense", "total"] + spans["rerank", "total"] + spans["all", "other"] == spans["all", "total"]
    for stage in STAGES:
        assert sum(spans[stage, part] for part in PARTS) == spans[stage, "total"]
    assert min(spans.values()) >= 0


async def test_times_add_up_and_are_told_alike_everywhere(store: VectorStore) -> None:
    """Message, trailing metadata and metrics tell the same numbers, and their sums are exact (field failure 73)."""
    async with open_rig(store) as rig:
        await rig.fill("alpha", "beta")
        call = rig.search.Search(request())
        spans = spans_of((await call).timings)
        check_sums(spans)
        assert trailed(await call.trailing_metadata()) == spans
        assert metered(rig) == pytest.approx({key: value / 1e9 for key, value in spans.items()}, abs=1e-12)
        for stage in ("encode", "rerank"):
            assert (spans[stage, "queue"], spans[stage, "tokenize"], spans[stage, "compute"]) == (1_000, 2_000, 3_000)


async def test_the_last_part_of_a_stream_tells_what_the_trailers_tell() -> None:
    """Of a stream the sums hold in both parts, and the last is what is trailed and metered (73)."""
    async with open_rig() as rig:
        await rig.fill("alpha", "beta")
        call = rig.search.SearchStream(pb.SearchStreamRequest(request=request()))
        first, last = [part async for part in call]
        check_sums(spans_of(first.retrieved.timings))
        spans = spans_of(last.final.timings)
        check_sums(spans)
        assert trailed(await call.trailing_metadata()) == spans
        assert metered(rig) == pytest.approx({key: value / 1e9 for key, value in spans.items()}, abs=1e-12)


async def test_times_are_told_on_failure_too() -> None:
    """The trailers of an error hold the time of every stage up to the one that failed (73)."""
    async with open_rig() as rig:
        await rig.fill("alpha")
        rig.reranker.always = status(CODE.INTERNAL)
        call = rig.search.Search(request())
        await failure(call)
        spans = trailed(await call.trailing_metadata())
        assert spans["rerank", "unaccounted"] == spans["rerank", "total"] > 0
        assert spans["dense", "total"] + spans["rerank", "total"] + spans["all", "other"] == spans["all", "total"]
        assert metered(rig) == pytest.approx({key: value / 1e9 for key, value in spans.items()}, abs=1e-12)


async def test_a_server_with_another_clock_does_not_break_the_sums() -> None:
    """A backend that claims an hour, or less than nothing, is believed no more than was measured here (73)."""

    def odd(answer: Any) -> None:
        answer.timings.compute.seconds = 3_600
        answer.timings.queue.seconds = -5

    async with open_rig() as rig:
        await rig.fill("alpha")
        rig.encoder.always = altered(odd)
        spans = spans_of((await rig.ask()).timings)
        check_sums(spans)
        assert spans["encode", "compute"] == spans["encode", "total"]


async def test_equal_scores_and_logits_are_ordered_by_id(store: VectorStore) -> None:
    """Of equals, numbers come first and as numbers, in retrieval and after reranking alike."""
    async with open_rig(store) as rig:
        await rig.fill()
        await rig.upsert([document(one, "alpha") for one in ("b", 10, TEXT_ID, 9, "a")])
        wanted = [9, 10, UUID(TEXT_ID), "a", "b"]
        for mode in (pb.RERANK_OFF, pb.RERANK_REQUIRED):
            answer = await rig.ask(rerank=mode)
            assert [_plain(hit.id) for hit in answer.hits] == [
                one if isinstance(one, int) else str(one) for one in wanted
            ]
