"""`twostage evaluate compare` and `score`: runs against each other, and a run of another system."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import evaluate_tables as tables
from cli.calls import reported
from cli.console import EXIT_MISCONFIGURED, EXIT_NOT_SO, answers, fail
from cli.evaluate_options import (
    DEFAULT_OUTPUTS,
    Collection,
    DatasetName,
    FailBelow,
    Limit,
    PublicData,
    Seed,
    Side,
    make_plan,
    require_extra,
)
from cli.evaluate_servers import Servers, progress, with_system

if TYPE_CHECKING:
    from evaluation.compare import Comparison
    from evaluation.plan import Plan


def compare(
    run_a: Annotated[str, typer.Argument(metavar="RUN_A", help="An outputs directory, or HOST:PORT of a gateway.")],
    run_b: Annotated[str, typer.Argument(metavar="RUN_B", help="The same kind.")],
    side: Annotated[Side, typer.Option(help="Compare the orders before or after reranking.")] = "after",
    fail_below: FailBelow = None,
    fail_if_worse: Annotated[
        bool, typer.Option("--fail-if-worse", help="Exit 1 where B is significantly worse in any measure.")
    ] = False,
    dataset: DatasetName = "",
    public_data: PublicData = None,
    collection: Collection = "",
    pool_size: Annotated[int, typer.Option("--pool-size", min=1, max=200, help="Gateways: candidates.")] = 20,
    limit: Limit = None,
    seed: Seed = 0,
) -> None:
    """Compare two runs question by question: differences, whether they mean anything, and who won.

    RUN_A and RUN_B are outputs directories with an evaluation.json, or two gateways that hold the data set's
    collection, which are then searched as callers search them. --fail-below is about run B.
    """
    require_extra()
    with reported():
        from evaluation.compare import compare_runs  # noqa: PLC0415 - see cli.evaluate

        gates = tables.gates(fail_below or ())
        if all(Path(run).is_dir() for run in (run_a, run_b)):
            found = compare_runs(Path(run_a), Path(run_b), side)
        else:
            plan = make_plan(
                dataset,
                public_data,
                DEFAULT_OUTPUTS,
                collection=collection,
                limit=limit,
                pool_size=pool_size,
                seed=seed,
            )
            found = _compare_live(plan, (run_a, run_b), side)
        tables.print_comparison(answers(), found, run_a, run_b)
        tables.require(gates, {change.measure: change.after for change in found.changes})
    if fail_if_worse and any(change.significant and change.difference < 0 for change in found.changes):
        fail(EXIT_NOT_SO, f"{run_b} is significantly worse than {run_a}")


def score(
    qrels: Annotated[Path, typer.Argument(metavar="QRELS", help="Judgments in TREC's format.")],
    run_file: Annotated[Path, typer.Argument(metavar="RUN", help="A run in TREC's format, of any system.")],
    measures: Annotated[
        list[str] | None, typer.Option("--measure", metavar="NAME", help="Default: Recall@20, MRR@5, nDCG@5, MAP.")
    ] = None,
    drop_same_id: Annotated[
        bool, typer.Option("--drop-same-id", help="Leave out a document whose id is the question's.")
    ] = False,
    fail_below: FailBelow = None,
) -> None:
    """Measure a run that another system made, against judgments; no server is asked."""
    with reported():
        from evaluation.datasets import trec  # noqa: PLC0415 - see cli.evaluate
        from evaluation.measures import measure, score_run  # noqa: PLC0415

        wanted = [measure(name) for name in measures or ("Recall@20", "MRR@5", "nDCG@5", "MAP")]
        gates = tables.gates(fail_below or ())
        found = score_run(trec.read_run(run_file), trec.read_qrels(qrels), wanted, drop_same_id=drop_same_id)
        tables.print_scores(answers(), found)
        tables.require(gates, {name: found.mean(name) for name in found.values})


def _compare_live(plan: "Plan", addresses: Sequence[str], side: Side) -> "Comparison":
    from evaluation.compare import compare_evaluations  # noqa: PLC0415 - see cli.evaluate
    from evaluation.live import searched  # noqa: PLC0415

    found = []
    for address in addresses:
        if ":" not in address:
            fail(EXIT_MISCONFIGURED, f"{address} is neither an outputs directory nor HOST:PORT")
        servers = Servers(gateway=address, reranker=address, outputs=plan.outputs)
        found.append(with_system(servers, lambda system: searched(plan, system, progress("search"))))
    return compare_evaluations(found[0], found[1], side)
