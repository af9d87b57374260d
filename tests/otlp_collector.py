"""A collector in this process: takes spans by OTLP over real gRPC and keeps them."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True)
class Span:
    """One span as it arrived, with who sent it."""

    name: str
    trace: str
    id: str
    parent: str
    begin: int
    end: int
    kind: int
    attributes: Mapping[str, Any]
    links: Sequence[str]
    """Ids of the spans it links to."""
    failed: bool
    resource: Mapping[str, Any]

    @property
    def length(self) -> int:
        """Nanoseconds."""
        return self.end - self.begin

    @property
    def service(self) -> str:
        """Who sent it."""
        return str(self.resource["service.name"]).removeprefix("twostage-")


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it is sent, or, with `hanging`, answers nobody."""

    def __init__(self, *, hanging: bool = False) -> None:
        self.endpoint = ""
        self.spans: list[Span] = []
        self.metadata: dict[str, str] = {}
        self.asked = asyncio.Event()
        self._hanging = hanging

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.metadata |= dict(context.invocation_metadata())
        self.asked.set()
        if self._hanging:
            await asyncio.Event().wait()
        for group in request.resource_spans:
            resource = _attributes(group.resource.attributes)
            self.spans += [_span(span, resource) for scope in group.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name: str, service: str = "") -> list[Span]:
        """Return the spans of a name, or the end of one, in the order of their beginnings."""
        found = [span for span in self.spans if span.name.endswith(name) and service in ("", span.service)]
        return sorted(found, key=lambda span: span.begin)

    def one(self, name: str, service: str = "") -> Span:
        """Return the only span of a name."""
        (span,) = self.named(name, service)
        return span


@asynccontextmanager
async def open_collector(
    credentials: grpc.ServerCredentials | None = None, *, hanging: bool = False
) -> AsyncIterator[Collector]:
    """Serve a collector on a free port of loopback."""
    collector, server = Collector(hanging=hanging), grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    if credentials is None:
        collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    else:
        collector.endpoint = f"https://localhost:{server.add_secure_port('127.0.0.1:0', credentials)}"
    await server.start()
    try:
        yield collector
    finally:
        await server.stop(0)


def _span(span: trace_pb2.Span, resource: Mapping[str, Any]) -> Span:
    return Span(
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        begin=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        kind=span.kind,
        attributes=_attributes(span.attributes),
        links=[link.span_id.hex() for link in span.links],
        failed=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        resource=resource,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
