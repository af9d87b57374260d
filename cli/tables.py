"""Documents out of tables: CSV by the standard library, Parquet by pyarrow."""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import IO, Any

from cli.lines import MAX_NUMBER, Fields, Line, Malformed, document_line
from serving.errors import Misconfigured

MAX_CELL_CHARACTERS = 256 * 1024
"""More than the largest text or payload; a quote that is never closed costs no more than this."""
BATCH_ROWS = 256
DECIMAL = re.compile(r"0|[1-9][0-9]{0,19}")
INVALID = re.compile("[\udc80-\udcff]")
"""What `surrogateescape` makes of bytes that are no UTF-8."""


def read_csv(lines: Iterable[bytes], fields: Fields, *, delimiter: str = ",") -> Iterator[Line | Malformed]:
    """Read a table of text whose first row names the columns.

    Cells are text; an empty one is no field. An id that is written as a number is one.

    Args:
        lines: As a binary file gives them.
        fields: Which columns are id and text.
        delimiter: Between cells.

    Yields:
        Every row that is not blank, by the line it begins on.

    Raises:
        Misconfigured: `COLUMNS`, the first row does not name columns, each once, id and text among them.
    """
    csv.field_size_limit(MAX_CELL_CHARACTERS)
    source = _Physical(lines)
    rows = csv.reader(source, delimiter=delimiter, strict=True)
    columns: Sequence[str] | None = None
    while True:
        source.taken.clear()
        number = rows.line_num + 1
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            cells, problem = [], f"not CSV: {error}"
        else:
            problem = "not UTF-8" if any(map(INVALID.search, cells)) else ""
        original = INVALID.sub("\N{REPLACEMENT CHARACTER}", "".join(source.taken)).rstrip("\r\n")
        if columns is None:
            columns = _columns(cells, fields)
        elif problem or cells:
            yield _row(number, cells, columns, fields, original, problem)


class _Physical:
    """Lines as text, remembered until the row they belong to is known; there may be several."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = iter(lines)
        self._first = True
        self.taken: list[str] = []

    def __iter__(self) -> "_Physical":
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        text = (line.removeprefix(b"\xef\xbb\xbf") if self._first else line).decode("utf-8", "surrogateescape")
        self._first = False
        self.taken.append(text)
        return text


def _columns(cells: Sequence[str], fields: Fields) -> Sequence[str]:
    missing = [name for name in (fields.id, fields.text) if name not in cells]
    if missing:
        raise Misconfigured("COLUMNS", f"the first row names no column {missing[0]!r}, it reads {list(cells)}"[:256])
    if len(set(cells)) < len(cells):
        twice = next(name for name in cells if cells.count(name) > 1)
        raise Misconfigured("COLUMNS", f"the first row names the column {twice!r} twice")
    return cells


def _row(
    number: int, cells: Sequence[str], columns: Sequence[str], fields: Fields, original: str, problem: str
) -> Line | Malformed:
    if not problem and len(cells) != len(columns):
        problem = f"{len(cells)} cells, the first row has {len(columns)}"
    if problem:
        return Malformed(number=number, problem=problem, original=original)
    found: dict[str, Any] = {name: cell for name, cell in zip(columns, cells, strict=True) if cell}
    found[fields.id] = _number_or_text(found.get(fields.id, ""))
    return document_line(number, found, fields, original)


def _number_or_text(cell: str) -> int | str:
    return int(cell) if DECIMAL.fullmatch(cell) and int(cell) <= MAX_NUMBER else cell


def read_parquet(source: IO[bytes], fields: Fields) -> Iterator[Line | Malformed]:
    """Read a Parquet file: dates become ISO 8601 text, decimals text, nulls no field.

    Args:
        source: The file, which has to be seekable.
        fields: Which columns are id and text.

    Yields:
        Every row, numbered from 1.

    Raises:
        Misconfigured: `PYARROW_MISSING`; `PARQUET_MALFORMED`; `COLUMNS`, id or text is not among the columns.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra, and half a second
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise Misconfigured("PYARROW_MISSING", "Parquet needs pyarrow: pip install 'twostage[parquet]'") from error
    number = 0
    try:
        file = parquet.ParquetFile(source)
        missing = [name for name in (fields.id, fields.text) if name not in file.schema_arrow.names]
        if missing:
            raise Misconfigured("COLUMNS", f"no column {missing[0]!r} among {file.schema_arrow.names}"[:256])
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            for row in batch.to_pylist():
                number += 1
                found = {name: _json_value(value) for name, value in row.items() if value is not None}
                yield document_line(number, dict(found), fields, json.dumps(found, ensure_ascii=False, default=str))
    except (pa.ArrowException, OSError) as error:
        raise Misconfigured("PARQUET_MALFORMED", f"cannot be read after row {number}: {error}"[:256]) from error


def _json_value(value: Any) -> Any:
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _json_value(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_json_value(inner) for inner in value]
    return value
