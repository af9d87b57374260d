"""From a Vega-Lite chart to an SVG that takes its colours and its typeface from the page around it.

Altair describes, vl-convert draws without a browser. Colours are CSS variables all the way, which is what makes one
drawing right in light and in dark mode. A drawing has a fixed width in pixels of the page, so that its text has the
size of the page's text: a chart that is to use the width of a desk is drawn twice.

Why these two: Plotly and Bokeh put 1 to 4.5 MB of script into a page, and Bokeh paints on a canvas, which a screen
reader cannot read; matplotlib knows no CSS variable, so that each colour would have to be replaced in its SVG. A
drawing of Vega-Lite has some tens of kB, holds every mark's description, and needs no script.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree as ET

import altair as alt
import vl_convert
from markupsafe import Markup

NARROW, WIDE = 342, 700
"""Pixels: a phone of 390 with its margins, and the text column of a desk."""

FONT_SIZE = 12
INK, MUTED, LINE = "var(--ink)", "var(--muted)", "var(--line)"
AFTER, BEFORE, WORSE, CARD = "var(--after)", "var(--before)", "var(--worse)", "var(--card)"

_SVG = "{http://www.w3.org/2000/svg}"
_DROPPED = ("role", "aria-roledescription", "aria-hidden", "pointer-events", "font-family", "class")
_AXIS = {
    "labelFontSize": FONT_SIZE,
    "titleFontSize": FONT_SIZE,
    "titleFontWeight": "normal",
    "labelColor": MUTED,
    "titleColor": MUTED,
    "domainColor": LINE,
    "tickColor": LINE,
    "gridColor": LINE,
    "labelPadding": 6,
    "titlePadding": 10,
    "aria": False,
}
_CONFIG = {
    "background": None,
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": _AXIS,
    "text": {"fontSize": FONT_SIZE, "color": INK},
    "padding": 0,
}

Align = Literal["left", "right"]
Chart = alt.Chart | alt.LayerChart
Draw = Callable[[int], Chart]
"""From a width in pixels to a chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A chart as the page holds it; the words beside it are the template's."""

    name: str
    """Its id in the page."""
    label: str
    """What is seen, in a sentence, for who cannot see it."""
    narrow: Markup
    wide: Markup | None = None
    """For columns of `WIDE` pixels; None where the narrow one serves both."""


def draw(name: str, label: str, chart: Draw, *, wide: bool = False) -> Drawing:
    """Draw one chart.

    Args:
        name: Its id in the page, a literal.
        label: What is seen, in a sentence.
        chart: The chart at a width.
        wide: Whether to draw it a second time for a wide column.
    """
    return Drawing(
        name=name,
        label=label,
        narrow=_svg(chart(NARROW), label),
        wide=_svg(chart(WIDE), label) if wide else None,
    )


def data(rows: list[dict[str, object]]) -> alt.InlineData:
    """Hold rows inside the chart."""
    return alt.InlineData(values=rows)


def layered(layers: Sequence[Chart], width: int, height: int) -> alt.LayerChart:
    """Put marks on top of each other, the whole drawing, axes included, this large."""
    whole = alt.LayerChart(layer=list(layers))
    return whole.properties(width=width, height=height, autosize=alt.AutoSizeParams(type="fit", contains="padding"))


def _svg(chart: Chart, label: str) -> Markup:
    drawn = vl_convert.vegalite_to_svg(chart.to_json(), config=_CONFIG)
    root = ET.fromstring(drawn)  # noqa: S314 - drawn by our own program a line above
    for element in list(root.iter()):
        _clean(element)
    _drop_empty(root)
    width, height = root.attrib.pop("width"), root.attrib.pop("height")
    root.attrib.update({"role": "img", "aria-label": label, "style": f"max-width:{int(width) * 1.25:.0f}px"})
    root.set("viewBox", f"0 0 {width} {height}")
    ET.register_namespace("", _SVG.strip("{}"))
    # Whatever the data held is text to ElementTree, which escapes it.
    return Markup(ET.tostring(root, encoding="unicode"))  # noqa: S704


def _clean(element: ET.Element) -> None:
    """Leave what is seen, and turn a mark's description into its tooltip."""
    for attribute in _DROPPED:
        element.attrib.pop(attribute, None)
    described = element.attrib.pop("aria-label", None)
    if described and element.tag != f"{_SVG}svg":
        ET.SubElement(element, f"{_SVG}title").text = described


def _drop_empty(root: ET.Element) -> None:
    """Take out the frames that Vega draws around nothing."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{_SVG}path" and not child.attrib.keys() & {"fill", "stroke"}:
                parent.remove(child)
