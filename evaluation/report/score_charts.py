"""Scores of answerable and unanswerable questions: a histogram for each signal, and the ROC of both."""

import altair as alt

from evaluation.figures import AbstentionSignal, Histogram
from evaluation.report import numbers
from evaluation.report.drawing import (
    AFTER,
    CARD,
    FONT_SIZE,
    INK,
    LINE,
    MUTED,
    WORSE,
    Chart,
    Drawing,
    data,
    draw,
    layered,
)

HEIGHT = 210
ROC_HEIGHT = 330
ROC_POINTS = 150
TITLES = {"retrieval_score": "highest cosine of the pool", "logit": "highest logit of the reranker"}
NAMES = {"retrieval_score": "retrieval score", "logit": "reranker logit"}


def histogram_chart(signal: AbstentionSignal) -> Drawing:
    """Draw answerable questions upwards and unanswerable ones downwards."""
    histogram = signal.histogram
    label = (
        f"Histogram of the {TITLES[signal.signal]}: {sum(histogram.answerable)} answerable questions above the line, "
        f"{sum(histogram.unanswerable)} without an answer below it; the threshold chosen on dev is "
        f"{numbers.value(signal.chosen.threshold)}. The table below has the counts."
    )
    return draw(f"scores-{signal.signal.replace('_', '-')}", label, lambda width: _histogram(signal, width))


def roc_chart(signals: tuple[AbstentionSignal, ...]) -> Drawing:
    """Draw both curves, told apart by dash and by name."""
    areas = [f"{NAMES[signal.signal]} {numbers.value(signal.auc)}" for signal in signals]
    label = f"ROC on test; area under the curve: {', '.join(areas)}; 0.5 is chance."
    return draw("roc", label, lambda width: _roc(signals, width))


def bins(histogram: Histogram) -> list[tuple[float, float, int, int]]:
    """Return (from, to, answerable, unanswerable) of every bin."""
    edges = histogram.edges
    return list(zip(edges, edges[1:], histogram.answerable, histogram.unanswerable, strict=False))


def answered_at(signal: AbstentionSignal, share: float) -> float:
    """Return the share of answerable questions answered where at most `share` of the unanswerable ones are."""
    allowed = [point.answered_answerable for point in signal.roc if point.answered_unanswerable <= share]
    return max(allowed, default=0.0)


def _histogram(signal: AbstentionSignal, width: int) -> Chart:
    found = bins(signal.histogram)
    rows: list[dict[str, object]] = []
    for low, high, good, bad in found:
        span = numbers.span(low, high)
        rows += [
            {"from": low, "to": high, "count": good, "zero": 0, "kind": "up", "said": f"{span}: {good} answerable"},
            {
                "from": low,
                "to": high,
                "count": -bad,
                "zero": 0,
                "kind": "down",
                "said": f"{span}: {bad} without an answer",
            },
        ]
    most = max((max(good, bad) for _, _, good, bad in found), default=1)
    scale = _Counts(most, signal)
    bars = alt.Chart(data([row for row in rows if row["count"]]))
    layers = (
        _bars(bars, "up", scale).mark_bar(fill=AFTER, stroke=CARD, strokeWidth=1),
        _bars(bars, "down", scale).mark_bar(fill=CARD, stroke=WORSE, strokeWidth=2),
        alt.Chart(data([{"zero": 0}])).mark_rule(color=MUTED, aria=False).encode(y=scale.y("zero")),
        *_threshold(signal, scale),
    )
    return layered(layers, width, HEIGHT)


class _Counts:
    """Both scales of a histogram."""

    def __init__(self, most: int, signal: AbstentionSignal) -> None:
        self.top = most * 1.25
        self._edges = signal.histogram.edges
        self._title = TITLES[signal.signal]

    def x(self, field: str) -> alt.X:
        axis = alt.Axis(title=self._title, tickCount=6, grid=False, ticks=False)
        scale = alt.Scale(domain=[self._edges[0], self._edges[-1]], nice=False, zero=False)
        return alt.X(f"{field}:Q").scale(scale).axis(axis)

    def y(self, field: str) -> alt.Y:
        axis = alt.Axis(title=None, tickCount=5, labelExpr="abs(datum.value)", domain=False, ticks=False, tickMinStep=1)
        return alt.Y(f"{field}:Q").scale(domain=[-self.top, self.top], nice=False).axis(axis)


def _bars(chart: alt.Chart, kind: str, scale: _Counts) -> alt.Chart:
    kept = chart.transform_filter(alt.datum.kind == kind)
    return kept.encode(x=scale.x("from"), x2="to:Q", y=scale.y("zero"), y2="count:Q", description="said:N")


