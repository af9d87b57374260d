"""The program `twostage`, put together."""

import sys

import typer

from cli import access, collections, demo, doctor, evaluate, index, keys, load, models, preflight, reindex, search, up
from cli.calls import reported
from cli.console import EXIT_CODES
from serving.tls import TlsFiles

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
app.add_typer(keys.app, name="keys")
app.command(epilog=EXIT_CODES)(doctor.doctor)
app.command(epilog=EXIT_CODES)(preflight.preflight)
app.command(epilog=EXIT_CODES)(load.load)
app.command(epilog=EXIT_CODES)(demo.demo)


@app.callback()
def main(
    tls: access.Tls = False,
    tls_ca: access.TlsCa = None,
    tls_cert: access.TlsCert = None,
    tls_key: access.TlsKey = None,
    api_key_file: access.ApiKeyFile = None,
) -> None:
    """Two-stage retrieval: dense search, then reranking, and where the time went."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 gets a "?" and not a crash
    with reported():
        files = TlsFiles(cert=tls_cert, key=tls_key, ca=tls_ca)
        access.access.set(access.read_access(tls=tls, files=files, api_key_file=api_key_file))
