"""One picture: how much of the bare limit's throughput each server reaches."""

from collections.abc import Mapping, Sequence
from typing import Any

import vl_convert

from benchmarks.peers.cells import LIMIT, OURS
from benchmarks.peers.workload import WORKLOADS

LOAD = "c32"
WIDTH, BAR = 420, 18
OURS_COLOUR, PEER_COLOUR, INK = "#1d6f5c", "#9aa5ad", "#30363b"
TITLE = "Throughput with 32 callers, as a share of a bare onnxruntime loop over sorted batches"


def draw(rows: Sequence[Mapping[str, Any]], machine: str) -> str:
    """Return an SVG of the throughput of 32 callers as a share of the limit, one panel per workload."""
    shown = [row for row in rows if row["load"] == LOAD and row["target"] != LIMIT and row["of_limit"]]
    names = [name for name in WORKLOADS if any(row["workload"] == name for row in shown)]
    spec = {
        "title": {"text": TITLE, "subtitle": machine, "anchor": "start"},
        "config": {"font": "sans-serif", "view": {"stroke": None}, "background": "white"},
        "vconcat": [_panel(name, [row for row in shown if row["workload"] == name]) for name in names],
    }
    return str(vl_convert.vegalite_to_svg(spec))


def _panel(workload: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    values = [
        {
            "server": row["target"],
            "share": row["of_limit"],
            "colour": OURS_COLOUR if row["target"].startswith(OURS) else PEER_COLOUR,
        }
        for row in rows
    ]
    server = {"field": "server", "type": "nominal", "sort": {"field": "share", "order": "descending"}, "title": None}
    share = {"field": "share", "type": "quantitative", "title": None, "axis": {"format": "%"}}
    colour = {"field": "colour", "type": "nominal", "scale": None}
    words = {"field": "share", "type": "quantitative", "format": ".0%"}
    return {
        "title": {"text": f"{workload}: {WORKLOADS[workload].about}", "anchor": "start", "fontWeight": "normal"},
        "width": WIDTH,
        "height": {"step": BAR},
        "data": {"values": values},
        "layer": [
            {"mark": "bar", "encoding": {"y": server, "x": share, "color": colour}},
            {
                "mark": {"type": "text", "align": "left", "dx": 4, "color": INK},
                "encoding": {"y": server, "x": share, "text": words},
            },
            {"mark": {"type": "rule", "strokeDash": [4, 3], "color": INK}, "encoding": {"x": {"datum": 1}}},
        ],
    }
