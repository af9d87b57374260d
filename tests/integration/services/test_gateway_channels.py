"""How the gateway reaches its backends: balance, retries, late starts, deadlines, proxies, cancelled callers.

Numbers in brackets are those of field failures.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from fakes import FakeEncoder, FakeReranker, Gate, Hang, serve, status
from patience import Late, with_more_time
from rigs import document, failure, free_port, numbers, open_rig, request

from gateway import encoder_client
from gateway.channels import open_channel
from retrieval.encoder.v1 import encoder_pb2, encoder_pb2_grpc
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.deadline import Deadline
from serving.errors import NotReady, Overloaded, ServiceError, Unavailable
from serving.metrics import ServerMetrics
from serving.server import open_server
from serving.settings import ServerSettings

CODE = grpc.StatusCode


class Refusing(encoder_pb2_grpc.EncoderServiceServicer):
    """Raises errors of ours, which the real guard turns into statuses, as long as there are any."""

    def __init__(self, *errors: ServiceError) -> None:
        self.errors = list(errors)
        self.attempts = 0

    async def GetModel(self, _request: Any, context: Any) -> Any:  # noqa: N802
        self.attempts += 1
        context.set_trailing_metadata((("twostage-total-us", "1"),))
        if self.errors:
            raise self.errors.pop(0)
        return encoder_pb2.GetModelResponse(dimension=7)


async def asked(refusing: Refusing) -> int:
    """Ask a server that is guarded as the real ones are, over a channel of the gateway's."""
    services = {
        encoder_client.SERVICE: lambda server: encoder_pb2_grpc.add_EncoderServiceServicer_to_server(refusing, server)
    }
    settings = ServerSettings(host="127.0.0.1")
    async with (
        open_server(settings, ServerMetrics("encoder"), services) as running,
        open_channel(f"127.0.0.1:{running.port}", encoder_client.SERVICE) as channel,
    ):
        await running.set_serving(serving=True)
        return (await encoder_client.EncoderClient(channel).info(deadline=Deadline.after(20))).dimension


async def test_a_server_that_is_not_ready_is_asked_once_more() -> None:
    """UNAVAILABLE of our own servers, trailing metadata and all, is retried once and the caller sees nothing (59)."""
    refusing = Refusing(NotReady("DRAINING", "going down"))
    assert await asked(refusing) == 7
    assert refusing.attempts == 2


async def test_a_server_that_stays_away_is_asked_twice_in_all() -> None:
    """The retry is one: a third attempt would only add load (59)."""
    refusing = Refusing(*(NotReady("STARTING", "not yet") for _ in range(5)))
    with pytest.raises(Unavailable):
        await asked(refusing)
    assert refusing.attempts == 2


async def test_a_full_server_is_not_asked_again() -> None:
    """RESOURCE_EXHAUSTED is the caller's to repeat: a retry here would feed the overload (15)."""
    refusing = Refusing(Overloaded("QUEUE_FULL", "full", retry_after_s=3))
    with pytest.raises(Overloaded) as caught:
        await asked(refusing)
    assert (refusing.attempts, caught.value.retry_after_s) == (1, 3)


async def test_the_retry_stays_within_the_deadline() -> None:
    """Where the second attempt hangs, the first deadline ends it (59, 10)."""

    async def attempt(seconds: float) -> None:
        async with open_rig(encode_cap_s=seconds) as rig:
            await rig.fill("alpha")
            hang = Hang()
            rig.encoder.script.extend([status(CODE.UNAVAILABLE), hang])
            failed = await failure(rig.ask(deadline_s=60))
            assert (failed.code, failed.info["stage"]) == (CODE.DEADLINE_EXCEEDED, "encode")
            if not hang.begun.is_set():
                raise Late
            await asyncio.wait_for(hang.cancelled.wait(), 20)

    await with_more_time(attempt)


async def test_the_failures_of_another_channel_hold_nothing_back() -> None:
    """A server that starts where another channel finds none, and pauses, is reached at once."""
    port = free_port()
    deadline = Deadline.after(20)
    async with open_channel(f"127.0.0.1:{port}", encoder_client.SERVICE) as other:
        with pytest.raises(Unavailable):
            await encoder_client.EncoderClient(other).info(deadline=deadline)
        async with (
            serve(FakeEncoder(), port=port),
            open_channel(f"127.0.0.1:{port}", encoder_client.SERVICE) as channel,
        ):
            assert (await encoder_client.EncoderClient(channel).info(deadline=deadline)).dimension


