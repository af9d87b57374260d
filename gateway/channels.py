"""Channels to the model servers, and the one translation of their statuses into our errors."""

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Sequence
from typing import TypeVar, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from serving import errors

T = TypeVar("T")

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
# Two attempts in all: the calls are idempotent, and a second server that refuses will not be helped by a third.
RETRY = {
    "maxAttempts": 2,
    "initialBackoff": "0.02s",
    "maxBackoff": "0.1s",
    "backoffMultiplier": 2,
    # gRPC itself answers CANCELLED to a call that reaches a server in the moment in which it closes.
    "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
}
# Of every channel of the gateway, whatever is behind it.
CHANNEL_OPTIONS: Sequence[tuple[str, int]] = (
    # Shared ones would come with the pause after a failure of a channel that was closed: it lives on until Python's
    # garbage collection, and meanwhile connects again and again.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # By default a request over 256 KiB is never sent again, though its server was killed before it answered.
    ("grpc.per_rpc_retry_buffer_size", MAX_MESSAGE_BYTES),
    # Less often than the 10 s that the servers allow.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Also the time that one attempt has, TLS included, which 100 ms would cut off over a long way.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.dns_min_time_between_resolutions_ms", 5_000),
)
# What the model servers may refuse that is really our caller's doing.
CALLERS_REASONS = frozenset({"TEXT_BLANK", "TEXT_TOO_LONG", "TEXT_TOO_LARGE"})
CALLERS_FIELDS = frozenset({"max_tokens"})
NOT_OURS = "what answers at the {peer}'s address is no {peer} of ours"
LOCKED_OUT = "the {peer} does not let this gateway in; look at backend_api_key_file"
MISCONFIGURED = {
    grpc.StatusCode.UNIMPLEMENTED: NOT_OURS,
    grpc.StatusCode.FAILED_PRECONDITION: NOT_OURS,
    grpc.StatusCode.UNAUTHENTICATED: LOCKED_OUT,
    grpc.StatusCode.PERMISSION_DENIED: LOCKED_OUT,
}
PLAIN = re.compile(r"[A-Z_]{1,64}|[0-9a-f]{1,32}")
"""A reason, or the id under which a server of ours has logged the cause."""
DEFAULT_RETRY_S = 0.5

log = logging.getLogger(__name__)


def open_channel(target: str, service: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """Open a channel that balances calls over every address of the target and asks once more what refuses.

    Call inside the running loop. Without credentials it has no TLS. It shares its connections with no other channel.
    """
    config = {
        "loadBalancingConfig": [{"round_robin": {}}],
        # Those that load a model or drain are connected to, but say NOT_SERVING: only the others are called.
        "healthCheckConfig": {"serviceName": service},
        "methodConfig": [{"name": [{"service": service}], "retryPolicy": RETRY}],
    }
    options = [("grpc.service_config", json.dumps(config)), *CHANNEL_OPTIONS]
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, credentials, options=options)


async def call(peer: str, answer: Awaitable[T]) -> T:
    """Await an answer of a model server.

    Args:
        peer: "encoder" or "reranker", as messages name it.
        answer: The call.

    Raises:
        ServiceError: Whatever the server or the channel reports, in our terms.
    """
    try:
        return await answer
    except grpc.aio.AioRpcError as error:
        # Without it as the cause: others may put what users write into their words, and causes are logged.
        log.debug("%s answered %s: %s", peer, error.code().name, error.details())
        raise translate(peer, error) from None
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise  # our own caller left
        raise _unavailable(peer) from None  # the channel was closed under the call


def translate(peer: str, error: grpc.aio.AioRpcError) -> errors.ServiceError:
    """Say in our terms what a model server's status means to our caller."""
    code, name = error.code(), peer.upper()
    info, retry_after_s = _details(error)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return _unavailable(peer)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.DeadlineSpent("DEADLINE_SPENT", f"no time left while waiting for the {peer}")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return errors.Overloaded(f"{name}_OVERLOADED", f"the {peer} is at its limit", retry_after_s=retry_after_s)
    field = info.metadata.get("field", "request")
    if code is grpc.StatusCode.INVALID_ARGUMENT and (info.reason in CALLERS_REASONS or field in CALLERS_FIELDS):
        return errors.InvalidRequest(info.reason, (error.details() or "").removeprefix(f"{field}: "), field=field)
    if code in MISCONFIGURED:
        return errors.Misconfigured(f"{name}_MISCONFIGURED", MISCONFIGURED[code].format(peer=peer))
    # A request that we built and the server calls invalid is our fault, not our caller's.
    said = " ".join(filter(PLAIN.fullmatch, (code.name, info.reason, info.metadata.get("error_id", ""))))
    return errors.InferenceFailed(f"{name}_FAILED", f"the {peer} answered {said}")


def _details(error: grpc.aio.AioRpcError) -> tuple[error_details_pb2.ErrorInfo, float]:
    """Return the ErrorInfo and the retry delay that a status carries, or empty ones."""
    info, delay = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in _rich_status(error).details:
        detail.Unpack(info)
        detail.Unpack(delay)
    seconds = delay.retry_delay.seconds + delay.retry_delay.nanos / 1e9
    return info, seconds if seconds > 0 else DEFAULT_RETRY_S


def _rich_status(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    """Return the status that came as metadata; what contradicts the plain one or cannot be read counts as none."""
    try:
        status = rpc_status.from_call(cast(grpc.Call, error))  # it has the three methods that are read
    except (DecodeError, ValueError):
        return status_pb2.Status()
    return status_pb2.Status() if status is None else status


def _unavailable(peer: str) -> errors.Unavailable:
    return errors.Unavailable(f"{peer.upper()}_UNAVAILABLE", f"the {peer} cannot be reached")
