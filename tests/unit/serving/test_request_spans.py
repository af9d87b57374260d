"""What of a request is kept as spans by the batcher."""

from collections.abc import Sequence
from typing import Any

import pytest
from batcher_rig import Device, Item, items, limits, names, submit
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from serving import tracing
from serving.batcher import Batcher
from serving.errors import DeviceOutOfMemory, InferenceFailed, ServiceError

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def spans() -> InMemorySpanExporter:
    """What keeps spans."""
    return InMemorySpanExporter()


def begin(spans: InMemorySpanExporter) -> None:
    """Make the running task a call whose spans are kept."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    assert tracing.begin(provider.get_tracer("test"), "/a.B/C", (), 0) is not None


@pytest.mark.parametrize(
    "error", [DeviceOutOfMemory("OUT", "no room", retry_after_s=1), InferenceFailed("OUT", "no output")]
)
async def test_the_batch_that_failed_a_request_says_why(spans: InMemorySpanExporter, error: ServiceError):
    """Of two batches the first was computed; the second, and nothing else, has the reason."""

    def answer(rows: Sequence[Item]) -> Sequence[Any]:
        return [error if name == "bad" else name for name in names(rows)]

    begin(spans)
    async with Batcher([Device(answer)], limits(rows=1)) as batcher:
        with pytest.raises(type(error)):
            await submit(batcher, items("good", "bad"))
    kept = spans.get_finished_spans()
    reasons = [(span.attributes or {}).get("error.type") for span in kept if span.name == "compute"]
    assert reasons == [None, "OUT"]
    assert all("error.type" not in (span.attributes or {}) for span in kept if span.name != "compute")
