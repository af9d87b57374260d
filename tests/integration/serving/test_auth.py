"""Who is let in: keys, certificates, limits, and a file of keys that changes under a running server."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from google.rpc import error_details_pb2
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status
from probe_service import KINDS, MALFORMED, Outcome, Rig, open_rig

from cli.calls import made_up
from serving.keys import create_key

pytestmark = pytest.mark.timeout(60)
CODE = grpc.StatusCode
MADE, OTHER = create_key(), create_key()


def write(path: Path, *lines: str) -> Path:
    """Write a file of keys."""
    path.write_text("[keys]\n" + "\n".join(lines) + "\n")
    return path


def line(name: str = "one", made: Any = MADE, more: str = "") -> str:
    """Write a line of it."""
    return f'{name} = {{ id = "{made.id}", sha256 = "{made.sha256}"{more} }}'


def bearer(key: str = MADE.key) -> tuple[tuple[str, str], ...]:
    """Return the header that carries a key."""
    return (("authorization", f"Bearer {key}"),)


def reason_of(outcome: Outcome) -> tuple[str, float]:
    """Return the stable reason of a refusal, and after how many seconds to try again."""
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    status = rpc_status.from_call(outcome.error)  # type: ignore[arg-type]
    for detail in status.details if status else ():
        detail.Unpack(info)
        detail.Unpack(retry)
    return info.reason, retry.retry_delay.ToNanoseconds() / 1e9


async def until(rig: Rig, key: str, code: grpc.StatusCode) -> None:
    """Call with a key until it is answered so."""
    async with asyncio.timeout(30):
        while (await rig.call("UnaryUnary", "x", metadata=bearer(key))).code is not code:
            pass


@pytest.mark.parametrize("kind", KINDS)
async def test_a_key_is_needed_by_every_kind_of_method(tmp_path: Path, kind: str):
    """Without one the handler is never entered; with it the call is as it was."""
    async with open_rig(api_keys_file=write(tmp_path / "keys", line())) as rig:
        for metadata, reason in (
            ((), "API_KEY_MISSING"),
            (bearer(OTHER.key), "API_KEY_INVALID"),
            (bearer(""), "API_KEY_INVALID"),
            ((("authorization", f"Basic {MADE.key}"),), "API_KEY_INVALID"),
            ((("authorization", MADE.key),), "API_KEY_INVALID"),
            ((*bearer(), *bearer(OTHER.key)), "API_KEY_INVALID"),
            ((("x-api-key", MADE.key),), "API_KEY_MISSING"),
        ):
            outcome = await rig.call(kind, "x", metadata=metadata)
            assert (outcome.code, reason_of(outcome)[0], outcome.outputs) == (CODE.UNAUTHENTICATED, reason, [])
            assert MADE.key not in outcome.details
        assert rig.probe.entered.empty()
        outcome = await rig.call(kind, "x", metadata=(("authorization", f"bearer {MADE.key}"),))
        assert (outcome.code, outcome.outputs[-1]) == (CODE.OK, "x")


@pytest.mark.parametrize("kind", KINDS)
async def test_bytes_that_are_no_message_are_read_for_nobody_unknown(tmp_path: Path, kind: str):
    """A stranger is refused as a stranger; a caller is told that its message is malformed, as by an open server."""
    async with open_rig(api_keys_file=write(tmp_path / "keys", line())) as rig, open_rig() as open_server:
        stranger = await rig.call(kind, MALFORMED)
        assert (stranger.code, reason_of(stranger)[0]) == (CODE.UNAUTHENTICATED, "API_KEY_MISSING")
        known, anybody = await rig.call(kind, MALFORMED, metadata=bearer()), await open_server.call(kind, MALFORMED)
        assert (known.code, reason_of(known)) == (CODE.INVALID_ARGUMENT, ("REQUEST_MALFORMED", 0))
        assert (known.code, known.details) == (anybody.code, anybody.details)


async def test_health_is_open_and_reflection_and_channelz_are_not(tmp_path: Path):
    """Probes need no secret; whoever wants to look around does, and is told so by a status that is not UNKNOWN."""
    async with open_rig(api_keys_file=write(tmp_path / "keys", line()), channelz=True) as rig:
        stub = health_pb2_grpc.HealthStub(rig.channel)
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
        reflect = reflection_pb2_grpc.ServerReflectionStub(rig.channel).ServerReflectionInfo
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        channels = channelz_pb2_grpc.ChannelzStub(rig.channel).GetServers
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            _ = [one async for one in reflect(iter([ask]))]
        assert caught.value.code() is CODE.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channels(channelz_pb2.GetServersRequest())
        assert caught.value.code() is CODE.UNAUTHENTICATED
        (answer,) = [one async for one in reflect(iter([ask]), metadata=bearer())]
        assert "probe.v1.ProbeService" in {one.name for one in answer.list_services_response.service}
        assert (await channels(channelz_pb2.GetServersRequest(), metadata=bearer())).server


async def test_a_rate_is_kept_per_key(tmp_path: Path):
    """The second call of a burst of one is refused with the time to wait; another key is not touched."""
    keys = write(tmp_path / "keys", line(more=", requests_per_s = 0.01, burst = 1"), line("two", OTHER))
    async with open_rig(api_keys_file=keys) as rig:
        assert (await rig.call("UnaryUnary", "x", metadata=bearer())).code is CODE.OK
        refused = await rig.call("UnaryUnary", "x", metadata=bearer())
        reason, retry_s = reason_of(refused)
        assert (refused.code, reason, 90 < retry_s <= 100) == (CODE.RESOURCE_EXHAUSTED, "RATE_LIMITED", True)
        assert (await rig.call("UnaryUnary", "x", metadata=bearer(OTHER.key))).code is CODE.OK


async def test_calls_at_the_same_time_are_limited_and_counted_out_however_they_end(tmp_path: Path):
    """With one call allowed a second one is refused; after an end, a failure and a cancellation there is room."""
    opened = asyncio.Event()

    async def wait(_: Any) -> StringValue:
        await opened.wait()
        return StringValue(value="done")

    async def fail(_: Any) -> StringValue:
        raise ValueError

    async with open_rig(
        {"wait": wait, "fail": fail}, api_keys_file=write(tmp_path / "keys", line(more=", max_calls = 1"))
    ) as rig:
        for kind in KINDS:
            held = rig.start(kind, "wait", metadata=bearer())
            assert await rig.probe.entered.get() == "wait"
            refused = await rig.call(kind, "x", metadata=bearer())
            assert (refused.code, reason_of(refused)[0]) == (CODE.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS")
            held.cancel()
            await until(rig, MADE.key, CODE.OK)
            assert (await rig.call(kind, "fail", metadata=bearer())).code is CODE.INTERNAL
            await until(rig, MADE.key, CODE.OK)
            while not rig.probe.entered.empty():
                rig.probe.entered.get_nowait()


async def test_every_message_of_a_stream_counts(tmp_path: Path):
    """A stream is slowed down to its key's rate and not refused; what it took is gone for the next call."""
    keys = write(tmp_path / "keys", line(more=", requests_per_s = 100, burst = 2"))
    async with open_rig(api_keys_file=keys) as rig:
        outcome = await rig.call("StreamStream", *map(str, range(20)), metadata=bearer())
        assert outcome.outputs == [str(one) for one in range(20)]
        assert rig.probe.entered.qsize() == 20


