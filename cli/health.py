"""Who answers at an address, and whether it says that it is serving."""

import asyncio
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from cli.calls import open_channel
from retrieval.encoder.v1 import encoder_pb2
from retrieval.encoder.v1.encoder_pb2_grpc import EncoderServiceStub
from retrieval.reranker.v1 import reranker_pb2
from retrieval.reranker.v1.reranker_pb2_grpc import RerankerServiceStub

SERVING = health_pb2.HealthCheckResponse.SERVING
ASK_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server says of itself."""

    health: str
    """For example "SERVING"; "UNKNOWN" where it speaks no gRPC health."""
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


async def ask(address: str) -> Answer:
    """Ask a server for its health and, where it has one, its model."""
    async with open_channel(address) as channel:
        try:
            response = await _stub(channel).Check(health_pb2.HealthCheckRequest(), timeout=ASK_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return Answer(health="UNKNOWN")
        health = health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
        model = await _model(channel)
        if model is None:
            return Answer(health=health)
        return Answer(health=health, model=model.id, device=model.device, digest=model.digest)


def _stub(channel: grpc.aio.Channel) -> Any:
    return HealthStub(channel)  # its published types know neither method


async def _model(channel: grpc.aio.Channel) -> encoder_pb2.ModelReference | reranker_pb2.ModelReference | None:
    calls: list[tuple[Any, Any]] = [
        (EncoderServiceStub(channel).GetModel, encoder_pb2.GetModelRequest()),
        (RerankerServiceStub(channel).GetModel, reranker_pb2.GetModelRequest()),
    ]
    for call, request in calls:
        try:
            response = await call(request, timeout=ASK_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            continue
        model: encoder_pb2.ModelReference | reranker_pb2.ModelReference = response.model
        return model
    return None
