"""TLS from files: who gets a connection, and certificates that change under a running server."""

import asyncio
import logging
import socket
from pathlib import Path

import grpc
import pytest
from certificates import Authority, Pair
from clients import client
from grpc_health.v1 import health_pb2, health_pb2_grpc
from probe_service import SERVICE, Probe, ProbeSettings

from cli.addresses import free_ports
from serving.auth import certificate_names
from serving.errors import Misconfigured
from serving.keys import create_key
from serving.metrics import ServerMetrics
from serving.server import open_server
from serving.tls import TlsFiles, channel_credentials, watch

pytestmark = pytest.mark.timeout(60)
CODE = grpc.StatusCode
MADE = create_key()


@pytest.fixture
def first(tmp_path: Path) -> Authority:
    """An authority."""
    return Authority.make(tmp_path, "first")


@pytest.fixture
def second(tmp_path: Path) -> Authority:
    """Another one, which has nothing to do with the first."""
    return Authority.make(tmp_path, "second")


async def call(
    port: int, ca: Path | None, pair: Pair | None = None, metadata: tuple[tuple[str, str], ...] = ()
) -> grpc.StatusCode:
    """Make a new connection and one call on it; return how it ended."""
    credentials = None
    if ca is not None:
        files = TlsFiles(ca=ca, cert=pair.cert if pair else None, key=pair.key if pair else None)
        credentials = channel_credentials(watch(files).current())
    async with client(port, credentials=credentials) as channel:
        method = channel.unary_unary(f"/{SERVICE}/UnaryUnary")
        try:
            await method(b"", timeout=10, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return CODE.OK


def served(**settings: object) -> ProbeSettings:
    """Return the settings of a server."""
    return ProbeSettings(**settings)  # type: ignore[arg-type]


async def test_a_server_with_a_certificate_talks_tls_only(first: Authority, second: Authority):
    """Who trusts its authority gets through; who trusts another, or talks without TLS, does not."""
    pair = first.sign("server")
    settings = served(tls_cert_file=pair.cert, tls_key_file=pair.key)
    async with open_server(settings, ServerMetrics("probe"), {SERVICE: Probe().add}) as running:
        assert await call(running.port, first.cert) is CODE.OK
        assert await call(running.port, second.cert) is CODE.UNAVAILABLE
        assert await call(running.port, None) is CODE.UNAVAILABLE


async def test_certificates_are_replaced_without_a_restart(first: Authority, second: Authority):
    """After the files are swapped new connections see the new certificate alone; an open connection goes on."""
    pair = first.sign("server")
    settings = served(tls_cert_file=pair.cert, tls_key_file=pair.key)
    async with open_server(settings, ServerMetrics("probe"), {SERVICE: Probe().add}) as running:
        credentials = channel_credentials(watch(TlsFiles(ca=first.cert)).current())
        async with client(running.port, credentials=credentials) as old:
            method = old.unary_unary(f"/{SERVICE}/UnaryUnary")
            await method(b"", timeout=10)
            pair.put(second.sign("server"))
            async with asyncio.timeout(30):
                while await call(running.port, second.cert) is not CODE.OK:
                    pass
            assert await call(running.port, first.cert) is CODE.UNAVAILABLE
            await method(b"", timeout=10)


@pytest.mark.parametrize("damage", ["key of another", "no PEM", "gone", "half"])
async def test_a_broken_pair_keeps_the_old_one(
    first: Authority, second: Authority, damage: str, caplog: pytest.LogCaptureFixture
):
    """Whatever is wrong with the new files, connections are made with the old ones, and the log says so once."""
    pair, other = first.sign("server"), second.sign("server")
    settings = served(tls_cert_file=pair.cert, tls_key_file=pair.key)
    async with open_server(settings, ServerMetrics("probe"), {SERVICE: Probe().add}) as running:
        match damage:
            case "key of another":
                pair.key.write_bytes(other.key.read_bytes())
            case "no PEM":
                pair.cert.write_text("nothing")
            case "gone":
                pair.key.unlink()
            case _:
                pair.cert.write_bytes(pair.cert.read_bytes()[:200])
        async with asyncio.timeout(30):
            while "going on with what was read before" not in caplog.text:
                assert await call(running.port, first.cert) is CODE.OK
        assert await call(running.port, first.cert) is CODE.OK
        assert caplog.text.count("going on with what was read before") == 1
        assert "PRIVATE KEY" not in caplog.text
        pair.put(other)
        async with asyncio.timeout(30):
            while await call(running.port, second.cert) is not CODE.OK:
                pass


async def test_clients_need_a_certificate_where_the_server_says_so(first: Authority, second: Authority):
    """None, and one of another authority, are refused before any call; one of the right authority gets through."""
    pair = first.sign("server")
    settings = served(tls_cert_file=pair.cert, tls_key_file=pair.key, tls_client_ca_file=second.cert)
    async with open_server(settings, ServerMetrics("probe"), {SERVICE: Probe().add}) as running:
        assert await call(running.port, first.cert) is CODE.UNAVAILABLE
        assert await call(running.port, first.cert, first.sign("client")) is CODE.UNAVAILABLE
        assert await call(running.port, first.cert, second.sign("client")) is CODE.OK


async def test_the_authority_of_clients_is_replaced_too(first: Authority, second: Authority, tmp_path: Path):
    """A client of the new authority gets in and one of the old does not."""
    pair, trusted = first.sign("server"), tmp_path / "clients.crt"
    trusted.write_bytes(first.cert.read_bytes())
    settings = served(tls_cert_file=pair.cert, tls_key_file=pair.key, tls_client_ca_file=trusted)
    async with open_server(settings, ServerMetrics("probe"), {SERVICE: Probe().add}) as running:
        clients = first.sign("client"), second.sign("client")
        assert await call(running.port, first.cert, clients[0]) is CODE.OK
        trusted.write_bytes(second.cert.read_bytes())
        async with asyncio.timeout(30):
            while await call(running.port, first.cert, clients[1]) is not CODE.OK:
                pass
        assert await call(running.port, first.cert, clients[0]) is CODE.UNAVAILABLE


async def test_a_name_in_a_certificate_says_who_calls(first: Authority, tmp_path: Path):
    """A listed name gets in without a key, an unlisted one does not, and a wrong key is not helped by a certificate."""
    keys = tmp_path / "keys"
    keys.write_text(
        f'[keys]\none = {{ id = "{MADE.id}", sha256 = "{MADE.sha256}" }}\n[certificates]\n"spiffe://corp/acme" = {{}}\n'
    )
    pair = first.sign("server")
    settings = served(tls_cert_file=pair.cert, tls_key_file=pair.key, tls_client_ca_file=first.cert, api_keys_file=keys)
    listed, stranger = first.sign("a", "URI:spiffe://corp/acme,DNS:a"), first.sign("b", "DNS:b")
    async with open_server(settings, ServerMetrics("probe"), {SERVICE: Probe().add}) as running:
        assert await call(running.port, first.cert, listed) is CODE.OK
        assert await call(running.port, first.cert, stranger) is CODE.UNAUTHENTICATED
        right, wrong = (("authorization", f"Bearer {key}") for key in (MADE.key, "x"))
        assert await call(running.port, first.cert, stranger, (right,)) is CODE.OK
        assert await call(running.port, first.cert, listed, (wrong,)) is CODE.UNAUTHENTICATED


def test_the_common_name_counts_where_there_is_no_other():
    """Subject alternative names come first and alone; a certificate without any is known by its common name."""
    assert certificate_names({"x509_common_name": [b"cn"], "x509_subject_alternative_name": [b"a", b"b"]}) == ["a", "b"]
    assert certificate_names({"x509_common_name": [b"cn"]}) == ["cn"]
    assert certificate_names({"transport_security_type": [b"ssl"]}) == []


async def test_health_has_a_port_of_its_own_without_tls(first: Authority):
    """A probe that speaks no TLS sees the same health there, and nothing else is served there."""
    pair = first.sign("server")
    (port,) = free_ports(1)
    settings = served(tls_cert_file=pair.cert, tls_key_file=pair.key, tls_client_ca_file=first.cert, health_port=port)
    async with open_server(settings, ServerMetrics("probe"), {SERVICE: Probe().add}) as running:
        async with client(port) as channel:
            check, request = health_pb2_grpc.HealthStub(channel).Check, health_pb2.HealthCheckRequest(service=SERVICE)
            assert (await check(request)).status == health_pb2.HealthCheckResponse.NOT_SERVING
            await running.set_serving(serving=True)
            assert (await check(request)).status == health_pb2.HealthCheckResponse.SERVING
        assert await call(port, None) is CODE.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"tls_cert_file": "a"}, "come together"),
        ({"tls_key_file": "a"}, "come together"),
        ({"tls_client_ca_file": "a"}, "needs tls_cert_file"),
    ],
)
def test_half_of_a_setting_is_refused(fields: dict[str, str], problem: str):
    """A certificate without its key, or an authority of clients without TLS, is no silent plaintext."""
    with pytest.raises(ValueError, match=problem):
        served(**fields)


