"""Commands against a gateway that wants TLS, a certificate and a key."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import Authority
from fakes import FakeEncoder, FakeReranker, serve
from store_fake import MemoryStore
from up_process import TWOSTAGE

from gateway import app
from gateway.settings import GatewaySettings
from retrieval.reranker.v1 import reranker_pb2, reranker_pb2_grpc
from serving.keys import create_key
from serving.metrics import ServerMetrics
from serving.server import open_server
from serving.settings import ServerSettings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
MADE = create_key()
SERVICE = reranker_pb2.DESCRIPTOR.services_by_name["RerankerService"].full_name


class Reranker(FakeReranker):
    """Says which model it is, too, and remembers with which headers and how much time it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.headers: set[str] = set()
        self.given_s = 0.0

    async def GetModel(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.headers |= {name for name, _ in context.invocation_metadata()}
        self.given_s = context.time_remaining()
        return reranker_pb2.GetModelResponse(model=self.model)


def added(servicer: Reranker) -> Callable[[grpc.aio.Server], None]:
    """Return what adds a fake to a server of ours."""
    return lambda server: reranker_pb2_grpc.add_RerankerServiceServicer_to_server(servicer, server)


@dataclass(frozen=True)
class Door:
    """A gateway and a reranker, and what opens both; at a third port somebody listens who has no TLS and no key."""

    address: str
    reranker: str
    plain: str
    in_the_clear: Reranker
    """Whoever listens there."""
    options: tuple[str, ...]
    directory: Path

    @property
    def ports(self) -> tuple[str, ...]:
        """What makes `doctor` look at all three."""
        named = {"gateway": self.address, "reranker": self.reranker, "encoder": self.plain}
        return tuple(part for name, address in named.items() for part in (f"--{name}-port", address.rpartition(":")[2]))

    async def run(
        self, *arguments: str, key: str = MADE.key, options: tuple[str, ...] | None = None
    ) -> tuple[int, str, str]:
        """Run a command against it; return its exit status, output and notes."""
        given = self.options if options is None else options
        there = self.ports if arguments[0] == "doctor" else ("--gateway", self.address)
        command = (*TWOSTAGE, *given, *arguments, *there)
        ended = await asyncio.to_thread(
            subprocess.run,
            command,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "TWOSTAGE_API_KEY": key, "COLUMNS": "200"},
        )
        return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture
async def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    """A gateway between fakes."""
    authority = Authority.make(tmp_path, "ours")
    pair, person = authority.sign("server"), authority.sign("person")
    keys = tmp_path / "keys"
    keys.write_text(
        f'[keys]\none = {{ id = "{MADE.id}", sha256 = "{MADE.sha256}", scope = "all" }}\n'
        '[scopes.all]\ncollections = { "*" = "manage" }\n'
    )

    async def memory(_settings: object, _stack: object) -> MemoryStore:
        return MemoryStore()

    monkeypatch.setattr(app, "_open_store", memory)
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(serve(fake)) for fake in (FakeEncoder(), FakeReranker())]
        guarded: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": 0,
            "grace_s": 1,
            "tls_cert_file": pair.cert,
            "tls_key_file": pair.key,
            "tls_client_ca_file": authority.cert,
            "api_keys_file": keys,
        }
        told = GatewaySettings(
            **guarded,
            encoder_target=f"dns:///127.0.0.1:{ports[0]}",
            reranker_target=f"dns:///127.0.0.1:{ports[1]}",
        )
        running = await stack.enter_async_context(app.open_app(told))
        apart = await stack.enter_async_context(
            open_server(ServerSettings(**guarded), ServerMetrics("reranker"), {SERVICE: added(Reranker())})
        )
        options = ("--tls-ca", str(authority.cert), "--tls-cert", str(person.cert), "--tls-key", str(person.key))
        in_the_clear = Reranker()
        open_to_all = ServerSettings(host="127.0.0.1", port=0, grace_s=1)
        plain = await stack.enter_async_context(
            open_server(open_to_all, ServerMetrics("reranker"), {SERVICE: added(in_the_clear)})
        )
        for one in (running, apart, plain):
            await one.set_serving(serving=True)
        addresses = [f"127.0.0.1:{one.port}" for one in (running, apart, plain)]
        yield Door(*addresses, in_the_clear, options, tmp_path)


