"""From cells to what people read: tables, one JSON file, one chart."""

import json
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.peers import chart
from benchmarks.peers.cells import LIMIT, OURS, Cell, Load, Notebook, Started
from benchmarks.peers.http_peers import PEERS
from benchmarks.peers.workload import WORKLOADS
from evaluation import plan

JSON_NAME = "peers.json"
CHART_NAME = "peers.svg"
MARKDOWN_NAME = "peers.md"
PACKAGES = ("onnxruntime", "grpcio", "numpy", "tokenizers", "torch", "transformers")

HEADINGS = (
    "server",
    "tokens/s",
    "of limit",
    "of ours",
    "calls/s",
    "p50 ms",
    "p95 ms",
    "p99 ms",
    "goodput",
    "padding",
    "refused + late + failed",
    "MiB",
    "others",
)
WORDS = ("kind", "server", "agreement")
"""Headings of columns that hold words."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A table, before it is drawn."""

    title: str
    headings: Sequence[str]
    lines: Sequence[Sequence[str]]


def write(notebook: Notebook, out: Path) -> None:
    """Print the tables, and write JSON and chart."""
    rows = summary(notebook.cells)
    out.mkdir(parents=True, exist_ok=True)
    whole = {**machine(), "workloads": _about(), "started": _starts(notebook.started), "summary": rows}
    whole["cells"] = [cell.model_dump(exclude_none=True) for cell in notebook.cells]
    (out / JSON_NAME).write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sheets, console = _sheets(rows, whole["started"]), Console(width=150)
    for sheet in sheets:
        console.print(_table(sheet))
    (out / MARKDOWN_NAME).write_text("\n".join([_head(), *map(_markdown, sheets)]), encoding="utf-8")
    if rows:
        (out / CHART_NAME).write_text(chart.draw(rows, machine()["machine"]), encoding="utf-8")


def _head() -> str:
    found = machine()
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    where = f"{found['machine']}; Python {found['python']}, {versions}"
    return f"# Servers side by side\n\n{where}. Made by `{found['command']}`.\n"


def machine() -> dict[str, Any]:
    """Return what the figures belong to."""
    return {
        "machine": f"{plan.machine()}, {platform.system()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "command": f"python -m benchmarks.peers {shlex.join(sys.argv[1:])}".strip(),
    }


def summary(cells: Sequence[Cell]) -> list[Row]:
    """Return one row per workload, load and target: medians over the rounds, and ratios within each round.

    A ratio compares two targets in the same round only, so that a machine that was slower for a while was slower for
    both.
    """
    keys = dict.fromkeys((cell.workload, cell.load, cell.target) for cell in cells)
    order = {name: place for place, name in enumerate(WORKLOADS)}
    ordered = sorted(keys, key=lambda key: (order[key[0]], _load_place(key[1])))
    return [_summary_row(cells, *key) for key in ordered]


def _summary_row(cells: Sequence[Cell], workload: str, load: str, target: str) -> Row:
    same = [cell for cell in cells if (cell.workload, cell.load) == (workload, load)]
    own = {cell.round: cell for cell in same if cell.target == target}
    row: Row = {"workload": workload, "load": load, "target": target, "rounds": len(own)}
    for name in ("tokens_per_s", "calls_per_s", "p50_ms", "p95_ms", "p99_ms", "goodput", "padding"):
        row[name] = _median(getattr(cell.figures, name) for cell in own.values())
    for name in ("refused", "late", "errors"):
        row[name] = sum(getattr(cell.figures, name) for cell in own.values())
    row["resident_mib"] = max(cell.resident_mib for cell in own.values())
    row["others"] = max(cell.others for cell in own.values())
    for other, key in ((LIMIT, "of_limit"), (OURS, "of_ours")):
        others = {cell.round: cell for cell in same if cell.target == other}
        row[key] = _median(_ratio(own[turn], others[turn]) for turn in own.keys() & others.keys())
    return row


