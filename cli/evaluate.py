"""`twostage evaluate`: retrieval quality and latency on frozen pools, phase by phase or all at once.

What is measured and how is in the package `evaluation`, which is imported when a command runs: it brings scipy along.
Every phase takes the same options, so that a script states them once; one that a phase has no use for changes nothing.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from cli import evaluate_study, options
from cli import evaluate_tables as tables
from cli.calls import reported
from cli.console import EXIT_CODES, EXIT_NOT_SO, answers, note
from cli.evaluate_compare import compare, score
from cli.evaluate_options import (
    DEFAULT_OUTPUTS,
    Collection,
    DatasetName,
    FailBelow,
    Limit,
    Outputs,
    Passage,
    PublicData,
    Seed,
    Truncation,
    make_plan,
    require_extra,
)
from cli.evaluate_servers import DEFAULT_RERANKER, Servers, progress, with_system

if TYPE_CHECKING:
    from evaluation.plan import Plan
    from evaluation.records import Evaluation, Record
    from evaluation.system import System

PHASES: Mapping[str, str] = {
    "prepare": "Read the data, check the population, write prepared.json.",
    "index": "Make the collection, store every document, count; write indexed.json.",
    "retrieve": "Search every question without reranking and freeze the pools in candidates.json.",
    "rerank": "Order the frozen pools with the reranker server, write reranked.json; nothing is searched again.",
    "negatives": "Check an empty pool, a too long pair and an empty collection; exit 1 where an answer is wrong.",
    "evaluate": "Compute quality, latency and abstention out of the files, write evaluation.json; no server is asked.",
    "exercise": "Rerank one pool without its relevant documents: none comes back, and recall is 0.",
    "studies": "Vary the depth of the pool, the dense depth and the truncation, write studies.json; slow.",
    "report": "Write report.html out of the files.",
    "all": "Run prepare, index, retrieve, rerank, negatives, evaluate, exercise and report.",
}
SERVERLESS = frozenset({"prepare", "evaluate", "report"})
WITH_DATA = frozenset({"prepare", "index", "retrieve", "studies", "all"})
"""Phases that read the data set; the others read what an earlier phase left of it."""

app = typer.Typer(
    help="Measure retrieval before and after reranking, on frozen pools.", epilog=EXIT_CODES, no_args_is_help=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What the options of a phase say."""

    plan: "Plan | None"
    """None for a phase outside `WITH_DATA`."""
    outputs: Path
    servers: Servers
    truncation: Truncation | None
    recreate: bool
    question: str | None


def _register(phase: str, text: str) -> None:
    @app.command(phase, help=text)
    def command(
        dataset: DatasetName = "",
        public_data: PublicData = None,
        outputs: Outputs = DEFAULT_OUTPUTS,
        pool_size: Annotated[int, typer.Option("--pool-size", min=1, max=200, help="Candidates per question.")] = 20,
        passage: Annotated[Passage, typer.Option(help="What of a document is read: text or title+text.")] = "text",
        truncation: Annotated[Truncation | None, typer.Option(help="How a too long pair is cut.")] = None,
        limit: Limit = None,
        seed: Seed = 0,
        collection: Collection = "",
        recreate: Annotated[bool, typer.Option("--recreate", help="Drop a --collection that exists.")] = False,
        question: Annotated[str | None, typer.Option(metavar="ID", help="Of the exercise; default: REF-000.")] = None,
        gateway: Annotated[
            str, typer.Option(metavar="HOST:PORT", help="A running gateway; default: start all servers.")
        ] = "",
        reranker: Annotated[
            str, typer.Option(metavar="HOST:PORT", help="The reranker behind --gateway; same TLS, same key.")
        ] = DEFAULT_RERANKER,
        profile: options.ProfileName = "demo",
        home: options.HomeDirectory = options.DEFAULT_HOME,
        device: Annotated[options.Device, typer.Option(help="Where started servers compute.")] = "auto",
        fail_below: FailBelow = None,
    ) -> None:
        require_extra()
        with reported():
            plan = (
                make_plan(
                    dataset,
                    public_data,
                    outputs,
                    collection=collection,
                    limit=limit,
                    pool_size=pool_size,
                    passage=passage,
                    truncation=truncation or "longest_first",
                    seed=seed,
                )
                if phase in WITH_DATA
                else None
            )
            gates = tables.gates(fail_below or ())
        servers = Servers(
            gateway=gateway, reranker=reranker, profile=profile, home=home, device=device, outputs=outputs
        )
        chosen = Chosen(
            plan=plan,
            outputs=outputs,
            servers=servers,
            truncation=truncation,
            recreate=recreate,
            question=question,
        )
        good, evaluation = _run(phase, chosen)
        if phase in {"report", "all"}:
            _report(outputs)
        if evaluation is not None:
            with reported():
                tables.require(gates, {name: value.mean for name, value in evaluation.quality.after.items()})
        raise typer.Exit(0 if good else EXIT_NOT_SO)


