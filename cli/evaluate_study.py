"""`twostage evaluate study` and `twostage evaluate synonyms`: what fills the pool, and what that is worth."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from cli import evaluate_study_tables as tables
from cli import options
from cli.calls import reported
from cli.console import EXIT_CODES, answers
from cli.demo_questions import find_data
from cli.evaluate_options import (
    DEFAULT_OUTPUTS,
    DatasetName,
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
from cli.evaluate_words import words_of

SYNONYMS_FILE = "synonyms.yaml"
"""Beside a data set's documents."""
GATEWAY_SYNONYMS = "gateway-synonyms"
"""Directory in the outputs that a started gateway finds its synonyms in."""
Split = Literal["dev", "test"]

PoolSize = Annotated[int, typer.Option("--pool-size", min=1, max=200, help="Candidates per question.")]
WhatIsRead = Annotated[Passage, typer.Option(help="What of a document is read: text or title+text.")]
DeviceOfServers = Annotated[options.Device, typer.Option(help="Where started servers compute.")]

app = typer.Typer(help="Compare ways to search on the same questions.", epilog=EXIT_CODES, no_args_is_help=True)


@app.command("retrieval", epilog=EXIT_CODES)
def retrieval_study(
    dataset: DatasetName = "",
    public_data: PublicData = None,
    outputs: Outputs = DEFAULT_OUTPUTS,
    named: Annotated[
        list[str] | None, typer.Option("--options", metavar="NAME", help="Default: all; repeat. Dense always is.")
    ] = None,
    synonyms: Annotated[
        Path | None, typer.Option("--synonyms", metavar="FILE", help="Default: synonyms.yaml of the data set.")
    ] = None,
    pool_size: PoolSize = 20,
    passage: WhatIsRead = "text",
    truncation: Annotated[Truncation, typer.Option(help="How a too long pair is cut.")] = "longest_first",
    limit: Limit = None,
    seed: Seed = 0,
    gateway: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="A running gateway, without synonyms; default: start all servers.")
    ] = "",
    reranker: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The reranker behind --gateway.")
    ] = DEFAULT_RERANKER,
    encoder: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The encoder behind --gateway, for exact search.")
    ] = "",
    profile: options.ProfileName = "demo",
    home: options.HomeDirectory = options.DEFAULT_HOME,
    device: DeviceOfServers = "auto",
) -> None:
    """Fill the pool in every way there is, before and after reranking, and say what each gains and costs.

    Dense, BM25, their fusions, synonyms, documents found by their sentences, and two baselines (latent semantic
    analysis, exact search) on the answerable test questions. Writes study-retrieval.json.
    """
    require_extra("sklearn")
    with reported():
        from evaluation.first_stage.collections import name_of  # noqa: PLC0415 - see cli.evaluate
        from evaluation.first_stage.options import Kept, chosen  # noqa: PLC0415
        from evaluation.first_stage.study import Wanted, study_retrieval  # noqa: PLC0415
        from evaluation.first_stage.synonyms import SynonymFile  # noqa: PLC0415

        chosen(named or ())  # before anything is started
        plan = make_plan(
            dataset,
            public_data,
            outputs,
            collection="",
            limit=limit,
            pool_size=pool_size,
            passage=passage,
            truncation=truncation,
            seed=seed,
        )
        words = {kept: words_of(plan, kept) for kept in Kept}.get
        file = None if gateway else _file_of(dataset, synonyms)
        if file is not None:
            SynonymFile.read(file).lay_out(outputs / GATEWAY_SYNONYMS, name_of(plan, Kept.WORDS), per_entry=False)
    servers = Servers(
        gateway=gateway,
        reranker=reranker,
        encoder=encoder,
        outputs=outputs,
        profile=profile,
        home=home,
        device=device,
        synonyms=outputs / GATEWAY_SYNONYMS,
    )
    study = with_system(
        servers,
        lambda system: study_retrieval(
            plan,
            system,
            Wanted(options=named or (), words=words, synonyms=file is not None),
            progress=progress("study"),
        ),
    )
    tables.print_retrieval(answers(), study)


def synonyms(
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="The synonyms; see docs/retrieval.md.")],
    dataset: DatasetName = "",
    public_data: PublicData = None,
    outputs: Outputs = DEFAULT_OUTPUTS,
    split: Annotated[Split, typer.Option(help="On test, the whole file only.")] = "dev",
    per_entry: Annotated[
        bool | None, typer.Option("--per-entry/--whole", help="Default: each entry on dev, the whole file on test.")
    ] = None,
    pool_size: PoolSize = 20,
    passage: WhatIsRead = "text",
    limit: Limit = None,
    seed: Seed = 0,
    profile: options.ProfileName = "demo",
    home: options.HomeDirectory = options.DEFAULT_HOME,
    device: DeviceOfServers = "auto",
) -> None:
    """Say what each entry of a synonyms file gained and lost, by words and by vectors; started servers alone.

    Entries are looked at on dev. On test the whole file is reported once: choosing entries there would be tuning on it.
    """
    require_extra("sklearn")
    each = split == "dev" if per_entry is None else per_entry
    with reported():
        from evaluation.first_stage.collections import name_of  # noqa: PLC0415 - see cli.evaluate
        from evaluation.first_stage.options import Kept  # noqa: PLC0415
        from evaluation.first_stage.synonyms import SynonymFile, SynonymTrial, require_no_tuning  # noqa: PLC0415

        require_no_tuning(split, per_entry=each)
        found = SynonymFile.read(file)
        plan = make_plan(
            dataset,
            public_data,
            outputs,
            collection="",
            limit=limit,
            pool_size=pool_size,
            passage=passage,
            seed=seed,
        )
        found.lay_out(outputs / GATEWAY_SYNONYMS, name_of(plan, Kept.WORDS), per_entry=each)
        lexical = words_of(plan, Kept.WORDS)
    servers = Servers(
        gateway="",
        reranker="",
        outputs=outputs,
        profile=profile,
        home=home,
        device=device,
        synonyms=outputs / GATEWAY_SYNONYMS,
    )
    study = with_system(
        servers,
        lambda system: SynonymTrial(plan=plan, system=system, file=found, split=split, per_entry=each).run(
            lexical, progress("synonyms")
        ),
    )
    tables.print_synonyms(answers(), study)


def _file_of(dataset: str, given: Path | None) -> Path | None:
    """Return the file that was given, or the data set's own where it has one."""
    beside = Path(dataset or str(find_data(None))) / SYNONYMS_FILE
    return given or (beside if beside.is_file() else None)
