"""The named instruments that every server, or every model server, has; what one part alone has is beside that part."""

from collections.abc import Callable, Mapping
from functools import cache

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    start_http_server,
)

from serving import tracing
from serving.batcher import BatchReport
from serving.batching import Priority
from serving.outcomes import Outcome

# From a cached hit to the longest deadline: 0.5 ms to 30 s, each step about 2.2 times the one before.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RATIO = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1)


class ServerMetrics:
    """Calls, stages and, on a model server, batches, all under one prefix.

    Args:
        service: Prefix: "encoder", "reranker" or "gateway".
        registry: Where they are registered; a fresh one by default, so that two servers share a process in tests.
        exemplar: What names the trace of the call being handled, {"trace_id": ...}; None where it has none. Told with
            every duration, on pages in OpenMetrics form.
    """

    def __init__(
        self,
        service: str,
        registry: CollectorRegistry | None = None,
        exemplar: Callable[[], dict[str, str] | None] = tracing.exemplar,
    ) -> None:
        self.registry = registry or CollectorRegistry()
        self.service = service
        self._exemplar = exemplar
        ProcessCollector(registry=self.registry)  # processors, memory and open files, read when somebody looks
        self.calls = Counter(
            f"{service}_calls", "Calls by status code as the caller saw it.", ["method", "code"], registry=self.registry
        )
        self.call_seconds = Histogram(
            f"{service}_call_seconds", "Duration of a call.", ["method"], buckets=SECONDS, registry=self.registry
        )
        self.stage_seconds = Histogram(
            f"{service}_stage_seconds",
            "Duration of one stage of a call, as its answer reports it.",
            ["stage", "part"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.calls_running = Gauge(
            f"{service}_calls_running", "Calls being handled now.", ["method"], registry=self.registry
        )
        self.running = cache(self.calls_running.labels)
        self._method_seconds = cache(self.call_seconds.labels)
        self._stage_part = cache(self.stage_seconds.labels)

    def observe_call(self, method: str, seconds: float) -> None:
        """Record how long a call took."""
        self._method_seconds(method).observe(seconds, self._exemplar())

    def observe_stage(self, stage: str, parts_ns: Mapping[str, int]) -> None:
        """Record the parts of one stage, in nanoseconds."""
        self.observe_stages({(stage, part): nanoseconds for part, nanoseconds in parts_ns.items()})

    def observe_stages(self, spans_ns: Mapping[tuple[str, str], int]) -> None:
        """Record the parts of several stages by (stage, part), in nanoseconds."""
        exemplar = self._exemplar()
        for (stage, part), nanoseconds in spans_ns.items():
            self._stage_part(stage, part).observe(nanoseconds / 1e9, exemplar)

    def serve(self, port: int) -> Callable[[], None]:
        """Serve the Prometheus page on a port, 0 is none; return what ends it.

        Raises:
            OSError: The port cannot be bound.
        """
        if not port:
            return lambda: None
        server, thread = start_http_server(port, registry=self.registry)

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return close


class BatchMetrics:
    """What the device was given, what waits for it, and what became of what was submitted."""

    def __init__(self, metrics: ServerMetrics) -> None:
        service, registry = metrics.service, metrics.registry
        self._rows = Histogram(f"{service}_batch_rows", "Rows per batch.", buckets=ROWS, registry=registry)
        tokens = Counter(f"{service}_batch_tokens", "Tokens computed.", ["kind"], registry=registry)
        self._real, self._padded = tokens.labels("real"), tokens.labels("padding")
        self._padding = Histogram(
            f"{service}_batch_padding_ratio",
            "Share of a batch's padded tokens that is padding.",
            buckets=RATIO,
            registry=registry,
        )
        self._busy = Counter(f"{service}_device_busy_seconds", "Time spent computing batches.", registry=registry)
        self._waiting_rows = Gauge(f"{service}_waiting_rows", "Rows in the queue.", registry=registry)
        self._waiting_tokens = Gauge(f"{service}_waiting_tokens", "Tokens in the queue.", registry=registry)
        self._oldest = Gauge(
            f"{service}_oldest_waiting_seconds", "Age of the oldest row in the queue.", registry=registry
        )
        submissions = Counter(
            f"{service}_submissions",
            "Requests, or messages of streams, handed to the batcher, by how they ended.",
            ["priority", "outcome"],
            registry=registry,
        )
        self._ends = {
            (priority, outcome): submissions.labels(priority.name.lower(), outcome.value)
            for priority in Priority
            for outcome in Outcome
        }

    def watch(
        self, *, waiting_rows: Callable[[], int], waiting_tokens: Callable[[], int], oldest_age: Callable[[], float]
    ) -> None:
        """Tell of a queue whenever somebody looks."""
        self._waiting_rows.set_function(waiting_rows)
        self._waiting_tokens.set_function(waiting_tokens)
        self._oldest.set_function(oldest_age)

    def observe(self, report: BatchReport) -> None:
        """Record one computed batch."""
        self._rows.observe(report.row_count)
        self._real.inc(report.token_count)
        self._padded.inc(report.padded_token_count - report.token_count)
        self._padding.observe(1 - report.token_count / report.padded_token_count)
        self._busy.inc(report.seconds)

    def count_end(self, priority: Priority, outcome: Outcome) -> None:
        """Count one submission that has ended."""
        self._ends[priority, outcome].inc()


def tell_model(metrics: ServerMetrics, reference: Mapping[str, str], *, instances: int) -> None:
    """Tell which model is being served, and how many instances of it compute.

    Args:
        metrics: Where the instruments are.
        reference: Labels: id, revision, digest, and the precision and device that are really used.
        instances: How many.
    """
    service, registry = metrics.service, metrics.registry
    Info(f"{service}_model", "The model being served.", registry=registry).info(dict(reference))
    Gauge(f"{service}_device_instances", "Instances of the model.", registry=registry).set(instances)
