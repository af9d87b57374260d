"""What the batching policy is worth, and what its defaults should be: traces replayed on a virtual clock.

Compares batches of 8 and of 32 rows in order of arrival (with a wait of 10 ms), batches by token budget in order of
arrival, and `serving.batching`, on devices whose costs were measured here (the demo models on a CPU) or are assumed (a
GPU). Nothing is timed but the devices with `--measure`, so the figures are the same on every machine.

    .venv/bin/python benchmarks/simulate.py                  # the comparison
    .venv/bin/python benchmarks/simulate.py --sweep          # one setting at a time
    .venv/bin/python benchmarks/simulate.py --measure .twostage/bundles/demo
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.simulation.chart import chart
from benchmarks.simulation.devices import ENCODER_CPU, GPU, RERANKER_CPU
from benchmarks.simulation.measure import fit, measure
from benchmarks.simulation.study import Finding, Setting, comparison, simulate, sweeps

THREADS = 2
PANELS = (
    (GPU.name, "rerank"),
    (RERANKER_CPU.name, "rerank"),
    (GPU.name, "queries"),
    (ENCODER_CPU.name, "queries"),
)

console = Console(width=130)


def main() -> None:
    """Simulate or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", action="store_true", help="vary one setting at a time instead")
    parser.add_argument("--measure", type=Path, metavar="BUNDLES", help="measure the demo models on this machine")
    parser.add_argument(
        "--only", default="", help="of the sweeps, or of devices and workloads, those with this in their name"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the comparison")
    options = parser.parse_args()
    if options.measure:
        for kind in ("encoder", "reranker"):
            console.print(asdict(fit(kind, measure(options.measure / kind, THREADS))))
        return
    findings = _swept(options.only) if options.sweep else _compared(options.only)
    if options.json:
        options.json.write_text(json.dumps([one.row() for one in findings], indent=1) + "\n", encoding="utf-8")
    if options.svg:
        options.svg.write_text(chart(findings, PANELS), encoding="utf-8")


def _swept(only: str) -> list[Finding]:
    return [one for name, settings in sweeps().items() if only in name for one in _shown(name, settings)]


def _compared(only: str) -> list[Finding]:
    chosen = [one for one in comparison() if only in f"{one.device.name}: {one.workload.name}"]
    return _shown("comparison", chosen)


def _shown(name: str, settings: Iterable[Setting]) -> list[Finding]:
    """Simulate and print a table."""
    findings = [simulate(setting) for setting in settings]
    table = Table(title=name)
    for column in (
        "device",
        "workload",
        "load",
        "way",
        "p50 ms",
        "p99 ms",
        "bulk p50",
        "tokens/s",
        "in time",
        "padding",
    ):
        table.add_column(column, justify="left" if column in ("device", "workload", "way") else "right")
    table.add_column("idle", justify="right")
    for one in findings:
        times = [f"{value:,.0f}" for value in (one.p50_ms, one.p99_ms, one.bulk_p50_ms, one.tokens_per_s)]
        shares = [f"{value:.1%}" for value in (one.good_share, one.padding, one.idle)]
        table.add_row(one.device, one.workload, f"{one.load:.0%}", one.label, *times, *shares)
    console.print(table)
    return findings


if __name__ == "__main__":
    main()
