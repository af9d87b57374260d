"""Reading documents out of tables, and what a file is."""

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format
from pyarrow import parquet

from cli import tables
from cli.lines import Fields, Line, Malformed
from cli.sources import format_of, open_source
from cli.tables import read_csv, read_parquet
from serving.errors import Misconfigured

FIELDS = Fields()


def csv_of(text: str | bytes, **options: Any) -> list[Line | Malformed]:
    data = text if isinstance(text, bytes) else text.encode()
    return list(read_csv(io.BytesIO(data), FIELDS, **options))


def told(found: Line | Malformed) -> Any:
    if isinstance(found, Malformed):
        return found.number, found.problem
    identifier = found.document.id
    key = identifier.number if identifier.WhichOneof("kind") == "number" else identifier.text
    return found.number, key, found.document.text, json_format.MessageToDict(found.document.payload)


def parquet_of(columns: dict[str, Any]) -> io.BytesIO:
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file)
    file.seek(0)
    return file


def test_rows_of_csv_are_documents_by_the_line_they_begin_on() -> None:
    """Quoted cells hold commas, quotes and line ends; blank rows are none; an empty cell is no field."""
    found = csv_of('\ufeffid,text,lang\n1,"a, b",de\n\nx,"two\nlines ""so""",\r\n2,c,fr')
    assert [told(one) for one in found] == [
        (2, 1, "a, b", {"lang": "de"}),
        (4, "x", 'two\nlines "so"', {}),
        (6, 2, "c", {"lang": "fr"}),
    ]
    assert [one.original for one in found] == ['1,"a, b",de', 'x,"two\nlines ""so""",', "2,c,fr"]


@pytest.mark.parametrize(
    ("cell", "key"),
    [
        ("7", 7),
        ("0", 0),
        ("007", "007"),
        ("-1", "-1"),
        ("1.0", "1.0"),
        (str(2**64 - 1), 2**64 - 1),
        (str(2**64), str(2**64)),
    ],
)
def test_an_id_written_as_a_number_is_one(cell: str, key: int | str) -> None:
    """Only what a number would be written as; everything else stays text as it is."""
    (found,) = csv_of(f"id,text\n{cell},a")
    assert told(found)[1] == key


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (b"1", "1 cells, the first row has 2"),
        (b"1,a,b", "3 cells, the first row has 2"),
        (b'1,"a"b', "not CSV: "),
        (b"1,\xff", "not UTF-8"),
        (b"1,", 'no field "text"'),
        (b'1,"never closed', "not CSV: "),
    ],
)
def test_what_is_wrong_with_a_row_costs_that_row_only(row: bytes, problem: str) -> None:
    """A row that is none is told by its line, and the next ones are read."""
    found = csv_of(b"id,text\n" + row + (b"" if b"never" in row else b"\n2,b"))
    assert isinstance(found[0], Malformed)
    assert (found[0].number, found[0].problem[: len(problem)]) == (2, problem)
    assert [told(one) for one in found[1:]] == ([] if b"never" in row else [(3, 2, "b", {})])


def test_a_quote_that_is_never_closed_does_not_cost_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading goes on where a cell would become larger than any text may be."""
    monkeypatch.setattr(tables, "MAX_CELL_CHARACTERS", 100)
    found = csv_of('id,text\n1,"never closed\n' + "".join(f"{number},text\n" for number in range(2, 60)))
    assert isinstance(found[0], Malformed)
    assert all(isinstance(one, Line) for one in found[1:])
    assert told(found[-1]) == (60, 59, "text", {})


@pytest.mark.parametrize("first", ["", "a,b", "id,text,id", "id"])
def test_a_table_without_its_columns_is_refused(first: str) -> None:
    """The first row has to name id and text, and none twice."""
    with pytest.raises(Misconfigured) as caught:
        csv_of(f"{first}\n1,a")
    assert caught.value.reason == "COLUMNS"


def test_tabs_can_stand_between_cells() -> None:
    """A comma is then a part of the text."""
    (found,) = csv_of("id\ttext\n1\ta,b", delimiter="\t")
    assert told(found) == (2, 1, "a,b", {})


def test_rows_of_parquet_keep_their_types() -> None:
    """Numbers, lists and objects are payload as they are; dates become text, decimals too, and nulls are no field."""
    columns = {
        "id": [1, 2],
        "text": ["a", "b"],
        "n": [1.5, None],
        "tags": [["x", "y"], []],
        "day": [date(2024, 5, 1), None],
        "at": [datetime(2024, 5, 1, 12, tzinfo=UTC), None],
        "price": [Decimal("1.10"), None],
        "more": [{"a": 1}, {"a": None}],
    }
    found = list(read_parquet(parquet_of(columns), FIELDS))
    payload = {
        "n": 1.5,
        "tags": ["x", "y"],
        "day": "2024-05-01",
        "at": "2024-05-01T12:00:00+00:00",
        "price": "1.10",
        "more": {"a": 1},
    }
    assert told(found[0]) == (1, 1, "a", payload)
    assert told(found[1]) == (2, 2, "b", {"tags": [], "more": {"a": None}})


def test_what_json_cannot_hold_costs_its_row_only() -> None:
    """Bytes, numbers that are not finite and numbers beyond 2^53 are told by their row."""
    for column in ([b"raw", None], [float("nan"), None], [2**60, None]):
        bad, good = read_parquet(parquet_of({"id": ["a", "b"], "text": ["a", "b"], "x": column}), FIELDS)
        assert isinstance(bad, Malformed)
        assert (bad.number, told(good)) == (1, (2, "b", "b", {}))


def test_many_rows_of_parquet_are_numbered_through() -> None:
    """Row numbers go on over the batches in which the file is read."""
    count = tables.BATCH_ROWS * 2 + 5
    found = list(read_parquet(parquet_of({"id": range(count), "text": ["a"] * count}), FIELDS))
    assert [line.number for line in found] == list(range(1, count + 1))


def test_what_is_no_parquet_is_refused() -> None:
    """A file of something else, and one without the columns."""
    for file, reason in ((io.BytesIO(b"id,text"), "PARQUET_MALFORMED"), (parquet_of({"id": [1]}), "COLUMNS")):
        with pytest.raises(Misconfigured) as caught:
            list(read_parquet(file, FIELDS))
        assert caught.value.reason == reason


def test_the_ending_says_what_a_file_is_unless_told_otherwise() -> None:
    """--format wins; standard input is JSON lines; an unknown ending is asked about."""
    assert [format_of(name, None) for name in ("a.jsonl", "a.CSV", "a.tsv", "a.parquet", "-")] == [
        "jsonl",
        "csv",
        "tsv",
        "parquet",
        "jsonl",
    ]
    assert format_of("a.txt", "csv") == format_of("-", "csv") == "csv"
    with pytest.raises(Misconfigured, match="--format"):
        format_of("a.txt", None)


def test_a_file_is_known_again_by_its_digest(tmp_path: Path) -> None:
    """The same bytes give the same digest, others another; the last line counts without its end, too."""
    digests = []
    for data in (b"a\nb", b"a\nb\n", b"a\nb"):
        (tmp_path / "f.jsonl").write_bytes(data)
        with open_source(str(tmp_path / "f.jsonl"), None) as source:
            digests.append(source.digest)
            assert (source.line_count, source.stream.read()) == (2, data)
    assert digests[0] == digests[2] != digests[1]
    with pytest.raises(Misconfigured, match="cannot be read"), open_source(str(tmp_path / "none.jsonl"), None):
        pass