for _phase, _text in PHASES.items():
    _register(_phase, _text)
app.command()(compare)
app.command()(score)
app.command()(evaluate_study.synonyms)
app.add_typer(evaluate_study.app, name="study")


def _run(phase: str, chosen: Chosen) -> tuple[bool, "Evaluation | None"]:
    """Run one phase; return whether what it checks is right, and the evaluation where there is one."""
    console = answers()

    def told(record: "Record") -> None:
        tables.print_record(console, record)

    with reported():
        if phase in SERVERLESS:
            return _serverless(phase, chosen, told)
        return with_system(chosen.servers, lambda system: _serving(phase, chosen, system, told))


def _serverless(phase: str, chosen: Chosen, told: Callable[["Record"], None]) -> tuple[bool, "Evaluation | None"]:
    from evaluation.phases.corpus import prepare  # noqa: PLC0415 - see the module's docstring
    from evaluation.phases.evaluate import evaluate  # noqa: PLC0415

    if phase == "prepare":
        told(prepare(cast("Plan", chosen.plan)))
    if phase != "evaluate":
        return True, None
    evaluation = evaluate(chosen.outputs)
    told(evaluation)
    return True, evaluation


async def _serving(
    phase: str, chosen: Chosen, system: "System", told: Callable[["Record"], None]
) -> tuple[bool, "Evaluation | None"]:
    from evaluation.run import run_all  # noqa: PLC0415 - see the module's docstring

    if phase == "all":
        evaluation, good = await run_all(cast("Plan", chosen.plan), system, told, progress, recreate=chosen.recreate)
        return good, evaluation
    record = await _one(phase, chosen, system)
    told(record)
    return bool(getattr(record, "passed", True)), None


async def _one(phase: str, chosen: Chosen, system: "System") -> "Record":
    from evaluation.phases import corpus, exercise, negatives, rerank, retrieve  # noqa: PLC0415
    from evaluation.studies import studies  # noqa: PLC0415

    plan, outputs = cast("Plan", chosen.plan), chosen.outputs  # those that take it are in WITH_DATA
    work: Mapping[str, Callable[[], Awaitable[Record]]] = {
        "index": lambda: corpus.index(plan, system, recreate=chosen.recreate),
        "retrieve": lambda: retrieve.retrieve(plan, system, progress("retrieve")),
        "rerank": lambda: rerank.rerank(outputs, system, truncation=chosen.truncation, progress=progress("rerank")),
        "negatives": lambda: negatives.negatives(outputs, system),
        "exercise": lambda: exercise.exercise(outputs, system, chosen.question),
        "studies": lambda: studies(plan, system, progress=progress("studies")),
    }
    return await work[phase]()


def _report(outputs: Path) -> None:
    with reported():
        try:
            from evaluation import report  # noqa: PLC0415 - see the module's docstring
        except ImportError as error:
            note(f"no report.html: {error.name} is missing; pip install 'twostage[evaluation]'")
            return
        answers().print(f"report: {report.write(outputs)}", soft_wrap=True)
