"""The one table from error to gRPC status, and the only place that writes status details."""

import logging
import uuid

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from serving import errors

log = logging.getLogger(__name__)

DOMAIN = "twostage"
# gRPC percent-encodes details into a header, nine bytes for a CJK character, and refuses headers over 8 KiB:
# longer details would turn every status into RESOURCE_EXHAUSTED.
MAX_DETAIL_CHARACTERS = 256

CODES: dict[type[errors.ServiceError], grpc.StatusCode] = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.Misconfigured: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeviceOutOfMemory: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.NotReady: grpc.StatusCode.UNAVAILABLE,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineSpent: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.InferenceFailed: grpc.StatusCode.INTERNAL,
}


def code_of(error: BaseException) -> grpc.StatusCode:
    """Return the status code of an error; whatever is not in the tree is INTERNAL."""
    return next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), grpc.StatusCode.INTERNAL)


def detail_of(error: BaseException, error_id: str) -> str:
    """Return what the caller is told: the message where the fault is not ours, else a fixed text and an id."""
    if code_of(error) is grpc.StatusCode.INTERNAL or not isinstance(error, errors.ServiceError):
        return f"internal error, id={error_id}"
    return clip(error.message)


def reason_of(error: BaseException) -> str:
    """Return the stable word for programs."""
    return error.reason if isinstance(error, errors.ServiceError) else "INTERNAL"


def to_status(error: BaseException, error_id: str) -> grpc.Status:
    """Return the gRPC status of an error, with ErrorInfo and, where waiting helps, RetryInfo."""
    given = error.metadata if isinstance(error, errors.ServiceError) else {}
    metadata = {key: clip(str(value)) for key, value in given.items()}
    if code_of(error) is grpc.StatusCode.INTERNAL:
        metadata["error_id"] = error_id
    details = [error_details_pb2.ErrorInfo(reason=reason_of(error), domain=DOMAIN, metadata=metadata)]
    if isinstance(error, (errors.Overloaded, errors.Unavailable)) and error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    return rpc_status.to_status(
        status_pb2.Status(
            code=code_of(error).value[0], message=detail_of(error, error_id), details=[_pack(d) for d in details]
        )
    )


def failure_of(error: BaseException) -> tuple[int, str, str]:
    """Return code number, reason and message of an error that is reported inside a message of a stream."""
    error_id = uuid.uuid4().hex[:12]
    if code_of(error) is grpc.StatusCode.INTERNAL:
        log.error("internal error, error_id=%s", error_id, exc_info=error)
    return code_of(error).value[0], reason_of(error), detail_of(error, error_id)


def clip(text: str) -> str:
    """Cut a text to what a status may carry; a lone surrogate, which UTF-8 cannot hold, becomes a question mark."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_DETAIL_CHARACTERS else text[: MAX_DETAIL_CHARACTERS - 3] + "..."


def _pack(message: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
