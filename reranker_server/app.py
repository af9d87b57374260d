"""The reranker server, put together."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import grpc

from reranker_server.service import SERVICE, RerankerService
from reranker_server.settings import RerankerSettings
from retrieval.reranker.v1.reranker_pb2_grpc import add_RerankerServiceServicer_to_server
from serving.app import ModelServer, open_model_server
from serving.engine import EngineSlot
from serving.metrics import ServerMetrics
from serving.process import Fatal


def open_app(settings: RerankerSettings, on_fatal: Fatal = lambda _: None) -> AbstractAsyncContextManager[ModelServer]:
    """Open the reranker server; leaving drains it.

    Raises:
        Misconfigured: An operator has to act.
    """

    def services(slot: EngineSlot, metrics: ServerMetrics) -> dict[str, Callable[[grpc.aio.Server], None]]:
        service = RerankerService(slot, settings, metrics)
        return {SERVICE: lambda server: add_RerankerServiceServicer_to_server(service, server)}

    return open_model_server(settings, "reranker", services, on_fatal)
