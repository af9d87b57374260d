"""A run as a table for people, and as a document for programs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.loading.generator import OK
from cli.loading.summary import GATEWAY, OUTSIDE, PARTS, STAGES, Bottleneck, Run, Spread, Stages, shares_of

LEAST_LAG_MS = 5.0
"""A client that is later than this and than a twentieth of the latency is worth a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the servers' own counters say of the run."""

    codes: Mapping[str, int]
    expected: int
    """Calls that the client made."""

    @property
    def count(self) -> int:
        """Calls that they counted."""
        return sum(self.codes.values())

    @property
    def agrees(self) -> bool:
        """Whether that is as many as the client made."""
        return self.count == self.expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that a run says."""

    title: str
    run: Run
    stages: Stages | None
    stages_from: str
    bottleneck: Bottleneck | None
    served: Served | None

    @property
    def good(self) -> bool:
        """Whether every call was OK and counted."""
        return bool(self.run.ok_count) and not self.run.error_count and (self.served is None or self.served.agrees)


def document(report: Report) -> dict[str, Any]:
    """Return the report for programs; all times in milliseconds unless named otherwise."""
    run = asdict(report.run)
    run.pop("stages")
    stages: dict[str, dict[str, Any]] = {}
    for (stage, part), one in (report.stages or {}).items():
        stages.setdefault(stage, {})[part] = asdict(one)
    counts = {"calls": report.run.call_count, "ok": report.run.ok_count, "errors": report.run.error_count}
    return {
        "good": report.good,
        "title": report.title,
        **run,
        **counts,
        "stages": stages or None,
        "stages_from": report.stages_from,
        "bottleneck": report.bottleneck and asdict(report.bottleneck),
        "served": report.served and {**asdict(report.served), "agrees": report.served.agrees},
    }


def print_report(console: Console, report: Report) -> None:
    """Print the report."""
    console.print(Text(report.title, "bold"), soft_wrap=True)
    print_run(console, report.run)
    if _late(report.run):
        console.print(Text("this client was late itself: take more of them, or a faster machine", "bold yellow"))
    if report.stages:
        console.print(Text(f"\nwhere the time went, in ms ({report.stages_from})"), soft_wrap=True)
        console.print(_stages(report.stages, report.run.latency))
    else:
        console.print(Text(f"\nno stages: {report.stages_from}", "yellow"), soft_wrap=True)
    if report.bottleneck:
        console.print(_bottleneck(report.bottleneck), soft_wrap=True)
    if report.served:
        console.print(_served(report.served), soft_wrap=True)


def print_run(console: Console, run: Run) -> None:
    """Print what a generator saw: the rate of success, then latencies."""
    for line in _counts(run):
        console.print(line, soft_wrap=True)
    console.print(_latencies(run))


def _counts(run: Run) -> list[Text]:
    made = run.ok_count + run.error_count
    share = run.ok_count / made if made else 0.0
    rate = run.ok_count / run.seconds if run.seconds else 0.0
    lines = [Text(f"{made} calls in {run.seconds:.1f} s: {run.ok_count} OK ({share:.2%}), {rate:.1f} OK/s")]
    lines += [Text(f"  {code}: {count}", "bold red") for code, count in sorted(run.codes.items()) if code != OK]
    if run.degraded_count:
        lines.append(Text(f"  {run.degraded_count} of the OK were answered in part, as `--rerank` allows", "yellow"))
    if run.cut_off_count:
        lines.append(Text(f"  {run.cut_off_count} more were cut off by {run.generator} when it stopped", "yellow"))
    return lines


def _latencies(run: Run) -> Table:
    table = _table("", "calls", "OK", "p50", "p95", "p99", "max")
    for step in run.steps if len(run.steps) > 1 else ():
        table.add_row(f"{step.rate:g}/s", str(step.call_count), str(step.ok_count), *_cells(step.latency))
    table.add_row("latency ms", str(run.call_count), str(run.ok_count), *_cells(run.latency))
    if run.lag is not None:
        table.add_row("client late ms", "", "", *_cells(run.lag))
    return table


def _cells(one: Spread | None) -> list[str]:
    values = [None] * 4 if one is None else [one.p50, one.p95, one.p99, one.max]
    return ["-" if value is None else f"{value:.1f}" for value in values]


def _late(run: Run) -> bool:
    return run.lag is not None and run.latency is not None and run.lag.p99 > max(LEAST_LAG_MS, run.latency.p50 / 20)


def _stages(stages: Stages, latency: Spread | None) -> Table:
    parts = ["total", *(part for part in PARTS if any((stage, part) in stages for stage in STAGES))]
    table = _table("p50 p95", "share", *parts)
    if "unaccounted" in parts:
        table.padding = (0, 1, 0, 0)  # so many columns have to fit into 80 characters
    shares = shares_of(stages, latency)
    for stage in (*STAGES, GATEWAY, OUTSIDE):
        if stage in shares:
            keys = [("all", "other")] if stage == GATEWAY else [(stage, part) for part in parts]
            spans = [stages.get(key) for key in keys]
            cells = ["" if one is None else f"{_short(one.p50)} {_short(one.p95):>5}" for one in spans]
            table.add_row(stage, f"{shares[stage]:.0%}", *cells)
    return table


def _short(milliseconds: float) -> str:
    return f"{milliseconds:.1f}" if milliseconds < 100 else f"{milliseconds:.0f}"  # noqa: PLR2004 - four digits do


def _bottleneck(found: Bottleneck) -> Text:
    mostly = f", mostly {found.part}" if found.part else ""
    words = f"bottleneck: {found.stage}, {found.share:.0%} of the time{mostly}"
    return Text.assemble((words, "bold"), f"\n  {found.advice}")


def _served(served: Served) -> Text:
    if served.agrees:
        return Text(f"the server counted {served.count} calls, as many as were made")
    codes = ", ".join(f"{code} {count}" for code, count in sorted(served.codes.items())) or "none"
    return Text(
        f"the server counted {served.count} calls ({codes}), {served.expected} were made: some never reached it, or "
        "others called it meanwhile, and the stages are then of their calls too",
        "bold red",
    )


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left", no_wrap=place == 0)
    return table
