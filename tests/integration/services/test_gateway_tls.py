"""The gateway's own way to encoders and rerankers: TLS on every hop, certificates that change, and a key."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import Authority
from clients import client
from fakes import FakeEncoder, FakeReranker, serve
from rigs import failure
from store_fake import MemoryStore

from encoder_server.settings import EncoderSettings
from gateway import app, encoder_client
from gateway.backends import open_backend
from gateway.encoder_client import EncoderClient
from gateway.settings import GatewaySettings
from retrieval.encoder.v1 import encoder_pb2_grpc
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1.gateway_pb2_grpc import CollectionServiceStub, DocumentServiceStub, GatewayServiceStub
from serving.deadline import Deadline
from serving.errors import Misconfigured, ServiceError
from serving.keys import NewKey, create_key
from serving.metrics import ServerMetrics
from serving.server import open_server
from serving.tls import TlsFiles, channel_credentials, watch

pytestmark = pytest.mark.timeout(60)
MADE = create_key()


@asynccontextmanager
async def encoders(directory: Path, **settings: Any) -> AsyncIterator[str]:
    """Serve a fake encoder behind the doors of a real server; give its target."""
    told = EncoderSettings(bundle=directory, host="127.0.0.1", port=0, **settings)
    fake = FakeEncoder()
    add = {encoder_client.SERVICE: lambda server: encoder_pb2_grpc.add_EncoderServiceServicer_to_server(fake, server)}
    async with open_server(told, ServerMetrics("encoder"), add) as running:
        await running.set_serving(serving=True)
        yield f"dns:///localhost:{running.port}"


def keys_file(path: Path, *keys: NewKey) -> Path:
    """Write a file of keys without scopes."""
    lines = [f'k{number} = {{ id = "{one.id}", sha256 = "{one.sha256}" }}' for number, one in enumerate(keys)]
    path.write_text("[keys]\n" + "\n".join(lines) + "\n")
    return path


async def outcome(encoder: EncoderClient) -> str:
    """Encode, and return "OK" or the reason of the failure."""
    try:
        await encoder.encode_queries(["alpha"], deadline=Deadline.after(10))
    except ServiceError as error:
        return error.reason
    return "OK"


async def until_ok(encoder: EncoderClient) -> None:
    """Encode until it works."""
    async with asyncio.timeout(30):
        while await outcome(encoder) != "OK":
            pass


async def test_the_gateway_shows_its_certificate_and_checks_the_others(tmp_path: Path) -> None:
    """With the right authority on both sides calls go through; with a wrong one on either they are UNAVAILABLE."""
    ours, theirs = Authority.make(tmp_path, "ours"), Authority.make(tmp_path, "theirs")
    server, gateway = ours.sign("server"), ours.sign("gateway")
    files = {"tls_cert_file": server.cert, "tls_key_file": server.key, "tls_client_ca_file": ours.cert}
    shown = {"backend_cert_file": gateway.cert, "backend_key_file": gateway.key}
    async with encoders(tmp_path, **files) as target:
        for told, expected in (
            ({"backend_ca_file": ours.cert, **shown}, "OK"),
            ({"backend_ca_file": theirs.cert, **shown}, "ENCODER_UNAVAILABLE"),
            ({"backend_ca_file": ours.cert}, "ENCODER_UNAVAILABLE"),
            ({"backend_tls": True}, "ENCODER_UNAVAILABLE"),
            ({}, "ENCODER_UNAVAILABLE"),
        ):
            async with open_backend(GatewaySettings(**told), target, encoder_client.SERVICE) as channel:
                assert await outcome(EncoderClient(channel)) == expected, told


async def test_the_gateway_takes_up_new_certificates(tmp_path: Path) -> None:
    """When authority and pairs of all sides are replaced, calls go through again without a restart of either."""
    old, new = Authority.make(tmp_path, "old"), Authority.make(tmp_path, "new")
    server, gateway, trusted = old.sign("server"), old.sign("gateway"), tmp_path / "ca.crt"
    trusted.write_bytes(old.cert.read_bytes())
    files = {"tls_cert_file": server.cert, "tls_key_file": server.key, "tls_client_ca_file": trusted}
    told = GatewaySettings(backend_ca_file=trusted, backend_cert_file=gateway.cert, backend_key_file=gateway.key)
    async with (
        encoders(tmp_path, **files, max_connection_age_s=0.5) as target,
        open_backend(told, target, encoder_client.SERVICE) as channel,
    ):
        encoder = EncoderClient(channel)
        assert await outcome(encoder) == "OK"
        trusted.write_bytes(new.cert.read_bytes())
        server.put(new.sign("server"))
        gateway.put(new.sign("gateway"))
        # Who trusts the old authority, and is signed by it, gets no connection any more; an open one ends by its age.
        stranger = old.sign("stranger")
        only_old = GatewaySettings(
            backend_ca_file=old.cert, backend_cert_file=stranger.cert, backend_key_file=stranger.key
        )
        async with asyncio.timeout(30):
            refused = ""
            while refused != "ENCODER_UNAVAILABLE":
                async with open_backend(only_old, target, encoder_client.SERVICE) as other:
                    refused = await outcome(EncoderClient(other))
        before = channel._channel
        await until_ok(encoder)
        async with asyncio.timeout(30):
            while channel._channel is before:
                await outcome(encoder)
        await until_ok(encoder)


async def test_calls_under_way_end_on_the_channel_that_was_replaced(tmp_path: Path) -> None:
    """New certificates cut off nobody."""
    authority = Authority.make(tmp_path, "ours")
    pair, trusted = authority.sign("server"), tmp_path / "ca.crt"
    trusted.write_bytes(authority.cert.read_bytes())
    entered, opened = asyncio.Event(), asyncio.Event()

    async def hold(_request: Any, _context: Any, answer: Any) -> Any:
        entered.set()
        await opened.wait()
        return answer

    fake = FakeEncoder()
    fake.script.append(hold)
    told = EncoderSettings(bundle=tmp_path, host="127.0.0.1", port=0, tls_cert_file=pair.cert, tls_key_file=pair.key)
    add = {encoder_client.SERVICE: lambda server: encoder_pb2_grpc.add_EncoderServiceServicer_to_server(fake, server)}
    async with (
        open_server(told, ServerMetrics("encoder"), add) as running,
        open_backend(
            GatewaySettings(backend_ca_file=trusted), f"dns:///localhost:{running.port}", encoder_client.SERVICE
        ) as channel,
    ):
        await running.set_serving(serving=True)
        encoder = EncoderClient(channel)
        held = asyncio.create_task(outcome(encoder))
        await entered.wait()
        before = channel._channel
        trusted.write_bytes(authority.cert.read_bytes() + Authority.make(tmp_path, "more").cert.read_bytes())
        async with asyncio.timeout(30):
            while channel._channel is before:
                assert await outcome(encoder) == "OK"
        opened.set()
        assert await held == "OK"


async def test_encoders_can_ask_for_a_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without it an operator is told; with it calls go through; another one is taken up from the file."""
    other = create_key()
    keys, given = keys_file(tmp_path / "keys", MADE, other), tmp_path / "key"
    given.write_text(MADE.key + "\n")
    caplog.set_level(logging.DEBUG)
    async with encoders(tmp_path, api_keys_file=keys) as target:
        async with open_backend(GatewaySettings(), target, encoder_client.SERVICE) as channel:
            with pytest.raises(Misconfigured, match="backend_api_key_file") as caught:
                await EncoderClient(channel).encode_queries(["alpha"], deadline=Deadline.after(10))
            assert caught.value.reason == "ENCODER_MISCONFIGURED"
        told = GatewaySettings(backend_api_key_file=given)
        async with open_backend(told, target, encoder_client.SERVICE) as channel:
            encoder = EncoderClient(channel)
            assert await outcome(encoder) == "OK"
            given.write_text(other.key)
            keys_file(keys, other)
            await until_ok(encoder)
    secrets = [one.key.removeprefix(f"twostage_{one.id}_") for one in (MADE, other)]  # may have any "_" of their own
    assert [len(secret) for secret in secrets] == [43, 43]
    assert not any(secret in caplog.text for secret in secrets)


