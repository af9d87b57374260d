"""From cells to tables: medians, and ratios within a round."""

from pathlib import Path

import pytest

from benchmarks.peers import chart
from benchmarks.peers.cells import Cell, Load, Notebook, Started
from benchmarks.peers.figures import Figures
from benchmarks.peers.report import summary


def cell(
    target: str, turn: int, tokens_per_s: float, *, p50_ms: float = 1.0, load: str = "c32", errors: int = 0
) -> Cell:
    figures = Figures(seconds=1.0, ok=1, errors=errors, tokens_per_s=tokens_per_s, p50_ms=p50_ms)
    at = "2026-01-01T00:00:00+00:00"
    return Cell(
        at=at,
        target=target,
        workload="mixed",
        load=load,
        round=turn,
        resident_mib=10.0 + turn,
        others=0.0,
        figures=figures,
    )


def rows(*cells: Cell) -> dict[str, dict[str, object]]:
    return {str(row["target"]): row for row in summary(cells)}


def test_ratios_are_taken_within_a_round() -> None:
    """A machine that was twice as slow in the second round does not change the ratio of two servers."""
    found = rows(cell("ours", 0, 900), cell("limit", 0, 1000), cell("ours", 1, 450), cell("limit", 1, 500))
    assert found["ours"]["of_limit"] == pytest.approx(0.9)


def test_figures_are_medians_over_the_rounds() -> None:
    """One bad round of three does not change a figure."""
    found = rows(cell("ours", 0, 100, p50_ms=5), cell("ours", 1, 10, p50_ms=90), cell("ours", 2, 110, p50_ms=6))
    assert (found["ours"]["tokens_per_s"], found["ours"]["p50_ms"], found["ours"]["rounds"]) == (100, 6, 3)


def test_failed_calls_and_memory_are_not_averaged_away() -> None:
    """Errors are added up and memory is the largest seen."""
    found = rows(cell("ours", 0, 1, errors=2), cell("ours", 1, 1, errors=3))
    assert (found["ours"]["errors"], found["ours"]["resident_mib"]) == (5, 11.0)


def test_a_round_without_the_limit_gives_no_ratio() -> None:
    """Rounds in which only one of two was measured are left out of their ratio."""
    found = rows(cell("ours", 0, 100), cell("ours", 1, 80), cell("limit", 1, 100))
    assert found["ours"]["of_limit"] == pytest.approx(0.8)
    assert rows(cell("ours", 0, 100))["ours"]["of_limit"] is None


def test_rows_are_in_the_order_of_the_loads() -> None:
    """Closed loops by callers come first, then open ones by share."""
    found = summary([cell("ours", 0, 1, load=load) for load in ("o95", "c128", "o50", "c1", "c8", "o150")])
    assert [row["load"] for row in found] == ["c1", "c8", "c128", "o50", "o95", "o150"]


@pytest.mark.parametrize("name", ["c1", "c128", "o50", "o150"])
def test_a_load_is_read_as_it_is_written(name: str) -> None:
    """A load's name says all of it."""
    assert Load.parse(name).name == name
    assert Load.parse(name).overload is (name == "o150")


def test_a_notebook_is_read_as_it_was_written(tmp_path: Path) -> None:
    """What was measured before is there again, cells and starts apart."""
    notebook = Notebook(tmp_path / "cells.jsonl")
    started = Started(target="ours", kind="encoder", start_s=1.5, resident_mib=3.0, agreement="", fit=True)
    notebook.add(started)
    notebook.add(cell("ours", 0, 7))
    again = Notebook(tmp_path / "cells.jsonl")
    assert (again.started, again.cells) == ([started], [cell("ours", 0, 7)])
    assert list(again.of("ours", "mixed", "c32")) == [cell("ours", 0, 7)]


def test_the_chart_names_every_server_and_no_limit() -> None:
    """The picture has a bar per server; the limit is its line and not a bar."""
    drawn = chart.draw(summary([cell("ours", 0, 90), cell("somebody", 0, 40), cell("limit", 0, 100)]), "a machine")
    assert drawn.startswith("<svg")
    assert "somebody" in drawn
    assert "40%" in drawn
    assert ">limit<" not in drawn