@pytest.mark.parametrize("code", [CODE.UNAVAILABLE, CODE.CANCELLED])
async def test_a_refused_search_is_retried_end_to_end(code: grpc.StatusCode) -> None:
    """One UNAVAILABLE of each backend, or the CANCELLED of one that is closing, is not noticed (59)."""
    async with open_rig() as rig:
        await rig.fill("alpha")
        rig.encoder.requests.clear()
        rig.encoder.script.append(status(code))
        rig.reranker.script.append(status(code))
        assert numbers((await rig.ask()).hits) == [1]
        assert (len(rig.encoder.requests), len(rig.reranker.requests)) == (2, 2)


async def test_calls_are_spread_over_all_encoders() -> None:
    """Of two encoders behind one target each gets 40 to 60 % of the calls (field failure 7)."""
    fakes = [FakeEncoder(), FakeEncoder()]
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(serve(fake)) for fake in fakes]
        target = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
        rig = await stack.enter_async_context(open_rig(encoder_target=target))
        await rig.fill("alpha")
        await _both_seen(rig, fakes)
        for fake in fakes:
            fake.requests.clear()
        await asyncio.gather(*(rig.ask() for _ in range(40)))
        assert [16 <= len(fake.requests) <= 24 for fake in fakes] == [True, True]
        assert sum(len(fake.requests) for fake in fakes) == 40


async def test_one_of_two_encoders_going_away_is_not_noticed() -> None:
    """With one address left, every call is answered (59)."""
    fakes = [FakeEncoder(), FakeEncoder()]
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(serve(fakes[0]))]
        second = await stack.enter_async_context(AsyncExitStack())
        ports.append(await second.enter_async_context(serve(fakes[1])))
        target = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
        rig = await stack.enter_async_context(open_rig(encoder_target=target))
        await rig.fill("alpha")
        await _both_seen(rig, fakes)
        await second.aclose()
        answers = await asyncio.gather(*(rig.ask() for _ in range(30)))
        assert all(numbers(answer.hits) == [1] for answer in answers)


async def test_a_backend_that_starts_later_is_found() -> None:
    """The gateway comes up before its reranker, says UNAVAILABLE, and recovers alone (field failure 60)."""
    port = free_port()
    fake = FakeReranker()
    async with open_rig(reranker_target=f"dns:///127.0.0.1:{port}") as rig:
        await rig.fill("alpha")
        assert (await failure(rig.ask())).reason == "RERANKER_UNAVAILABLE"
        assert (await rig.ask(rerank=pb.RERANK_BEST_EFFORT)).degradation.rerank_skipped_reason == "RERANKER_UNAVAILABLE"
        async with serve(fake, port=port):
            answer = await _until_answered(rig)
            assert answer.provenance.reranker.id == "fake-reranker"


async def test_a_backend_that_comes_back_is_found() -> None:
    """After an outage calls work again without a restart of the gateway (60)."""
    fake = FakeReranker()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        port = await first.enter_async_context(serve(fake, port=free_port()))
        rig = await stack.enter_async_context(open_rig(reranker_target=f"dns:///127.0.0.1:{port}"))
        await rig.fill("alpha")
        assert numbers((await rig.ask()).hits) == [1]
        await first.aclose()
        assert (await failure(rig.ask())).code is CODE.UNAVAILABLE
        await stack.enter_async_context(serve(fake, port=port))
        assert numbers((await _until_answered(rig)).hits) == [1]


@pytest.mark.parametrize("name", ["http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY"])
async def test_a_proxy_in_the_environment_does_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends are reached although the environment names a proxy that is not there (field failure 61)."""
    async with serve(FakeEncoder()) as port:
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
        async with open_channel(f"dns:///127.0.0.1:{port}", encoder_client.SERVICE) as channel:
            dimension = (await encoder_client.EncoderClient(channel).info(deadline=Deadline.after(20))).dimension
            assert dimension == 16


async def test_a_caller_without_a_deadline_is_answered() -> None:
    """No deadline means the server's default, not no answer (field failure 10)."""
    async with open_rig() as rig:
        await rig.fill("alpha")
        assert numbers((await rig.ask(deadline_s=None)).hits) == [1]


async def test_the_default_deadline_ends_a_call_without_one() -> None:
    """A caller that set no deadline does not wait for a hanging backend for ever (10)."""

    async def attempt(seconds: float) -> None:
        async with open_rig(default_deadline_s=seconds) as rig:
            await rig.fill("alpha")
            hang = Hang()
            rig.reranker.always = hang
            failed = await failure(rig.ask(deadline_s=None))
            assert failed.code is CODE.DEADLINE_EXCEEDED
            if not hang.begun.is_set():
                raise Late
            assert failed.info["stage"] == "rerank"
            await asyncio.wait_for(hang.cancelled.wait(), 20)

    await with_more_time(attempt)


