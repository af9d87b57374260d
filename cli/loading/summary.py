"""What the calls of a run amount to: counts, percentiles, where the time went, and which stage is the bottleneck.

Shares are of means, because means of parts add up to the mean of the whole and percentiles do not. For the same reason
a span counts as 0 in calls that do not tell it: the servers leave out what few calls have.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cli.loading.generator import OK, Sample, SpanKey
from cli.loading.profile import Open

MS = 1e3
STAGES = ("write", "encode", "search", "rerank")
PARTS = ("queue", "tokenize", "compute", "network", "unaccounted")
GATEWAY, OUTSIDE = "gateway", "outside"
"""What is no stage: the gateway's own work, and everything between the caller and the server that was called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How long something took, in milliseconds."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float | None = None
    """Unknown where only the buckets of a histogram are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step of an open loop."""

    rate: float
    call_count: int
    ok_count: int
    latency: Spread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a generator saw."""

    generator: str
    seconds: float
    """From the first call to the last answer."""
    codes: Mapping[str, int]
    """Calls by status code, without those that the generator cut off itself."""
    cut_off_count: int
    """Calls that the generator cut off when it stopped: no error of a server."""
    latency: Spread | None
    """Of calls that were OK, from the moment at which each was to be made."""
    degraded_count: int = 0
    """Of those that were OK, answers that lack a part; unknown, and so none, where answers cannot be read."""
    lag: Spread | None = None
    """By which the client itself was late; unknown where it does not say."""
    steps: Sequence[StepResult] = ()
    stages: "Stages | None" = None
    """Where the time went, where the generator can read answers: of the calls that were OK, or of all if none was."""

    @property
    def ok_count(self) -> int:
        """Calls that were answered well."""
        return self.codes.get(OK, 0)

    @property
    def error_count(self) -> int:
        """Calls that were not."""
        return sum(self.codes.values()) - self.ok_count

    @property
    def call_count(self) -> int:
        """Calls made."""
        return sum(self.codes.values()) + self.cut_off_count


Stages = Mapping[SpanKey, Spread]
"""Spread of every (stage, part)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """Where most of the time goes."""

    stage: str
    share: float
    """Of the mean latency, or of the server's own time where no call was OK."""
    part: str
    """What most of the stage's time is; empty where it has no parts."""
    advice: str


def summarize(samples: Sequence[Sample], profile: object, *, whole: SpanKey) -> Run:
    """Summarize the calls of the built-in generator.

    Args:
        samples: Every call, at least one.
        profile: How they were made.
        whole: The span of the whole call on the server.
    """
    good = [sample for sample in samples if sample.reply.code == OK]
    return Run(
        generator="built-in",
        seconds=max(sample.ended for sample in samples) - min(sample.sent for sample in samples),
        codes=dict(Counter(sample.reply.code for sample in samples)),
        cut_off_count=0,
        degraded_count=sum(sample.reply.degraded for sample in good),
        latency=spread(sample.latency for sample in good),
        lag=spread(sample.lag for sample in samples),
        steps=_steps(samples, profile) if isinstance(profile, Open) else (),
        stages=_stages(good or samples, whole),
    )


def spread(seconds: Iterable[float]) -> Spread | None:
    """Return how spans of time are spread, each percentile being one of them; None where there are none."""
    values = np.fromiter(seconds, np.float64) * MS
    if not len(values):
        return None
    p50, p95, p99 = (float(one) for one in np.percentile(values, (50, 95, 99), method="inverted_cdf"))
    return Spread(count=len(values), mean=float(values.mean()), p50=p50, p95=p95, p99=p99, max=float(values.max()))


def bottleneck(stages: Stages, latency: Spread | None) -> Bottleneck | None:
    """Tell where most of the time goes; None where the stages are unknown."""
    shares = shares_of(stages, latency)
    stage = max(shares, key=lambda name: shares[name], default=None)
    if stage is None:
        return None
    parts = {part: stages[stage, part].mean for part in PARTS if (stage, part) in stages}
    part = max(parts, key=lambda name: parts[name], default="")
    return Bottleneck(stage=stage, share=shares[stage], part=part, advice=_advice(stage, part))


def shares_of(stages: Stages, latency: Spread | None) -> dict[str, float]:
    """Return each stage's share of the mean latency; they add up to 1 but for what the two clocks differ by.

    Where no call was OK they are of what the gateway measured of those that failed.
    """
    whole = latency or stages.get(("all", "total"))
    if whole is None or not whole.mean:
        return {}
    means = {stage: stages[stage, "total"].mean for stage in STAGES if (stage, "total") in stages}
    if ("all", "other") in stages:
        means[GATEWAY] = stages["all", "other"].mean
    if means:
        means[OUTSIDE] = max(0.0, whole.mean - sum(means.values()))
    return {stage: mean / whole.mean for stage, mean in means.items()}


def _advice(stage: str, part: str) -> str:
    if stage == OUTSIDE:
        return "neither stage nor gateway: look at the network, at the server's process, and at this client"
    if stage == GATEWAY:
        return "the gateway's own work: give it another process (workers, with a Qdrant server) or replica"
    return {
        "queue": "it is asked for more than it can do, so calls wait: give it replicas or instances, or ask for less",
        "network": "between the gateway and it: the network, or a process that has no processor to itself",
        "unaccounted": "calls to it end without an answer, late, refused or failed: it is full, slow or away; its own "
        "metrics and log say which",
        "tokenize": "waiting for or computing tokens: more tokenizer threads, or a processor for them",
    }.get(part, "the work itself: a faster device or precision, shorter texts, or a smaller pool")


def _stages(samples: Sequence[Sample], whole: SpanKey) -> Stages | None:
    told = [sample for sample in samples if whole in sample.reply.spans]
    keys = {key for sample in told for key in sample.reply.spans}
    stages = {key: spread(sample.reply.spans.get(key, 0.0) for sample in told) for key in keys}
    if told:
        # Of each call by itself, so that its percentiles are those of a span and not a difference of percentiles.
        outside = spread(max(0.0, sample.latency - sample.reply.spans[whole]) for sample in told)
        stages[OUTSIDE, "total"] = outside
    return {key: one for key, one in stages.items() if one is not None} or None


def _steps(samples: Sequence[Sample], profile: Open) -> list[StepResult]:
    by_step: list[list[Sample]] = [[] for _ in profile.steps]
    for sample in samples:
        by_step[profile.step_at(sample.intended)].append(sample)
    return [
        StepResult(
            rate=step.rate,
            call_count=len(made),
            ok_count=sum(sample.reply.code == OK for sample in made),
            latency=spread(sample.latency for sample in made if sample.reply.code == OK),
        )
        for step, made in zip(profile.steps, by_step, strict=True)
    ]
