"""How many connections a gateway has to its backends, and whom they reach.

Numbers in brackets are those of field failures.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError

import grpc
import pytest
from certificates import Authority
from fakes import FakeEncoder, serve
from metric_pages import page_when
from neighbours import free_neighbours
from pydantic import ValidationError
from replicas import Replica, started

from cli.addresses import free_ports
from gateway.backends import open_backend
from gateway.encoder_client import SERVICE, EncoderClient
from gateway.settings import GatewaySettings
from retrieval.encoder.v1 import encoder_pb2_grpc
from serving.auth import HEADER
from serving.bundle import Bundle
from serving.deadline import Deadline
from serving.errors import Unavailable
from serving.keys import create_key
from serving.metrics import ServerMetrics
from serving.server import open_server
from serving.settings import ServerSettings

pytestmark = pytest.mark.timeout(120)
ROUNDS = 5
"""Calls over each connection."""


class Noting(FakeEncoder):
    """Keeps who called, by address and port, and with which headers."""

    def __init__(self) -> None:
        super().__init__()
        self.peers: Counter[str] = Counter()
        self.keys: set[Any] = set()

    async def Encode(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.peers[context.peer()] += 1
        self.keys.add(dict(context.invocation_metadata()).get(HEADER))
        return await super().Encode(request, context)


async def ask(channel: grpc.aio.Channel, count: int) -> None:
    """Call so often, all at once."""
    client = EncoderClient(channel)
    await asyncio.gather(*(client.encode_queries(["panda"], deadline=Deadline.after(20)) for _ in range(count)))


@pytest.mark.parametrize("count", [1, 2, 8])
async def test_as_many_connections_as_the_setting_says(count: int) -> None:
    """The server sees so many peers, and each makes the same number of calls (field failure 35)."""
    fake = Noting()
    async with serve(fake) as port:
        target = f"dns:///127.0.0.1:{port}"
        async with open_backend(GatewaySettings(backend_connections=count), target, SERVICE) as channel:
            await ask(channel, count * ROUNDS)
    assert sorted(fake.peers.values()) == [ROUNDS] * count


async def test_several_connections_to_each_of_several_addresses() -> None:
    """The setting counts per address: two servers have three each (35, 7)."""
    fakes = [Noting(), Noting()]
    async with serve(fakes[0]) as first, serve(fakes[1]) as second:
        target = f"ipv4:127.0.0.1:{first},127.0.0.1:{second}"
        async with open_backend(GatewaySettings(backend_connections=3), target, SERVICE) as channel:
            async with asyncio.timeout(20):
                while not all(len(fake.peers) == 3 for fake in fakes):
                    await ask(channel, 6)
            for fake in fakes:
                fake.peers.clear()
            await ask(channel, 60)
    assert [len(fake.peers) for fake in fakes] == [3, 3]
    assert [sum(fake.peers.values()) for fake in fakes] == [30, 30]


async def test_one_connection_has_nothing_around_it() -> None:
    """The default is gRPC's own channel: what nobody asked for costs no call anything."""
    async with open_backend(GatewaySettings(), "dns:///127.0.0.1:1", SERVICE) as channel:
        assert isinstance(channel, grpc.aio.Channel)


@pytest.mark.parametrize("count", [0, 65])
def test_no_connections_and_too_many_are_refused(count: int) -> None:
    """Between 1 and 64."""
    with pytest.raises(ValidationError, match="backend_connections"):
        GatewaySettings(backend_connections=count)


async def test_every_connection_carries_the_key(tmp_path: Path) -> None:
    """None of them is let in without, and none goes without."""
    made, fake = create_key(), Noting()
    (tmp_path / "key").write_text(made.key)
    settings = GatewaySettings(backend_connections=4, backend_api_key_file=tmp_path / "key")
    async with serve(fake) as port, open_backend(settings, f"dns:///127.0.0.1:{port}", SERVICE) as channel:
        await ask(channel, 4 * ROUNDS)
    assert len(fake.peers) == 4
    assert fake.keys == {f"Bearer {made.key}"}


async def test_all_connections_are_renewed_with_the_certificates(tmp_path: Path) -> None:
    """After a change of what is trusted there are as many new ones, and no call has failed."""
    authority, fake = Authority.make(tmp_path, "ours"), Noting()
    pair, trusted = authority.sign("server"), tmp_path / "ca.crt"
    trusted.write_bytes(authority.cert.read_bytes())
    told = ServerSettings(host="127.0.0.1", tls_cert_file=pair.cert, tls_key_file=pair.key)
    add = {SERVICE: lambda server: encoder_pb2_grpc.add_EncoderServiceServicer_to_server(fake, server)}
    async with open_server(told, ServerMetrics("encoder"), add) as running:
        await running.set_serving(serving=True)
        settings = GatewaySettings(backend_connections=3, backend_ca_file=trusted)
        async with open_backend(settings, f"dns:///localhost:{running.port}", SERVICE) as channel:
            await ask(channel, 3 * ROUNDS)
            before = set(fake.peers)
            trusted.write_bytes(authority.cert.read_bytes() + Authority.make(tmp_path, "more").cert.read_bytes())
            async with asyncio.timeout(30):
                while len(set(fake.peers) - before) < 3:
                    await ask(channel, 3)
            fake.peers.clear()
            await ask(channel, 3 * ROUNDS)
    assert len(before) == 3
    assert sorted(fake.peers.values()) == [ROUNDS] * 3
    assert not before & set(fake.peers)


@pytest.mark.slow
async def test_several_connections_reach_several_workers(tiny_encoder: Bundle) -> None:
    """Eight connections are divided among two workers, while one alone reaches one of them (35)."""
    (port,) = free_ports(1)
    where = {"host": "127.0.0.1", "port": port, "metrics_port": free_neighbours()}
    async with started("encoder", bundle=tiny_encoder.path, workers=2, threads=1, **where) as server:
        await server.until_serving()
        async with asyncio.timeout(60):
            while 0 in (shares := await _called(server, 8)):  # all on one side, as happens once in 128 times
                pass
        assert sum(shares) == 8 * ROUNDS
        assert [share % ROUNDS for share in shares] == [0, 0]
        assert sorted(await _called(server, 1)) == [0, ROUNDS]


async def _called(server: Replica, count: int) -> list[int]:
    """Call a server over so many connections; return how often each of its two workers answered."""
    pages = [Replica(server.process, "encoder", server.address, server.port, server.metrics_port + i) for i in (0, 1)]
    for page in pages:
        with suppress(URLError):  # a worker that is still loading has answered nothing
            await page_when(page.metrics_port, lambda shown: shown.sum("encoder_calls_running") == 0)
    before = [await page.call_count() for page in pages]
    settings = GatewaySettings(backend_connections=count)
    async with open_backend(settings, f"dns:///127.0.0.1:{server.port}", SERVICE) as channel:
        try:
            await ask(channel, count * ROUNDS)
        except Unavailable:  # a worker is still loading
            return [0]
    while True:  # a call is counted when its answer is on its way
        counts = [await page.call_count() - old for page, old in zip(pages, before, strict=True)]
        if sum(counts) >= count * ROUNDS:
            return counts
