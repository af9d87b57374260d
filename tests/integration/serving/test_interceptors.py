"""The outermost layer over real gRPC: every way for a call to end, by each of the four kinds of method."""

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from clients import client
from google.protobuf.wrappers_pb2 import StringValue
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from patience import Late, with_more_time
from probe_service import KINDS, MALFORMED, SERVICE, Act, Outcome, Rig, errors_in, open_rig

from serving import logs
from serving.errors import InferenceFailed, InvalidRequest, NotFound, Overloaded
from serving.metrics import ServerMetrics
from serving.server import open_server
from serving.tracing import request_id

pytestmark = pytest.mark.timeout(30)
PRIVATE = "the user's own words"
TRAILER = ("twostage-total-us", "7")
CODE = grpc.StatusCode


async def raise_plain(_: Any) -> None:
    """Fail as no handler should."""
    raise ValueError(PRIVATE)


async def raise_ours(_: Any) -> None:
    """Fail on purpose."""
    raise NotFound("COLLECTION_NOT_FOUND", "no such collection")


async def raise_inference(_: Any) -> None:
    """Fail in the engine."""
    raise InferenceFailed("NON_FINITE", PRIVATE)


async def raise_overloaded(_: Any) -> None:
    """Refuse for want of room."""
    raise Overloaded("QUEUE_FULL", "full", retry_after_s=0.25)


async def raise_long(_: Any) -> None:
    """Fail with far more text than a header holds."""
    raise InvalidRequest("LONG", "熊" * 5000, field="猫" * 5000)


async def return_nothing(_: Any) -> None:
    """Forget the answer."""


async def return_nonsense(_: Any) -> int:
    """Answer with something that cannot be sent."""
    return 5


async def abort(context: Any) -> None:
    """Abort as gRPC's own examples do."""
    await context.abort(CODE.ALREADY_EXISTS, "aborted")


async def abort_swallowed(context: Any) -> StringValue:
    """Abort inside a broad except, then answer."""
    try:
        await context.abort(CODE.ALREADY_EXISTS, "aborted")
    except Exception:  # noqa: BLE001 - the mistake under test
        return StringValue(value="too late")


async def abort_then_fail(context: Any) -> None:
    """Abort inside a broad except, then fail otherwise."""
    try:
        await context.abort(CODE.ALREADY_EXISTS, "aborted")
    except Exception as error:
        raise ValueError(PRIVATE) from error


async def cancel_inside(_: Any) -> None:
    """Await something that somebody else cancels."""
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def set_code(context: Any) -> StringValue:
    """Answer and set a code all the same."""
    context.set_code(CODE.FAILED_PRECONDITION)
    return StringValue(value="answer")


async def fail_with_trailer(context: Any) -> None:
    """Set trailing metadata, then fail."""
    context.set_trailing_metadata((TRAILER,))
    raise NotFound("COLLECTION_NOT_FOUND", "no such collection")


async def tell_request_id(_: Any) -> StringValue:
    """Answer with the id of the call."""
    return StringValue(value=request_id.get())


async def wait_for_ever(_: Any) -> None:
    """Never end."""
    await asyncio.Event().wait()


ACTS: dict[str, Act] = {
    act.__name__: act
    for act in (
        raise_plain, raise_ours, raise_inference, raise_overloaded, raise_long, return_nothing, return_nonsense, abort,
        abort_swallowed, abort_then_fail, cancel_inside, set_code, fail_with_trailer, tell_request_id, wait_for_ever,
    )
}  # fmt: skip

ENDINGS = [
    ("raise_plain", CODE.INTERNAL),
    ("raise_ours", CODE.NOT_FOUND),
    ("raise_inference", CODE.INTERNAL),
    ("raise_overloaded", CODE.RESOURCE_EXHAUSTED),
    ("raise_long", CODE.INVALID_ARGUMENT),
    ("return_nonsense", CODE.INTERNAL),
    ("abort", CODE.ALREADY_EXISTS),
    ("cancel_inside", CODE.UNAVAILABLE),
    ("set_code", CODE.FAILED_PRECONDITION),
    ("hello", CODE.OK),
]


