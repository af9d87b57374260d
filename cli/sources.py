"""What is indexed: a file or standard input, in which format, how long, and by which digest it is known again."""

import hashlib
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from cli.lines import Fields, Line, Malformed, read_lines
from cli.tables import read_csv, read_parquet
from serving.errors import Misconfigured

Format = Literal["jsonl", "csv", "tsv", "parquet"]
FORMAT_BY_SUFFIX: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
STDIN = "-"
CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """An open input."""

    path: Path | None
    """None for standard input."""
    format: Format
    digest: str
    """ "sha256:" and 64 hexadecimal digits; empty for standard input, which is read only once."""
    line_count: int | None
    """Lines, or rows of a Parquet file; None where nobody knows."""
    stream: IO[bytes]

    def lines(self, fields: Fields) -> Iterator[Line | Malformed]:
        """Read it, once.

        Raises:
            Misconfigured: It is not of its format.
        """
        if self.format == "parquet":
            return read_parquet(self.stream, fields)
        if self.format == "jsonl":
            return read_lines(self.stream, fields)
        return read_csv(self.stream, fields, delimiter="\t" if self.format == "tsv" else ",")


def format_of(file: str, given: Format | None) -> Format:
    """Return the format that is given, or the one that the name ends in.

    Raises:
        Misconfigured: `FORMAT_UNKNOWN`.
    """
    suffix = Path(file).suffix.lower()
    found = given or (FORMAT_BY_SUFFIX.get(suffix) if file != STDIN else "jsonl")
    if found is None:
        known = ", ".join(FORMAT_BY_SUFFIX)
        raise Misconfigured("FORMAT_UNKNOWN", f"{file} ends in none of {known}; say what it is with --format")
    return found


@contextmanager
def open_source(file: str, given: Format | None) -> Iterator[Source]:
    """Open what is to be indexed; a file is read through once for its digest.

    Raises:
        Misconfigured: `FORMAT_UNKNOWN`; `FILE_UNREADABLE`.
    """
    kind = format_of(file, given)
    if file == STDIN:
        # A Parquet file begins at its end.
        stream = io.BytesIO(sys.stdin.buffer.read()) if kind == "parquet" else sys.stdin.buffer
        yield Source(path=None, format=kind, digest="", line_count=None, stream=stream)
        return
    path = Path(file)
    try:
        with path.open("rb") as stream:
            digest, line_count = _read_through(stream)
            stream.seek(0)
            count = None if kind == "parquet" else line_count
            yield Source(path=path, format=kind, digest=digest, line_count=count, stream=stream)
    except OSError as error:
        raise Misconfigured("FILE_UNREADABLE", f"{file} cannot be read: {error.strerror}") from error


def _read_through(stream: IO[bytes]) -> tuple[str, int]:
    digest, line_count, last = hashlib.sha256(), 0, b"\n"
    while chunk := stream.read(CHUNK_BYTES):
        digest.update(chunk)
        line_count += chunk.count(b"\n")
        last = chunk[-1:]
    return f"sha256:{digest.hexdigest()}", line_count + (last != b"\n")
