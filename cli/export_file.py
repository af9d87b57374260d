"""An exported collection as a file: messages one after the other, and a digest that tells whether the file is whole.

The file is a line that says what it is, then for each message its size as four bytes, highest first, and the message;
then a size of zero and the SHA-256 of everything before.
"""

import hashlib
import os
from collections.abc import AsyncIterable, Iterator
from pathlib import Path
from typing import IO

from google.protobuf.message import DecodeError

from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import Misconfigured

MAGIC = b"twostage export 1\n"
SIZE_BYTES = 4
MAX_MESSAGE_BYTES = 256 * 1024 * 1024


async def write_export(path: Path, messages: AsyncIterable[pb.ExportCollectionResponse]) -> int:
    """Write an export, durably and whole or not at all.

    Returns:
        How many documents it holds.

    Raises:
        Misconfigured: `FILE_UNWRITABLE`; `EXPORT_INCOMPLETE`, the export ended before its footer.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            footer = await _write(file, messages)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except OSError as error:
        raise Misconfigured("FILE_UNWRITABLE", f"{path} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    return footer


async def _write(file: IO[bytes], messages: AsyncIterable[pb.ExportCollectionResponse]) -> int:
    digest, document_count = hashlib.sha256(), None

    def put(data: bytes) -> None:
        digest.update(data)
        file.write(data)

    put(MAGIC)
    async for message in messages:
        data = message.SerializeToString()
        put(len(data).to_bytes(SIZE_BYTES, "big") + data)
        if message.WhichOneof("part") == "footer":
            document_count = message.footer.document_count
    if document_count is None:
        raise Misconfigured("EXPORT_INCOMPLETE", "the export ended before its footer; nothing was written")
    put(bytes(SIZE_BYTES))
    file.write(digest.digest())
    return document_count


def read_export(path: Path) -> Iterator[pb.ExportCollectionResponse]:
    """Read an export; the footer comes only where the file is whole.

    Raises:
        Misconfigured: `FILE_UNREADABLE`; `EXPORT_MALFORMED`, it is none, or is damaged.
    """
    try:
        with path.open("rb") as file:
            yield from _read(path, file)
    except OSError as error:
        raise Misconfigured("FILE_UNREADABLE", f"{path} cannot be read: {error.strerror}") from error


def _read(path: Path, file: IO[bytes]) -> Iterator[pb.ExportCollectionResponse]:
    digest = hashlib.sha256()

    def take(count: int) -> bytes:
        data = file.read(count)
        if len(data) < count:
            raise Misconfigured("EXPORT_MALFORMED", f"{path} is cut off; copy it again")
        digest.update(data)
        return data

    if file.read(len(MAGIC)) != MAGIC:
        raise Misconfigured("EXPORT_MALFORMED", f"{path} was not made by `twostage collections export`")
    digest.update(MAGIC)
    last: pb.ExportCollectionResponse | None = None
    while size := int.from_bytes(take(SIZE_BYTES), "big"):
        if last is not None:
            yield last
        last = _message(path, take(min(size, MAX_MESSAGE_BYTES)))
    if file.read() != digest.digest():
        raise Misconfigured("EXPORT_MALFORMED", f"{path} is damaged: its digest is another; copy it again")
    if last is not None:
        yield last


def _message(path: Path, data: bytes) -> pb.ExportCollectionResponse:
    try:
        return pb.ExportCollectionResponse.FromString(data)
    except DecodeError as error:
        raise Misconfigured("EXPORT_MALFORMED", f"{path} is damaged: a message in it is none") from error
