"""The named instruments that every server, or every model server, has; what one part alone has is beside that part."""

from collections.abc import Callable, Mapping
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from serving.batcher import BatchReport

# From a cached hit to the longest deadline: 0.5 ms to 30 s, each step about 2.2 times the one before.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RATIO = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1)


class ServerMetrics:
    """Calls, stages and, on a model server, batches, all under one prefix.

    Args:
        service: Prefix: "encoder", "reranker" or "gateway".
        registry: Where they are registered; a fresh one by default, so that two servers share a process in tests.
    """

    def __init__(self, service: str, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.service = service
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
        self._stage_part = cache(self.stage_seconds.labels)

    def observe_stage(self, stage: str, parts_ns: Mapping[str, int]) -> None:
        """Record the parts of one stage, in nanoseconds."""
        for part, nanoseconds in parts_ns.items():
            self._stage_part(stage, part).observe(nanoseconds / 1e9)

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
    """What the device was given, and what waits for it."""

    def __init__(self, metrics: ServerMetrics) -> None:
        service, registry = metrics.service, metrics.registry
        self._rows = Histogram(f"{service}_batch_rows", "Rows per batch.", buckets=ROWS, registry=registry)
        self._tokens = Counter(f"{service}_batch_tokens", "Tokens computed.", ["kind"], registry=registry)
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
        self._tokens.labels("real").inc(report.token_count)
        self._tokens.labels("padding").inc(report.padded_token_count - report.token_count)
        self._padding.observe(1 - report.token_count / report.padded_token_count)
        self._busy.inc(report.seconds)
