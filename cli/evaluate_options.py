"""Options that the commands of `twostage evaluate` share, and the run that they describe."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cli.console import EXIT_MISCONFIGURED, fail
from cli.demo_questions import find_data

if TYPE_CHECKING:
    from evaluation.plan import Plan

DEFAULT_OUTPUTS = Path("outputs")

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


def make_plan(
    named: str, public: Path | None, outputs: Path, *, collection: str, limit: int | None, **configuration: object
) -> "Plan":
    """Read the data set and put a run together; an empty name is the help centre.

    Raises:
        Misconfigured: The data set cannot be read.
    """
    from evaluation.datasets.find import find  # noqa: PLC0415 - see cli.evaluate
    from evaluation.datasets.model import sample  # noqa: PLC0415
    from evaluation.plan import Plan  # noqa: PLC0415
    from evaluation.records import Configuration  # noqa: PLC0415

    chosen = Configuration.model_validate({**configuration, "question_limit": limit})
    dataset = sample(find(named or str(find_data(None)), public), limit, chosen.seed)
    return Plan(dataset=dataset, outputs=outputs, configuration=chosen, collection=collection)


def require_extra(*modules: str) -> None:
    """See to it that what the package `evaluation` needs is installed.

    Args:
        modules: What is needed beside scipy.

    Raises:
        typer.Exit: It is not.
    """
    for module in ("scipy", *modules):
        if find_spec(module) is None:
            todo = "install the extra: pip install 'twostage[evaluation]'"
            fail(EXIT_MISCONFIGURED, f"{module} is not installed", todo)
