"""Who is calling: API keys and client certificates, checked before any handler runs, and what each caller may use.

The order is: a key where one is sent, else a name of the client's certificate, else nobody. Health is open to all, so
that probes need no secret; everything else, reflection included, is for those who are known.

A key travels as `authorization: Bearer KEY`: proxies and log collectors blank that header out of the box, libraries
know it as the access token of call credentials, and gateways in front of this one can check it. A header of our own
has none of that.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from serving.errors import InvalidRequest, Unauthenticated
from serving.interceptors import MALFORMED
from serving.keys import Caller, Keyring, ReadScopes
from serving.rates import Usage
from serving.watched import Watched

HEADER = "authorization"
SCHEME = "bearer"
OPEN_SERVICES = ("/grpc.health.v1.Health/",)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Authorize = Callable[[str, Any, Any], None]
"""Given the method's full name, a request message and the caller's scope; raises PermissionDenied."""

log = logging.getLogger(__name__)

caller: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""Who makes the call being handled; None where this server knows no callers, because it is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a server makes of scopes."""

    read_scopes: ReadScopes
    authorize: Authorize


class Authenticator(grpc.aio.ServerInterceptor):
    """Lets nobody in who is not known, and counts what the others use.

    Args:
        keyring: Who is known.
        authorize: Asked about every request message.
        clock: Monotonic seconds.
    """

    def __init__(
        self, keyring: Watched[Keyring], authorize: Authorize | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keyring, self._authorize, self._clock = keyring, authorize, clock
        self._usage: defaultdict[str, Usage] = defaultdict(Usage)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """Wrap the handler that is about to be called; what it raises, the call guard turns into a status."""
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None or method.startswith(OPEN_SERVICES):
            return handler
        return self._wrap(handler, method)

    def _wrap(self, handler: Handler, method: str) -> Handler:
        kind = f"{_word(handler.request_streaming)}_{_word(handler.response_streaming)}"
        inner = getattr(handler, kind)

        async def one(request: Any, context: Context) -> Any:
            with self._admitted(context):
                return await inner(self._checked(request, method, context, handler), context)

        async def many(request: Any, context: Context) -> AsyncIterator[Any]:
            with self._admitted(context):
                async with aclosing(inner(self._checked(request, method, context, handler), context)) as responses:
                    async for response in responses:
                        yield response

        # Parsed in here, so that nothing of a stranger's is. The handler is gRPC's own named tuple, which its types do
        # not say.
        changes = {kind: many if handler.response_streaming else one, "request_deserializer": None}
        wrapped: Handler = handler._replace(**changes)  # type: ignore[attr-defined]
        return wrapped

    @contextmanager
    def _admitted(self, context: Context) -> Iterator[None]:
        known = self._identify(context)
        usage = self._usage[known.name]
        usage.admit(known.limits, self._clock())
        try:
            yield
        finally:
            usage.leave()

    def _identify(self, context: Context) -> Caller:
        known = identify(self._keyring.current(), context)
        caller.set(known)  # never reset: every call is a task with a context of its own
        return known

    def _checked(self, request: Any, method: str, context: Context, handler: Handler) -> Any:
        if handler.request_streaming:
            return self._checked_stream(request, method, context, handler)
        return self._allowed(_parsed(request, handler), method)

    async def _checked_stream(
        self, requests: AsyncIterator[Any], method: str, context: Context, handler: Handler
    ) -> AsyncIterator[Any]:
        """Check every message, slowed down to the caller's rate; who is no longer known sends no further one."""
        first = True
        async for request in requests:
            if not first:
                await self._paced(self._identify(context))
            first = False
            yield self._allowed(_parsed(request, handler), method)

    async def _paced(self, known: Caller) -> None:
        usage = self._usage[known.name]
        while (wait := usage.take(known.limits, self._clock())) > 0:  # noqa: ASYNC110 - only time has to pass
            await asyncio.sleep(wait)

    def _allowed(self, request: Any, method: str) -> Any:
        known = caller.get()
        if self._authorize is not None and known is not None:
            self._authorize(method, request, known.scope)
        return request


def open_authenticator(path: Path | None, access: Access | None = None) -> Authenticator | None:
    """Make what lets callers in, or None where there is no file of keys: then everybody is.

    Args:
        path: The file of keys.
        access: What this server makes of scopes; None where it has none.

    Raises:
        Misconfigured: The file cannot be read or is wrong.
    """
    if path is None:
        return None
    parse = partial(Keyring.parse, read_scopes=access.read_scopes if access else None)
    keyring = Watched([path], lambda contents: parse(contents[0]))
    log.info("callers in %s: %s", path, ", ".join(keyring.current().names) or "none")
    return Authenticator(keyring, access.authorize if access else None)


def identify(keyring: Keyring, context: Context) -> Caller:
    """Tell who makes a call.

    Raises:
        Unauthenticated: `API_KEY_INVALID`, or `API_KEY_MISSING` where no certificate says who it is either.
    """
    given = [value for key, value in context.invocation_metadata() or () if key == HEADER]
    if given:
        return keyring.by_key(_bearer(given))
    found = keyring.by_certificate(certificate_names(context.auth_context() or {}))
    if found is None:
        raise Unauthenticated("API_KEY_MISSING", f"an API key is required, sent as `{HEADER}: Bearer KEY`")
    return found


def certificate_names(auth_context: Mapping[str, Any]) -> Sequence[str]:
    """Return the names in a verified client certificate: its subject alternative names, or its common name if none."""
    for field in ("x509_subject_alternative_name", "x509_common_name"):
        names = [value.decode("utf-8", "replace") for value in auth_context.get(field, ())]
        if names:
            return names
    return []


def _bearer(given: Sequence[Any]) -> str:
    scheme, _, key = str(given[0]).partition(" ")
    if len(given) > 1 or scheme.lower() != SCHEME:
        raise Unauthenticated("API_KEY_INVALID", f"one header `{HEADER}: Bearer KEY` is wanted")
    return key.strip()


def _parsed(data: bytes, handler: Handler) -> Any:
    try:
        return handler.request_deserializer(data) if handler.request_deserializer else data
    except (DecodeError, ValueError):
        raise InvalidRequest("REQUEST_MALFORMED", MALFORMED, field="request") from None


def _word(streaming: bool) -> str:  # noqa: FBT001 - what gRPC's handlers hold
    return "stream" if streaming else "unary"
