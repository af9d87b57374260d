"""The one translation of a Qdrant server's statuses into our errors."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import grpc

from gateway.channels import DEFAULT_RETRY_S
from gateway.stores.records import answer_too_large
from serving import errors

T = TypeVar("T")

REFUSED = "STORE_REFUSED"
"""The server calls a request of ours invalid: our fault, or the collection is not what we remember."""

RETRY_AFTER = "retry-after"
"""Trailing metadata of a server at its rate limit: whole seconds."""

NOT_GRPC = "the gRPC port of Qdrant is 6334 unless configured otherwise, and 6333 is its REST port"

CODE = grpc.StatusCode


async def answered(answer: Awaitable[T], *, stage: str) -> T:
    """Await an answer of the server.

    Args:
        answer: The call.
        stage: What is being done, as errors name it.

    Raises:
        ServiceError: Whatever the server or the channel reports, in our terms.
    """
    try:
        return await answer
    except grpc.aio.AioRpcError as error:
        raise translate(error, stage=stage) from error
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise  # our own caller left
        raise _unavailable(stage) from None  # the channel was closed under the call


def translate(error: grpc.aio.AioRpcError, *, stage: str) -> errors.ServiceError:
    """Say in our terms what a status of the server or the channel means; its words stay in the cause."""
    code = error.code()
    if code is CODE.RESOURCE_EXHAUSTED:
        return _exhausted(error, stage)
    if code in (CODE.UNAVAILABLE, CODE.CANCELLED):
        return _unreachable(error, stage)
    if code is CODE.DEADLINE_EXCEEDED:
        return errors.DeadlineSpent("DEADLINE_SPENT", f"no time left for {stage}", stage=stage)
    made = _TABLE.get(code)
    if made is not None:
        return made(stage)
    return errors.InferenceFailed("STORE_FAILED", f"the vector store answered {code.name}", stage=stage)


def retry_delay_s(error: grpc.aio.AioRpcError) -> float:
    """Return the seconds that the server asks us to wait, or our own default."""
    for key, value in (*(error.trailing_metadata() or ()), *(error.initial_metadata() or ())):
        if key == RETRY_AFTER:
            try:
                seconds = float(value)
            except ValueError:
                break
            if math.isfinite(seconds) and seconds > 0:
                return seconds
    return DEFAULT_RETRY_S


def _exhausted(error: grpc.aio.AioRpcError, stage: str) -> errors.ServiceError:
    # gRPC uses the same code for a message over its limit, where trying again does not help.
    if "larger than max" in (error.details() or ""):
        return answer_too_large()
    return errors.Overloaded(
        "STORE_OVERLOADED", "the vector store is at its limit", retry_after_s=retry_delay_s(error), stage=stage
    )


def _unreachable(error: grpc.aio.AioRpcError, stage: str) -> errors.ServiceError:
    # gRPC tells a wrong port and a wrong certificate from a dead server in its words only.
    details = error.details() or ""
    return next((made(stage) for words, made in _WORDS.items() if words in details), _unavailable(stage))


def _unavailable(stage: str) -> errors.ServiceError:
    return errors.Unavailable("STORE_UNAVAILABLE", "the vector store cannot be reached", stage=stage)


def _not_found(stage: str) -> errors.ServiceError:
    return errors.NotFound("COLLECTION_NOT_FOUND", "there is no collection of that name", stage=stage)


def _exists(stage: str) -> errors.ServiceError:
    return errors.AlreadyExists("COLLECTION_EXISTS", "there is a collection of that name", stage=stage)


def _refused(stage: str) -> errors.ServiceError:
    return errors.InferenceFailed(REFUSED, "the vector store calls our request invalid", stage=stage)


def _no_access(stage: str) -> errors.ServiceError:
    return errors.Misconfigured(
        "STORE_ACCESS_DENIED",
        "the vector store refuses the API key, or wants one; set the key it was given",
        stage=stage,
    )


def _locked(stage: str) -> errors.ServiceError:
    return errors.Misconfigured("STORE_LOCKED", "the vector store's operator has locked it", stage=stage)


def _not_qdrant(stage: str) -> errors.ServiceError:
    return errors.Misconfigured(
        "STORE_MISCONFIGURED",
        f"what answers at the vector store's address is no gRPC port of Qdrant; {NOT_GRPC}",
        stage=stage,
    )


def _untrusted(stage: str) -> errors.ServiceError:
    return errors.Misconfigured(
        "STORE_CERTIFICATE", "the vector store's certificate is not trusted; name its CA file", stage=stage
    )


def _no_tls(stage: str) -> errors.ServiceError:
    return errors.Misconfigured("STORE_CERTIFICATE", "the vector store does not speak TLS; use http://", stage=stage)


_WORDS = {
    "http1.x server": _not_qdrant,
    "CERTIFICATE_VERIFY_FAILED": _untrusted,
    "WRONG_VERSION_NUMBER": _no_tls,
}
_TABLE = cast(
    "dict[Any, Callable[[str], errors.ServiceError]]",
    {
        CODE.NOT_FOUND: _not_found,
        CODE.ALREADY_EXISTS: _exists,
        CODE.INVALID_ARGUMENT: _refused,
        CODE.UNAUTHENTICATED: _no_access,
        CODE.PERMISSION_DENIED: _no_access,
        CODE.FAILED_PRECONDITION: _locked,
        CODE.UNIMPLEMENTED: _not_qdrant,
    },
)
