"""Makes tracers that send spans by OTLP. Imported only where an endpoint is set: it brings OpenTelemetry's SDK.

`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_*` (but for the endpoint), `OTEL_BSP_*` and
`OTEL_SDK_DISABLED` count as in any program with that SDK, which reads them itself.
"""

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from threading import Thread
from uuid import uuid4

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_TRACES_HEADERS
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.trace import Link, SpanKind, Tracer, TraceState
from opentelemetry.util.re import parse_env_headers
from opentelemetry.util.types import Attributes

from serving.errors import Misconfigured
from serving.keyed import on_this_machine

FLUSH_S = 2.0
"""Longest time for sending what is left when a server ends; drain and grace have passed then."""
METADATA_KEY, METADATA_VALUE = re.compile(r"[0-9a-z_.-]+(?<!-bin)"), re.compile(r"[\x20-\x7e]*")
"""Source: gRPC over HTTP/2, "Custom-Metadata"; what ends in -bin is bytes, which a variable does not hold."""

log = logging.getLogger(__name__)


class LinkedSampler(Sampler):
    """Keeps what is linked to something that is kept, as a batch is to its calls; for the rest asks another sampler."""

    def __init__(self, otherwise: Sampler) -> None:
        self._otherwise = otherwise

    def should_sample(  # noqa: PLR0913, PLR0917 - the SDK's signature
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Decide on a span without a parent."""
        linked = any(link.context.trace_flags.sampled for link in links or ())
        sampler = ALWAYS_ON if linked else self._otherwise
        return sampler.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        """Return the name of this sampler."""
        return f"LinkedSampler{{{self._otherwise.get_description()}}}"


@asynccontextmanager
async def open_tracer(service: str, endpoint: str, share: float) -> AsyncIterator[Tracer]:
    """Make a server's tracer; leaving sends what is left, within `FLUSH_S`.

    Args:
        service: "encoder", "reranker" or "gateway".
        endpoint: Where spans are sent by OTLP over gRPC; http:// is plaintext, https:// is TLS.
        share: Of the calls that come without a trace, how many are traced; the others' callers have decided.

    Raises:
        Misconfigured: One of OpenTelemetry's own variables is wrong.
    """
    _check_headers(endpoint)
    provider, exporter = _provider(service, endpoint, share)
    log.info("%g of all traces go to %s", share, endpoint)
    try:
        yield provider.get_tracer("twostage", version("twostage"))
    finally:
        await _close(provider, exporter)


def _check_headers(endpoint: str) -> None:
    """Refuse headers that cannot be sent, without their values, and warn of those that can be overheard."""
    for name in (OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_TRACES_HEADERS):
        headers = [header for header in os.environ.get(name, "").split(",") if header.strip()]
        if not all(map(_can_be_sent, headers)):
            raise Misconfigured("TRACING", f"{name} has to be key=value,key=value, with values URL-encoded")
        if headers and endpoint.startswith("http://") and not on_this_machine(endpoint.rstrip("/")):
            log.warning("%s go to %s in the clear; TLS is off", name, endpoint)


def _can_be_sent(header: str) -> bool:
    """Tell whether a header is well-formed, and metadata for gRPC, whose errors hold what it refuses word by word."""
    pairs = parse_env_headers(header, liberal=True).items()
    return bool(pairs) and all(METADATA_KEY.fullmatch(key) and METADATA_VALUE.fullmatch(value) for key, value in pairs)


def _provider(service: str, endpoint: str, share: float) -> tuple[TracerProvider, OTLPSpanExporter]:
    """Make what makes spans, and what sends them."""
    try:
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http://"))
        provider = TracerProvider(
            sampler=ParentBased(root=LinkedSampler(TraceIdRatioBased(share))),
            resource=_resource(service),
            shutdown_on_exit=False,  # it would wait for a collector that hangs
            span_limits=SpanLimits(max_links=SpanLimits.UNSET),  # of a batch: as many as it has calls
        )
        provider.add_span_processor(BatchSpanProcessor(exporter))
    except Exception as error:  # what of the environment it cannot read, it raises as it likes
        raise Misconfigured("TRACING", f"traces cannot be sent to {endpoint}: {error}") from error
    return provider, exporter


def _resource(service: str) -> Resource:
    """Say who sends, in ways that the environment may overrule; every process is an instance of its own."""
    own = {
        "service.name": f"twostage-{service}",
        "service.version": version("twostage"),
        "service.instance.id": str(uuid4()),
    }
    return Resource.create(own | dict(OTELResourceDetector().detect().attributes))


async def _close(provider: TracerProvider, exporter: OTLPSpanExporter) -> None:
    """Send what is left; the SDK's own shutdown has no bound, and so gets a thread that nobody has to wait for."""
    closing = Thread(target=provider.shutdown, name="tracing-close", daemon=True)
    closing.start()
    await asyncio.to_thread(closing.join, FLUSH_S)
    if closing.is_alive():
        log.warning("the collector does not answer, the last spans are lost")
        exporter.shutdown()  # ends the call that hangs
        await asyncio.to_thread(closing.join, FLUSH_S)
