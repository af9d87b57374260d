"""Options of `twostage load`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.loading.questions import Method, Priority
from cli.search import RerankMode

Generator = Literal["auto", "ghz", "built-in"]

Called = Annotated[Method, typer.Argument(help="search at a gateway, encode at an encoder, or rerank at a reranker.")]
Questions = Annotated[
    Path, typer.Option(metavar="FILE", help="Texts, sent in turn: one a line, or JSON lines with query or text.")
]
Target = Annotated[str, typer.Option(metavar="HOST:PORT", help="Whom to call; default is the usual port here.")]
Collection = Annotated[str, typer.Option("--collection", "-c", metavar="NAME", help="Collection that is searched.")]
Passages = Annotated[Path | None, typer.Option(metavar="FILE", help="Candidates of a rerank; like --questions.")]
Duration = Annotated[
    float | None, typer.Option(min=0.1, metavar="SECONDS", help="How long calls are made; the last are waited for.")
]
Calls = Annotated[int | None, typer.Option("--calls", "-n", min=1, help="How many calls are made.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Closed loop: callers at a time.")]
Rps = Annotated[float | None, typer.Option(min=0.01, help="Open loop: calls a second, come what may.")]
Steps = Annotated[
    str | None, typer.Option(metavar="START:END:STEP:SECONDS", help="Open loop at rates that rise in steps.")
]
PoolSize = Annotated[int, typer.Option(min=1, max=200, help="Candidates of each search or rerank.")]
TopK = Annotated[int, typer.Option(min=1, max=200, help="Hits of each search.")]
CallPriority = Annotated[Priority, typer.Option(help="Whose calls these are.")]
Rerank = Annotated[RerankMode, typer.Option(help="What a search needs the reranker for.")]
Connections = Annotated[int, typer.Option(min=1, help="Connections that calls are spread over.")]
Metrics = Annotated[
    list[str] | None,
    typer.Option(metavar="HOST:PORT", help="Prometheus page of the server called; one for each of its processes."),
]
WarmUp = Annotated[int, typer.Option(min=0, help="Calls made one by one before the run; they count nowhere.")]
With = Annotated[
    Generator,
    typer.Option("--with", help="Who makes the calls; auto is ghz where it is installed. It needs --metrics."),
]