@pytest.mark.parametrize("content", ["", "nothing", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
async def test_certificates_that_are_wrong_at_the_start_are_refused(first: Authority, content: str):
    """There is nothing older to go on with: the server does not start, and the reason names the file."""
    pair = first.sign("server")
    pair.cert.write_text(content)
    settings = served(tls_cert_file=pair.cert, tls_key_file=pair.key)
    with pytest.raises(Misconfigured, match=r"server\.crt") as caught:
        async with open_server(settings, ServerMetrics("probe"), {SERVICE: Probe().add}):
            pass
    assert caught.value.reason == "TLS_FILES"


async def test_a_taken_port_is_refused_with_its_address(first: Authority):
    """With TLS as without: the server does not start, and says where it could not listen (field failure 62)."""
    pair = first.sign("server")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = served(port=taken.getsockname()[1], tls_cert_file=pair.cert, tls_key_file=pair.key)
        with pytest.raises(Misconfigured, match=f"127.0.0.1:{settings.port}") as caught:
            async with open_server(settings, ServerMetrics("probe"), {SERVICE: Probe().add}):
                pass
        assert caught.value.reason == "ADDRESS_UNAVAILABLE"


async def test_a_server_with_client_certificates_is_not_called_open(first: Authority, caplog: pytest.LogCaptureFixture):
    """The warning of an open server is for servers that ask for nothing."""
    pair = first.sign("server")
    settings = served(host="0.0.0.0", tls_cert_file=pair.cert, tls_key_file=pair.key, tls_client_ca_file=first.cert)
    with caplog.at_level(logging.WARNING):
        async with open_server(settings, ServerMetrics("probe"), {SERVICE: Probe().add}):
            pass
    assert "open to whoever" not in caplog.text
