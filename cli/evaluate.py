"""`twostage evaluate`: retrieval quality and latency on frozen pools, phase by phase or all at once.

What is measured and how is in the package `evaluation`, which is imported when a command runs: it brings scipy along.
Every phase takes the same options, so that a script states them once; one that a phase has no use for changes nothing.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from cli import evaluate_tables as tables
from cli import options
from cli.calls import reported
from cli.console import EXIT_CODES, EXIT_MISCONFIGURED, EXIT_NOT_SO, answers, fail
from cli.demo_questions import find_data
from cli.evaluate_servers import DEFAULT_RERANKER, Servers, progress, with_system

if TYPE_CHECKING:
    from evaluation.compare import Comparison
    from evaluation.plan import Plan
    from evaluation.records import Evaluation, Record
    from evaluation.system import System

DEFAULT_OUTPUTS = Path("outputs")
PHASES: Mapping[str, str] = {
    "prepare": "Read the data, check the population, write prepared.json.",
    "index": "Make the collection, store every document, count; write indexed.json.",
    "retrieve": "Search every question without reranking and freeze the pools in candidates.json.",
    "rerank": "Order the frozen pools with the reranker server, write reranked.json; nothing is searched again.",
    "negatives": "Check an empty pool, a too long pair and an empty collection; exit 1 where an answer is wrong.",
    "evaluate": "Compute quality, latency and abstention out of the files, write evaluation.json; no server is asked.",
    "exercise": "Rerank one pool without its relevant documents: none comes back, and recall is 0.",
    "studies": "Vary the depth of the pool, the dense depth and the truncation, write studies.json; slow.",
    "all": "Run prepare, index, retrieve, rerank, negatives, evaluate and exercise.",
}
SERVERLESS = frozenset({"prepare", "evaluate"})
WITH_DATA = frozenset({"prepare", "index", "retrieve", "studies", "all"})
"""Phases that read the data set; the others read what an earlier phase left of it."""

app = typer.Typer(
    help="Measure retrieval before and after reranking, on frozen pools.", epilog=EXIT_CODES, no_args_is_help=True
)

Passage = Literal["text", "title+text"]
Truncation = Literal["longest_first", "only_passage"]
Side = Literal["before", "after"]

DatasetName = Annotated[
    str,
    typer.Option("--dataset", metavar="DIR|FILE|NAME", help="Default: the help centre. A NAME is a public set."),
]
PublicData = Annotated[
    Path | None, typer.Option("--public-data", metavar="DIR", envvar="TWOSTAGE_PUBLIC_DATA", help="The public sets.")
]
Outputs = Annotated[Path, typer.Option("--outputs", metavar="DIR", help="Where the phases' files are.")]
Collection = Annotated[str, typer.Option("--collection", metavar="NAME", help="Default: a name of its own.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="A random sample of N per split.")]
Seed = Annotated[int, typer.Option("--seed", help="Of the sample and of every resampling.")]
FailBelow = Annotated[
    list[str] | None,
    typer.Option("--fail-below", metavar="MEASURE=VALUE", help="Exit 1 where the mean is below; may be repeated."),
]


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
    def command(  # noqa: PLR0917 - options, all given by name
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
            str, typer.Option(metavar="HOST:PORT", help="The reranker behind --gateway.")
        ] = DEFAULT_RERANKER,
        profile: options.ProfileName = "demo",
        home: options.HomeDirectory = options.DEFAULT_HOME,
        device: Annotated[options.Device, typer.Option(help="Where started servers compute.")] = "auto",
        fail_below: FailBelow = None,
    ) -> None:
        _require_extra()
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
        if evaluation is not None:
            with reported():
                tables.require(gates, {name: value.mean for name, value in evaluation.quality.after.items()})
        raise typer.Exit(0 if good else EXIT_NOT_SO)


for _phase, _text in PHASES.items():
    _register(_phase, _text)


@app.command()
def compare(  # noqa: PLR0917 - options, all given by name
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
    _require_extra()
    with reported():
        from evaluation.compare import compare_runs  # noqa: PLC0415 - see the module's docstring

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


def make_plan(
    named: str, public: Path | None, outputs: Path, *, collection: str, limit: int | None, **configuration: object
) -> "Plan":
    """Read the data set and put a run together; an empty name is the help centre.

    Raises:
        Misconfigured: The data set cannot be read.
    """
    from evaluation.datasets.find import find  # noqa: PLC0415 - see the module's docstring
    from evaluation.datasets.model import sample  # noqa: PLC0415
    from evaluation.plan import Plan  # noqa: PLC0415
    from evaluation.records import Configuration  # noqa: PLC0415

    chosen = Configuration.model_validate({**configuration, "question_limit": limit})
    dataset = sample(find(named or str(find_data(None)), public), limit, chosen.seed)
    return Plan(dataset=dataset, outputs=outputs, configuration=chosen, collection=collection)


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


def _compare_live(plan: "Plan", addresses: Sequence[str], side: Side) -> "Comparison":
    from evaluation.compare import compare_evaluations  # noqa: PLC0415 - see the module's docstring
    from evaluation.live import searched  # noqa: PLC0415

    found = []
    for address in addresses:
        if ":" not in address:
            fail(EXIT_MISCONFIGURED, f"{address} is neither an outputs directory nor HOST:PORT")
        servers = Servers(gateway=address, reranker=address, outputs=plan.outputs)
        found.append(with_system(servers, lambda system: searched(plan, system, progress("search"))))
    return compare_evaluations(found[0], found[1], side)


def _require_extra() -> None:
    try:
        import scipy  # noqa: F401, PLC0415
    except ImportError:
        fail(EXIT_MISCONFIGURED, "scipy is not installed", "install the extra: pip install 'twostage[evaluation]'")