async def test_the_callers_deadline_reaches_the_backends() -> None:
    """A backend is told the time that is left, less than the caller's (10)."""
    told: list[float] = []

    async def note(_request: Any, context: Any, answer: Any) -> Any:
        told.append(context.time_remaining())
        return answer

    async with open_rig(answer_margin_s=100, encode_cap_s=999, rerank_cap_s=999) as rig:
        await rig.fill("alpha")
        rig.encoder.always = rig.reranker.always = note
        await rig.ask(deadline_s=400)
        assert len(told) == 2
        assert all(0 < left < 310 for left in told)  # gRPC sends a deadline rounded up


async def test_a_caller_that_leaves_stops_the_backends_work() -> None:
    """Cancelling a search cancels the call at the reranker, and the next search is fine (2, 10)."""
    async with open_rig() as rig:
        await rig.fill("alpha")
        hang = Hang()
        rig.reranker.script.append(hang)
        call = rig.search.Search(request())
        await asyncio.wait_for(hang.begun.wait(), 20)
        call.cancel()
        await asyncio.wait_for(hang.cancelled.wait(), 20)
        assert numbers((await rig.ask()).hits) == [1]


async def test_a_caller_that_leaves_after_the_pool_stops_the_rerank() -> None:
    """A stream whose reader has what it wants ends the work that is left, and the next one is whole (2, 10)."""
    async with open_rig() as rig:
        await rig.fill("alpha")
        hang = Hang()
        rig.reranker.script.append(hang)
        message = pb.SearchStreamRequest(request=request())
        call = rig.search.SearchStream(message)
        first = await call.read()
        assert first.WhichOneof("part") == "retrieved"
        await asyncio.wait_for(hang.begun.wait(), 20)
        call.cancel()
        await asyncio.wait_for(hang.cancelled.wait(), 20)
        await rig.counted(CODE.CANCELLED, "SearchStream")
        parts = [part.WhichOneof("part") async for part in rig.search.SearchStream(message)]
        assert parts == ["retrieved", "final"]


async def test_a_channel_closed_under_a_call_is_an_answer() -> None:
    """A stub call whose channel is closed ends as Unavailable, not as a caller left waiting (field failure 9)."""
    fake, gate = FakeEncoder(), Gate()
    fake.always = gate
    async with serve(fake) as port:
        channel = open_channel(f"127.0.0.1:{port}", encoder_client.SERVICE)
        call = asyncio.create_task(encoder_client.EncoderClient(channel).info(deadline=Deadline.after(20)))
        await asyncio.wait_for(gate.begun.wait(), 20)
        await channel.close()
        with pytest.raises(Unavailable):
            await call


async def test_large_messages_pass_between_gateway_and_backends() -> None:
    """An answer over gRPC's default of 4 MiB is received from a backend (14)."""

    async def large(_request: Any, _context: Any, answer: Any) -> Any:
        answer.embeddings[0].values.extend([0.0] * 1_250_000)
        return answer

    async with open_rig() as rig:
        await rig.fill("alpha")
        rig.encoder.script.append(large)
        assert numbers((await rig.ask()).hits) == [1]


async def test_upserting_waits_for_an_encoder_that_is_full() -> None:
    """A full encoder slows indexing down instead of failing it."""
    async with open_rig() as rig:
        await rig.fill()
        full = status(CODE.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_after_s=0.001)
        rig.encoder.script.extend([full] * 3)
        answer = await rig.upsert([document(1, "alpha")])
        assert answer.stored.stored_count == 1
        assert len(rig.encoder.requests) == 5  # GetModel of the collection, three refusals, the answer


async def test_upserting_does_not_wait_longer_than_there_is_time() -> None:
    """An encoder that says to come back after the deadline is not waited for (10)."""
    async with open_rig(upsert_deadline_s=5) as rig:
        await rig.fill()
        rig.encoder.always = status(CODE.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_after_s=60)
        answer = await rig.upsert([document(1, "alpha")])
        assert (answer.failure.code, answer.failure.reason) == (4, "DEADLINE_SPENT")


async def _both_seen(rig: Any, fakes: list[FakeEncoder]) -> None:
    """Search until both encoders were connected to."""
    async with asyncio.timeout(20):
        while not all(fake.requests for fake in fakes):
            await rig.ask()


async def _until_answered(rig: Any) -> pb.SearchResponse:
    """Search until it works."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await rig.ask()
            except grpc.aio.AioRpcError as error:
                assert error.code() is CODE.UNAVAILABLE  # noqa: PT017 - any other status is a wrong one
