"""The trade-off of pool depth: what quality a longer pool buys, and what it costs."""

from collections.abc import Sequence

import altair as alt

from evaluation.figures import DepthPoint, Interval
from evaluation.report import numbers
from evaluation.report.drawing import AFTER, CARD, FONT_SIZE, INK, MUTED, Chart, Drawing, data, draw, layered

HEIGHT = 300
SHORTEST_AXIS = 0.01
"""Milliseconds, so that there is an axis where no time was measured."""
PREFERRED = ("nDCG@5", "MRR@5", "hit@1")


def shown_measure(points: Sequence[DepthPoint]) -> str:
    """Return the measure that the curve is about."""
    measures = points[0].measures
    return next((name for name in PREFERRED if name in measures), next(iter(measures)))


def ceiling(point: DepthPoint) -> Interval | None:
    """Return what the pool allows: the share of relevant documents that are in it."""
    return point.measures.get(f"Recall@{point.depth}")


def depth_chart(points: Sequence[DepthPoint]) -> Drawing:
    """Draw quality against milliseconds, one point a depth."""
    name = shown_measure(points)
    steps = [
        f"{point.depth} candidates {numbers.value(point.measures[name].mean)} in {numbers.ms(point.rerank_ms_mean)} ms"
        for point in points
    ]
    label = f"{name} after reranking against mean milliseconds to rerank, by depth of the pool: {'; '.join(steps)}."
    return draw("depth", label, lambda width: _chart(points, name, width), wide=True)


def _chart(points: Sequence[DepthPoint], name: str, width: int) -> Chart:
    rows = _rows(points, name)
    base = alt.Chart(data(rows)).encode(x=_x(points))
    y = _y(points, name)
    layers = (
        base.mark_line(color=MUTED, strokeDash=[3, 4], strokeWidth=1.5, aria=False).encode(y=y("ceiling")),
        base.mark_rule(color=AFTER, opacity=0.5, strokeWidth=1.5, aria=False).encode(y=y("low"), y2="high:Q"),
        base.mark_line(color=AFTER, strokeWidth=2.5, aria=False).encode(y=y("mean")),
        _dots(base).encode(y=y("mean"), description="said:N"),
        base.mark_text(dx=8, dy=16, align="left", color=INK, fontWeight=600, aria=False).encode(
            y=y("mean"), text="depth:N"
        ),
        _ceiling_name(rows).encode(x=_x(points), y=y("ceiling")),
    )
    return layered(layers, width, HEIGHT)


def _rows(points: Sequence[DepthPoint], name: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for point in points:
        found, top = point.measures[name], ceiling(point)
        spoken = f"{numbers.value(found.mean)} ({numbers.span(found.low, found.high)})"
        rows.append(
            {
                "ms": point.rerank_ms_mean,
                "mean": found.mean,
                "low": found.low,
                "high": found.high,
                "ceiling": top.mean if top else None,
                "depth": str(point.depth),
                "measured": point.measured,
                "said": f"{point.depth} candidates: {name} {spoken}, {numbers.ms(point.rerank_ms_mean)} ms",
            }
        )
    return rows


def _dots(base: alt.Chart) -> alt.Chart:
    """A full dot where the time was measured, a ring where it was derived."""
    fill = alt.Fill("measured:N").scale(domain=[True, False], range=[AFTER, CARD]).legend(None)
    dots: alt.Chart = base.mark_point(size=80, stroke=AFTER, strokeWidth=2, opacity=1)
    return dots.encode(fill=fill)


def _ceiling_name(rows: list[dict[str, object]]) -> alt.Chart:
    text = "recall of the pool"
    name: alt.Chart = alt.Chart(data(rows[-1:])).mark_text(align="right", dy=-10, color=MUTED, aria=False, text=text)
    return name


def _x(points: Sequence[DepthPoint]) -> alt.X:
    furthest = max(*(point.rerank_ms_mean for point in points), SHORTEST_AXIS) * 1.06
    axis = alt.Axis(title="mean milliseconds to rerank a question", tickCount=5, grid=False, ticks=False)
    return alt.X("ms:Q").scale(domain=[0, furthest], nice=False).axis(axis)


def _y(points: Sequence[DepthPoint], name: str) -> "_Upwards":
    lowest = min(point.measures[name].low for point in points)
    return _Upwards(max(0.0, lowest - 0.06), f"{name} after reranking")


class _Upwards:
    """The scale from bottom to top, one for every layer."""

    def __init__(self, lowest: float, title: str) -> None:
        self._scale = alt.Scale(domain=[lowest, 1.03], nice=False, zero=False)
        self._axis = alt.Axis(
            title=title,
            titleAngle=0,
            titleAlign="left",
            titleAnchor="start",
            titleY=-FONT_SIZE,
            titleX=-2 * FONT_SIZE,
            tickCount=5,
            format=".2f",
            domain=False,
            ticks=False,
        )

    def __call__(self, field: str) -> alt.Y:
        return alt.Y(f"{field}:Q").scale(self._scale).axis(self._axis)
