"""`twostage collections export` and `import`: a whole collection, with its vectors, as one file."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, cast

import grpc
import typer

from cli import options
from cli.calls import blocking_channel, failed, gateway_at, reported, run
from cli.console import answers, print_json, size
from cli.export_file import read_export, write_export
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1.gateway_pb2_grpc import CollectionServiceStub
from serving.errors import Misconfigured

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the collection.")]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the new collection.")]
ExportFile = Annotated[Path, typer.Argument(metavar="FILE", help="The file of the export.")]


def export(
    name: Name,
    file: ExportFile,
    gateway: options.Gateway = options.DEFAULT_GATEWAY,
    as_json: options.AsJson = False,
) -> None:
    """Write a whole collection, vectors included, into one file, for `import` on any gateway and store."""

    async def work() -> int:
        async with gateway_at(gateway) as services:
            request = pb.ExportCollectionRequest(collection=name)
            return await write_export(file, services.collections.ExportCollection(request))

    document_count, file_bytes = run(work(), gateway), file.stat().st_size
    if as_json:
        print_json({"collection": name, "file": str(file), "document_count": document_count, "bytes": file_bytes})
    else:
        answers().print(f"{document_count} documents of {name} in {file}, {size(file_bytes)}", soft_wrap=True)


def import_(
    file: ExportFile,
    name: NewName,
    gateway: options.Gateway = options.DEFAULT_GATEWAY,
    as_json: options.AsJson = False,
) -> None:
    """Make a collection out of an exported one, all of it or nothing; nothing is encoded again."""
    with reported(gateway):
        made = _send(gateway, read_export(file), name)
    if as_json:
        print_json({"collection": made.name, "file": str(file), "document_count": made.document_count})
    else:
        answers().print(f"{made.name} holds {made.document_count} documents")


def _send(address: str, messages: Iterator[pb.ExportCollectionResponse], name: str) -> pb.Collection:
    """Send what was exported; where it turns out to be damaged, break off, so that nothing is kept.

    Not with grpc.aio: where a server refuses a stream that is still being written, it tells INTERNAL instead of why.
    """
    damage: list[Misconfigured] = []

    def requests() -> Iterator[pb.ImportCollectionRequest]:
        try:
            for message in messages:
                yield _request(message, name)
        except Misconfigured as error:
            damage.append(error)
            raise

    logging.getLogger("grpc").setLevel(logging.CRITICAL)  # it logs what the iterator raises, with a traceback
    with blocking_channel(address) as channel:
        try:
            return CollectionServiceStub(channel).ImportCollection(requests()).collection
        except grpc.RpcError as error:
            if damage:
                raise damage[0] from error
            raise failed(cast("grpc.Call", error)) from error


def _request(message: pb.ExportCollectionResponse, name: str) -> pb.ImportCollectionRequest:
    if message.HasField("header"):
        return pb.ImportCollectionRequest(start=pb.ImportStart(collection=name, header=message.header))
    if message.HasField("footer"):
        return pb.ImportCollectionRequest(footer=message.footer)
    return pb.ImportCollectionRequest(documents=message.documents)
