"""Where the milliseconds of a search went: one bar, its legend, and the inside of the reranking."""

from collections.abc import Mapping

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from cli.answers import milliseconds, parts, shares
from retrieval.gateway.v1 import gateway_pb2 as pb

# Told apart by shape as well, for those who see no colour.
STYLES = {
    "write": ("▚", "green"),
    "encode": ("█", "cyan"),
    "search": ("▓", "yellow"),
    "rerank": ("▒", "magenta"),
    "other": ("░", "bright_black"),
}
MAX_WIDTH = 100


class TimeBar:
    """A bar over the width of the terminal.

    Args:
        timings: Of the search.
    """

    def __init__(self, timings: pb.Timings) -> None:
        self._timings = timings

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        spans = shares(self._timings)
        yield Text.assemble(*_cells(spans, min(options.max_width, MAX_WIDTH)))
        yield legend(spans, milliseconds(self._timings.total))
        if spans["rerank"]:
            inside = " · ".join(f"{part} {span:.1f}" for part, span in parts(self._timings.rerank).items())
            yield Text(f"inside rerank: {inside}", "dim")


def legend(spans: Mapping[str, float], total: float) -> Text:
    """Return every stage with its milliseconds, and the total, in one line."""
    line = Text()
    for stage, span in spans.items():
        mark, style = STYLES[stage]
        line.append(f"{mark} ", style).append(f"{stage} ").append(f"{span:.1f}", "bold").append("  ")
    return line.append("= ", "dim").append(f"{total:.1f} ms", "bold")


def cell_counts(spans: Mapping[str, float], width: int) -> dict[str, int]:
    """Share out the cells of a bar by largest remainder; a stage that took any time gets one at least.

    Args:
        spans: Stage to time, in any unit.
        width: Cells to share, at least one per stage.

    Returns:
        Stage to cells; they add up to `width`, or to nothing where no time was spent.
    """
    spent = {stage: span for stage, span in spans.items() if span > 0}
    total = sum(spent.values())
    exact = {stage: max(1.0, span / total * width) for stage, span in spent.items()}
    # What the smallest were given beyond their share is taken from the others in proportion.
    small = sum(1 for cells in exact.values() if cells == 1.0)
    large = sum(cells for cells in exact.values() if cells > 1.0)
    scaled = {stage: cells if cells == 1.0 else cells * (width - small) / large for stage, cells in exact.items()}
    counts = {stage: int(cells) for stage, cells in scaled.items()}
    for stage in sorted(scaled, key=lambda stage: counts[stage] - scaled[stage])[: width - sum(counts.values())]:
        counts[stage] += 1
    return {stage: counts.get(stage, 0) for stage in spans}


def _cells(spans: Mapping[str, float], width: int) -> list[tuple[str, str]]:
    return [(STYLES[stage][0] * count, STYLES[stage][1]) for stage, count in cell_counts(spans, width).items()]