def _threshold(signal: AbstentionSignal, scale: _Counts) -> list[alt.Chart]:
    at = signal.chosen.threshold
    edges = signal.histogram.edges
    right = at <= (edges[0] + edges[-1]) / 2
    base = alt.Chart(data([{"at": at, "top": scale.top, "bottom": -scale.top}]))
    rule = base.mark_rule(color=INK, strokeDash=[4, 3], aria=False)
    text = base.mark_text(
        align="left" if right else "right", baseline="top", dx=6 if right else -6, color=INK, aria=False
    )
    written = f"threshold {numbers.value(at)}"
    return [
        rule.encode(x=scale.x("at"), y=scale.y("bottom"), y2="top:Q"),
        text.encode(x=scale.x("at"), y=scale.y("top"), text=alt.value(written)),
    ]


def _roc(signals: tuple[AbstentionSignal, ...], width: int) -> Chart:
    names = [NAMES[signal.signal] for signal in signals]
    colour = alt.Color("name:N").scale(domain=names, range=[WORSE, AFTER][: len(names)]).legend(None)
    dash = alt.StrokeDash("name:N").scale(domain=names, range=[[6, 4], [1, 0]][: len(names)]).legend(None)
    lines = alt.Chart(data([row for signal in signals for row in _curve(signal)])).mark_line(
        strokeWidth=2.5, aria=False
    )
    chance = alt.Chart(data([_point(0, 0), _point(1, 1)])).mark_line(color=LINE, strokeWidth=1.5, aria=False)
    layers = (
        chance.encode(x=_share("bad"), y=_up("good")),
        lines.encode(x=_share("bad"), y=_up("good"), order="order:Q", color=colour, strokeDash=dash),
        _tested(signals).encode(x=_share("bad"), y=_up("good"), color=colour, description="said:N"),
        *_names(signals, colour, dash),
    )
    return layered(layers, width, ROC_HEIGHT)


def _point(bad: float, good: float, **more: object) -> dict[str, object]:
    return {"bad": bad, "good": good, **more}


def _curve(signal: AbstentionSignal) -> list[dict[str, object]]:
    """Return the curve from nothing answered to everything answered, thinned where there are very many points."""
    step = max(1, len(signal.roc) // ROC_POINTS)
    points = [(0.0, 0.0), *((at.answered_unanswerable, at.answered_answerable) for at in signal.roc)]
    kept = [*points[:-1:step], points[-1]]
    return [_point(bad, good, order=place, name=NAMES[signal.signal]) for place, (bad, good) in enumerate(kept)]


def _tested(signals: tuple[AbstentionSignal, ...]) -> alt.Chart:
    """A ring on each curve: the threshold that was chosen on dev."""
    rows = []
    for signal in signals:
        tested, name = signal.tested, NAMES[signal.signal]
        good = tested.answered_answerable_count / tested.answerable_count
        bad = 1 - tested.abstained_unanswerable_count / tested.unanswerable_count
        said = f"{name} at the threshold of dev: answers {numbers.percent(good)} and {numbers.percent(bad)}"
        rows.append(_point(bad, good, name=name, said=said))
    rings: alt.Chart = alt.Chart(data(rows)).mark_point(size=110, fill=CARD, strokeWidth=2.5, opacity=1)
    return rings


def _names(signals: tuple[AbstentionSignal, ...], colour: alt.Color, dash: alt.StrokeDash) -> list[alt.Chart]:
    """Name the curves where no curve that is better than chance goes: bottom right."""
    rows = [
        _point(
            *(0.34, 0.06 + 0.09 * place),
            to=0.44,
            name=NAMES[signal.signal],
            text=f"{NAMES[signal.signal]}, AUC {numbers.value(signal.auc)}",
        )
        for place, signal in enumerate(reversed(signals))
    ]
    base = alt.Chart(data(rows)).encode(x=_share("bad"), y=_up("good"))
    samples = base.mark_rule(strokeWidth=2.5, aria=False).encode(x2="to:Q", color=colour, strokeDash=dash)
    texts = base.mark_text(align="left", dx=38, color=INK, aria=False).encode(text="text:N")
    return [samples, texts]


def _share(field: str) -> alt.X:
    axis = alt.Axis(title="share of unanswerable questions answered", format=".0%", tickCount=5, ticks=False)
    return alt.X(f"{field}:Q").scale(domain=[0, 1.02], nice=False).axis(axis)


def _up(field: str) -> alt.Y:
    axis = alt.Axis(
        title="share of answerable questions answered",
        titleAngle=0,
        titleAlign="left",
        titleAnchor="start",
        titleX=-3 * FONT_SIZE,
        titleY=-FONT_SIZE,
        format=".0%",
        tickCount=5,
        ticks=False,
        domain=False,
    )
    return alt.Y(f"{field}:Q").scale(domain=[0, 1.02], nice=False).axis(axis)
