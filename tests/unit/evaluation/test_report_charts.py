"""The drawings of the report."""

from xml.etree import ElementTree as ET

import pytest
from report_factories import HOSTILE, Ask, asks, run, studies

from evaluation.figures import Latency
from evaluation.latency import latency
from evaluation.phases.evaluate import evaluated
from evaluation.report import depth_chart, latency_chart, score_charts, slope_chart
from evaluation.report.drawing import NARROW, WIDE, Drawing
from evaluation.report.ranks import ranks

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def evaluation():
    """The figures of the usual run."""
    return evaluated(*run(asks()))


@pytest.fixture(scope="module")
def drawings(evaluation) -> dict[str, Drawing]:
    """Every drawing of the usual run, by its name."""
    signals = evaluation.abstention.signals
    found = (
        slope_chart.slope_chart(ranks(evaluation.quality.questions)),
        latency_chart.latency_chart(evaluation.latency),
        depth_chart.depth_chart(studies().pool_depth),
        *(score_charts.histogram_chart(signal) for signal in signals),
        score_charts.roc_chart(signals),
    )
    return {drawing.name: drawing for drawing in found}


def svgs(drawings: dict[str, Drawing]) -> dict[str, ET.Element]:
    """Return every picture, parsed."""
    return {
        f"{name}-{place}": ET.fromstring(picture)  # noqa: S314 - our own drawing
        for name, drawing in drawings.items()
        for place, picture in (("narrow", drawing.narrow), ("wide", drawing.wide))
        if picture is not None
    }


def test_every_chart_is_drawn_once_for_a_phone(drawings):
    """There are six charts; all have the width of a phone's column, and those that gain by it that of a desk."""
    widths = {name: float(svg.attrib["viewBox"].split()[2]) for name, svg in svgs(drawings).items()}
    assert {name: width for name, width in widths.items() if name.endswith("narrow")} == {
        f"{name}-narrow": pytest.approx(NARROW, abs=2)
        for name in ("slopes", "latency", "depth", "scores-retrieval-score", "scores-logit", "roc")
    }
    assert {name: width for name, width in widths.items() if name.endswith("wide")} == {
        "latency-wide": pytest.approx(WIDE, abs=2),
        "depth-wide": pytest.approx(WIDE, abs=2),
    }


def test_every_colour_is_the_pages(drawings):
    """No drawing has a colour of its own: light and dark mode are decided by the page around it."""
    for name, svg in svgs(drawings).items():
        colours = {
            element.attrib[kind] for element in svg.iter() for kind in ("fill", "stroke") if kind in element.attrib
        }
        assert {colour for colour in colours if not colour.startswith("var(--")} <= {"none", "transparent"}, name


def test_drawings_are_pictures_with_a_sentence(drawings):
    """Each drawing is one picture to a screen reader, and says in words what is seen."""
    for name, svg in svgs(drawings).items():
        assert svg.attrib["role"] == "img"
        assert len(svg.attrib["aria-label"]) > 60, name
        assert not [element for element in svg.iter() if element is not svg and "role" in element.attrib]


def test_drawings_in_one_page_cannot_collide(drawings):
    """No drawing has an id or refers to one, so that no drawing can take another's."""
    for name, drawing in drawings.items():
        for picture in filter(None, (drawing.narrow, drawing.wide)):
            assert " id=" not in picture, name
            assert "url(" not in picture, name


def test_marks_say_what_they_are(drawings):
    """A pointer over a line or a dot is told the figures behind it."""
    titles = [title.text for title in svgs(drawings)["slopes-narrow"].iter(f"{SVG}title")]
    assert "2 questions, rank 2 → 1: REF-001, REF-002" in titles
    assert len(titles) == 7
    depths = [title.text for title in svgs(drawings)["depth-narrow"].iter(f"{SVG}title")]
    assert depths[0] == "10 candidates: nDCG@5 0.910 (0.870\N{EN DASH}0.940), 25.0 ms"


