"""What a caller sees of a reranker that is down or too slow for its deadline, and of an encoder that is down."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest
from clients import client
from fakes import EncoderPort, FakeEncoder, FakeReranker, Hang, PoolStore, Step, altered, serve, status
from rerank_costs import learned, time_for
from rigs import COLLECTION, Rig, failure, numbers, open_rig

from gateway import app, reranker_client, service
from gateway.breaker import BreakerPolicy
from gateway.budget import StageCaps
from gateway.channels import open_channel
from gateway.pipeline import Pipeline
from gateway.retrieval import FirstStage
from gateway.settings import GatewaySettings
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1.gateway_pb2_grpc import GatewayServiceStub, add_GatewayServiceServicer_to_server
from serving.metrics import ServerMetrics
from serving.server import open_server

CODE = grpc.StatusCode
FAILURES = BreakerPolicy().failures
LEFT_ALONE = BreakerPolicy(first_pause_s=60, max_pause_s=60)
"""Nothing is tried again before a test has ended."""


async def down(rig: Rig) -> None:
    """Let a reranker fail until its circuit opens."""
    await rig.fill("alpha", "alpha beta")
    rig.reranker.always = status(CODE.UNAVAILABLE)
    for _ in range(FAILURES):
        await failure(rig.ask())
    rig.reranker.requests.clear()


async def test_best_effort_answers_at_once_while_the_reranker_is_left_alone() -> None:
    """The retrieval order comes with a typed degradation, and nothing is sent to the reranker."""
    async with open_rig(breaker=LEFT_ALONE) as rig:
        await down(rig)
        answer = await rig.ask(rerank=pb.RERANK_BEST_EFFORT)
        assert numbers(answer.hits) == [1, 2]
        assert answer.degradation == pb.Degradation(
            rerank_skipped_reason="RERANKER_UNAVAILABLE", stage="rerank", reason="RERANKER_UNAVAILABLE", pool_count=2
        )
        assert not rig.reranker.requests
        counted = rig.metrics.registry.get_sample_value
        assert counted("gateway_degradations_total", {"stage": "rerank", "reason": "RERANKER_UNAVAILABLE"}) == 1


async def test_required_is_told_when_to_come_back() -> None:
    """UNAVAILABLE names the stage and the time until the reranker is tried again; nothing is sent to it."""
    async with open_rig(breaker=LEFT_ALONE) as rig:
        await down(rig)
        failed = await failure(rig.ask())
        assert (failed.code, failed.reason, failed.info["stage"]) == (
            CODE.UNAVAILABLE,
            "RERANKER_UNAVAILABLE",
            "rerank",
        )
        assert failed.retry_after_s is not None
        assert 0 < failed.retry_after_s <= LEFT_ALONE.max_pause_s
        assert not rig.reranker.requests


async def test_a_reranker_that_is_back_is_found_by_a_probe() -> None:
    """Searches are reranked again without a restart of the gateway."""
    async with open_rig() as rig:
        await down(rig)
        rig.reranker.always = altered(lambda _: None)
        async with asyncio.timeout(20):
            while (answer := await rig.ask(rerank=pb.RERANK_BEST_EFFORT)).HasField("degradation"):
                pass
        assert answer.hits[0].HasField("logit")


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (status(CODE.UNAVAILABLE), "RERANKER_UNAVAILABLE"),
        (status(CODE.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_after_s=60), "RERANKER_OVERLOADED"),
        (status(CODE.RESOURCE_EXHAUSTED, "DEADLINE_UNREACHABLE", retry_after_s=60), "RERANKER_OVERLOADED"),
        (status(CODE.INTERNAL), "RERANKER_FAILED"),
        (Hang(), "DEADLINE_SPENT"),
    ],
    ids=["away", "full", "no time", "broken", "late"],
)
async def test_a_reranking_that_came_to_nothing_is_no_slow_network(step: Step, reason: str) -> None:
    """Answer, trailers and metrics say that nobody accounts for its time; the stages that were answered have none."""
    async with open_rig(rerank_cap_s=0.2 if isinstance(step, Hang) else 60) as rig:
        await rig.fill("alpha")
        rig.reranker.always = step
        call = rig.search.Search(pb.SearchRequest(query="a", collection=COLLECTION, rerank=pb.RERANK_BEST_EFFORT))
        answer = await call
        rerank = answer.timings.rerank
        assert answer.degradation.reason == reason
        assert rerank.unaccounted == rerank.total
        assert rerank.unaccounted.ToNanoseconds() > 0 == rerank.network.ToNanoseconds()
        assert not answer.timings.encode.HasField("unaccounted")
        assert not answer.timings.search.HasField("unaccounted")
        trailers = {key: value for key, value in await call.trailing_metadata() if "unaccounted" in key}
        assert trailers == {"twostage-rerank-unaccounted-us": str(rerank.unaccounted.ToMicroseconds())}
        assert unaccounted(rig, "rerank") == pytest.approx(rerank.unaccounted.ToNanoseconds() / 1e9)
        assert unaccounted(rig, "encode") is None


async def test_a_search_that_its_caller_gave_up_is_no_slow_network() -> None:
    """Whoever waits for a full reranker and leaves is counted like one who waited to the end."""
    async with open_rig() as rig:
        await rig.fill("alpha")
        hang = Hang()
        rig.reranker.always = hang
        call = rig.search.Search(pb.SearchRequest(query="alpha", collection=COLLECTION))
        waiting = asyncio.ensure_future(call)
        await hang.begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await rig.counted(CODE.CANCELLED)
        counted = rig.metrics.registry.get_sample_value
        assert counted("gateway_stage_seconds_sum", {"stage": "rerank", "part": "network"}) == 0
        assert (unaccounted(rig, "rerank") or 0) > 0


def unaccounted(rig: Rig, stage: str) -> float | None:
    """Return the seconds of a stage that nobody accounts for; None where none were ever observed."""
    labels = {"stage": stage, "part": "unaccounted"}
    return rig.metrics.registry.get_sample_value("gateway_stage_seconds_sum", labels)


async def test_an_encoder_that_is_down_is_left_alone_too() -> None:
    """After some failures a search fails at once with its stage, and the encoder is not asked."""
    async with open_rig(breaker=LEFT_ALONE) as rig:
        await rig.fill("alpha")
        rig.encoder.always = status(CODE.UNAVAILABLE)
        for _ in range(FAILURES):
            await failure(rig.ask())
        rig.encoder.requests.clear()
        failed = await failure(rig.ask(rerank=pb.RERANK_BEST_EFFORT))
        assert (failed.code, failed.info["stage"]) == (CODE.UNAVAILABLE, "encode")
        assert not rig.encoder.requests


async def test_the_settings_reach_the_circuits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that is told to open after one failure asks the reranker for one search and not for the next."""
    monkeypatch.setattr(app, "BreakerPolicy", partial(BreakerPolicy, first_pause_s=60))  # the one thing not set there
    encoder, reranker = FakeEncoder(), FakeReranker()
    reranker.always = status(CODE.UNAVAILABLE)
    async with serve(encoder) as first, serve(reranker) as second:
        settings = GatewaySettings(
            host="127.0.0.1",
            port=0,
            grace_s=1,
            store_path=tmp_path,
            encoder_target=f"127.0.0.1:{first}",
            reranker_target=f"127.0.0.1:{second}",
            breaker_failures=1,
            breaker_max_pause_s=60,
        )
        async with app.open_app(settings) as running, client(running.port) as channel:
            rig = Rig(channel, encoder, reranker, ServerMetrics("gateway"))
            await rig.fill("alpha")
            answers = [await rig.ask(rerank=pb.RERANK_BEST_EFFORT) for _ in range(2)]
    assert [answer.degradation.reason for answer in answers] == ["RERANKER_UNAVAILABLE"] * 2
    assert len(reranker.requests) == 2  # the search, and gRPC's one retry of it