async def test_a_key_in_the_clear_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """On loopback nobody listens; elsewhere the log says that TLS is off, without the key."""
    (tmp_path / "key").write_text(MADE.key)
    told = GatewaySettings(backend_api_key_file=tmp_path / "key")
    for target, warnings in (("dns:///127.0.0.1:1", 0), ("dns:///encoders.example:1", 1)):
        caplog.clear()
        async with open_backend(told, target, encoder_client.SERVICE):
            pass
        assert caplog.text.count("in the clear") == warnings
        assert MADE.key not in caplog.text


@pytest.mark.parametrize("content", ["", "  \n", "two words", "schlüssel"])
async def test_a_file_without_a_key_is_refused_at_the_start(tmp_path: Path, content: str) -> None:
    """The gateway does not start with a key that cannot be sent."""
    (tmp_path / "key").write_text(content)
    with pytest.raises(Misconfigured) as caught:
        async with open_backend(
            GatewaySettings(backend_api_key_file=tmp_path / "key"), "dns:///localhost:1", encoder_client.SERVICE
        ):
            pass
    assert caught.value.reason == "API_KEY_FILE"


async def test_a_certificate_without_its_key_is_refused_at_the_start(tmp_path: Path) -> None:
    """Half a pair is no silent channel without a certificate."""
    with pytest.raises(Misconfigured, match="come together"):
        async with open_backend(
            GatewaySettings(backend_cert_file=tmp_path / "a"), "dns:///localhost:1", encoder_client.SERVICE
        ):
            pass


