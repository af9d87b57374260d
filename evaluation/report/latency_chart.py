"""The latency chart: every question's wait for each stage, and somebody else's means beside it."""

import math
from collections.abc import Sequence

import altair as alt

from evaluation.figures import Latency, ReferenceTimes, Spread
from evaluation.report import numbers
from evaluation.report.drawing import (
    AFTER,
    CARD,
    FONT_SIZE,
    INK,
    MUTED,
    WORSE,
    Align,
    Chart,
    Drawing,
    data,
    draw,
    layered,
)

DOTS = 80
"""Dots of a row at most; more questions are shown by so many of their quantiles."""
ROW_HEIGHT = 92
SPREAD = 0.46
"""Height of the band that the dots of a row are spread over, so that neighbours do not hide each other; in rows."""
GOLDEN = 0.618033988749895
"""Multiples of it, whole parts dropped, fill a band evenly however many there are. Source: Weyl's equidistribution."""
STEPS = (1, 2, 5)
ROWS = ("dense", "rerank", "total")


def latency_chart(latency: Latency) -> Drawing:
    """Draw one row each for dense, rerank and total."""
    parts = [f"{name} {numbers.ms(_spread(latency, name).p50)} ms" for name in ROWS]
    beside = f" Beside them the means of {latency.reference.source}." if latency.reference else ""
    label = (
        f"Distribution of milliseconds per question on a logarithmic scale; medians: {', '.join(parts)}.{beside} "
        "The table below has the figures."
    )
    return draw("latency", label, lambda width: _chart(latency, width), wide=True)


def ticks(low: float, high: float) -> list[float]:
    """Return the steps 1, 2, 5 of every power of ten that enclose two positive values."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = [float(f"{step}e{power}") for power in powers for step in STEPS]
    first = max(step for step in steps if step <= low)
    last = min(step for step in steps if step >= high)
    return [step for step in steps if first <= step <= last]


def quantiles(values: Sequence[float], limit: int = DOTS) -> list[float]:
    """Return the values in order, or as many of them, evenly spaced, as there may be."""
    ordered = sorted(values)
    if len(ordered) <= limit:
        return ordered
    return [ordered[round(place * (len(ordered) - 1) / (limit - 1))] for place in range(limit)]


def _spread(latency: Latency, name: str) -> Spread:
    spread: Spread = getattr(latency, name)
    return spread


def _chart(latency: Latency, width: int) -> Chart:
    shown = [
        _positive(value) for name in ROWS for value in (*_spread(latency, name).values, _spread(latency, name).p99)
    ]
    if latency.reference:
        shown += [latency.reference.dense, latency.reference.rerank]
    axis = ticks(min(shown), max(shown))
    x = _Across(axis, width)
    layers = [_dots(latency, x), _marks(latency, x), *_names(latency, x)]
    if latency.reference:
        layers += _reference(latency.reference, x)
    return layered(layers, width, ROW_HEIGHT * len(ROWS) + 3 * FONT_SIZE)


class _Across:
    """The scale from left to right, and room for as many of its ticks as fit."""

    def __init__(self, axis: list[float], width: int) -> None:
        self.first, self.last = axis[0], axis[-1]
        crowded = len(axis) * 4 * FONT_SIZE > width
        self._shown = [step for step in axis if not crowded or f"{step:e}"[0] == "1" or step in {self.first, self.last}]

    def of(self, field: str) -> alt.X:
        axis = alt.Axis(values=self._shown, title="milliseconds, logarithmic", format=",~r", domain=False, ticks=False)
        scale = alt.Scale(type="log", domain=[self.first, self.last], nice=False)
        return alt.X(f"{field}:Q").scale(scale).axis(axis)


def _y(field: str) -> alt.Y:
    return alt.Y(f"{field}:Q").scale(domain=[len(ROWS) - 0.5, -0.5], nice=False, zero=False).axis(None)


def _dots(latency: Latency, x: _Across) -> alt.Chart:
    rows: list[dict[str, object]] = [
        {
            "ms": _positive(value),
            "y": row + SPREAD * ((place * GOLDEN) % 1 - 0.5),
            "said": f"{name}: {numbers.ms(value)} ms",
        }
        for row, name in enumerate(ROWS)
        for place, value in enumerate(quantiles(_spread(latency, name).values))
    ]
    marks: alt.Chart = alt.Chart(data(rows)).mark_circle(size=30, color=AFTER, opacity=0.6)
    return marks.encode(x=x.of("ms"), y=_y("y"), description="said:N")


def _marks(latency: Latency, x: _Across) -> alt.Chart:
    rows: list[dict[str, object]] = [
        {
            "ms": _positive(figure),
            "y": row - 0.3,
            "y2": row + 0.3,
            "width": thickness,
            "said": f"{name} {what}: {numbers.ms(figure)} ms",
        }
        for row, name in enumerate(ROWS)
        for what, figure, thickness in (
            ("p50", _spread(latency, name).p50, 3),
            ("p95", _spread(latency, name).p95, 1.5),
        )
    ]
    marks: alt.Chart = alt.Chart(data(rows)).mark_rule(color=INK)
    width = alt.StrokeWidth("width:Q").scale(None).legend(None)
    return marks.encode(x=x.of("ms"), y=_y("y"), y2="y2:Q", strokeWidth=width, description="said:N")


def _names(latency: Latency, x: _Across) -> list[alt.Chart]:
    rows: list[dict[str, object]] = [
        {"ms": x.first, "y": row - 0.42, "name": name, "figures": _figures(_spread(latency, name))}
        for row, name in enumerate(ROWS)
    ]
    base = alt.Chart(data(rows)).encode(x=x.of("ms"), y=_y("y"))
    names = base.mark_text(align="left", fontWeight=600, color=INK, aria=False).encode(text="name:N")
    figures = base.mark_text(align="left", dx=52, color=MUTED, aria=False).encode(text="figures:N")
    return [names, figures]


def _figures(spread: Spread) -> str:
    return f"p50 {numbers.ms(spread.p50)} \N{MIDDLE DOT} p95 {numbers.ms(spread.p95)} ms"


def _reference(reference: ReferenceTimes, x: _Across) -> list[alt.Chart]:
    """A diamond for each mean of the reference, with its figure."""
    rows: list[dict[str, object]] = [
        {
            "ms": getattr(reference, name),
            "y": row + 0.36,
            "said": f"tutorial, {name}: {numbers.ms(getattr(reference, name))} ms",
            "figure": f"tutorial {numbers.ms(getattr(reference, name))}",
        }
        for row, name in enumerate(ROWS)
    ]
    base = alt.Chart(data(rows)).encode(x=x.of("ms"), y=_y("y"))
    diamonds = base.mark_point(shape="diamond", size=90, filled=True, fill=WORSE, stroke=CARD, opacity=1)
    right = (x.first * x.last) ** 0.5
    return [diamonds.encode(description="said:N"), *_beside(base, right)]


def _beside(base: alt.Chart, middle: float) -> list[alt.Chart]:
    """Write each figure on the side that has room."""
    sides: tuple[tuple[Align, int, alt.Expr], ...] = (
        ("left", 10, alt.datum.ms <= middle),
        ("right", -10, alt.datum.ms > middle),
    )
    return [
        base.transform_filter(where).mark_text(align=align, dx=offset, color=INK, aria=False).encode(text="figure:N")
        for align, offset, where in sides
    ]


def _positive(value: float) -> float:
    """A logarithm has no place for 0: such a time is shown at the finest that is stored."""
    return max(value, 1e-3)
