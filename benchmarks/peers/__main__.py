"""`python -m benchmarks.peers`: measure and report.

    .venv/bin/python -m benchmarks.peers                          everything, about an hour on two cores
    .venv/bin/python -m benchmarks.peers --quick                  ours, the limit and two peers, some minutes
    .venv/bin/python -m benchmarks.peers --targets ours limit "infinity onnx" --workloads mixed --loads c1 c32

What was measured is kept in `.twostage/peers/cells.jsonl`; `--report` makes table, JSON and chart of all of it.
"""

import argparse
import asyncio
import signal
from pathlib import Path

from benchmarks.peers import report
from benchmarks.peers.bench import Bench, Plan
from benchmarks.peers.cells import LIMIT, OURS, Load, Notebook
from benchmarks.peers.http_peers import PEERS
from benchmarks.peers.turn import Turn
from benchmarks.peers.workload import WORKLOADS
from models import demo

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"
LOADS = ("c1", "c8", "c32", "c128", "o50", "o80", "o95", "o150")
QUICK_TARGETS = (OURS, LIMIT, "infinity onnx", "fastapi torch")
QUICK_LOADS = ("c1", "c32")
STOPPED = 130
FORMS = {OURS: {"precision": "fp32"}, "ours int8": {"precision": "int8"}}
"""Our servers' settings, by what the tables call them."""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.splitlines()[0])
    parser.add_argument("--targets", nargs="+", choices=(*FORMS, LIMIT, *PEERS), metavar="NAME")
    parser.add_argument("--workloads", nargs="+", choices=tuple(WORKLOADS), default=["queries", "mixed", "rerank_few"])
    parser.add_argument("--loads", nargs="+", choices=LOADS, metavar="LOAD", help=f"of {', '.join(LOADS)}")
    parser.add_argument("--rounds", type=int, default=2, help="how often all of it is measured")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long calls are made in one cell")
    parser.add_argument("--quick", action="store_true", help="fewer targets and loads, one round of 5 seconds")
    parser.add_argument("--lock", type=Path, help="a file to lock while measuring, on a machine that is shared")
    parser.add_argument("--cells", type=Path, default=ROOT / ".twostage/peers/cells.jsonl")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    return parser.parse_args()


def _plan(given: argparse.Namespace) -> Plan:
    encoder, reranker = demo.prepare(ROOT / ".twostage/bundles/demo", print)
    targets = given.targets or (QUICK_TARGETS if given.quick else (*FORMS, LIMIT, *PEERS))
    loads = given.loads or (QUICK_LOADS if given.quick else LOADS)
    return Plan(
        bundles={"encoder": encoder, "reranker": reranker},
        corpus=ROOT / "data/helpcentre",
        work=ROOT / ".twostage/peers",
        targets=targets,
        workloads=given.workloads,
        loads=[Load.parse(one) for one in loads],
        rounds=1 if given.quick else given.rounds,
        seconds=5.0 if given.quick else given.seconds,
        forms=FORMS,
    )


async def _measure(bench: Bench) -> None:
    """Measure; told to end, stop the servers first."""
    task = asyncio.create_task(bench.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await task


def main() -> None:
    """Measure unless asked not to, then report."""
    given = _options()
    notebook = Notebook(given.cells)
    if not given.report:
        bench = Bench(_plan(given), notebook, Turn(given.lock), lambda line: print(line, flush=True))
        try:
            asyncio.run(_measure(bench))
        except asyncio.CancelledError:
            raise SystemExit(STOPPED) from None
    report.write(notebook, RESULTS)


if __name__ == "__main__":
    main()
