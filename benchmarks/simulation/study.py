"""What is simulated: which ways to batch, on which devices, under which loads; and the sweeps behind the defaults."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np

from benchmarks.simulation.devices import ENCODER_CPU, GPU, RERANKER_CPU, Device
from benchmarks.simulation.queues import FifoBudget, Fixed, Ours, Queue
from benchmarks.simulation.replay import Outcome, Replay
from benchmarks.simulation.traces import HURRIED, WORKLOADS, Request, Workload, trace
from serving.batching import BatchLimits

LOADS = (0.5, 0.8, 0.95, 1.2)
SWEPT_LOADS = (0.8, 1.2)
SEEDS = (0, 1)
TRACE_S = {GPU: 3.0, ENCODER_CPU: 60.0, RERANKER_CPU: 60.0}
CPU_LIMITS = BatchLimits(max_batch_tokens=512, max_batch_rows=256, max_waiting_tokens=2**20)
GPU_LIMITS = replace(CPU_LIMITS, max_batch_tokens=16_384)
WORKLOAD = {workload.name: workload for workload in (*WORKLOADS, HURRIED)}
WAIT_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to batch under one load."""

    device: Device
    workload: Workload
    load: float
    label: str
    queue: Callable[[], Queue]
    prefetch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came out, the mean over the seeds. Times are milliseconds."""

    device: str
    workload: str
    load: float
    label: str
    p50_ms: float
    p99_ms: float
    bulk_p50_ms: float
    """Of bulk requests, which the two before leave out; NaN where there are none."""
    tokens_per_s: float
    good_share: float
    padding: float
    idle: float

    def row(self) -> dict[str, str | float]:
        """Return the fields by name."""
        return asdict(self)


def limits_of(device: Device) -> BatchLimits:
    """Return the limits that a server has by default on a device."""
    return GPU_LIMITS if device is GPU else CPU_LIMITS


def comparison() -> Iterator[Setting]:
    """Name every way to batch, on both kinds of device, under all loads."""
    for workload in WORKLOADS:
        cpu = RERANKER_CPU if workload.name.startswith("rerank") else ENCODER_CPU
        for device in (cpu, GPU):
            for load in LOADS:
                for label, queue in _ways(limits_of(device)).items():
                    yield Setting(device=device, workload=workload, load=load, label=label, queue=queue)


def sweeps() -> dict[str, list[Setting]]:
    """Name the settings that are varied, one at a time from the defaults."""
    cases = [(RERANKER_CPU, "rerank"), (ENCODER_CPU, "queries"), (ENCODER_CPU, "queries + bulk")]
    gpu = [(GPU, name) for name in ("rerank", "rerank, bursts", "queries", "queries + bulk")]
    return {
        "max_batch_tokens, CPU": _sweep(cases, "max_batch_tokens", (256, 512, 1_024, 2_048)),
        "max_batch_tokens, GPU": _sweep(gpu, "max_batch_tokens", (4_096, 8_192, 16_384, 32_768)),
        "max_batch_rows, GPU": _sweep(gpu[2:], "max_batch_rows", (64, 128, 256, 512)),
        "window, CPU": _sweep(cases[:2], "window", (2, 4, 8, 16, 32)),
        "window, GPU": _sweep([gpu[0], gpu[2]], "window", (2, 4, 8, 16)),
        "max_waiting_tokens, GPU": _sweep(gpu[1:3], "max_waiting_tokens", (2**17, 2**18, 2**19, 2**20)),
        "headroom": _sweep(
            [(RERANKER_CPU, HURRIED.name), *cases[:2]], "headroom", (1.0, 1.1, 1.25, 1.5), loads=(0.8, 1.2, 3.0)
        ),
        "max_delay": _sweep([*cases[:2], gpu[0], gpu[2]], "max_delay", (0.0, 0.002, 0.01), loads=(0.2, 0.5, 0.8)),
        "prefetch, GPU": [
            replace(setting, label=f"prefetch {on}", prefetch=on)
            for setting in _sweep(gpu, "window", (8,))
            for on in (False, True)
        ],
    }


def simulate(setting: Setting) -> Finding:
    """Replay the traces of all seeds."""
    outcomes = [_replay(setting, seed) for seed in SEEDS]
    kinds = {kind for outcome in outcomes for kind in outcome.latencies}
    kind = min(kinds - {"bulk"}, default=None)
    bulk = [outcome.percentile(50, "bulk") for outcome in outcomes]
    return Finding(
        device=setting.device.name,
        workload=setting.workload.name,
        load=setting.load,
        label=setting.label,
        p50_ms=_mean([1e3 * outcome.percentile(50, kind) for outcome in outcomes]),
        p99_ms=_mean([1e3 * outcome.percentile(99, kind) for outcome in outcomes]),
        bulk_p50_ms=_mean([1e3 * value for value in bulk]),
        tokens_per_s=_mean([outcome.tokens_per_s for outcome in outcomes]),
        good_share=_mean([outcome.good_share for outcome in outcomes]),
        padding=_mean([outcome.padding for outcome in outcomes]),
        idle=_mean([outcome.idle for outcome in outcomes]),
    )


def _replay(setting: Setting, seed: int) -> Outcome:
    requests: list[Request] = trace(setting.workload, setting.device, setting.load, TRACE_S[setting.device], seed)
    return Replay(requests, setting.queue(), setting.device, seed=seed, prefetch=setting.prefetch).run()


def _ways(limits: BatchLimits) -> dict[str, Callable[[], Queue]]:
    return {
        "8 rows": lambda: Fixed(8, WAIT_S),
        "32 rows": lambda: Fixed(32, WAIT_S),
        "tokens in order": lambda: FifoBudget(limits.max_batch_tokens, limits.max_batch_rows),
        "ours": lambda: Ours(limits),
    }


def _sweep(
    cases: list[tuple[Device, str]], name: str, values: tuple[float, ...], loads: tuple[float, ...] = SWEPT_LOADS
) -> list[Setting]:
    settings = []
    for device, workload in cases:
        for load in loads:
            for value in values:
                limits = replace(limits_of(device), **{name: value})
                settings.append(
                    Setting(
                        device=device,
                        workload=WORKLOAD[workload],
                        load=load,
                        label=f"{name} {value:,}",
                        queue=lambda limits=limits: Ours(limits),  # type: ignore[misc]
                    )
                )
    return settings


def _mean(values: list[float]) -> float:
    return float(np.mean(values))
