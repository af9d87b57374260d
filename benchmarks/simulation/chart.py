"""A chart without a plotting library: p99 latency over load, one panel per device and workload, one line per way."""

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from benchmarks.simulation.study import Finding

WIDTH, HEIGHT = 440, 260
LEFT, TOP, RIGHT, BOTTOM = 62, 40, 110, 40
LABEL = 13
COLOURS = ("#b0b0b0", "#707070", "#d08020", "#1060c0")
LOWEST_MS, HIGHEST_MS = 10.0, 100_000.0


def chart(findings: Sequence[Finding], panels: Sequence[tuple[str, str]]) -> str:
    """Draw an SVG.

    Args:
        findings: Of the comparison.
        panels: Device and workload of each panel, two in a line.
    """
    rows = math.ceil(len(panels) / 2)
    box = f"0 0 {2 * WIDTH} {rows * HEIGHT}"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" font-family="sans-serif" font-size="11">']
    parts.append(f'<rect width="{2 * WIDTH}" height="{rows * HEIGHT}" fill="white"/>')
    for index, (device, workload) in enumerate(panels):
        shown = [one for one in findings if (one.device, one.workload) == (device, workload)]
        parts.append(f'<g transform="translate({index % 2 * WIDTH},{index // 2 * HEIGHT})">')
        parts += _panel(f"{device}: {workload}", shown)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(title: str, findings: Sequence[Finding]) -> list[str]:
    loads = sorted({one.load for one in findings})
    parts = [f'<text x="{LEFT}" y="18" font-size="13">{escape(title)}</text>']
    parts.append(f'<text x="{LEFT}" y="32" fill="#606060">p99 per request, ms, over load in % of capacity</text>')
    for exponent in range(round(math.log10(LOWEST_MS)), round(math.log10(HIGHEST_MS)) + 1):
        y = _y(10.0**exponent)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10**exponent:,}</text>')
    for load in loads:
        x = _x(load, loads)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{load * 100:.0f}</text>')
    labels = list(dict.fromkeys(one.label for one in findings))
    heights = _apart({label: _y([one.p99_ms for one in findings if one.label == label][-1]) for label in labels})
    for label, colour in zip(labels, COLOURS, strict=True):
        parts += _line(label, colour, heights[label], findings)
    return parts


def _apart(wanted: dict[str, float]) -> dict[str, float]:
    """Move labels down until none covers another."""
    heights: dict[str, float] = {}
    lowest = 0.0
    for label, height in sorted(wanted.items(), key=lambda item: item[1]):
        heights[label] = lowest = max(height, lowest + LABEL)
    return heights


def _line(label: str, colour: str, height: float, findings: Sequence[Finding]) -> list[str]:
    loads = sorted({one.load for one in findings})
    points = [(_x(one.load, loads), _y(one.p99_ms)) for one in findings if one.label == label]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [f'<circle cx="{one:.1f}" cy="{other:.1f}" r="3" fill="{colour}"/>' for one, other in points]
    text = f'<text x="{points[-1][0] + 8:.1f}" y="{height + 4:.1f}" fill="{colour}">{escape(label)}</text>'
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots, text]


def _x(load: float, loads: Sequence[float]) -> float:
    share = (load - loads[0]) / (loads[-1] - loads[0])
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(milliseconds: float) -> float:
    share = math.log(max(milliseconds, LOWEST_MS) / LOWEST_MS) / math.log(HIGHEST_MS / LOWEST_MS)
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)