async def call(kind: str, text: str, *, forget: Callable[[], None] = lambda: None, **more: Any) -> tuple[Outcome, str]:
    """Make one call against a fresh server; return what the client saw and the code that was counted.

    Where the client has made up how it ended, everything is done again; `forget` is to drop what was noted so far.
    """
    while True:
        async with open_rig(ACTS) as rig:
            outcome = await rig.call_once(kind, text, **more)
            method, code = await rig.probe.calls.counts.get()
            assert method == kind
            assert rig.probe.calls.counts.empty()
        if not outcome.made_up:
            return outcome, code
        forget()


# --- endings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ending", "code"), ENDINGS)
async def test_the_caller_gets_the_code_and_the_metric_has_the_same(kind: str, ending: str, code: grpc.StatusCode):
    """However a handler ends, code and count agree and are never UNKNOWN (field failures 9, 38 and 39)."""
    outcome, counted = await call(kind, ending)
    assert (outcome.code, counted) == (code, code.name)
    if code is CODE.OK:
        assert outcome.outputs[-1] == "hello"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_handler_that_returns_nothing_is_an_internal_error(kind: str):
    """None instead of a message is our bug and not UNKNOWN (field failure 38)."""
    outcome, counted = await call(kind, "return_nothing")
    assert (outcome.code, counted) == (CODE.INTERNAL, "INTERNAL")


@pytest.mark.parametrize("kind", ["UnaryUnary", "StreamUnary"])
@pytest.mark.parametrize("ending", ["abort_swallowed", "abort_then_fail"])
async def test_the_metric_is_honest_about_an_abort_that_was_swallowed(kind: str, ending: str):
    """The client has the abort's code whatever ran on after it, and so has the metric (field failure 39)."""
    outcome, counted = await call(kind, ending)
    assert (outcome.code, counted) == (CODE.ALREADY_EXISTS, "ALREADY_EXISTS")


@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_sent_before_an_error_arrives(kind: str):
    """An error in a stream ends it and takes nothing back."""
    async with open_rig(ACTS) as rig:
        outcome = await rig.call(kind, *(["one", "raise_ours"] if kind.startswith("Stream") else ["raise_ours"]))
    expected = {"UnaryStream": ["first"], "StreamStream": ["one"]}.get(kind, [])
    assert (outcome.code, outcome.outputs) == (CODE.NOT_FOUND, expected)


# --- what the caller is told ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", ["raise_plain", "raise_inference"])
async def test_an_internal_error_tells_an_id_and_nothing_else(kind: str, ending: str, caplog: pytest.LogCaptureFixture):
    """The caller gets a fixed text and an id; the log has the id, the trace and the message (field failure 38)."""
    outcome, _ = await call(kind, ending, forget=caplog.clear)
    prefix, _, error_id = outcome.details.partition("id=")
    assert prefix == "internal error, "
    assert len(error_id) == 12
    assert PRIVATE not in str(outcome)
    assert PRIVATE.encode() not in b"".join(v for v in outcome.trailing.values() if isinstance(v, bytes))
    (message,) = errors_in(caplog.records)
    assert error_id in message
    assert PRIVATE in caplog.text


@pytest.mark.parametrize("kind", KINDS)
async def test_long_details_do_not_change_the_code(kind: str):
    """Five thousand CJK characters are cut to 256 and the code stays INVALID_ARGUMENT (field failure 37)."""
    outcome, _ = await call(kind, "raise_long")
    assert outcome.code is CODE.INVALID_ARGUMENT
    assert len(outcome.details) == 256


async def test_details_arrive_for_programs():
    """ErrorInfo and RetryInfo are read from a real answer with the ordinary tools (field failure 37)."""
    outcome, _ = await call("UnaryUnary", "raise_overloaded")
    assert outcome.error is not None
    status = rpc_status.from_call(_Answer(outcome.error))
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(retry)
    assert (info.reason, info.domain) == ("QUEUE_FULL", "twostage")
    assert retry.retry_delay.ToNanoseconds() == 250_000_000