async def test_a_deadline_that_is_too_near_for_all_reranks_the_top() -> None:
    """Six of ten candidates are sent; ranks, flags and counts say so, in the hits and in the pool."""
    async with slow_reranker(10) as (search, reranker):
        request = pb.SearchRequest(
            query="alpha", collection=COLLECTION, top_k=5, rerank=pb.RERANK_BEST_EFFORT, include_pool=True
        )
        answer = await search.Search(request, timeout=time_for(6))
        assert len(reranker.requests[0].candidates) == 6
        assert answer.degradation == pb.Degradation(
            stage="rerank", reason="TIME_SHORT", reranked_count=6, pool_count=10
        )
        assert [hit.rerank_rank for hit in answer.pool] == [1, 2, 3, 4, 5, 6, 0, 0, 0, 0]
        assert [hit.HasField("logit") for hit in answer.pool] == [True] * 6 + [False] * 4
        assert not any(hit.text_missing for hit in answer.pool)
        assert answer.provenance.reranker.id == "fake-reranker"
        assert not answer.timings.rerank.HasField("unaccounted"), "the one call was answered"


async def test_a_reranker_that_has_to_be_asked_twice_is_no_slow_network() -> None:
    """What the answer to the second call says is told; the refusal's time is in what nobody accounts for."""
    async with slow_reranker(10) as (search, reranker):
        reranker.script.append(status(CODE.RESOURCE_EXHAUSTED, "DEADLINE_UNREACHABLE", retry_after_s=75))
        request = pb.SearchRequest(query="alpha", collection=COLLECTION, top_k=5, rerank=pb.RERANK_BEST_EFFORT)
        answer = await search.Search(request, timeout=time_for(6))
        assert [len(one.candidates) for one in reranker.requests] == [6, 5]
        assert answer.degradation.reason == "TIME_SHORT"
        rerank = answer.timings.rerank
        assert (rerank.queue.ToNanoseconds(), rerank.network.ToNanoseconds()) == (1_000, 0)
        assert rerank.unaccounted.ToNanoseconds() == rerank.total.ToNanoseconds() - 6_000 > 0


