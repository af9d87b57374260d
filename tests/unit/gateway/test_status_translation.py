"""What a model server's status means to our caller: the table, row by row.

Numbers in brackets are those of field failures.
"""

import asyncio

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from gateway.channels import call, translate
from serving import errors

CODE = grpc.StatusCode
CALLERS = "TEXT_TOO_LONG"
KEY = "grpc-status-details-bin"


def failure(
    code: grpc.StatusCode, reason: str = "", *, field: str = "", retry: float | None = None, details: str = "inner"
) -> grpc.aio.AioRpcError:
    """Make what a stub raises, with rich details where there are any."""
    rich = status_pb2.Status(code=code.value[0], message=details)
    if reason:
        rich.details.append(packed(error_details_pb2.ErrorInfo(reason=reason, metadata={"field": field})))
    if retry is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(retry * 1e9))
        rich.details.append(packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    trailing = grpc.aio.Metadata((KEY, rich.SerializeToString())) if rich.details else grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details)


def packed(message: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> any_pb2.Any:
    """Pack a detail."""
    box = any_pb2.Any()
    box.Pack(message)
    return box


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (failure(CODE.UNAVAILABLE), errors.Unavailable, "ENCODER_UNAVAILABLE"),
        (failure(CODE.UNAVAILABLE, "STARTING"), errors.Unavailable, "ENCODER_UNAVAILABLE"),
        (failure(CODE.CANCELLED), errors.Unavailable, "ENCODER_UNAVAILABLE"),
        (failure(CODE.DEADLINE_EXCEEDED), errors.DeadlineSpent, "DEADLINE_SPENT"),
        (failure(CODE.RESOURCE_EXHAUSTED, "QUEUE_FULL"), errors.Overloaded, "ENCODER_OVERLOADED"),
        (failure(CODE.INVALID_ARGUMENT, CALLERS, field="texts[0]"), errors.InvalidRequest, CALLERS),
        (failure(CODE.INVALID_ARGUMENT, "OUT_OF_RANGE", field="max_tokens"), errors.InvalidRequest, "OUT_OF_RANGE"),
        (failure(CODE.INVALID_ARGUMENT, "OUT_OF_RANGE", field="texts"), errors.InferenceFailed, "ENCODER_FAILED"),
        (failure(CODE.INVALID_ARGUMENT, "INPUT_TYPE_REQUIRED"), errors.InferenceFailed, "ENCODER_FAILED"),
        (failure(CODE.INVALID_ARGUMENT), errors.InferenceFailed, "ENCODER_FAILED"),
        (failure(CODE.UNIMPLEMENTED), errors.Misconfigured, "ENCODER_MISCONFIGURED"),
        (failure(CODE.FAILED_PRECONDITION), errors.Misconfigured, "ENCODER_MISCONFIGURED"),
        (failure(CODE.INTERNAL, "NON_FINITE"), errors.InferenceFailed, "ENCODER_FAILED"),
        (failure(CODE.UNKNOWN), errors.InferenceFailed, "ENCODER_FAILED"),
        (failure(CODE.NOT_FOUND), errors.InferenceFailed, "ENCODER_FAILED"),
        (failure(CODE.DATA_LOSS), errors.InferenceFailed, "ENCODER_FAILED"),
        (failure(CODE.PERMISSION_DENIED), errors.Misconfigured, "ENCODER_MISCONFIGURED"),
        (failure(CODE.UNAUTHENTICATED), errors.Misconfigured, "ENCODER_MISCONFIGURED"),
    ],
    ids=lambda value: value.code().name if isinstance(value, grpc.aio.AioRpcError) else None,
)
def test_every_status_has_one_meaning(
    error: grpc.aio.AioRpcError, kind: type[errors.ServiceError], reason: str
) -> None:
    """What we asked wrongly is our fault, what the caller wrote is the caller's; inner words never pass (32)."""
    ours = translate("encoder", error)
    assert (type(ours), ours.reason) == (kind, reason)
    if kind is not errors.InvalidRequest:
        assert "inner" not in ours.message


def test_every_code_of_grpc_is_translated() -> None:
    """No status a server may send is left without a meaning (32)."""
    for code in CODE:
        if code is not CODE.OK:
            assert isinstance(translate("reranker", failure(code)), errors.ServiceError)


def test_the_field_is_said_once() -> None:
    """Reason, field and message of a caller's fault are kept, without doubling the field's name."""
    error = failure(CODE.INVALID_ARGUMENT, CALLERS, field="texts[0]", details="texts[0]: 600 tokens, the limit is 512")
    ours = translate("encoder", error)
    assert isinstance(ours, errors.InvalidRequest)
    assert (ours.field, ours.message) == ("texts[0]", "texts[0]: 600 tokens, the limit is 512")


@pytest.mark.parametrize(("said", "kept"), [(2.25, 2.25), (None, 0.5), (0.0, 0.5), (-3.0, 0.5)])
def test_the_retry_delay_is_kept_or_made_up(said: float | None, kept: float) -> None:
    """RetryInfo passes through; where it says nothing useful, half a second is said (15)."""
    ours = translate("encoder", failure(CODE.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry=said))
    assert isinstance(ours, errors.Overloaded)
    assert ours.retry_after_s == kept


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff",
        status_pb2.Status(code=5, message="inner").SerializeToString(),
        status_pb2.Status(code=14, message="other words").SerializeToString(),
    ],
    ids=["no message", "another code", "other words"],
)
def test_details_that_contradict_the_status_are_ignored(data: bytes) -> None:
    """A proxy's or a foreign server's odd details do not turn UNAVAILABLE into a failure of ours (32)."""
    error = grpc.aio.AioRpcError(CODE.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata((KEY, data)), "inner")
    assert isinstance(translate("encoder", error), errors.Unavailable)


async def test_a_call_cancelled_under_us_is_unavailable() -> None:
    """A channel closed under a call is no cancellation by our caller: it gets an answer (9)."""

    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(errors.Unavailable, match="encoder"):
        await call("encoder", cancelled())


async def test_a_cancellation_of_ours_stays_one() -> None:
    """Where the caller left, nothing is translated."""
    begun = asyncio.Event()

    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(call("encoder", forever()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
