"""The program `twostage`, put together."""

import sys

import typer

from cli import collections, demo, doctor, evaluate, index, models, reindex, search, up
from cli.console import EXIT_CODES

app = typer.Typer(
    name="twostage",
    help="Two-stage retrieval: dense search, then reranking, and where the time went.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command(epilog=EXIT_CODES)(up.up)
app.command(epilog=EXIT_CODES)(index.index)
app.command(epilog=EXIT_CODES)(reindex.reindex)
app.command(epilog=EXIT_CODES)(search.search)
app.add_typer(collections.app, name="collections")
app.add_typer(models.app, name="models")
app.add_typer(evaluate.app, name="evaluate")
app.command(epilog=EXIT_CODES)(doctor.doctor)
app.command(epilog=EXIT_CODES)(demo.demo)


@app.callback()
def main() -> None:
    """Two-stage retrieval: dense search, then reranking, and where the time went."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 gets a "?" and not a crash