async def test_every_way_of_calling_is_let_in(door: Door) -> None:
    """Indexing, searching, exporting and importing work over TLS with certificate and key."""
    file = door.directory / "documents.jsonl"
    file.write_text('{"id": 1, "text": "alpha beta"}\n{"id": 2, "text": "gamma"}\n')
    home = ("--home", str(door.directory / "home"))
    assert (await door.run("index", str(file), "--collection", "small", *home))[0] == 0
    status, output, notes = await door.run("search", "alpha", "-c", "small", "--json")
    assert status == 0, notes
    assert [hit["id"] for hit in json.loads(output)["hits"]] == [1, 2]
    dump = str(door.directory / "dump")
    assert (await door.run("collections", "export", "small", dump))[0] == 0
    assert (await door.run("collections", "import", dump, "again"))[0] == 0
    status, output, notes = await door.run("collections", "list", "--json")
    assert status == 0, notes
    assert [(one["name"], one["document_count"]) for one in json.loads(output)] == [("again", 2), ("small", 2)]


async def test_an_evaluation_is_let_in_by_gateway_and_reranker(door: Door) -> None:
    """Its phases work over TLS with certificate and key, and without a key both servers refuse it."""
    data, outputs = door.directory / "data", ("--outputs", str(door.directory / "outputs"))
    data.mkdir()
    (data / "documents.jsonl").write_text('{"id": 1, "text": "alpha beta"}\n{"id": 2, "text": "gamma"}\n')
    (data / "queries.jsonl").write_text('{"id": 1, "query": "alpha", "relevant": [1]}\n')
    for phase, words in (
        ("prepare", ("--dataset", str(data))),
        ("index", ("--dataset", str(data))),
        ("retrieve", ("--dataset", str(data))),
        ("rerank", ("--reranker", door.reranker)),
    ):
        status, _, notes = await door.run("evaluate", phase, *words, *outputs)
        assert status == 0, (phase, notes)
    reranked = json.loads((door.directory / "outputs" / "reranked.json").read_text())
    assert reranked["questions"][0]["ranked"] == [1, 2]
    for phase, words in (("retrieve", ("--dataset", str(data))), ("rerank", ("--reranker", door.reranker))):
        status, _, notes = await door.run("evaluate", phase, *words, *outputs, key="")
        assert (status, "API_KEY_MISSING" in notes) == (2, True), (phase, notes)


async def test_what_is_missing_is_said(door: Door) -> None:
    """A wrong key, no key, and no TLS each end with a status and a line that says what to do."""
    status, _, notes = await door.run("collections", "list", key=create_key().key)
    assert (status, "API_KEY_INVALID" in notes) == (2, True), notes
    status, _, notes = await door.run("collections", "list", key="")
    assert (status, "TWOSTAGE_API_KEY" in notes) == (2, True)
    status, _, notes = await door.run("collections", "list", options=())
    assert (status, "--tls" in notes) == (69, True)
    assert MADE.key not in notes


THERE = "fake-reranker on cpu, sha256:777777777777"


@pytest.mark.parametrize(
    ("told", "key", "gateway", "reranker"),
    [
        (slice(None), MADE.key, ": SERVING over TLS, no model of its own", f": SERVING over TLS, {THERE}"),
        (
            slice(None),
            "",
            ": SERVING over TLS, no model of its own",
            ": SERVING over TLS, its model is shown with an API key only",
        ),
        (slice(2), MADE.key, *[", and what is there talks TLS, but not with these certificates"] * 2),
        (slice(0), MADE.key, *[", and what is there talks TLS"] * 2),
    ],
    ids=["let in", "no key", "no certificate", "no TLS"],
)
async def test_doctor_tells_who_is_behind_tls(door: Door, told: slice, key: str, gateway: str, reranker: str) -> None:
    """Whoever lets the command in is named; of others it says what is missing; a key for TLS is not sent without it."""
    home = ("--home", str(door.directory / "home"))
    status, output, notes = await door.run(
        "doctor", "--json", "--timeout", "30", *home, key=key, options=door.options[told]
    )
    assert status == 1, notes
    ports = json.loads(output)["sections"]["ports"]
    assert [found["value"] for found in ports] == [f"taken{gateway}", f"taken: SERVING, {THERE}", f"taken{reranker}"]
    if "SERVING" not in gateway:
        assert "--tls-c" in ports[0]["todo"]
    assert ("authorization" in door.in_the_clear.headers) == (not door.options[told])
    assert 10 < door.in_the_clear.given_s <= 31  # as --timeout says, which gRPC rounds up
    assert MADE.key not in output + notes
