"""The pipeline as the page shows it: what each stage is, what it took, and what of the whole that is."""

from dataclasses import dataclass

from evaluation.figures import Latency, StageTime

PARTS = ("network", "queue", "tokenize", "compute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage, means over the questions of the split."""

    name: str
    what: str
    """What happens there, for people."""
    ms: float
    share: float
    """Of the whole."""
    parts: tuple[tuple[str, float], ...]
    """Name to milliseconds, as the server says; empty where it has none."""


def stages(latency: Latency) -> tuple[Stage, ...]:
    """Return encode, search, the gateway's own part, rerank; together they are the mean total."""
    total = latency.total.mean or 1.0
    size = latency.pool_size
    encode, search = latency.stages["encode"], latency.stages["search"]
    rows = (
        ("encode", "the question becomes a vector", encode.total, _parts(encode)),
        ("search", f"the store finds {size} candidates", search.total, _parts(search)),
        ("gateway", "its own work and the wire", latency.other, ()),
        (
            "rerank",
            f"question and candidate are read together, {size} times",
            latency.rerank.mean,
            _parts(latency.stages["rerank"]),
        ),
    )
    return tuple(
        Stage(name=name, what=what, ms=ms, share=max(0.0, ms / total), parts=parts) for name, what, ms, parts in rows
    )


def _parts(time: StageTime) -> tuple[tuple[str, float], ...]:
    parts = tuple((name, float(getattr(time, name))) for name in PARTS)
    return tuple(part for part in parts if part[1]) if sum(part[1] > 0 for part in parts) > 1 else ()