class _Answer:
    """An AioRpcError in the shape that grpc_status reads."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code, self.details = error.code, error.details
        self.trailing_metadata = lambda: tuple(error.trailing_metadata())


@pytest.mark.parametrize("kind", KINDS)
async def test_trailing_metadata_survives_an_error(kind: str):
    """Times that a handler has set arrive beside the error's own details (field failure 73)."""
    outcome, _ = await call(kind, "fail_with_trailer")
    assert outcome.code is CODE.NOT_FOUND
    assert outcome.trailing[TRAILER[0]] == TRAILER[1]
    assert "grpc-status-details-bin" in outcome.trailing


# --- requests that are none ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data", [MALFORMED, b"\x0a\x02\xed\xa0", b"\x0a\x09ab", b"\xff"])
async def test_bytes_that_are_no_message_are_the_callers_fault(kind: str, data: bytes):
    """Bad UTF-8, a surrogate or half a message is INVALID_ARGUMENT, and the next call is fine (field failure 41)."""
    async with open_rig(ACTS) as rig:
        outcome = await rig.call(kind, data)
        assert outcome.code is CODE.INVALID_ARGUMENT
        assert await rig.probe.calls.counts.get() == (kind, "INVALID_ARGUMENT")
        assert (await rig.call(kind, "next")).outputs[-1] == "next"


async def test_a_broken_message_amid_a_stream_ends_it_after_the_answers_before():
    """The good message before the broken one has its answer (field failure 41)."""
    async with open_rig(ACTS) as rig:
        outcome = await rig.call("StreamStream", "one", MALFORMED, "three")
    assert (outcome.code, outcome.outputs) == (CODE.INVALID_ARGUMENT, ["one"])


# --- cancellation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_caller_who_leaves_is_counted_and_not_logged_as_an_error(kind: str, caplog: pytest.LogCaptureFixture):
    """Hanging up is the caller's right: CANCELLED in the metric, nothing at ERROR, and the next call is fine."""
    async with open_rig(ACTS) as rig:
        running = rig.start(kind, "wait_for_ever")
        assert await rig.probe.entered.get() == "wait_for_ever"
        running.cancel()
        assert await rig.probe.calls.counts.get() == (kind, "CANCELLED")
        assert (await rig.call(kind, "next")).code is CODE.OK
    assert errors_in(caplog.records) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_caller_whose_time_is_over_is_counted_as_late(kind: str):
    """The deadline passing is not hanging up: client and metric have DEADLINE_EXCEEDED (field failure 39)."""
    async with open_rig(ACTS) as rig:

        async def attempt(seconds: float) -> None:
            outcome = await rig.call(kind, "wait_for_ever", timeout=seconds)
            assert outcome.code is CODE.DEADLINE_EXCEEDED
            await health_pb2_grpc.HealthStub(rig.channel).Check(health_pb2.HealthCheckRequest())  # it came later
            if rig.probe.entered.empty():
                raise Late

        await with_more_time(attempt)
        assert await rig.probe.calls.counts.get() == (kind, "DEADLINE_EXCEEDED")


async def test_a_caller_who_leaves_while_an_answer_is_being_sent_is_counted_too(caplog: pytest.LogCaptureFixture):
    """A stream that is left while nobody reads is closed, counted once, and leaves no exception behind."""

    async def big(_: Any) -> StringValue:
        return StringValue(value="x" * 1_000_000)

    async with open_rig({"big": big}) as rig:
        await _blocked(rig, ["big"] * 30)
        assert await rig.probe.calls.counts.get() == ("StreamStream", "CANCELLED")
        assert rig.probe.left == ["StreamStream"], "a call is over when its handler is"
        gc.collect()
        assert (await rig.call("UnaryUnary", "next")).code is CODE.OK
    ours = [record for record in caplog.records if not record.name.startswith("grpc.")]
    assert errors_in(ours) == []


