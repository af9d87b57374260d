"""Our encoder and reranker server as targets: real processes, called over gRPC."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from benchmarks.peers.http_client import HttpClient
from benchmarks.peers.load import Outcome
from benchmarks.peers.process import ServerProcess
from benchmarks.peers.target import Computed, FloatArray
from benchmarks.peers.workload import Request
from cli.addresses import free_ports
from cli.health import ask
from retrieval.encoder.v1 import encoder_pb2
from retrieval.encoder.v1.encoder_pb2_grpc import EncoderServiceStub
from retrieval.reranker.v1 import reranker_pb2
from retrieval.reranker.v1.reranker_pb2_grpc import RerankerServiceStub
from serving.bundle import Kind

HOST = "127.0.0.1"
ROLES = {"query": encoder_pb2.INPUT_TYPE_QUERY, "passage": encoder_pb2.INPUT_TYPE_PASSAGE}
OUTCOMES: Mapping[grpc.StatusCode, Outcome] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "late",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "refused",
    grpc.StatusCode.UNAVAILABLE: "refused",
}
TIMEOUT_S = 120.0


class Ours:
    """One of our model servers.

    Args:
        name: What the tables call it.
        kind: Encoder or reranker.
        bundle: What it serves.
        settings: Settings of the server beside address and bundle, by name.
        log: Where its log goes.
    """

    def __init__(self, name: str, kind: Kind, bundle: Path, settings: Mapping[str, str], log: Path) -> None:
        self.name = name
        self._kind = kind
        port, metrics_port = free_ports(2)
        self._address = f"{HOST}:{port}"
        own = {"host": HOST, "port": str(port), "metrics_port": str(metrics_port), "bundle": str(bundle), **settings}
        env = {f"TWOSTAGE_{kind}_{key}".upper(): value for key, value in own.items()}
        self._process = ServerProcess([sys.executable, "-m", f"{kind}_server"], env, log)
        self._page = HttpClient(HOST, metrics_port)
        self._channel: grpc.aio.Channel | None = None
        self._encode: Any = None
        self._rerank: Any = None

    async def start(self) -> float:
        """Start, wait for SERVING and connect."""
        seconds = await self._process.start(self._serving)
        self._channel = grpc.aio.insecure_channel(self._address, options=[("grpc.enable_http_proxy", 0)])
        self._encode = EncoderServiceStub(self._channel).Encode
        self._rerank = RerankerServiceStub(self._channel).Rerank
        return seconds

    async def answer(self, request: Request) -> FloatArray:
        """Return vectors or logits."""
        response = await self._send(request, TIMEOUT_S)
        if request.kind == "encoder":
            return np.array([np.frombuffer(one.packed, "<f4") for one in response.embeddings])
        logits = np.empty(len(request.texts), np.float32)
        for one in response.ranked:
            logits[one.index] = one.logit
        return logits

    async def call(self, request: Request, timeout_s: float) -> Outcome:
        """Make one call."""
        try:
            await self._send(request, timeout_s)
        except grpc.aio.AioRpcError as error:
            return OUTCOMES.get(error.code(), "error")
        return "ok"

    async def computed(self) -> Computed | None:
        """Read the counters of the server's Prometheus page."""
        lines = (await self._page.get("/metrics")).splitlines()
        counter = f"{self._kind}_batch_tokens_total"
        counts = dict(line.rsplit(" ", 1) for line in lines if line.startswith(counter))
        tokens, padding = (float(counts.get(f'{counter}{{kind="{kind}"}}', 0)) for kind in ("real", "padding"))
        return Computed(tokens=tokens, padding=padding)

    def resident_mib(self) -> float:
        """Return the memory of the server."""
        return self._process.resident_mib()

    def cpu_s(self) -> float:
        """Return the processor time used so far."""
        return self._process.cpu_s()

    def pause(self) -> None:
        """Stop the server where it is."""
        self._process.pause()

    def resume(self) -> None:
        """Let it go on."""
        self._process.resume()

    async def stop(self) -> None:
        """Hang up and end the server."""
        if self._channel is not None:
            await self._channel.close()
        self._page.close()
        await self._process.stop()

    async def _serving(self) -> bool:
        return (await ask(self._address)).health == "SERVING"

    async def _send(self, request: Request, timeout_s: float) -> Any:
        if request.kind == "encoder":
            message = encoder_pb2.EncodeRequest(
                texts=request.texts,
                input_type=ROLES[request.role],
                overlong=encoder_pb2.OVERLONG_TRUNCATE,
                vector_format=encoder_pb2.VECTOR_FORMAT_BYTES,
            )
            return await self._encode(message, timeout=timeout_s)
        candidates = [reranker_pb2.Candidate(text=text) for text in request.texts]
        pairs = reranker_pb2.RerankRequest(query=request.query, candidates=candidates)
        return await self._rerank(pairs, timeout=timeout_s)
