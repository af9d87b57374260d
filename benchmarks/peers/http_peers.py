"""Other people's servers as targets: how each is started and asked over HTTP, and how its answers are read."""

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.http_client import HttpClient, HttpFailure
from benchmarks.peers.load import Outcome
from benchmarks.peers.process import ServerProcess
from benchmarks.peers.target import Computed, FloatArray
from benchmarks.peers.workload import PREFIX, Request
from cli.addresses import free_ports
from serving.bundle import Kind

HOST = "127.0.0.1"
SERVERS = Path(__file__).with_name("servers")
REFUSALS = (429, 503)
PROBES: Mapping[Kind, Request] = {
    "encoder": Request(kind="encoder", texts=("ready?",)),
    "reranker": Request(kind="reranker", query="ready?", texts=("yes",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How a peer is asked."""

    paths: Mapping[Kind, str]
    write: Callable[[Request], Any]
    """A request as JSON."""
    read: Callable[[Any], FloatArray]
    """An answer's JSON as float32, in the order of the texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One way of serving a model."""

    environment: str
    """Key of `installs.REQUIREMENTS`."""
    command: Callable[[Path, Kind, Path, int], Sequence[str]]
    """From directory of programs, kind, model and port to a command line."""
    protocol: Protocol
    env: Callable[[Kind, Path], Mapping[str, str]] = field(default=lambda _kind, _model: {})
    about: str


def prefixed(request: Request) -> list[str]:
    """Return an encoder request's texts with the prefix that E5 wants, which peers leave to the caller."""
    return [PREFIX[request.role] + text for text in request.texts]


def _write_plain(request: Request) -> Any:
    if request.kind == "encoder":
        return {"texts": prefixed(request)}
    return {"query": request.query, "texts": request.texts}


def _write_infinity(request: Request) -> Any:
    if request.kind == "encoder":
        return {"model": "model", "input": prefixed(request), "encoding_format": "base64"}
    return {"model": "model", "query": request.query, "documents": request.texts, "raw_scores": True}


def _read_infinity(answer: Any) -> FloatArray:
    if "data" in answer:
        vectors = sorted(answer["data"], key=lambda one: one["index"])
        return np.array([np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in vectors])
    results = sorted(answer["results"], key=lambda one: one["index"])
    return np.array([one["relevance_score"] for one in results], np.float32)


def _write_rows(request: Request) -> Any:
    if request.kind == "encoder":
        return {"rows": prefixed(request)}
    return {"rows": [(request.query, text) for text in request.texts]}


def _write_triton(request: Request) -> Any:
    texts = prefixed(request) if request.kind == "encoder" else request.texts
    columns = {"text": list(texts)}
    if request.kind == "reranker":
        columns["query"] = [request.query] * len(texts)
    inputs = [
        {"name": name, "shape": [len(column), 1], "datatype": "BYTES", "data": column}
        for name, column in columns.items()
    ]
    return {"inputs": inputs}


def _read_triton(answer: Any) -> FloatArray:
    (output,) = answer["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"]).squeeze(-1 if output["shape"][-1] == 1 else ())


def _same_path(path: str) -> Mapping[Kind, str]:
    return {"encoder": path, "reranker": path}


def _floats(answer: Any) -> FloatArray:
    return np.array(answer, np.float32)


PLAIN = Protocol(paths=_same_path("/compute"), write=_write_plain, read=_floats)
LITSERVE = Protocol(paths=_same_path("/compute"), write=_write_plain, read=lambda answer: _floats(answer["outputs"]))
BENTO = Protocol(paths=_same_path("/compute"), write=_write_rows, read=_floats)
INFINITY = Protocol(paths={"encoder": "/embeddings", "reranker": "/rerank"}, write=_write_infinity, read=_read_infinity)
TRITON = Protocol(paths=_same_path("/v2/models/peer/infer"), write=_write_triton, read=_read_triton)


def _script(name: str, *more: str) -> Callable[[Path, Kind, Path, int], Sequence[str]]:
    def command(programs: Path, kind: Kind, model: Path, port: int) -> Sequence[str]:
        given = ("--kind", kind, "--model", str(model), "--port", str(port))
        return (str(programs / "python"), str(SERVERS / name), *given, *more)

    return command


def _infinity(engine: str, *more: str) -> Callable[[Path, Kind, Path, int], Sequence[str]]:
    def command(programs: Path, _kind: Kind, model: Path, port: int) -> Sequence[str]:
        where = ("--host", HOST, "--port", str(port), "--log-level", "warning")
        what = ("--model-id", str(model), "--served-model-name", "model", "--engine", engine, "--device", "cpu")
        how = ("--no-bettertransformer", "--no-compile", "--batch-size", "32")
        return (str(programs / "infinity_emb"), "v2", *what, *how, *where, *more)

    return command


def _bento(programs: Path, _kind: Kind, _model: Path, port: int) -> Sequence[str]:
    where = ("--host", HOST, "--port", str(port), "--working-dir", str(SERVERS))
    return (str(programs / "bentoml"), "serve", "bento_service:Peer", *where)


PEERS: Mapping[str, Peer] = {
    "infinity torch": Peer(
        environment="infinity",
        command=_infinity("torch", "--dtype", "float32"),
        protocol=INFINITY,
        about="infinity-emb, torch engine, float32, batches of 32 across requests",
    ),
    "infinity torch bf16": Peer(
        environment="infinity",
        command=_infinity("torch", "--dtype", "bfloat16"),
        protocol=INFINITY,
        about="the same in bfloat16",
    ),
    "infinity onnx": Peer(
        environment="infinity_optimum",
        # Its own choice for this engine is the first token, which is not how E5 pools.
        command=_infinity("optimum", "--pooling-method", "mean"),
        protocol=INFINITY,
        about="infinity-emb, optimum engine (onnxruntime), which optimizes the plain graph",
    ),
    "fastapi torch": Peer(
        environment="sentence_transformers",
        command=_script("fastapi_server.py"),
        protocol=PLAIN,
        about="sentence-transformers behind FastAPI, no batching across requests",
    ),
    "fastapi onnx": Peer(
        environment="sentence_transformers_onnx",
        command=_script("fastapi_server.py", "--backend", "onnx"),
        protocol=PLAIN,
        about="the same with the library's ONNX backend, the plain graph",
    ),
    "litserve": Peer(
        environment="litserve",
        command=_script("litserve_server.py"),
        protocol=LITSERVE,
        about="sentence-transformers behind LitServe, up to 32 requests or 5 ms",
    ),
    "bentoml": Peer(
        environment="bentoml",
        command=_bento,
        env=lambda kind, model: {"PEER_KIND": kind, "PEER_MODEL": str(model), "BENTOML_DO_NOT_TRACK": "True"},
        protocol=BENTO,
        about="sentence-transformers behind BentoML, adaptive batching up to 64 rows",
    ),
    "ray serve": Peer(
        environment="ray",
        command=_script("ray_server.py"),
        env=lambda _kind, _model: {"RAY_USAGE_STATS_ENABLED": "0"},
        protocol=PLAIN,
        about="sentence-transformers behind Ray Serve, up to 32 requests or 5 ms",
    ),
    "pytriton": Peer(
        environment="pytriton",
        command=_script("pytriton_server.py"),
        protocol=TRITON,
        about="sentence-transformers behind PyTriton, dynamic batching up to 64 rows or 5 ms",
    ),
}


class HttpPeer:
    """One peer serving one model.

    Args:
        name: Key of `PEERS`.
        kind: Encoder or reranker.
        programs: Directory of the environment's programs.
        model: Hugging Face directory.
        log: Where its log goes.
    """

    def __init__(self, name: str, kind: Kind, programs: Path, model: Path, log: Path) -> None:
        self.name = name
        self._kind = kind
        self._peer = PEERS[name]
        (port,) = free_ports(1)
        env = {
            # Nothing is to be looked for outside of this machine.
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
            "INFINITY_ANONYMOUS_USAGE_STATS": "0",
            "TOKENIZERS_PARALLELISM": "false",
            "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
            **self._peer.env(kind, model),
        }
        self._process = ServerProcess(self._peer.command(programs, kind, model, port), env, log)
        self._client = HttpClient(HOST, port)

    async def start(self) -> float:
        """Start and wait for a first answer."""
        return await self._process.start(self._answers)

    async def answer(self, request: Request) -> FloatArray:
        """Return vectors or logits."""
        return self._peer.protocol.read(await self._post(request))

    async def call(self, request: Request, timeout_s: float) -> Outcome:
        """Make one call."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._post(request)
        except TimeoutError:
            return "late"
        except HttpFailure as failure:
            return "refused" if failure.status in REFUSALS else "error"
        except (OSError, EOFError):
            return "error"
        return "ok"

    async def computed(self) -> Computed | None:
        """Nothing: none of them tells how much it padded."""
        return None

    def resident_mib(self) -> float:
        """Return the memory of the server's processes."""
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
        """End the server."""
        self._client.close()
        await self._process.stop()

    async def _post(self, request: Request) -> Any:
        protocol = self._peer.protocol
        return await self._client.post(protocol.paths[request.kind], protocol.write(request))

    async def _answers(self) -> bool:
        return await self.call(PROBES[self._kind], 30.0) == "ok"