async def _blocked(rig: Rig, texts: list[str]) -> None:
    """Begin a stream whose answers nobody reads, and leave once flow control has stopped it."""
    running = rig.start("StreamStream", *texts)
    await running.read()
    health = health_pb2_grpc.HealthStub(rig.channel)
    begun = -1
    while begun != rig.probe.entered.qsize():
        begun = rig.probe.entered.qsize()
        for _ in range(20):
            await health.Check(health_pb2.HealthCheckRequest())
    assert begun < len(texts), "flow control has not stopped the stream"
    running.cancel()


# --- ids and scope -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_the_callers_request_id_is_the_calls_id(kind: str):
    """What the caller sends as x-request-id is what the handler and its log lines have."""
    async with open_rig(ACTS) as rig:
        first = await rig.call(kind, "tell_request_id", metadata=(("x-request-id", "abc-1"),))
        second = await rig.call(kind, "tell_request_id")
        third = await rig.call(kind, "tell_request_id")
        long = await rig.call(kind, "tell_request_id", metadata=(("x-request-id", "a" * 200),))
    assert first.outputs[-1] == "abc-1"
    assert len(second.outputs[-1]) == len(third.outputs[-1]) == 16
    assert second.outputs[-1] != third.outputs[-1]
    assert long.outputs[-1] == "a" * 64


async def test_concurrent_calls_keep_their_own_ids():
    """An id does not leak into a call that runs at the same time."""
    everyone, count = asyncio.Event(), 20
    async with open_rig() as rig:

        async def tell_when_all_are_here(_: Any) -> StringValue:
            if rig.probe.entered.qsize() == count:
                everyone.set()
            await everyone.wait()
            return StringValue(value=request_id.get())

        rig.probe.acts["tell"] = tell_when_all_are_here
        calls = [rig.call("UnaryUnary", "tell", metadata=(("x-request-id", f"id-{n}"),)) for n in range(count)]
        outcomes = await asyncio.gather(*calls)
    assert [outcome.outputs for outcome in outcomes] == [[f"id-{n}"] for n in range(count)]


async def test_an_error_is_logged_with_the_request_id(caplog: pytest.LogCaptureFixture):
    """One id leads from the caller's report to the trace."""
    caplog.handler.addFilter(logs.CallFilter())
    await call("UnaryUnary", "raise_plain", metadata=(("x-request-id", "find-me"),))
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert vars(record)["request_id"] == "find-me"


async def test_a_refusal_is_logged_without_a_trace(caplog: pytest.LogCaptureFixture):
    """What is the caller's affair is one line at INFO."""
    caplog.set_level(logging.INFO, "serving.calls")
    await call("UnaryUnary", "raise_ours")
    (record,) = [record for record in caplog.records if record.name == "serving.calls"]
    assert (record.levelno, record.exc_info) == (logging.INFO, None)
    assert "NOT_FOUND COLLECTION_NOT_FOUND" in record.getMessage()


async def test_other_services_and_unknown_methods_are_not_counted():
    """Health checks are no calls, and a misspelt method makes no new label."""
    async with open_rig(ACTS) as rig:
        await health_pb2_grpc.HealthStub(rig.channel).Check(health_pb2.HealthCheckRequest())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.channel.unary_unary(f"/{SERVICE}/Misspelt")(b"")
        assert caught.value.code() is CODE.UNIMPLEMENTED
        assert rig.probe.calls.counts.empty()


async def test_the_real_counters_are_filled():
    """Calls and durations are in the registry under their published names."""
    from probe_service import Probe, ProbeSettings  # noqa: PLC0415 - only here without the rig

    metrics, probe = ServerMetrics("probe"), Probe(ACTS)
    async with (
        open_server(ProbeSettings(), metrics, {SERVICE: probe.add}) as running,
        client(running.port) as channel,
    ):
        rig = Rig(probe, running, channel)
        await rig.call("UnaryUnary", "hello")
        await rig.call("UnaryUnary", "hello")
    labels = {"method": "UnaryUnary", "code": "OK"}
    assert metrics.registry.get_sample_value("probe_calls_total", labels) == 2
    assert metrics.registry.get_sample_value("probe_call_seconds_count", {"method": "UnaryUnary"}) == 2
