"""A whole model server in this process: slow start, overload, a dying driver."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from clients import client
from factories import POISON, encoder_settings, reference_ids, reference_vector, tiny_encoder_bundle
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cli.addresses import free_ports
from encoder_server.app import open_app
from encoder_server.service import SERVICE
from retrieval.encoder.v1 import encoder_pb2 as pb
from retrieval.encoder.v1 import encoder_pb2_grpc as pb_grpc
from serving import engine as engine_module
from serving.app import ModelServer
from serving.errors import Misconfigured

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
CODE = grpc.StatusCode


def request(*texts: str) -> pb.EncodeRequest:
    """Ask for vectors of passages."""
    return pb.EncodeRequest(texts=texts, input_type=pb.INPUT_TYPE_PASSAGE)


def reason(error: grpc.aio.AioRpcError) -> str:
    """Read the reason that travels with a status."""
    trailing = dict(error.trailing_metadata())
    status, info = status_pb2.Status.FromString(trailing["grpc-status-details-bin"]), error_details_pb2.ErrorInfo()
    status.details[0].Unpack(info)
    return str(info.reason)


@asynccontextmanager
async def clients(port: int) -> AsyncIterator[tuple[Any, Any]]:
    """Open stubs for a server of this machine."""
    async with client(port) as channel:
        yield pb_grpc.EncoderServiceStub(channel), health_pb2_grpc.HealthStub(channel)


async def health(stub: Any, service: str = "") -> int:
    """Ask for the health of a service."""
    return int((await stub.Check(health_pb2.HealthCheckRequest(service=service))).status)


@contextmanager
def held_device(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Event]:
    """Let every batch wait inside the block; the event tells that the first has begun."""
    begun, free, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()
    run = server.engine.model.session.run

    def slow(ids: Any, mask: Any) -> Any:
        loop.call_soon_threadsafe(begun.set)
        assert free.wait(30)
        return run(ids, mask)

    monkeypatch.setattr(server.engine.model.session, "run", slow)
    try:
        yield begun
    finally:
        free.set()


async def test_a_server_serves_what_its_bundle_answers(tmp_path: Path):
    """Through gRPC, tokenizer, batcher and session come the vectors that numpy computes."""
    bundle = tiny_encoder_bundle(tmp_path / "bundle")
    async with open_app(encoder_settings(bundle)) as server, clients(server.port) as (encoder, _):
        response = await encoder.Encode(request("panda", "what is tea?"))
        vectors = [list(embedding.values) for embedding in response.embeddings]
        expected = [reference_vector(reference_ids(f"passage: {text}")) for text in ("panda", "what is tea?")]
        np.testing.assert_allclose(vectors, expected, atol=1e-5)


async def test_until_the_model_is_loaded_probes_and_calls_are_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """While loading the port answers NOT_SERVING and UNAVAILABLE; afterwards SERVING (field failure 5)."""
    bundle = tiny_encoder_bundle(tmp_path / "bundle")
    loading, loaded, ports = asyncio.Event(), threading.Event(), asyncio.Queue[int]()
    loop, load, opened = asyncio.get_running_loop(), engine_module._load, asyncio.Event()
    monkeypatch.setattr("serving.app.open_server", _announcing(ports))

    def slow_load(*arguments: Any) -> Any:
        loop.call_soon_threadsafe(loading.set)
        assert loaded.wait(30)
        return load(*arguments)

    monkeypatch.setattr(engine_module, "_load", slow_load)

    async def serve() -> None:
        async with open_app(encoder_settings(bundle)):
            opened.set()
            await asyncio.Event().wait()

    serving = asyncio.create_task(serve())
    async with clients(await ports.get()) as (encoder, probe):
        await loading.wait()
        assert [await health(probe, name) for name in ("", SERVICE)] == [NOT_SERVING] * 2
        for call in (encoder.Encode(request("panda")), encoder.GetModel(pb.GetModelRequest())):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert (caught.value.code(), reason(caught.value)) == (CODE.UNAVAILABLE, "STARTING")
        loaded.set()
        await opened.wait()
        assert [await health(probe, name) for name in ("", SERVICE)] == [SERVING] * 2
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


def _announcing(ports: asyncio.Queue[int]) -> Any:
    """Wrap open_server so that the port is known before the model is."""
    from serving.server import open_server  # noqa: PLC0415 - the original, before it is replaced

    @asynccontextmanager
    async def announce(*arguments: Any) -> AsyncIterator[Any]:
        async with open_server(*arguments) as running:
            ports.put_nowait(running.port)
            yield running

    return announce


async def test_a_bundle_that_is_refused_closes_the_port(tmp_path: Path):
    """A refused start leaves no half server behind: the port is free for the next."""
    bad = tiny_encoder_bundle(tmp_path / "bad", golden_shift=0.1)
    good = tiny_encoder_bundle(tmp_path / "good")
    (port,) = free_ports(1)
    with pytest.raises(Misconfigured):
        async with open_app(encoder_settings(bad, port=port)):
            pass
    async with open_app(encoder_settings(good, port=port)) as server:
        assert server.port == port


async def test_a_saturated_server_refuses_calls_and_answers_probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Full queue: RESOURCE_EXHAUSTED at once for one text as for many, Health OK, the accepted end OK (15 and 16)."""
    bundle = tiny_encoder_bundle(tmp_path / "bundle")
    settings = encoder_settings(bundle, max_waiting_tokens=20, max_batch_rows=1)
    async with open_app(settings) as server, clients(server.port) as (encoder, probe):
        with held_device(server, monkeypatch) as begun:
            computing = encoder.Encode(request("panda"))
            await begun.wait()
            waiting = encoder.Encode(request("panda bear " * 6))
            while not server.engine.batcher.waiting_rows:
                assert await health(probe) == SERVING
            for texts in (["panda bear"] * 3, ["panda bear tea river paper what is"]):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await encoder.Encode(request(*texts))
                assert (caught.value.code(), reason(caught.value)) == (CODE.RESOURCE_EXHAUSTED, "QUEUE_FULL")
            assert await health(probe) == SERVING
        assert len((await computing).embeddings) == len((await waiting).embeddings) == 1


