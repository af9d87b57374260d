"""`twostage models`: make, check and list the models that the servers load."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from cli import options
from cli.calls import reported
from cli.console import EXIT_MISCONFIGURED, EXIT_NOT_SO, answers, fail, note, notes, print_json, size
from cli.home import Home
from serving.bundle import Bundle, Kind
from serving.errors import Misconfigured

if TYPE_CHECKING:  # onnxruntime is slow to import, and may not be there
    from models.verify import Listed, Verified

app = typer.Typer(help="Make, check and list model bundles.", no_args_is_help=True)
catalog_app = typer.Typer(help="The catalog of the models of profile full.", no_args_is_help=True)
app.add_typer(catalog_app, name="catalog")

DOWNLOADS = "downloads"

Mirror = Annotated[str | None, typer.Option("--endpoint", metavar="URL", help="A mirror of the model hub.")]


@app.command()
def prepare(
    profile: options.ProfileName = "demo",
    home: options.HomeDirectory = options.DEFAULT_HOME,
    endpoint: Mirror = None,
) -> None:
    """Make both bundles of a profile; those that are up to date are left alone.

    demo: small models out of an installed package, in seconds and without a network. full: multilingual-e5-small and
    bge-reranker-v2-m3 from the model hub, exported with torch; the first download pins revision and digests.
    """
    place = Home(path=home)
    with reported(), needs("demo" if profile == "demo" else "export"):
        paths = _prepare_demo(place) if profile == "demo" else _prepare_full(place, endpoint)
    for path in paths:
        answers().print(Text(str(path)), soft_wrap=True)


def _prepare_demo(home: Home) -> list[Path]:
    from models import demo  # noqa: PLC0415 - an extra that who only serves has not

    return demo.prepare(home.bundles / "demo", note)


def _prepare_full(home: Home, endpoint: str | None) -> list[Path]:
    import torch  # noqa: F401, PLC0415 - known to be missing before gigabytes are downloaded

    from models import full  # noqa: PLC0415 - an extra that who only serves has not
    from models.bars import download_bars  # noqa: PLC0415

    with download_bars(notes()) as on_bytes:
        wanted = full.FullOptions(downloads=home.path / DOWNLOADS, endpoint=endpoint, on_bytes=on_bytes)
        return full.prepare(home.bundles / "full", wanted, note)


@app.command()
def export(
    source: Annotated[Path, typer.Option("--from", metavar="DIR", help="Hugging Face directory.")],
    kind: Annotated[Kind, typer.Option(help="What the model is.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The bundle; one that exists is replaced.")],
    model_id: Annotated[str, typer.Option(help="Its name; the directory's where none is given.")] = "",
    revision: Annotated[str, typer.Option(help="Revision of the weights.")] = "local",
    pooling: Annotated[Literal["mean", "cls"], typer.Option(help="Encoder only.")] = "mean",
    query_prefix: Annotated[str, typer.Option(help='Encoder only, for example "query: ".')] = "",
    passage_prefix: Annotated[str, typer.Option(help='Encoder only, for example "passage: ".')] = "",
    max_tokens: Annotated[int | None, typer.Option(min=8, help="Most tokens of a row.")] = None,
    fp16: Annotated[bool, typer.Option("--fp16", help="Add the form that a GPU runs.")] = False,
    int8: Annotated[bool, typer.Option("--int8", help="Add the form that a CPU with VNNI runs.")] = False,
) -> None:
    """Make a bundle out of a Hugging Face directory, with torch and transformers."""
    with reported(), needs("export"):
        from models import export as exporter  # noqa: PLC0415 - an extra that who only serves has not

        wanted = exporter.ExportOptions(
            model_id=model_id or source.resolve().name,
            revision=revision,
            source=f"directory {source.name}",
            max_tokens=max_tokens,
            pooling=pooling,
            query_prefix=query_prefix,
            passage_prefix=passage_prefix,
            fp16=fp16,
            int8=int8,
        )
        exporter.export(source, kind, out, wanted, note)
    answers().print(Text(str(out)), soft_wrap=True)


@app.command("verify")
def verify_(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A bundle; all under --home if none.")
    ] = None,
    home: options.HomeDirectory = options.DEFAULT_HOME,
    device: Annotated[options.Device, typer.Option(help="Where to compute.")] = "auto",
    as_json: options.AsJson = False,
) -> None:
    """Recompute digests and golden outputs with the code that serves; exits 1 where a bundle is not what it says."""
    paths = [directory] if directory else [listed.path for listed in _bundles(home)]
    if not paths:
        fail(EXIT_NOT_SO, f"no bundles under {home}", "make some with `twostage models prepare`")
    checked = [(path, found) for path in paths for found in _verified(path, device)]
    if as_json:
        print_json([_verified_document(path, found) for path, found in checked])
    else:
        for path, found in checked:
            answers().print(_verified_line(path, found), soft_wrap=True)
    raise typer.Exit(EXIT_NOT_SO if any(isinstance(found, Misconfigured) for _, found in checked) else 0)


def _verified(path: Path, device: options.Device) -> "Iterator[Verified | Misconfigured]":
    """Try every form of a bundle."""
    with needs("cpu"):
        from models.verify import verify  # noqa: PLC0415 - onnxruntime is an extra

    try:
        for precision in Bundle(path).manifest.precisions:
            yield verify(path, precision=precision, device=device)
    except Misconfigured as error:
        yield error


def _verified_document(path: Path, found: "Verified | Misconfigured") -> dict[str, Any]:
    if isinstance(found, Misconfigured):
        return {"path": str(path), "good": False, "reason": found.reason, "message": found.message}
    return {
        "path": str(path),
        "good": True,
        "model_id": found.manifest.model_id,
        "precision": found.precision,
        "digest": found.digest,
        "device": found.device,
        "row_count": found.row_count,
        "max_difference": found.max_difference,
        "tolerance": found.tolerance,
    }


def _verified_line(path: Path, found: "Verified | Misconfigured") -> Text:
    if isinstance(found, Misconfigured):
        return Text.assemble(("bad   ", "bold red"), f"{path}  {found.reason}: {found.message}")
    difference = f"{found.max_difference:.1e} of {found.tolerance:g} allowed"
    return Text.assemble(
        ("good  ", "bold green"),
        f"{path}  {found.manifest.model_id} {found.precision} on {found.device}, "
        f"{found.row_count} golden outputs, largest difference {difference}",
    )


@app.command("list")
def list_(home: options.HomeDirectory = options.DEFAULT_HOME, as_json: options.AsJson = False) -> None:
    """List the bundles that are here; exits 1 where one is damaged."""
    found = _bundles(home)
    if as_json:
        print_json([_listed_document(listed) for listed in found])
    elif found:
        for listed in found:
            answers().print(_listed_table(listed))
    else:
        answers().print("no bundles; `twostage models prepare` makes the demo ones")
    raise typer.Exit(EXIT_NOT_SO if any(listed.manifest is None for listed in found) else 0)


def _bundles(home: Path) -> "list[Listed]":
    with needs("cpu"):
        from models.verify import list_bundles  # noqa: PLC0415 - onnxruntime is an extra

    return list_bundles(Home(path=home).bundles)


def _listed_document(listed: "Listed") -> dict[str, Any]:
    if listed.manifest is None:
        return {"path": str(listed.path), "problem": listed.problem}
    manifest = listed.manifest
    names = ("kind", "model_id", "precision", "weights", "source", "revision", "max_tokens", "dimension")
    return {
        "path": str(listed.path),
        **{name: getattr(manifest, name) for name in names},
        "digest": Bundle(listed.path).digest,
        "bytes": sum(entry.size for entry in manifest.files.values()),
    }


def _listed_table(listed: "Listed") -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), title_justify="left", title_style="")
    table.title = Text(str(listed.path), "bold" if listed.manifest else "bold red")
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _listed_rows(_listed_document(listed)):
        table.add_row(name, Text(value))
    table.add_row("", "")
    return table


def _listed_rows(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "problem" in document:
        return [("problem", document["problem"])]
    rows = [(name, str(document[name])) for name in ("kind", "precision", "weights", "source", "revision", "digest")]
    limit = f"{document['max_tokens']} tokens"
    return [("model", document["model_id"]), *rows, ("size", size(document["bytes"])), ("reads", limit)]


@catalog_app.command()
def pin(
    home: options.HomeDirectory = options.DEFAULT_HOME,
    endpoint: Mirror = None,
) -> None:
    """Download the models of profile full and write their revisions and digests into the catalog."""
    with reported(), needs("export"):
        from models import acquire, catalog  # noqa: PLC0415 - an extra that who only serves has not
        from models.bars import download_bars  # noqa: PLC0415

        kinds: tuple[Kind, ...] = ("encoder", "reranker")
        for kind in kinds:
            model = catalog.read().model(kind)
            downloads = home / DOWNLOADS / model.id.replace("/", "--")
            with download_bars(notes()) as on_bytes:
                acquired = acquire.acquire(model, downloads, endpoint=endpoint, on_bytes=on_bytes)
            lines = catalog.pin(catalog.CATALOG, kind, acquired.revision, acquired.files)
            for line in lines or [f"{kind}: all pinned"]:
                answers().print(Text(line), soft_wrap=True)


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Turn a missing package into the name of the extra that brings it."""
    try:
        yield
    except ImportError as error:
        todo = f"install the {extra} extra: pip install 'twostage[{extra}]'"
        fail(EXIT_MISCONFIGURED, f"the package {error.name} is missing", todo)
