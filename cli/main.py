"""The program `twostage`, put together."""

import sys

import typer

from cli import collections, demo, doctor, index, models, search, up
from cli.console import EXIT_CODES

app = typer.Typer(
    name="twostage",
    help="Two-stage retrieval: dense search, then reranking, and where the time went.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(up.up)
app.command()(index.index)
app.command()(search.search)
app.add_typer(collections.app, name="collections")
app.add_typer(models.app, name="models")
app.command()(doctor.doctor)
app.command()(demo.demo)


@app.callback()
def main() -> None:
    """Two-stage retrieval: dense search, then reranking, and where the time went."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 gets a "?" and not a crash