async def test_the_whole_gateway_over_tls_with_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Index and search through the real app: TLS and a key at the door, TLS and a key behind it."""
    authority = Authority.make(tmp_path, "ours")
    pair = authority.sign("server")
    (tmp_path / "key").write_text(MADE.key)
    keys = keys_file(tmp_path / "keys", MADE)
    scoped = tmp_path / "scoped"
    scoped.write_text(
        f'[keys]\none = {{ id = "{MADE.id}", sha256 = "{MADE.sha256}", scope = "all" }}\n'
        '[scopes.all]\ncollections = { "*" = "manage" }\n'
    )

    async def memory(_settings: Any, _stack: Any) -> MemoryStore:
        return MemoryStore()

    monkeypatch.setattr(app, "_open_store", memory)
    files = {"tls_cert_file": pair.cert, "tls_key_file": pair.key}
    async with AsyncExitStack() as stack:
        encoder = await stack.enter_async_context(encoders(tmp_path, **files, api_keys_file=keys))
        reranker = await stack.enter_async_context(serve(FakeReranker()))
        told = GatewaySettings(
            host="127.0.0.1",
            port=0,
            grace_s=1,
            **files,
            api_keys_file=scoped,
            encoder_target=encoder,
            reranker_target=f"dns:///127.0.0.1:{reranker}",
            backend_ca_file=authority.cert,
            backend_api_key_file=tmp_path / "key",
        )
        running = await stack.enter_async_context(app.open_app(told))
        credentials = channel_credentials(watch(TlsFiles(ca=authority.cert)).current())
        channel = await stack.enter_async_context(client(running.port, credentials=credentials))
        metadata = (("authorization", f"Bearer {MADE.key}"),)
        await CollectionServiceStub(channel).CreateCollection(
            pb.CreateCollectionRequest(collection="c"), metadata=metadata
        )
        document = pb.Document(id=pb.DocumentId(number=1), text="alpha")
        message = pb.UpsertDocumentsRequest(collection="c", documents=[document])
        (answer,) = [
            one async for one in DocumentServiceStub(channel).UpsertDocuments(iter([message]), metadata=metadata)
        ]
        assert answer.stored.stored_count == 1
        request = pb.SearchRequest(query="alpha", collection="c", rerank=pb.RERANK_OFF)
        found = await GatewayServiceStub(channel).Search(request, metadata=metadata)
        assert [hit.id.number for hit in found.hits] == [1]
        assert (await failure(GatewayServiceStub(channel).Search(request))).reason == "API_KEY_MISSING"
        async with client(running.port) as plain:
            assert (await failure(GatewayServiceStub(plain).Search(request))).code is grpc.StatusCode.UNAVAILABLE
        # The reranker of this test speaks no TLS.
        reranked = pb.SearchRequest(query="alpha", collection="c")
        assert (await failure(GatewayServiceStub(channel).Search(reranked, metadata=metadata))).reason == (
            "RERANKER_UNAVAILABLE"
        )