def test_directions_are_told_apart_without_colour(drawings):
    """In the slope chart worse is dashed and better is not."""
    dashes = {
        line.attrib["stroke"]: line.attrib.get("stroke-dasharray")
        for line in svgs(drawings)["slopes-narrow"].iter(f"{SVG}line")
        if line.find(f"{SVG}title") is not None
    }
    assert dashes["var(--worse)"] == "7,5"
    assert dashes["var(--after)"] in {None, "1,0"}


def test_names_from_the_data_stay_text():
    """A question's id that spells markup is text in a drawing."""
    evaluation = evaluated(*run([Ask(id=HOSTILE, before=3, after=1), Ask(id="b")]))
    drawing = slope_chart.slope_chart(ranks(evaluation.quality.questions))
    assert "<script" not in drawing.narrow
    assert "<img" not in drawing.narrow
    titles = svgs({"slopes": drawing})["slopes-narrow"].iter(f"{SVG}title")
    assert any(HOSTILE in (title.text or "") for title in titles)


def test_many_questions_do_not_make_a_large_drawing():
    """Thousands of questions are shown by as many quantiles as there are dots, the ends among them."""
    values = [float(value) for value in range(5_000)]
    shown = latency_chart.quantiles(values)
    assert len(shown) == latency_chart.DOTS
    assert (shown[0], shown[-1]) == (0.0, 4_999.0)
    assert shown == sorted(set(shown))


def test_few_questions_are_all_shown():
    """Up to the limit every question has its dot."""
    assert latency_chart.quantiles([3.0, 1.0, 2.0]) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("low", "high", "steps"),
    [(3.0, 80.0, [2, 5, 10, 20, 50, 100]), (1.0, 10.0, [1, 2, 5, 10]), (0.3, 0.4, [0.2, 0.5]), (5.0, 5.0, [5])],
)
def test_ticks_enclose_the_values(low, high, steps):
    """The axis starts and ends on a round step around the values."""
    assert latency_chart.ticks(low, high) == pytest.approx(steps)


def test_a_time_of_zero_can_be_drawn(evaluation):
    """A stage that took nothing does not break the logarithm."""
    candidates, reranked = run([Ask(id="a")])
    timed = latency(candidates, reranked)
    nothing = timed.dense.model_copy(update={"values": (0.0,), "p50": 0.0, "p95": 0.0, "p99": 0.0})
    drawing = latency_chart.latency_chart(Latency(**{**dict(timed), "dense": nothing}))
    assert "NaN" not in drawing.narrow


def test_a_pool_that_took_no_time_can_be_drawn():
    """Where no time was measured the trade-off still has an axis."""
    points = [point.model_copy(update={"rerank_ms_mean": 0.0}) for point in studies().pool_depth]
    assert "NaN" not in depth_chart.depth_chart(points).narrow


def test_one_value_everywhere_can_be_drawn():
    """Where every time is the same the axis still has a width."""
    timed = latency(*run([Ask(id="a")]))
    same = timed.dense.model_copy(update={"values": (5.0,), "p50": 5.0, "p95": 5.0, "p99": 5.0})
    drawing = latency_chart.latency_chart(
        timed.model_copy(update={"dense": same, "rerank": same, "total": same, "reference": None})
    )
    assert "NaN" not in drawing.narrow


def test_the_roc_table_reads_the_curve(evaluation):
    """At no unanswerable question answered, as many answerable ones are as score above the best of the others."""
    signal = evaluation.abstention.signals[1]
    clear = sum(score > max(signal.unanswerable_scores) for score in signal.answerable_scores)
    assert score_charts.answered_at(signal, 0.0) == pytest.approx(clear / len(signal.answerable_scores), abs=1e-6)
    assert score_charts.answered_at(signal, 1.0) == 1.0


def test_the_bins_hold_every_question(evaluation):
    """The table beside a histogram counts all questions of the split."""
    for signal in evaluation.abstention.signals:
        rows = score_charts.bins(signal.histogram)
        assert (sum(row[2] for row in rows), sum(row[3] for row in rows)) == (48, 12)
