"""The server around a service: truthful health, flags, limits, ports and drain."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from clients import client
from deaf_watch import deaf_watch
from google.protobuf.wrappers_pb2 import StringValue
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from probe_service import SERVICE, Probe, ProbeSettings, Rig, errors_in, open_rig

from cli.addresses import free_ports
from serving import server as server_module
from serving.errors import Misconfigured
from serving.metrics import ServerMetrics
from serving.server import deadline_of, open_server

pytestmark = pytest.mark.timeout(30)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
CODE = grpc.StatusCode


async def health(channel: grpc.aio.Channel, service: str = "") -> int:
    """Ask for the health of a service."""
    response = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
    return int(response.status)


class Gate:
    """An act that waits until it is let through."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def __call__(self, _: Any) -> StringValue:
        await self.opened.wait()
        return StringValue(value="through")


# --- health --------------------------------------------------------------------------------------------------------


async def test_an_open_port_is_not_yet_serving():
    """Until told otherwise the overall name and the full name are NOT_SERVING (field failure 5)."""
    probe = Probe()
    async with (
        open_server(ProbeSettings(), ServerMetrics("probe"), {SERVICE: probe.add}) as running,
        client(running.port) as channel,
    ):
        assert [await health(channel, name) for name in ("", SERVICE)] == [NOT_SERVING] * 2
        await running.set_serving(serving=True)
        assert [await health(channel, name) for name in ("", SERVICE)] == [SERVING] * 2
        await running.set_serving(serving=False)
        assert [await health(channel, name) for name in ("", SERVICE)] == [NOT_SERVING] * 2


@pytest.mark.parametrize("name", ["", SERVICE])
async def test_watchers_see_every_change(name: str):
    """Watch tells the present state at once and each change after it (field failure 5)."""
    async with open_rig() as rig:
        watch = health_pb2_grpc.HealthStub(rig.channel).Watch(health_pb2.HealthCheckRequest(service=name))
        assert (await watch.read()).status == SERVING
        await rig.running.set_serving(serving=False)
        assert (await watch.read()).status == NOT_SERVING
        await rig.running.set_serving(serving=True)
        assert (await watch.read()).status == SERVING
        watch.cancel()


async def test_an_unknown_service_is_not_found():
    """A probe with a misspelt name is told so (field failure 5)."""
    async with open_rig() as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health(rig.channel, "probe.v1.Misspelt")
    assert caught.value.code() is CODE.NOT_FOUND


async def test_health_answers_while_calls_fill_the_server():
    """Two hundred calls that wait do not keep a probe from its answer (field failures 6 and 16)."""
    gate = Gate()
    async with open_rig({"wait": gate}) as rig:
        calls = [asyncio.create_task(rig.call("UnaryUnary", "wait")) for _ in range(200)]
        for _ in calls:
            await rig.probe.entered.get()
        assert await health(rig.channel) == SERVING
        assert not any(call.done() for call in calls)
        gate.opened.set()
        assert {(await call).code for call in calls} == {CODE.OK}