async def test_a_non_finite_answer_fails_its_own_call_only(tmp_path: Path):
    """NaN is never returned: INTERNAL for that request, OK for the others (field failure 22)."""
    bundle = tiny_encoder_bundle(tmp_path / "bundle", poison=True)
    async with open_app(encoder_settings(bundle)) as server, clients(server.port) as (encoder, _):
        calls = [encoder.Encode(request(text)) for text in ("panda", f"tea {POISON}", "bear")]
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(result, pb.EncodeResponse) for result in results] == [True, False, True]
    assert results[1].code() is CODE.INTERNAL  # type: ignore[union-attr]
    assert POISON not in results[1].details()  # type: ignore[union-attr,operator]


async def test_a_dead_driver_turns_health_and_reports_the_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The call gets UNAVAILABLE, watchers NOT_SERVING, the process its fatal fault, once (field failure 2)."""
    bundle, deaths = tiny_encoder_bundle(tmp_path / "bundle"), list[BaseException]()
    async with open_app(encoder_settings(bundle), deaths.append) as server, clients(server.port) as (encoder, probe):
        watch = probe.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING

        def broken(_: float) -> Any:
            raise ZeroDivisionError

        monkeypatch.setattr(server.engine.batcher._policy, "next_batch", broken)
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await encoder.Encode(request("panda"))
            assert (caught.value.code(), reason(caught.value)) == (CODE.UNAVAILABLE, "DRIVER_DEAD")
        assert (await watch.read()).status == NOT_SERVING
    assert [type(death) for death in deaths] == [ZeroDivisionError]
