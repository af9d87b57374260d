"""Calls to the gateway, and what their errors mean to a person at a terminal."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from cli.access import access
from cli.console import EXIT_FAULT, EXIT_MISCONFIGURED, EXIT_NOT_SO, EXIT_UNREACHABLE, fail
from retrieval.gateway.v1.gateway_pb2_grpc import CollectionServiceStub, DocumentServiceStub, GatewayServiceStub
from serving.errors import ServiceError, Unavailable

if TYPE_CHECKING:  # they exist in the stub file only
    from retrieval.gateway.v1.gateway_pb2_grpc import (
        CollectionServiceAsyncStub,
        DocumentServiceAsyncStub,
        GatewayServiceAsyncStub,
    )

T = TypeVar("T")
CODE_BY_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}

DEFAULT_GATEWAY = "127.0.0.1:50051"
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 50),
    # For gRPC also the least time that one attempt may take, TLS and the way there and back included.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 250),
)

EXIT_BY_CODE = {
    grpc.StatusCode.INVALID_ARGUMENT: EXIT_MISCONFIGURED,
    grpc.StatusCode.FAILED_PRECONDITION: EXIT_MISCONFIGURED,
    grpc.StatusCode.UNIMPLEMENTED: EXIT_MISCONFIGURED,
    grpc.StatusCode.UNAUTHENTICATED: EXIT_MISCONFIGURED,
    grpc.StatusCode.PERMISSION_DENIED: EXIT_MISCONFIGURED,
    grpc.StatusCode.NOT_FOUND: EXIT_NOT_SO,
    grpc.StatusCode.ALREADY_EXISTS: EXIT_NOT_SO,
    grpc.StatusCode.UNAVAILABLE: EXIT_UNREACHABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: EXIT_UNREACHABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED: EXIT_UNREACHABLE,
}
TODO_BY_REASON = {
    "API_KEY_MISSING": "set TWOSTAGE_API_KEY, or give `twostage --api-key-file FILE ...`",
    "API_KEY_INVALID": "the gateway's operator makes keys with `twostage keys create`",
    "COLLECTION_NOT_FOUND": "`twostage collections list` shows what there is; `twostage index` makes one",
    "COLLECTION_EXISTS": "take another name, or `twostage collections drop` it first",
    "ENCODER_MISMATCH": "index the documents again: `twostage index FILE --collection NAME --recreate`",
    "ENCODER_UNAVAILABLE": "the encoder is down or still loading; `twostage doctor` shows who answers",
    "RERANKER_UNAVAILABLE": "`twostage doctor` shows who answers; `--rerank best-effort` does without the reranker",
    "TEXT_TOO_LONG": "shorten it; `twostage index` can cut long documents (--truncate) or split them (--split)",
    "NAME_IS_ALIAS": "`twostage collections list` shows what it points at; `twostage reindex` makes it point elsewhere",
}
TODO_BY_CODE = {
    grpc.StatusCode.UNIMPLEMENTED: "what answers there is no gateway of ours; look at --gateway",
    grpc.StatusCode.DEADLINE_EXCEEDED: "give it longer with --timeout, or ask for less with --pool-size",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "the servers are at their limit; try again in a moment",
    grpc.StatusCode.INTERNAL: "the id is in the gateway's log, with the cause",
}


class CallFailed(ServiceError):
    """A call ended with a status, or one message of a stream was answered with a failure."""

    def __init__(self, code: grpc.StatusCode, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The gateway's services."""

    search: "GatewayServiceAsyncStub"
    documents: "DocumentServiceAsyncStub"
    collections: "CollectionServiceAsyncStub"


def open_channel(address: str) -> grpc.aio.Channel:
    """Open a channel of its own connection that takes no proxy, finds a starting server soon, and has no TLS.

    Call inside the running loop.
    """
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


@asynccontextmanager
async def let_in_channel(address: str) -> AsyncIterator[Any]:
    """Open such a channel, let in as the command is: with TLS and a key where it has them.

    Raises:
        Misconfigured: The certificates are wrong.
    """
    credentials = access.get().credentials()
    async with (
        open_channel(address)
        if credentials is None
        else grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)
    ) as channel:
        yield access.get().keyed(channel, address)


@contextmanager
def blocking_channel(address: str) -> Iterator[grpc.Channel]:
    """Open a channel to a gateway for blocking calls, let in as the command is."""
    credentials = access.get().credentials()
    with (
        grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        if credentials is None
        else grpc.secure_channel(address, credentials, options=CHANNEL_OPTIONS)
    ) as channel:
        yield access.get().keyed(channel, address)


@asynccontextmanager
async def gateway_at(address: str) -> AsyncIterator[Gateway]:
    """Open a connection to a gateway; nothing is sent until the first call."""
    async with let_in_channel(address) as channel:
        yield Gateway(
            search=GatewayServiceStub(channel),
            documents=DocumentServiceStub(channel),
            collections=CollectionServiceStub(channel),
        )


def run(main: Coroutine[Any, Any, T], address: str = "") -> T:
    """Run a command's work; what it raises on purpose becomes one line and an exit status.

    Args:
        main: The work.
        address: Of the gateway it calls.
    """
    with reported(address):
        return asyncio.run(main)


@contextmanager
def reported(address: str = "") -> Iterator[None]:
    """Turn what is raised on purpose into one line and an exit status.

    Args:
        address: Of the gateway that is called.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        _fail(failed(error), address)
    except CallFailed as error:
        _fail(error, address)
    except ServiceError as error:
        code = EXIT_UNREACHABLE if isinstance(error, Unavailable) else EXIT_MISCONFIGURED
        fail(code, f"{error.reason}: {error.message}")


def failed(error: grpc.aio.AioRpcError | grpc.Call) -> CallFailed:
    """Read a status; its reason is empty where no server of ours has written it."""
    info = error_details_pb2.ErrorInfo()
    status = rpc_status.from_call(cast(grpc.Call, error))  # it has the three methods that are read
    for detail in status.details if status is not None else ():
        detail.Unpack(info)
    return CallFailed(error.code(), info.reason, error.details() or "")


def made_up(error: grpc.aio.AioRpcError) -> bool:
    """Tell whether a status is the client's own, so that the server's is not known and the call may be made again.

    grpc.aio tells INTERNAL where a stream ends while one of its messages is being written, whatever the server has said
    and also where it is gone; an INTERNAL of our servers has trailing metadata.
    """
    return error.code() is grpc.StatusCode.INTERNAL and not error.trailing_metadata()


def explain(error: CallFailed, address: str) -> tuple[str, str]:
    """Return what went wrong in one line, and what to do about it or nothing."""
    if error.code is grpc.StatusCode.UNAVAILABLE and not error.reason:
        return (
            f"UNAVAILABLE: no gateway answers at {address}",
            "start one with `twostage up`, or look at --gateway and --tls",
        )
    words = " ".join(filter(None, (error.code.name, error.reason)))
    return f"{words}: {error.message}", TODO_BY_REASON.get(error.reason) or TODO_BY_CODE.get(error.code, "")


def _fail(error: CallFailed, address: str) -> NoReturn:
    fail(EXIT_BY_CODE.get(error.code, EXIT_FAULT), *explain(error, address))