async def test_draining_says_so_first_and_lets_running_calls_end(monkeypatch: pytest.MonkeyPatch):
    """NOT_SERVING comes first, new calls are still taken during the delay, the running one ends OK (case 19)."""
    gate, delay_over, real_sleep = Gate(), asyncio.Event(), asyncio.sleep

    async def sleep(seconds: float) -> None:
        await (delay_over.wait() if seconds == 1234.5 else real_sleep(seconds))

    monkeypatch.setattr(asyncio, "sleep", sleep)
    async with open_rig({"wait": gate}) as rig:
        watch = health_pb2_grpc.HealthStub(rig.channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        running = asyncio.create_task(rig.call("UnaryUnary", "wait"))
        await rig.probe.entered.get()
        draining = asyncio.create_task(rig.running.drain(delay_s=1234.5, grace_s=30))
        assert (await watch.read()).status == NOT_SERVING
        assert (await rig.call("UnaryUnary", "during the delay")).code is CODE.OK
        delay_over.set()
        gate.opened.set()
        assert (await running).outputs == ["through"]
        await draining


async def test_a_watch_does_not_use_up_the_grace_of_a_drain():
    """A watch, which would never end by itself, hears NOT_SERVING and is ended, so that the drain can be."""
    async with open_rig() as rig:
        watch = health_pb2_grpc.HealthStub(rig.channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        draining = asyncio.create_task(rig.running.drain(delay_s=0, grace_s=3600))
        assert (await watch.read()).status == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watch.read()
        assert caught.value.code() is CODE.UNAVAILABLE
        await draining


async def test_a_watcher_that_reads_nothing_holds_up_nobody(caplog: pytest.LogCaptureFixture):
    """Health still changes and is told to others, and the drain ends without grace and without a fault (5 and 19)."""
    async with open_rig() as rig, deaf_watch(rig.running.port), deaf_watch(rig.running.port):
        await rig.running.set_serving(serving=False)
        assert await health(rig.channel) == NOT_SERVING
        await rig.running.set_serving(serving=True)
        watch = health_pb2_grpc.HealthStub(rig.channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        draining = asyncio.create_task(rig.running.drain(delay_s=0, grace_s=3600))
        assert (await watch.read()).status == NOT_SERVING
        await draining
    assert not errors_in(caplog.records)


@pytest.mark.parametrize("kind", ["UnaryUnary", "UnaryStream", "StreamUnary", "StreamStream"])
async def test_a_watcher_that_reads_nothing_cuts_no_call(kind: str, monkeypatch: pytest.MonkeyPatch):
    """Beside it a running call keeps its grace, and its answer arrives whole (field failure 19)."""
    gate, waiting = Gate(), asyncio.Event()
    async with open_rig({"wait": gate}) as rig, deaf_watch(rig.running.port):
        ended = rig.running._calls.ended

        async def noted() -> None:
            waiting.set()
            await ended()

        monkeypatch.setattr(rig.running._calls, "ended", noted)
        running = asyncio.create_task(rig.call(kind, "wait"))
        await rig.probe.entered.get()
        draining = asyncio.create_task(rig.running.drain(delay_s=0, grace_s=3600))
        await waiting.wait()
        for _ in range(100):  # whatever would cut the call has its turn
            await asyncio.sleep(0)
        gate.opened.set()
        outcome = await running
        assert (outcome.code, outcome.outputs[-1]) == (CODE.OK, "through")
        await draining


async def test_a_watch_of_an_unknown_service_waits_for_it():
    """The protocol of health checks asks for SERVICE_UNKNOWN instead of an end."""
    async with open_rig() as rig:
        watch = health_pb2_grpc.HealthStub(rig.channel).Watch(health_pb2.HealthCheckRequest(service="later"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        rig.running._health.set(["later"], SERVING)
        assert (await watch.read()).status == SERVING
        watch.cancel()


# --- flags ---------------------------------------------------------------------------------------------------------


async def reflected(rig: Rig) -> list[str]:
    """List the services that reflection tells."""
    request = reflection_pb2.ServerReflectionRequest(list_services="")

    async def once() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        yield request

    stub = reflection_pb2_grpc.ServerReflectionStub(rig.channel)
    (answer,) = [answer async for answer in stub.ServerReflectionInfo(once())]
    return [service.name for service in answer.list_services_response.service]


async def test_reflection_is_served_by_flag():
    """With the flag the service is listed, without it the method does not exist (field failure 69)."""
    async with open_rig(reflection=True) as rig:
        assert {SERVICE, "grpc.health.v1.Health"} <= set(await reflected(rig))
    async with open_rig(reflection=False) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reflected(rig)
    assert caught.value.code() is CODE.UNIMPLEMENTED


async def test_channelz_is_served_by_flag():
    """With the flag the server counts its calls, without it the method does not exist."""
    async with open_rig(channelz=True) as rig:
        servers = await channelz_pb2_grpc.ChannelzStub(rig.channel).GetServers(channelz_pb2.GetServersRequest())
        assert sum(server.data.calls_started for server in servers.server) >= 1
    async with open_rig(channelz=False) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channelz_pb2_grpc.ChannelzStub(rig.channel).GetServers(channelz_pb2.GetServersRequest())
    assert caught.value.code() is CODE.UNIMPLEMENTED


async def test_a_message_over_the_limit_is_refused_and_one_under_it_is_read():
    """The receive limit is the setting and not gRPC's 4 MiB (field failure 14)."""
    async with open_rig(max_message_bytes=6 * 1024 * 1024) as rig:
        assert (await rig.call("StreamUnary", "x" * 5_000_000, "read")).outputs == ["read"]
        assert (await rig.call("UnaryUnary", "x" * 7_000_000)).code is CODE.RESOURCE_EXHAUSTED
        assert await rig.probe.calls.counts.get() == ("StreamUnary", "OK")
        assert rig.probe.calls.counts.empty()


# --- ports ---------------------------------------------------------------------------------------------------------


async def test_a_second_server_on_the_same_port_is_refused_and_the_first_goes_on():
    """Two servers never share a port and its traffic (field failure 36)."""
    async with open_rig() as rig:
        with pytest.raises(Misconfigured, match=str(rig.running.port)) as caught:
            async with open_rig(port=rig.running.port):
                pass
        assert caught.value.reason == "ADDRESS_UNAVAILABLE"
        assert (await rig.call("UnaryUnary", "still here")).outputs == ["still here"]


async def test_an_address_that_is_not_ours_is_refused():
    """The message has the address (field failure 62)."""
    with pytest.raises(Misconfigured, match=r"192\.0\.2\.1"):
        async with open_rig(host="192.0.2.1"):
            pass


@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_an_ipv6_address_is_bound_with_or_without_brackets(host: str):
    """An address with colons in it is an address and not a port (field failure 62)."""
    try:
        with closing(socket.socket(socket.AF_INET6)) as probing:
            probing.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with open_rig(host=host) as rig, client(f"[::1]:{rig.running.port}") as channel:
        assert await health(channel) == SERVING


async def test_the_metrics_page_is_served_while_the_server_runs():
    """Prometheus reads the page on its own port; afterwards the port is free again."""
    (port,) = free_ports(1)
    for _ in range(2):
        async with open_rig(metrics_port=port):
            page = await asyncio.to_thread(_read, f"http://127.0.0.1:{port}/metrics")
        assert re.search("^# TYPE probe_call_seconds histogram", page, re.MULTILINE)


def _read(url: str) -> str:
    with urlopen(url, timeout=30) as answer:  # noqa: S310 - our own page
        text: str = answer.read().decode()
    return text


async def test_a_metrics_port_that_is_taken_is_refused():
    """A taken metrics port is an operator's affair as a taken port is."""
    with closing(socket.create_server(("0.0.0.0", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Misconfigured, match=str(port)) as caught:
            async with open_rig(metrics_port=port):
                pass
    assert caught.value.reason == "ADDRESS_UNAVAILABLE"


async def test_an_old_connection_is_left_by_new_calls_and_kept_by_running_ones():
    """Clients are moved on at the set age, and a stream that is longer than that is not cut (field failure 8)."""
    peers: list[str] = []

    async def note_peer(context: Any) -> StringValue:
        peers.append(context.peer())
        return StringValue(value="noted")

    async with open_rig({"peer": note_peer}, max_connection_age_s=0.2, grace_s=0) as rig:
        stream = rig.channel.stream_stream(f"/{SERVICE}/StreamStream")(timeout=30)
        await stream.write(StringValue(value="peer").SerializeToString())
        assert StringValue.FromString(await stream.read()).value == "noted"
        while len(set(peers)) == 1:
            assert (await rig.call("UnaryUnary", "peer")).code is CODE.OK
        await stream.write(StringValue(value="still here").SerializeToString())
        assert StringValue.FromString(await stream.read()).value == "still here"
        await stream.done_writing()
        assert await stream.code() is CODE.OK


# --- deadlines and keepalive ---------------------------------------------------------------------------------------


async def test_the_callers_deadline_is_taken_and_the_default_where_there_is_none():
    """A call without deadline has the server's budget, not none (field failure 10)."""
    left: list[float] = []

    async def note(context: Any) -> StringValue:
        left.append(deadline_of(context, 12.0).remaining())
        return StringValue()

    async with open_rig({"note": note}) as rig:
        request = StringValue(value="note").SerializeToString()
        method = rig.channel.unary_unary(f"/{SERVICE}/UnaryUnary")
        await method(request)
        await method(request, timeout=1000)
    assert 0 < left[0] <= 12
    assert 900 < left[1] <= 1100


@pytest.mark.slow
async def test_permitted_pings_do_not_end_a_long_call():
    """A call outlives as many keepalive pings as end one on a server that does not permit them (field failure 18)."""
    patient, strict = Gate(), Gate()
    async with (
        open_rig({"wait": patient}, min_ping_interval_s=0.5, channelz=True) as permitting,
        open_rig({"wait": strict}, min_ping_interval_s=60.0) as refusing,
        pinging(permitting) as permitted,
        pinging(refusing) as refused,
    ):
        long = asyncio.create_task(permitted.call("UnaryUnary", "wait"))
        await permitting.probe.entered.get()
        # The strict server counts for us: it ends its call after the third ping too many.
        outcome = await refused.call("UnaryUnary", "wait")
        assert outcome.code is CODE.UNAVAILABLE
        assert "ping" in outcome.details.lower()
        async with asyncio.timeout(20):
            while await pings(permitting.channel, permitting.running.port) < 3:
                pass
        patient.opened.set()
        assert (await long).outputs == ["through"]


@asynccontextmanager
async def pinging(rig: Rig) -> AsyncIterator[Rig]:
    """Open a second connection that pings once a second, which is as often as gRPC can."""
    options = (("grpc.keepalive_time_ms", 1000), ("grpc.http2.max_pings_without_data", 0))
    async with client(f"localhost:{rig.running.port}", *options) as channel:
        yield Rig(rig.probe, rig.running, channel)


async def pings(channel: grpc.aio.Channel, port: int) -> int:
    """Ask channelz, which knows the clients of this process too, for the keepalive pings sent to a local port."""
    stub, sent = channelz_pb2_grpc.ChannelzStub(channel), 0
    tops = await stub.GetTopChannels(channelz_pb2.GetTopChannelsRequest())
    links = [link for top in tops.channel if f"localhost:{port}" in top.data.target for link in top.subchannel_ref]
    for link in links:
        found = await stub.GetSubchannel(channelz_pb2.GetSubchannelRequest(subchannel_id=link.subchannel_id))
        for end in found.subchannel.socket_ref:
            answer = await stub.GetSocket(channelz_pb2.GetSocketRequest(socket_id=end.socket_id))
            sent += answer.socket.data.keep_alives_sent
    return sent


async def test_a_watch_that_fails_says_so():
    """An error inside the health service is not taken for the end of a watch."""

    class Broken:
        async def write(self, _: Any) -> None:
            raise ConnectionError

    with pytest.raises(ConnectionError):
        await server_module._Health().Watch(health_pb2.HealthCheckRequest(), Broken())  # type: ignore[arg-type]
