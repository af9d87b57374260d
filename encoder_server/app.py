"""The encoder server, put together."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import grpc

from encoder_server.service import SERVICE, EncoderService
from encoder_server.settings import EncoderSettings
from retrieval.encoder.v1.encoder_pb2_grpc import add_EncoderServiceServicer_to_server
from serving.app import ModelServer, open_model_server
from serving.engine import EngineSlot
from serving.metrics import ServerMetrics
from serving.process import Fatal


def open_app(settings: EncoderSettings, on_fatal: Fatal = lambda _: None) -> AbstractAsyncContextManager[ModelServer]:
    """Open the encoder server; leaving drains it.

    Raises:
        Misconfigured: An operator has to act.
    """

    def services(slot: EngineSlot, metrics: ServerMetrics) -> dict[str, Callable[[grpc.aio.Server], None]]:
        service = EncoderService(slot, settings, metrics)
        return {SERVICE: lambda server: add_EncoderServiceServicer_to_server(service, server)}

    return open_model_server(settings, "encoder", services, on_fatal)