async def test_a_deadline_that_is_far_enough_reranks_all() -> None:
    """With time for the whole pool nothing is missing from the answer."""
    async with slow_reranker(10) as (search, reranker):
        request = pb.SearchRequest(query="alpha", collection=COLLECTION, rerank=pb.RERANK_BEST_EFFORT)
        answer = await search.Search(request, timeout=time_for(11))
        assert len(reranker.requests[0].candidates) == 10
        assert not answer.HasField("degradation")


@asynccontextmanager
async def slow_reranker(count: int) -> AsyncIterator[tuple[GatewayServiceStub, FakeReranker]]:
    """Serve searches of so many documents over a reranker that is known to take 10 s for each."""
    reranker, metrics = FakeReranker(), ServerMetrics("gateway")
    settings = GatewaySettings(host="127.0.0.1", port=0)
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serve(reranker))
        channel = await stack.enter_async_context(open_channel(f"127.0.0.1:{port}", reranker_client.SERVICE))
        pipeline = Pipeline(
            first=FirstStage(
                encoder=EncoderPort(),  # type: ignore[arg-type]
                store=PoolStore(*[(number, "alpha") for number in range(1, count + 1)]),  # type: ignore[arg-type]
                caps=StageCaps(encode=999, search=999, rerank=999),
            ),
            reranker=reranker_client.RerankerClient(channel),
            cost=learned(),
        )
        searches = service.GatewayService(pipeline, settings, metrics)
        services = {service.SERVICE: lambda server: add_GatewayServiceServicer_to_server(searches, server)}
        running = await stack.enter_async_context(open_server(settings, metrics, services))
        yield GatewayServiceStub(await stack.enter_async_context(client(running.port))), reranker
