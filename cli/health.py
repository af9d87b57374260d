"""Who answers at an address, and whether it says that it is serving."""

import asyncio
import ssl
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from cli.access import access
from cli.calls import let_in_channel, open_channel
from retrieval.encoder.v1 import encoder_pb2
from retrieval.encoder.v1.encoder_pb2_grpc import EncoderServiceStub
from retrieval.reranker.v1 import reranker_pb2
from retrieval.reranker.v1.reranker_pb2_grpc import RerankerServiceStub

SERVING = health_pb2.HealthCheckResponse.SERVING
ASK_TIMEOUT_S = 2.0
REFUSALS = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server says of itself."""

    health: str
    """For example "SERVING"; "UNKNOWN" where it speaks no gRPC health, or not to us."""
    tls: bool = False
    """Whether it talks TLS."""
    refused: bool = False
    """Whether it has a model and tells it only to those whom it knows."""
    model: str = ""
    device: str = ""
    digest: str = ""


async def until_serving(address: str) -> None:
    """Wait until a server says SERVING for everything it has; it need not be there yet."""
    while True:
        async with open_channel(address) as channel:
            try:
                async for response in _stub(channel).Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True):
                    if response.status == SERVING:
                        return
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)  # it went away again


async def ask(address: str, timeout_s: float = ASK_TIMEOUT_S) -> Answer:
    """Ask a server for its health and, where it has one, its model: let in as the command is, or else plainly.

    What runs on this machine may talk in the clear although the gateway that the command knows talks TLS. It is then
    shown no key.

    Args:
        address: Where it is.
        timeout_s: How long each of the few questions may take.

    Raises:
        Misconfigured: The command's certificates are wrong.
    """
    tls = access.get().talks_tls
    async with let_in_channel(address) as channel:
        answer = await _answer(channel, timeout_s, tls=tls)
    if answer is None and tls:
        async with open_channel(address) as channel:
            answer = await _answer(channel, timeout_s, tls=False)
    return answer or Answer(health="UNKNOWN", tls=await _talks_tls(address, timeout_s))


async def _answer(channel: Any, timeout_s: float, *, tls: bool) -> Answer | None:
    """Return what a server says of itself; None where it says nothing."""
    try:
        response = await _stub(channel).Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
    except grpc.aio.AioRpcError:
        return None
    health = health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
    try:
        model = await _model(channel, timeout_s)
    except grpc.aio.AioRpcError:
        return Answer(health=health, tls=tls, refused=True)
    if model is None:
        return Answer(health=health, tls=tls)
    return Answer(health=health, tls=tls, model=model.id, device=model.device, digest=model.digest)


async def _talks_tls(address: str, timeout_s: float) -> bool:
    """Tell whether a server answers a TLS handshake, whoever has signed its certificate."""
    host, _, port = address.rpartition(":")
    try:
        await asyncio.to_thread(ssl.get_server_certificate, (host.strip("[]"), int(port)), timeout=timeout_s)
    except OSError:  # an SSLError is one
        return False
    return True


def _stub(channel: Any) -> Any:
    return HealthStub(channel)  # its published types know neither method


async def _model(channel: Any, timeout_s: float) -> encoder_pb2.ModelReference | reranker_pb2.ModelReference | None:
    """Return the model of an encoder or reranker, None where it is neither.

    Raises:
        grpc.aio.AioRpcError: It is one, and refused to tell.
    """
    calls: list[tuple[Any, Any]] = [
        (EncoderServiceStub(channel).GetModel, encoder_pb2.GetModelRequest()),
        (RerankerServiceStub(channel).GetModel, reranker_pb2.GetModelRequest()),
    ]
    for call, request in calls:
        try:
            response = await call(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() in REFUSALS:
                raise
            continue
        model: encoder_pb2.ModelReference | reranker_pb2.ModelReference = response.model
        return model
    return None
