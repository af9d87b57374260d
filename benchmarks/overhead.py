"""What Python spends per call: the three servers with nothing to compute, beside a bare gRPC server.

The model servers run as they are, on bundles whose tokenizer is the demo's and whose graph costs nothing; the gateway
runs on servers that answer at once and on the embedded store. The bare server (grpc.aio, no code of ours) takes the
same requests and gives answers of the same size. Servers and load client are processes of their own; the client sends
prepared bytes and reads none.

    .venv/bin/python benchmarks/overhead.py [--only encoder|reranker|gateway] [--seconds 3]
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

from cli.addresses import free_ports
from cli.health import until_serving
from gateway.ports import Document, Model
from gateway.stores.edge import EdgeStore
from models import demo
from retrieval.encoder.v1 import encoder_pb2 as encoder_pb
from retrieval.gateway.v1 import gateway_pb2 as gateway_pb
from retrieval.reranker.v1 import reranker_pb2 as reranker_pb
from serving.bundle import GOLDEN_NAME, MODEL_NAME, TOKENIZER_NAME, Bundle, Kind, file_entries, write_manifest
from serving.deadline import Deadline
from serving.timing import from_duration

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "data/helpcentre"
COLLECTION = "overhead"
CALLERS = (1, 32)
POOL = 20
WARM_UP_S = 0.5
BATCH = 256
DIMENSION = 384
QUESTION = "Wie setze ich mein Passwort zurück?"
MODEL = Model(id="nothing", revision="0", digest="sha256:" + "0" * 64, precision="fp32")

console = Console(width=120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One kind of call."""

    name: str
    method: str
    request: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What came of calling for some seconds."""

    milliseconds: np.ndarray
    calls_per_s: float
    answer: bytes
    """The last one."""
    spans: Mapping[str, list[float]]
    """The answers' own timings in ms, where they are searches."""
    server_ms: float
    """Processor time of the server's process per call."""


# --- what is sent --------------------------------------------------------------------------------------------------