def _ratio(cell: Cell, other: Cell) -> float | None:
    mine, theirs = cell.figures.tokens_per_s, other.figures.tokens_per_s
    return mine / theirs if mine is not None and theirs else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _sheets(rows: Sequence[Row], started: Sequence[Row]) -> list[Sheet]:
    keys = dict.fromkeys((row["workload"], row["load"]) for row in rows)
    sheets = [_sheet([row for row in rows if (row["workload"], row["load"]) == key], *key) for key in keys]
    return [*sheets, _start_sheet(started)]


def _sheet(rows: Sequence[Row], workload: str, load: str) -> Sheet:
    ordered = sorted(rows, key=lambda row: -(row["tokens_per_s"] or 0))
    title = f"{workload} ({WORKLOADS[workload].about}), {_load_words(load, workload)}"
    return Sheet(title=title, headings=HEADINGS, lines=[_line(row) for row in ordered])


def _line(row: Row) -> list[str]:
    lost = f"{row['refused']} + {row['late']} + {row['errors']}" if row["target"] != LIMIT else ""
    return [
        row["target"],
        _number(row["tokens_per_s"], ",.0f"),
        _number(row["of_limit"], ".2f"),
        _number(row["of_ours"], ".2f"),
        _number(row["calls_per_s"], ".1f"),
        *(_number(row[name], ",.1f") for name in ("p50_ms", "p95_ms", "p99_ms")),
        _number(row["goodput"], ".2f"),
        _number(row["padding"], ".1%"),
        lost,
        f"{row['resident_mib']:,.0f}",
        f"{row['others']:.0%}",
    ]


def _start_sheet(started: Sequence[Row]) -> Sheet:
    lines = [
        [
            one["kind"],
            one["target"],
            _number(one["start_s"], ".1f"),
            _number(one["resident_mib"], ",.0f"),
            one["agreement"],
        ]
        for one in started
    ]
    title = "start-up until the first answer, memory then, and agreement with our results"
    return Sheet(title=title, headings=("kind", "server", "seconds", "MiB", "agreement"), lines=lines)


def _table(sheet: Sheet) -> Table:
    table = Table(title=sheet.title)
    for heading in sheet.headings:
        table.add_column(heading, justify="left" if heading in WORDS else "right")
    for line in sheet.lines:
        table.add_row(*line)
    return table


def _markdown(sheet: Sheet) -> str:
    rule = ["---" if heading in WORDS else "---:" for heading in sheet.headings]
    lines = [sheet.headings, rule, *([cell.replace("|", "/") for cell in line] for line in sheet.lines)]
    return f"## {sheet.title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _starts(started: Sequence[Started]) -> list[Row]:
    """Return one row per kind and target: medians over its starts, the last word of each."""
    rows = []
    for kind, target in dict.fromkeys((one.kind, one.target) for one in started):
        own = [one for one in started if (one.kind, one.target) == (kind, target)]
        row = own[-1].model_dump(exclude_none=True)
        row["start_s"] = _median(one.start_s for one in own)
        row["resident_mib"] = _median(one.resident_mib for one in own)
        rows.append(row)
    return rows


def _about() -> dict[str, Any]:
    return {
        "requests": {name: {"about": one.about, "deadline_s": one.deadline_s} for name, one in WORKLOADS.items()},
        "peers": {name: one.about for name, one in PEERS.items()},
    }


def _load_words(load: str, workload: str) -> str:
    number = load[1:]
    if load.startswith("c"):
        return f"{number} caller{'s' if number != '1' else ''}"
    deadline = WORKLOADS[workload].deadline_s
    return f"calls arrive at {number} % of our capacity; goodput: within {deadline:g} s"


def _load_place(load: str) -> tuple[bool, float]:
    parsed = Load.parse(load)
    return parsed.share is not None, parsed.share or parsed.callers or 0


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
