"""Makes tracers that send spans by OTLP. Imported only where an endpoint is set: it brings OpenTelemetry's SDK.

`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_*` (but for the endpoint), `OTEL_BSP_*` and
`OTEL_SDK_DISABLED` count as in any program with that SDK, which reads them itself.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from threading import Thread
from uuid import uuid4

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.trace import Link, SpanKind, Tracer, TraceState
from opentelemetry.util.types import Attributes

from serving.errors import Misconfigured

FLUSH_S = 2.0
"""Longest time for sending what is left when a server ends; drain and grace have passed then."""

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
    exporter = _exporter(endpoint)
    provider = TracerProvider(
        sampler=ParentBased(root=LinkedSampler(TraceIdRatioBased(share))),
        resource=_resource(service),
        shutdown_on_exit=False,  # it would wait for a collector that hangs
        span_limits=SpanLimits(max_links=SpanLimits.UNSET),  # of a batch: as many as it has calls
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    log.info("%g of all traces go to %s", share, endpoint)
    try:
        yield provider.get_tracer("twostage", version("twostage"))
    finally:
        await _close(provider, exporter)


def _exporter(endpoint: str) -> OTLPSpanExporter:
    try:
        return OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http://"))
    except Exception as error:  # what of the environment it cannot read, it raises as it likes
        raise Misconfigured("TRACING", f"traces cannot be sent to {endpoint}: {error}") from error


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