def _texts(count: int) -> list[str]:
    lines = (CORPUS / "documents.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    return [texts[index % len(texts)] for index in range(count)]


def encoder_work() -> list[Work]:
    """One query, and 16 passages, as numbers and as bytes."""
    shapes = [("1 query", [QUESTION]), ("16 passages", _texts(16))]
    formats = [("floats", encoder_pb.VECTOR_FORMAT_FLOATS), ("bytes", encoder_pb.VECTOR_FORMAT_BYTES)]
    return [
        Work(
            name=f"encode {name}, {format_name}",
            method="/retrieval.encoder.v1.EncoderService/Encode",
            request=encoder_pb.EncodeRequest(
                texts=texts, input_type=encoder_pb.INPUT_TYPE_QUERY, vector_format=vector_format
            ).SerializeToString(),
        )
        for name, texts in shapes
        for format_name, vector_format in formats
    ]


def reranker_work() -> list[Work]:
    """A pool of 20."""
    candidates = [reranker_pb.Candidate(id=str(index), text=text) for index, text in enumerate(_texts(POOL))]
    request = reranker_pb.RerankRequest(query=QUESTION, candidates=candidates)
    method = "/retrieval.reranker.v1.RerankerService/Rerank"
    return [Work(name=f"rerank {POOL}", method=method, request=request.SerializeToString())]


def gateway_work() -> list[Work]:
    """A search as it comes: pool of 20, five hits."""
    request = gateway_pb.SearchRequest(query=QUESTION, collection=COLLECTION)
    method = "/retrieval.gateway.v1.GatewayService/Search"
    return [Work(name="search", method=method, request=request.SerializeToString())]


# --- processes of this script --------------------------------------------------------------------------------------


class _Bare(grpc.GenericRpcHandler):
    """Answers `/bare/N` with N bytes, and the methods in `fixed` with theirs."""

    def __init__(self, fixed: Mapping[str, bytes]) -> None:
        self._fixed = fixed

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Make the handler; whoever asks for its health is told that there is no such service."""
        service, _, name = details.method.rpartition("/")
        if service != "/bare" and details.method not in self._fixed:
            return None
        answer = self._fixed.get(details.method) or bytes(int(name))

        async def handle(_request: bytes, _context: Any) -> bytes:
            return answer

        return grpc.unary_unary_rpc_method_handler(handle)


async def bare(port: int) -> None:
    """Serve the bare server, and encoder and reranker that answer at once."""
    order = np.random.default_rng(0).permutation(POOL).tolist()
    ranked = [reranker_pb.RankedCandidate(id=str(i), index=i, logit=1.0, probability=0.5) for i in order]
    model = encoder_pb.ModelReference(id=MODEL.id, digest=MODEL.digest)
    encoded = encoder_pb.EncodeResponse(embeddings=[encoder_pb.Embedding(packed=vector().tobytes())], model=model)
    reranked = reranker_pb.RerankResponse(ranked=ranked, model=reranker_pb.ModelReference(id=MODEL.id))
    fixed = {
        encoder_work()[0].method: encoded.SerializeToString(),
        reranker_work()[0].method: reranked.SerializeToString(),
    }
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((_Bare(fixed),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


async def load(spec: Mapping[str, Any]) -> None:
    """Call in a closed loop and print what came of it."""
    request, answers = bytes.fromhex(spec["request"]), []
    async with grpc.aio.insecure_channel(spec["address"], options=[("grpc.enable_http_proxy", 0)]) as channel:
        method = channel.unary_unary(spec["method"])
        await method(request, wait_for_ready=True)

        async def caller(until: float, took: list[int]) -> None:
            while time.perf_counter() < until:
                begun = time.perf_counter_ns()
                answers.append(await method(request))
                took.append(time.perf_counter_ns() - begun)

        for seconds in (WARM_UP_S, spec["seconds"]):
            answers.clear()
            took: list[int] = []
            before, begun = _processor_s(spec["pid"]), time.perf_counter()
            await asyncio.gather(*(caller(begun + seconds, took) for _ in range(spec["callers"])))
            lasted, used = time.perf_counter() - begun, _processor_s(spec["pid"]) - before
    spans = _spans(answers) if spec["search"] else {}
    outcome = {"ns": took, "s": lasted, "used": used, "answer": answers[-1].hex(), "spans": spans}
    sys.stdout.write(json.dumps(outcome))


def _processor_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def _spans(answers: Sequence[bytes]) -> dict[str, list[float]]:
    """Return what the gateway says of itself, in ms: its own work, and per stage what the engine did not take."""
    timings = [gateway_pb.SearchResponse.FromString(answer).timings for answer in answers]
    engine = [from_duration(one.search.compute) / 1e6 for one in timings]
    return {
        "total": [from_duration(one.total) / 1e6 for one in timings],
        "other": [from_duration(one.other) / 1e6 for one in timings],
        "encode": [from_duration(one.encode.total) / 1e6 for one in timings],
        "search": [from_duration(one.search.total) / 1e6 - ms for one, ms in zip(timings, engine, strict=True)],
        "rerank": [from_duration(one.rerank.total) / 1e6 for one in timings],
        "engine": engine,
    }


# --- what is started -----------------------------------------------------------------------------------------------


def vector(seed: int = 0) -> np.ndarray:
    """A direction; float32 [384] of length 1."""
    numbers = np.random.default_rng(seed).standard_normal(DIMENSION)
    return (numbers / np.linalg.norm(numbers)).astype("<f4")


def empty_bundle(made_of: Path, directory: Path, kind: Kind) -> Path:
    """Make a bundle with the tokenizer of another and a graph that gives constants, or sums of token ids."""
    directory.mkdir()
    for name in (TOKENIZER_NAME, GOLDEN_NAME):
        shutil.copy(made_of / name, directory / name)
    int64, floats = TensorProto.INT64, TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(n, int64, ["batch", "tokens"]) for n in ("input_ids", "attention_mask")]
    nodes = [
        helper.make_node("Mul", ["input_ids", "attention_mask"], ["ids"]),
        helper.make_node("ReduceSum", ["ids", "last"], ["sums"], keepdims=int(kind == "encoder")),
        helper.make_node("Cast", ["sums"], ["numbers"], to=floats),
        helper.make_node("Mul", ["numbers", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "constant"], ["vectors" if kind == "encoder" else "logits"]),
    ]
    scale, constant = (0.0, vector()[None]) if kind == "encoder" else (1e-6, np.zeros(1, np.float32))
    weights = {"last": np.array([1]), "scale": np.array([scale], np.float32), "constant": constant}
    shape = ["batch", DIMENSION][: 2 if kind == "encoder" else 1]
    outputs = [helper.make_tensor_value_info(nodes[-1].output[0], floats, shape)]
    initial = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, kind, inputs, outputs, initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save_model(model, directory / MODEL_NAME)
    # The golden outputs are another model's: any difference will do.
    changes = {"tolerance": 1e9, "files": file_entries(directory)}
    write_manifest(directory, Bundle(made_of).manifest.model_copy(update=changes))
    return directory


async def fill(root: Path, count: int) -> None:
    """Write a collection of random vectors with real texts."""
    numbers = np.random.default_rng(1).standard_normal((count, DIMENSION)).astype(np.float32)
    documents = [Document(id=index, text=text) for index, text in enumerate(_texts(count))]
    async with await EdgeStore.open(root) as store:
        await store.create(COLLECTION, dimension=DIMENSION, encoder=MODEL, deadline=Deadline.after(60))
        for first in range(0, count, BATCH):
            part = slice(first, first + BATCH)
            await store.upsert(COLLECTION, documents[part], list(numbers[part]), deadline=Deadline.after(60))


@asynccontextmanager
async def process(*command: str, **variables: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run Python with a command line, and end it on leaving."""
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    started = await asyncio.create_subprocess_exec(sys.executable, *command, env=environment, cwd=ROOT)
    try:
        yield started
    finally:
        started.terminate()
        await started.wait()


@asynccontextmanager
async def server(name: str, **settings: object) -> AsyncIterator[tuple[str, int]]:
    """Run one of the servers; give its address and process id."""
    (port,) = free_ports(1)
    settings |= {"host": "127.0.0.1", "port": port, "log_level": "WARNING"}
    prefix = f"TWOSTAGE_{name.removesuffix('_server')}_"
    variables = {f"{prefix}{key}".upper(): value for key, value in settings.items()}
    async with process("-m", name, **variables) as started:
        await until_serving(f"127.0.0.1:{port}")
        yield f"127.0.0.1:{port}", started.pid


async def measure(address: str, pid: int, work: Work, callers: int, seconds: float) -> Load:
    """Have a process of its own call a server."""
    spec = {
        "address": address,
        "pid": pid,
        "method": work.method,
        "request": work.request.hex(),
        "callers": callers,
        "seconds": seconds,
        "search": work.name == "search",
    }
    command = (str(Path(__file__)), "--load", json.dumps(spec))
    client = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    output, _ = await client.communicate()
    outcome = json.loads(output)
    return Load(
        milliseconds=np.array(outcome["ns"]) / 1e6,
        calls_per_s=len(outcome["ns"]) / outcome["s"],
        answer=bytes.fromhex(outcome["answer"]),
        spans=outcome["spans"],
        server_ms=outcome["used"] * 1e3 / len(outcome["ns"]),
    )


# --- what is shown -------------------------------------------------------------------------------------------------


async def compare(name: str, address: str, pid: int, works: Sequence[Work], seconds: float) -> list[Load]:
    """Measure a server and the bare one in turn, and print both; return the loads of the server."""
    table = Table(title=f"{name}: one process, {' and '.join(map(str, CALLERS))} callers; bare: the same bytes")
    for heading in ("call", "callers", "calls/s", "bare", "p50 ms", "bare", "p95 ms", "bare", "CPU ms/call", "bare"):
        table.add_column(heading, justify="left" if heading == "call" else "right")
    loads = []
    (port,) = free_ports(1)
    async with process(str(Path(__file__)), "--bare", str(port)) as limit:
        for work in works:
            for callers in CALLERS:
                ours = await measure(address, pid, work, callers, seconds)
                echo = Work(name="bare", method=f"/bare/{len(ours.answer)}", request=work.request)
                theirs = await measure(f"127.0.0.1:{port}", limit.pid, echo, callers, seconds)
                table.add_row(work.name, str(callers), *_cells(ours, theirs))
                loads.append(ours)
    console.print(table)
    return loads


def _cells(ours: Load, theirs: Load) -> list[str]:
    figures: list[tuple[str, Callable[[Load], float]]] = [
        ("{:,.0f}", lambda one: one.calls_per_s),
        ("{:.2f}", lambda one: float(np.percentile(one.milliseconds, 50))),
        ("{:.2f}", lambda one: float(np.percentile(one.milliseconds, 95))),
        ("{:.3f}", lambda one: one.server_ms),
    ]
    return [form.format(read(one)) for form, read in figures for one in (ours, theirs)]


def show_spans(loads: Sequence[Load]) -> None:
    """Print where the time of a search goes."""
    table = Table(title="search, ms p50 / p95; encode and rerank: answered at once; search: without the engine")
    table.add_column("callers", justify="right")
    for span in loads[0].spans:
        table.add_column(span, justify="right")
    for callers, one in zip(CALLERS, loads, strict=True):
        pairs = [np.percentile(values, (50, 95)) for values in one.spans.values()]
        table.add_row(str(callers), *(f"{p50:.2f} / {p95:.2f}" for p50, p95 in pairs))
    console.print(table)


# --- the parts -----------------------------------------------------------------------------------------------------


async def _model_server(kind: Kind, works: Sequence[Work], bundles: Path, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        bundle = empty_bundle(bundles / kind, Path(directory) / kind, kind)
        async with server(f"{kind}_server", bundle=bundle, device="cpu", threads=1) as (address, pid):
            await compare(kind, address, pid, works, seconds)


async def _gateway(documents: int, seconds: float) -> None:
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as directory:
        await fill(Path(directory), documents)
        target = f"dns:///127.0.0.1:{port}"
        async with (
            process(str(Path(__file__)), "--bare", str(port)),
            server("gateway", encoder_target=target, reranker_target=target, store_path=directory) as (address, pid),
        ):
            show_spans(await compare("gateway", address, pid, gateway_work(), seconds))


async def main(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    bundles = ROOT / ".twostage/bundles/demo"
    demo.prepare(bundles, lambda line: console.print(line, style="dim"))
    console.print(f"{os.cpu_count()} processors, Python {platform.python_version()}, grpcio {grpc.__version__}")
    seconds = arguments.seconds
    parts: dict[str, Callable[[], Awaitable[None]]] = {
        "encoder": lambda: _model_server("encoder", encoder_work(), bundles, seconds),
        "reranker": lambda: _model_server("reranker", reranker_work(), bundles, seconds),
        "gateway": lambda: _gateway(arguments.documents, seconds),
    }
    for name, part in parts.items():
        if arguments.only in (None, name):
            await part()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=("encoder", "reranker", "gateway"))
    parser.add_argument("--seconds", type=float, default=3.0, help="of every measurement")
    parser.add_argument("--documents", type=int, default=5_000, help="in the gateway's store")
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--load", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    if given.bare is not None:
        asyncio.run(bare(given.bare))
    elif given.load is not None:
        asyncio.run(load(given.load))
    else:
        asyncio.run(main(given))
