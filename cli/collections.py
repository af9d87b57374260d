"""`twostage collections`: list, describe, create, alias and drop; export and import are in `cli.transfers`."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from google.protobuf import json_format
from rich.table import Table
from rich.text import Text

from cli import options, parameters, transfers
from cli.calls import gateway_at, run
from cli.console import answers, fail, print_json, size
from cli.lexical_options import lexical_options
from retrieval.gateway.v1 import gateway_pb2 as pb

app = typer.Typer(help="List, describe, create, alias, drop, export and import collections.", no_args_is_help=True)
app.command("export")(transfers.export)
app.command("import")(transfers.import_)

CALL_TIMEOUT_S = 30.0

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the collection.")]


@app.command("list")
def list_(gateway: options.Gateway = options.DEFAULT_GATEWAY, as_json: options.AsJson = False) -> None:
    """List all collections, by name."""

    async def work() -> Sequence[pb.Collection]:
        async with gateway_at(gateway) as services:
            response = await services.collections.ListCollections(pb.ListCollectionsRequest(), timeout=CALL_TIMEOUT_S)
            return response.collections

    collections = run(work(), gateway)
    if as_json:
        print_json([_document(collection) for collection in collections])
    elif collections:
        answers().print(_table(collections))
    else:
        answers().print("no collections; `twostage index FILE --collection NAME` makes one")


@app.command()
def describe(name: Name, gateway: options.Gateway = options.DEFAULT_GATEWAY, as_json: options.AsJson = False) -> None:
    """Describe one collection; exits 1 where there is none of that name."""

    async def work() -> pb.Collection:
        async with gateway_at(gateway) as services:
            request = pb.DescribeCollectionRequest(collection=name)
            return (await services.collections.DescribeCollection(request, timeout=CALL_TIMEOUT_S)).collection

    _show(run(work(), gateway), as_json=as_json)


@app.command()
@lexical_options
def create(
    name: Name,
    hnsw_m: parameters.HnswM = None,
    hnsw_ef_construct: parameters.HnswEfConstruct = None,
    on_disk: parameters.OnDisk = False,
    quantization: parameters.Quantized = parameters.Quantization.NONE,
    shards: parameters.Shards = None,
    replicas: parameters.Replicas = None,
    index: parameters.Indexes = None,
    lexical: pb.LexicalParameters | None = None,
    gateway: options.Gateway = options.DEFAULT_GATEWAY,
    as_json: options.AsJson = False,
) -> None:
    """Create an empty collection, bound to the encoder that is serving now; how it is kept is fixed from then on."""
    kept = parameters.parameters_of(
        hnsw_m=hnsw_m,
        hnsw_ef_construct=hnsw_ef_construct,
        on_disk=on_disk,
        quantization=quantization,
        shards=shards,
        replicas=replicas,
        indexes=index or (),
        words=lexical,
    )

    async def work() -> pb.Collection:
        async with gateway_at(gateway) as services:
            request = pb.CreateCollectionRequest(collection=name, parameters=kept)
            return (await services.collections.CreateCollection(request, timeout=CALL_TIMEOUT_S)).collection

    _show(run(work(), gateway), as_json=as_json)


@app.command()
def alias(
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Name that callers use.")],
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Collection it is to mean from now on.")] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the alias; the collection stays.")] = False,
    gateway: options.Gateway = options.DEFAULT_GATEWAY,
) -> None:
    """Point an alias at a collection, in one step for all searches, or delete it."""
    if delete == (name is not None):
        raise typer.BadParameter("either NAME or --delete is wanted", param_hint="NAME")

    async def work() -> None:
        async with gateway_at(gateway) as services:
            if name is None:
                await services.collections.DeleteAlias(pb.DeleteAliasRequest(alias=alias), timeout=CALL_TIMEOUT_S)
            else:
                request = pb.AssignAliasRequest(alias=alias, collection=name)
                await services.collections.AssignAlias(request, timeout=CALL_TIMEOUT_S)

    run(work(), gateway)
    answers().print(f"{alias} deleted" if name is None else f"{alias} is {name}")


@app.command()
def drop(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    gateway: options.Gateway = options.DEFAULT_GATEWAY,
) -> None:
    """Delete a collection and all its documents."""
    if not yes and not typer.confirm(f"Delete {name} and all its documents?", err=True):
        fail(1, "nothing was deleted")

    async def work() -> None:
        async with gateway_at(gateway) as services:
            await services.collections.DropCollection(pb.DropCollectionRequest(collection=name), timeout=CALL_TIMEOUT_S)

    run(work(), gateway)
    answers().print(f"{name} dropped")


def _status(collection: pb.Collection) -> str:
    return pb.CollectionStatus.Name(collection.status).removeprefix("COLLECTION_STATUS_").lower()


def _document(collection: pb.Collection) -> dict[str, Any]:
    return {
        "name": collection.name,
        "document_count": collection.document_count,
        "dimension": collection.dimension,
        "encoder": json_format.MessageToDict(collection.encoder, preserving_proto_field_name=True),
        "disk_bytes": collection.disk_bytes,
        "passage_prefix": collection.passage_prefix,
        "schema_version": collection.schema_version,
        "status": _status(collection),
        "parameters": json_format.MessageToDict(collection.parameters, preserving_proto_field_name=True),
        "aliases": list(collection.aliases),
    }


def _table(collections: Sequence[pb.Collection]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("name", "documents", "dimension", "size", "encoder", "words", "aliases"):
        right = column in {"documents", "dimension", "size"}
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for found in collections:
        encoder = f"{found.encoder.id} {found.encoder.precision}"
        disk = size(found.disk_bytes) if found.disk_bytes else "-"
        table.add_row(
            Text(found.name, "bold"),
            f"{found.document_count:,}",
            str(found.dimension),
            disk,
            Text(encoder),
            "indexed" if found.parameters.HasField("lexical") else "-",
            ", ".join(found.aliases),
        )
    return table


def _show(collection: pb.Collection, *, as_json: bool) -> None:
    if as_json:
        print_json(_document(collection))
        return
    encoder = collection.encoder
    rows = (
        ("name", collection.name),
        ("documents", f"{collection.document_count:,}"),
        ("dimension", str(collection.dimension)),
        ("size on disk", size(collection.disk_bytes) if collection.disk_bytes else "not told by the store"),
        ("encoder", f"{encoder.id} {encoder.precision}"),
        ("revision", encoder.revision),
        ("digest", encoder.digest),
        ("passage prefix", repr(collection.passage_prefix)),
        ("status", _status(collection)),
        *parameters.in_words(collection.parameters),
        ("aliases", ", ".join(collection.aliases) or "none"),
    )
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    answers().print(table)
