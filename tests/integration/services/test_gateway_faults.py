"""Backends that fail in every way, seen from the caller: one status per fault, never UNKNOWN.

Numbers in brackets are those of field failures.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from fakes import Hang, Step, altered, crash, raw_details, status
from patience import with_more_time
from rigs import COLLECTION, Rig, document, failure, free_port, numbers, open_rig, request, stream_failure

from retrieval.gateway.v1 import gateway_pb2 as pb

CODE = grpc.StatusCode
NAN = float("nan")


def drop_one(answer: Any) -> None:
    """Lose the last vector."""
    del answer.embeddings[-1]


def add_one(answer: Any) -> None:
    """Bring a vector too many."""
    answer.embeddings.add(packed=answer.embeddings[0].packed)


def zero(answer: Any) -> None:
    """Give a vector without length."""
    answer.embeddings[0].packed = bytes(len(answer.embeddings[0].packed))


def not_a_number(answer: Any) -> None:
    """Give a vector with a NaN in it."""
    answer.embeddings[0].packed = b"\x00\x00\xc0\x7f" + answer.embeddings[0].packed[4:]


def ragged(answer: Any) -> None:
    """Give a vector that ends inside a number."""
    answer.embeddings[0].packed = answer.embeddings[0].packed[:-1]


def unpacked(answer: Any) -> None:
    """Give a vector in the form that was not asked for."""
    answer.embeddings[0].values.extend([1.0] * 16)
    answer.embeddings[0].packed = b""


def other_index(answer: Any) -> None:
    """Name a position that was not sent."""
    answer.ranked[0].index = 99


def same_index(answer: Any) -> None:
    """Name one position twice."""
    answer.ranked[0].index = answer.ranked[1].index


def one_missing(answer: Any) -> None:
    """Leave out a candidate."""
    del answer.ranked[-1]


def nan_logit(answer: Any) -> None:
    """Give a logit that is no number."""
    answer.ranked[0].logit = NAN


ENCODER_FAULTS: list[tuple[str, Step, grpc.StatusCode, str]] = [
    ("down", status(CODE.UNAVAILABLE), CODE.UNAVAILABLE, "ENCODER_UNAVAILABLE"),
    ("starting", status(CODE.UNAVAILABLE, "STARTING"), CODE.UNAVAILABLE, "ENCODER_UNAVAILABLE"),
    ("full", status(CODE.RESOURCE_EXHAUSTED, "QUEUE_FULL"), CODE.RESOURCE_EXHAUSTED, "ENCODER_OVERLOADED"),
    ("late", status(CODE.DEADLINE_EXCEEDED), CODE.DEADLINE_EXCEEDED, "DEADLINE_SPENT"),
    ("hanging", Hang(), CODE.DEADLINE_EXCEEDED, "DEADLINE_SPENT"),
    ("broken", status(CODE.INTERNAL, "NON_FINITE"), CODE.INTERNAL, "ENCODER_FAILED"),
    ("our request", status(CODE.INVALID_ARGUMENT, "INPUT_TYPE_REQUIRED"), CODE.INTERNAL, "ENCODER_FAILED"),
    ("bare invalid", status(CODE.INVALID_ARGUMENT), CODE.INTERNAL, "ENCODER_FAILED"),
    ("another server", status(CODE.UNIMPLEMENTED), CODE.FAILED_PRECONDITION, "ENCODER_MISCONFIGURED"),
    ("crash", crash, CODE.INTERNAL, "ENCODER_FAILED"),
    ("odd details", raw_details(CODE.UNAVAILABLE, b"\xff\xff"), CODE.UNAVAILABLE, "ENCODER_UNAVAILABLE"),
    ("no vector", altered(drop_one), CODE.INTERNAL, "ENCODER_FAILED"),
    ("two vectors", altered(add_one), CODE.INTERNAL, "ENCODER_FAILED"),
    ("zero", altered(zero), CODE.INTERNAL, "ENCODER_FAILED"),
    ("nan", altered(not_a_number), CODE.INTERNAL, "ENCODER_FAILED"),
    ("ragged", altered(ragged), CODE.INTERNAL, "ENCODER_FAILED"),
    ("wrong form", altered(unpacked), CODE.INTERNAL, "ENCODER_FAILED"),
]
RERANKER_FAULTS: list[tuple[str, Step, grpc.StatusCode, str, str]] = [
    ("down", status(CODE.UNAVAILABLE), CODE.UNAVAILABLE, "RERANKER_UNAVAILABLE", "RERANKER_UNAVAILABLE"),
    (
        "full",
        status(CODE.RESOURCE_EXHAUSTED, "QUEUE_FULL"),
        CODE.RESOURCE_EXHAUSTED,
        "RERANKER_OVERLOADED",
        "RERANKER_OVERLOADED",
    ),
    ("late", status(CODE.DEADLINE_EXCEEDED), CODE.DEADLINE_EXCEEDED, "DEADLINE_SPENT", "DEADLINE_SPENT"),
    ("hanging", Hang(), CODE.DEADLINE_EXCEEDED, "DEADLINE_SPENT", "DEADLINE_SPENT"),
    ("broken", status(CODE.INTERNAL), CODE.INTERNAL, "RERANKER_FAILED", "RERANKER_FAILED"),
    (
        "our candidates",
        status(CODE.INVALID_ARGUMENT, "TEXT_TOO_LARGE", field="candidates[0].text"),
        CODE.INTERNAL,
        "RERANKER_FAILED",
        "RERANKER_FAILED",
    ),
    (
        "another server",
        status(CODE.UNIMPLEMENTED),
        CODE.FAILED_PRECONDITION,
        "RERANKER_MISCONFIGURED",
        "RERANKER_FAILED",
    ),
    ("crash", crash, CODE.INTERNAL, "RERANKER_FAILED", "RERANKER_FAILED"),
    ("other index", altered(other_index), CODE.INTERNAL, "RERANKER_FAILED", "RERANKER_FAILED"),
    ("index twice", altered(same_index), CODE.INTERNAL, "RERANKER_FAILED", "RERANKER_FAILED"),
    ("one missing", altered(one_missing), CODE.INTERNAL, "RERANKER_FAILED", "RERANKER_FAILED"),
    ("nan", altered(nan_logit), CODE.INTERNAL, "RERANKER_FAILED", "RERANKER_FAILED"),
]


async def checked(step: Step, cap: str, check: Callable[..., Awaitable[None]]) -> None:
    """Check a fault: with little time for its stage where that never answers, or else with the default."""
    if isinstance(step, Hang):
        await with_more_time(lambda seconds: check(**{cap: seconds}))
    else:
        await check()


def fault(name: str, faults: list[Any]) -> Any:
    """Return the fault of that name."""
    return next(row for row in faults if row[0] == name)


async def ready(rig: Rig) -> Rig:
    """Store two documents that match the query."""
    await rig.fill("alpha", "alpha beta")
    rig.encoder.requests.clear()
    return rig


@pytest.mark.parametrize("name", [row[0] for row in ENCODER_FAULTS])
async def test_encoder_faults(name: str) -> None:
    """Every fault of the encoder is one status that names the stage, with timings, and no inner word (32, 67, 38)."""
    _, step, code, reason = fault(name, ENCODER_FAULTS)

    async def check(**settings: float) -> None:
        async with open_rig(**settings) as rig:
            await ready(rig)
            rig.encoder.always = step
            failed = await failure(rig.ask())
            assert (failed.code, failed.reason, failed.info["stage"]) == (code, reason, "encode")
            assert "inner" not in failed.details
            assert "backend" not in failed.details
            assert failed.trailers["twostage-rerank-total-us"] == "0"
            assert int(failed.trailers["twostage-encode-total-us"]) > 0
            assert not rig.reranker.requests
            await rig.counted(code)
            rig.encoder.always = altered(lambda _: None)
            assert numbers((await rig.ask()).hits)

    await checked(step, "encode_cap_s", check)


@pytest.mark.parametrize("name", [row[0] for row in RERANKER_FAULTS])
async def test_reranker_faults(name: str) -> None:
    """Every fault of the reranker is one status under REQUIRED and one reason under BEST_EFFORT (32, 22, 3)."""
    _, step, code, reason, degraded = fault(name, RERANKER_FAULTS)

    async def check(**settings: float) -> None:
        async with open_rig(**settings) as rig:
            await ready(rig)
            rig.reranker.always = step
            failed = await failure(rig.ask())
            assert (failed.code, failed.reason, failed.info["stage"]) == (code, reason, "rerank")
            assert "backend" not in failed.details
            assert int(failed.trailers["twostage-search-total-us"]) > 0
            assert int(failed.trailers["twostage-rerank-total-us"]) > 0
            answer = await rig.ask(rerank=pb.RERANK_BEST_EFFORT)
            assert answer.degradation.rerank_skipped_reason == degraded
            assert numbers(answer.hits) == [1, 2]
            assert not answer.provenance.HasField("reranker")
            rig.reranker.always = altered(lambda _: None)
            assert numbers((await rig.ask()).hits) == [1, 2]

    await checked(step, "rerank_cap_s", check)


async def test_messages_of_transient_faults_name_the_stage() -> None:
    """The sentence for people says which stage it was, as ErrorInfo does."""
    async with open_rig() as rig:
        await ready(rig)
        rig.reranker.always = status(CODE.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_after_s=1.5)
        failed = await failure(rig.ask())
        assert failed.details.startswith("rerank: ")
        assert failed.retry_after_s == 1.5


@pytest.mark.parametrize("reason", ["TEXT_TOO_LONG", "TEXT_BLANK", "TEXT_TOO_LARGE"])
async def test_a_wrong_query_is_the_callers_under_its_own_name(reason: str) -> None:
    """What the encoder refuses about `texts[0]` is INVALID_ARGUMENT about `query` (32)."""
    async with open_rig() as rig:
        await ready(rig)
        rig.encoder.always = status(
            CODE.INVALID_ARGUMENT, reason, field="texts[0]", message="600 tokens, the limit is 512"
        )
        failed = await failure(rig.ask())
        assert (failed.code, failed.reason, failed.info["field"]) == (CODE.INVALID_ARGUMENT, reason, "query")
        assert failed.details == "query: 600 tokens, the limit is 512"


@pytest.mark.parametrize("change", [zero, not_a_number])
async def test_a_vector_that_is_none_never_reaches_the_store(change: Any) -> None:
    """A zero or NaN query vector is INTERNAL before the store is asked (field failure 67)."""
    async with open_rig() as rig:
        await ready(rig)
        rig.encoder.always = altered(change)
        failed = await failure(rig.ask(collection="there-is-none"))
        assert (failed.code, failed.info["stage"]) == (CODE.INTERNAL, "encode")
        assert failed.trailers["twostage-search-total-us"] == "0"


async def test_a_stream_that_fails_late_has_given_its_pool() -> None:
    """SearchStream gives the pool first; the reranker's failure is then the stream's, with timings."""
    async with open_rig() as rig:
        await ready(rig)
        rig.reranker.always = status(CODE.INTERNAL)
        parts, failed = await stream_failure(rig.search.SearchStream(pb.SearchStreamRequest(request=request())))
        assert [part.WhichOneof("part") for part in parts] == ["retrieved"]
        assert (failed.code, failed.info["stage"]) == (CODE.INTERNAL, "rerank")
        assert "twostage-all-total-us" in failed.trailers


@pytest.mark.parametrize(
    ("method", "message", "code", "reason"),
    [
        ("search", request(collection="none"), CODE.NOT_FOUND, "COLLECTION_NOT_FOUND"),
        ("search", request(""), CODE.INVALID_ARGUMENT, "TEXT_BLANK"),
        ("search", request(top_k=0), CODE.INVALID_ARGUMENT, "OUT_OF_RANGE"),
        ("search", request(filter=pb.Filter(must=[pb.Condition()])), CODE.INVALID_ARGUMENT, "CONDITION_REQUIRED"),
        ("search", request(collection="/"), CODE.INVALID_ARGUMENT, "COLLECTION_NAME"),
        ("describe", pb.DescribeCollectionRequest(collection="none"), CODE.NOT_FOUND, "COLLECTION_NOT_FOUND"),
        ("drop", pb.DropCollectionRequest(collection="none"), CODE.NOT_FOUND, "COLLECTION_NOT_FOUND"),
        ("create", pb.CreateCollectionRequest(collection=COLLECTION), CODE.ALREADY_EXISTS, "COLLECTION_EXISTS"),
        ("create", pb.CreateCollectionRequest(collection=""), CODE.INVALID_ARGUMENT, "COLLECTION_NAME"),
        ("delete", pb.DeleteDocumentsRequest(collection=COLLECTION), CODE.INVALID_ARGUMENT, "ID_COUNT"),
        ("get", pb.GetDocumentsRequest(collection=COLLECTION), CODE.INVALID_ARGUMENT, "ID_COUNT"),
        (
            "get",
            pb.GetDocumentsRequest(collection="none", ids=[pb.DocumentId(number=1)]),
            CODE.NOT_FOUND,
            "COLLECTION_NOT_FOUND",
        ),
    ],
)
async def test_callers_faults(method: str, message: Any, code: grpc.StatusCode, reason: str) -> None:
    """What the caller does wrong is said with code and reason on every RPC."""
    async with open_rig() as rig:
        await ready(rig)
        calls = {
            "search": rig.search.Search,
            "describe": rig.collections.DescribeCollection,
            "drop": rig.collections.DropCollection,
            "create": rig.collections.CreateCollection,
            "delete": rig.documents.DeleteDocuments,
            "get": rig.documents.GetDocuments,
        }
        failed = await failure(calls[method](message))
        assert (failed.code, failed.reason) == (code, reason)


async def test_a_store_that_breaks_is_internal_without_its_words() -> None:
    """An exception that is none of ours becomes INTERNAL with an id and nothing of its text (38)."""
    async with open_rig(store=_BrokenStore()) as rig:  # type: ignore[arg-type]
        failed = await failure(rig.ask())
        assert (failed.code, failed.reason) == (CODE.INTERNAL, "INTERNAL")
        assert "secret" not in failed.details
        assert failed.info["error_id"] in failed.details


async def test_bytes_that_are_no_text_are_refused() -> None:
    """A query that is not UTF-8 is INVALID_ARGUMENT and not UNKNOWN, and the next call is fine (41)."""
    async with open_rig() as rig:
        await ready(rig)
        raw = rig.channel.unary_unary("/retrieval.gateway.v1.GatewayService/Search")
        failed = await failure(raw(b"\x0a\x02\xff\xfe"))
        assert (failed.code, failed.reason) == (CODE.INVALID_ARGUMENT, "REQUEST_MALFORMED")
        assert numbers((await rig.ask()).hits)


async def test_documents_of_another_encoder_are_not_searched() -> None:
    """A collection made with another encoder is FAILED_PRECONDITION, before anything is reranked."""
    async with open_rig() as rig:
        await ready(rig)
        rig.encoder.model.digest = "sha256:" + "0" * 64
        failed = await failure(rig.ask())
        assert (failed.code, failed.reason) == (CODE.FAILED_PRECONDITION, "ENCODER_MISMATCH")
        stored = await rig.upsert([document(1, "alpha")])
        assert (stored.failure.code, stored.failure.reason) == (9, "ENCODER_MISMATCH")


class _BrokenStore:
    """A store whose search raises what no store should."""

    name = "broken"

    async def search(self, *_: Any, **__: Any) -> Any:
        raise KeyError("secret inner words")


async def test_nothing_listens_where_the_encoder_should_be() -> None:
    """A refused connection is UNAVAILABLE with the stage, though no status ever came from there (32)."""
    port = free_port()
    async with open_rig(encoder_target=f"dns:///127.0.0.1:{port}") as rig:
        failed = await failure(rig.ask())
        assert (failed.code, failed.reason, failed.info["stage"]) == (
            CODE.UNAVAILABLE,
            "ENCODER_UNAVAILABLE",
            "encode",
        )
        assert str(port) not in failed.details