async def test_keys_come_and_go_without_a_restart(tmp_path: Path):
    """A new key works and an old one does not as soon as the file says so, on the same connection."""
    keys = write(tmp_path / "keys", line())
    async with open_rig(api_keys_file=keys) as rig:
        await until(rig, OTHER.key, CODE.UNAUTHENTICATED)
        write(keys, line(), line("two", OTHER))
        await until(rig, OTHER.key, CODE.OK)
        write(keys, line("two", OTHER))
        await until(rig, MADE.key, CODE.UNAUTHENTICATED)
        assert (await rig.call("UnaryUnary", "x", metadata=bearer(OTHER.key))).code is CODE.OK


async def test_a_broken_file_keeps_the_old_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Nobody is locked out by a typing error, and the log says what is wrong."""
    keys = write(tmp_path / "keys", line())
    async with open_rig(api_keys_file=keys) as rig:
        write(keys, line("one", OTHER, ", max_cals = 3"))
        async with asyncio.timeout(30):
            while "API_KEYS" not in caplog.text:
                assert (await rig.call("UnaryUnary", "x", metadata=bearer())).code is CODE.OK
        assert (await rig.call("UnaryUnary", "x", metadata=bearer(OTHER.key))).code is CODE.UNAUTHENTICATED
        assert OTHER.sha256 not in caplog.text


async def test_a_stream_ends_when_its_key_is_withdrawn(tmp_path: Path):
    """An open stream is no way to go on with a key that is no longer in the file."""
    keys = write(tmp_path / "keys", line(), line("two", OTHER))
    async with open_rig(api_keys_file=keys) as rig:
        while made_up(error := await _withdrawn(rig, keys)):
            write(keys, line(), line("two", OTHER))
            await until(rig, OTHER.key, CODE.OK)
    assert error.code() is CODE.UNAUTHENTICATED


async def _withdrawn(rig: Rig, keys: Path) -> grpc.aio.AioRpcError:
    """Withdraw the other key in the middle of a stream; return how that ends."""
    sent: asyncio.Queue[bytes | None] = asyncio.Queue()
    call = rig.channel.stream_stream(
        "/probe.v1.ProbeService/StreamStream", response_deserializer=StringValue.FromString
    )(_drained(sent), metadata=bearer(OTHER.key), timeout=30)
    sent.put_nowait(StringValue(value="a").SerializeToString())
    assert (await call.read()).value == "a"
    write(keys, line())
    await until(rig, OTHER.key, CODE.UNAUTHENTICATED)
    sent.put_nowait(StringValue(value="b").SerializeToString())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    sent.put_nowait(None)
    return caught.value


async def _drained(sent: "asyncio.Queue[bytes | None]") -> AsyncIterator[bytes]:
    while (message := await sent.get()) is not None:
        yield message


@pytest.mark.parametrize(("host", "warnings"), [("127.0.0.1", []), ("::1", []), ("0.0.0.0", ["WARNING"])])
async def test_an_open_server_says_so_where_strangers_reach_it(
    host: str, warnings: list[str], caplog: pytest.LogCaptureFixture
):
    """Without keys a warning is logged once at the start, but not on loopback."""
    with caplog.at_level(logging.WARNING, "serving.doors"):
        async with open_rig(host=host):
            pass
    said = [record for record in caplog.records if "open to whoever" in record.getMessage()]
    assert [record.levelname for record in said] == warnings


async def test_no_key_is_ever_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Right and wrong keys leave no trace in the log, whatever its level."""
    caplog.set_level(logging.DEBUG)
    attempts: list[Callable[[Rig], Awaitable[Outcome]]] = [
        lambda rig: rig.call("UnaryUnary", "x", metadata=bearer()),
        lambda rig: rig.call("UnaryUnary", "x", metadata=bearer(OTHER.key)),
        lambda rig: rig.call("StreamStream", "x", metadata=(("authorization", OTHER.key),)),
    ]
    async with open_rig(api_keys_file=write(tmp_path / "keys", line())) as rig:
        for attempt in attempts:
            await attempt(rig)
    secret = [one.key.removeprefix(f"twostage_{one.id}_") for one in (MADE, OTHER)] + [MADE.sha256]
    assert not any(one in caplog.text for one in secret)
