"""The slope chart: every question's first relevant document, before and after reranking."""

from collections import Counter
from collections.abc import Mapping

import altair as alt

from evaluation.report import numbers
from evaluation.report.drawing import (
    AFTER,
    FONT_SIZE,
    INK,
    LINE,
    MUTED,
    WORSE,
    Align,
    Chart,
    Drawing,
    data,
    draw,
    layered,
)
from evaluation.report.ranks import Direction, Ranks

PLACE_HEIGHT = 24
THINNEST, THICKEST = 1.5, 9.0
COLOURS: Mapping[Direction, str] = {"better": AFTER, "same": MUTED, "worse": WORSE}
DASHES: Mapping[Direction, list[int]] = {"better": [1, 0], "same": [1, 0], "worse": [7, 5]}
"""Told apart without colour: worse is dashed, and the same is level."""
ABSENT = "none"
"""Short for the last place, where the axis has little room."""


def slope_chart(ranks: Ranks) -> Drawing:
    """Draw one line for every pair of places, as thick as there are questions on it."""
    better, same, worse = (ranks.directions[way] for way in ("better", "same", "worse"))
    label = (
        f"Slope chart of the rank of each question's first relevant document before and after reranking: "
        f"{better} better, {same} the same, {worse} worse. The table below has every question."
    )
    return draw("slopes", label, lambda width: _chart(ranks, width))


def _chart(ranks: Ranks, width: int) -> Chart:
    height = PLACE_HEIGHT * len(ranks.places) + 2 * FONT_SIZE
    layers = (
        _frame(ranks),
        _lines(ranks),
        *_side(ranks.places, ranks.before, 0.0, -1, "before"),
        *_side(ranks.places, ranks.after, 1.0, 1, "after"),
    )
    return layered(layers, width, height)


def _frame(ranks: Ranks) -> alt.Chart:
    rows: list[dict[str, object]] = [{"x": side, "y": 0, "y2": len(ranks.places) - 1} for side in (0, 1)]
    rules: alt.Chart = alt.Chart(data(rows)).mark_rule(stroke=LINE, aria=False)
    return rules.encode(x=_x("x"), y=_y("y", ranks.places), y2="y2:Q")


def _lines(ranks: Ranks) -> alt.Chart:
    most = max((len(flow.questions) for flow in ranks.flows), default=1)
    rows: list[dict[str, object]] = [
        {
            "from": 0,
            "to": 1,
            "before": ranks.places.index(flow.before),
            "after": ranks.places.index(flow.after),
            "way": flow.direction,
            "width": THINNEST + (THICKEST - THINNEST) * ((len(flow.questions) - 1) / max(1, most - 1)) ** 0.5,
            "said": flow.sentence,
        }
        for flow in reversed(ranks.flows)
    ]
    ways = list(COLOURS)
    rules: alt.Chart = alt.Chart(data(rows)).mark_rule(strokeCap="butt", opacity=0.8)
    return rules.encode(
        x=_x("from"),
        x2="to:Q",
        y=_y("before", ranks.places),
        y2="after:Q",
        color=alt.Color("way:N").scale(domain=ways, range=list(COLOURS.values())).legend(None),
        strokeDash=alt.StrokeDash("way:N").scale(domain=ways, range=list(DASHES.values())).legend(None),
        strokeWidth=alt.StrokeWidth("width:Q").scale(None).legend(None),
        description="said:N",
    )


def _side(
    places: tuple[str, ...], counts: Counter[str], at: float, outwards: int, title: str
) -> tuple[alt.Chart, alt.Chart, alt.Chart]:
    """Label one side: the place, and how many questions are there."""
    rows: list[dict[str, object]] = [
        {
            "x": at,
            "y": number,
            "place": ABSENT if name == numbers.NOT_FOUND else name,
            "count": f"{counts[name]:,}\N{MULTIPLICATION SIGN}" if counts[name] else "",
        }
        for number, name in enumerate(places)
    ]
    align: Align = "right" if outwards < 0 else "left"
    base = alt.Chart(data(rows)).encode(x=_x("x"), y=_y("y", places))
    place = base.mark_text(align=align, dx=8 * outwards, color=MUTED, aria=False).encode(text="place:N")
    count = base.mark_text(align=align, dx=48 * outwards, color=INK, fontWeight=600, aria=False).encode(text="count:N")
    heading = alt.Chart(data([{"x": at, "y": -1}])).mark_text(
        align=align, dx=8 * outwards, color=INK, fontWeight=600, aria=False, text=f"rank {title}"
    )
    return place, count, heading.encode(x=_x("x"), y=_y("y", places))


def _x(field: str) -> alt.X:
    return alt.X(f"{field}:Q").scale(domain=[-0.42, 1.42], nice=False, zero=False).axis(None)


def _y(field: str, places: tuple[str, ...]) -> alt.Y:
    scale = alt.Scale(domain=[len(places) - 0.5, -1.5], nice=False, zero=False)
    return alt.Y(f"{field}:Q").scale(scale).axis(None)
