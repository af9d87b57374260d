"""`twostage index` as a command: formats, splitting, rejects, and what contradicts."""

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from index_rig import IndexRig, open_index_rig
from pyarrow import parquet

pytestmark = pytest.mark.slow

JSONL = b'{"id": 1, "text": "alpha", "lang": "de"}\n{"id": "b", "text": "beta", "lang": "fr"}\n'
CSV = b"id,text,lang\n1,alpha,de\nb,beta,fr\n"


def rejected(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def parquet_bytes() -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table({"id": ["1", "b"], "text": ["alpha", "beta"], "lang": ["de", "fr"]}), file)
    return file.getvalue()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[IndexRig]:
    """A gateway of the test's own."""
    async with open_index_rig(tmp_path / "home") as opened:
        yield opened


@pytest.mark.parametrize(
    ("name", "data", "first"),
    [("a.jsonl", JSONL, 1), ("a.csv", CSV, 1), ("a.tsv", CSV.replace(b",", b"\t"), 1), ("a.parquet", None, "1")],
)
async def test_every_format_is_read_from_a_file_and_from_standard_input(
    rig: IndexRig, tmp_path: Path, name: str, data: bytes | None, first: int | str
) -> None:
    """The same documents arrive, by the file's ending or by --format."""
    data = data if data is not None else parquet_bytes()
    (tmp_path / name).write_bytes(data)
    for arguments, stdin in (
        ((str(tmp_path / name), "-c", "file"), b""),
        (("-", "-c", "stdin", "--format", name.split(".")[1]), data),
    ):
        ended = await rig.run("index", *arguments, "--json", stdin=stdin)
        report = json.loads(ended.stdout)
        assert (ended.status, report["stored_count"], report["complete"], report["exact"]) == (0, 2, True, True)
        found = await rig.documents(arguments[2], [first, "b"])
        assert [(one.text, dict(one.payload)) for one in found] == [
            ("alpha", {"lang": "de"}),
            ("beta", {"lang": "fr"}),
        ]


async def test_rejected_lines_can_be_mended_and_sent_again(rig: IndexRig, tmp_path: Path) -> None:
    """Malformed and refused lines are in the reject file as they stood, counted, and the status is 1."""
    lines = ["{", *JSONL.decode().splitlines(), '{"id": 3, "text": "  "}', '{"id": 1, "text": "twice"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    ended = await rig.run("index", str(tmp_path / "a.jsonl"), "-c", "c", "--json")
    report = json.loads(ended.stdout)
    assert (ended.status, report["malformed_count"], report["refused_count"], report["stored_count"]) == (1, 2, 1, 2)
    rejects = Path(report["rejects"])
    assert rejects.parent == rig.home / "journals"
    found = sorted(rejected(rejects), key=lambda one: one["line"])
    assert [(one["line"], one["reason"], one["original"]) for one in found] == [
        (1, "MALFORMED", lines[0]),
        (4, "TEXT_BLANK", lines[3]),
        (5, "MALFORMED", lines[4]),
    ]
    shown = await rig.run("index", str(tmp_path / "a.jsonl"), "-c", "c")
    assert f"{rejects}" in shown.stderr.replace("\n", "")
    assert "2 of 5 documents stored" in shown.stdout


async def test_long_documents_are_split_and_counted(rig: IndexRig, tmp_path: Path) -> None:
    """--split stores parts, says how many, and the count is exact with them; the search folds them."""
    long = " ".join(["gamma"] * 120)
    (tmp_path / "a.jsonl").write_bytes(JSONL + json.dumps({"id": 9, "text": long}).encode())
    report = json.loads((await rig.run("index", str(tmp_path / "a.jsonl"), "-c", "c", "--split", "--json")).stdout)
    assert (report["stored_count"], report["split_count"], report["part_count"]) == (3, 1, 3)
    assert (report["document_count"], report["exact"], report["complete"]) == (5, True, True)
    search = ("search", "gamma", "-c", "c", "--json", "--top-k", "3")
    plain, folded = [
        json.loads((await rig.run(*search, *options)).stdout)["hits"] for options in ((), ("--fold-to-parent",))
    ]
    assert [hit["parent"] for hit in plain] == [9, 9, 9]
    assert [(hit["parent"], hit["part"]) for hit in folded] == [(9, folded[0]["part"]), (None, None), (None, None)]


async def test_a_second_file_is_counted_as_far_as_it_can_be(rig: IndexRig, tmp_path: Path) -> None:
    """In a collection that held documents before, what was replaced is unknown, and the report says so."""
    (tmp_path / "a.jsonl").write_bytes(JSONL)
    (tmp_path / "b.jsonl").write_bytes(JSONL.replace(b'"b"', b'"c"'))
    await rig.run("index", str(tmp_path / "a.jsonl"), "-c", "c")
    report = json.loads((await rig.run("index", str(tmp_path / "b.jsonl"), "-c", "c", "--json")).stdout)
    assert (report["document_count"], report["exact"], report["complete"]) == (3, False, True)


async def test_a_run_that_ended_begins_anew(rig: IndexRig, tmp_path: Path) -> None:
    """Indexing a file a second time stores it a second time, changed or not."""
    (tmp_path / "a.jsonl").write_bytes(JSONL)
    for data in (JSONL, JSONL, JSONL.replace(b"beta", b"changed")):
        (tmp_path / "a.jsonl").write_bytes(data)
        report = json.loads((await rig.run("index", str(tmp_path / "a.jsonl"), "-c", "c", "--json")).stdout)
        assert (report["stored_count"], report["resumed_count"], report["document_count"]) == (2, 0, 2)
    assert (await rig.documents("c", ["b"]))[0].text == "changed"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("a.jsonl", "--split", "--truncate"), "OPTIONS_CONTRADICT"),
        (("a.jsonl", "--text-field", "id"), "OPTIONS_CONTRADICT"),
        (("a.jsonl", "--rejects", "a.jsonl"), "OPTIONS_CONTRADICT"),
        (("a.jsonl", "--journal", "a.jsonl"), "OPTIONS_CONTRADICT"),
        (("-", "--journal", "j"), "OPTIONS_CONTRADICT"),
        (("a.txt",), "FORMAT_UNKNOWN"),
        (("none.jsonl",), "FILE_UNREADABLE"),
        (("a.csv",), "COLUMNS"),
        (("a.jsonl", "--format", "parquet"), "PARQUET_MALFORMED"),
    ],
)
async def test_what_cannot_be_is_said_before_anything_is_stored(
    rig: IndexRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, reason: str
) -> None:
    """Wrong usage has status 2 and one line of cause; the input is left as it is."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "a.csv", "a.txt"):
        (tmp_path / name).write_bytes(JSONL)
    ended = await rig.run("index", *arguments, "-c", "c")
    assert ended.status == 2, ended.stderr
    assert ended.stderr.startswith(f"error: {reason}: ")
    assert (tmp_path / "a.jsonl").read_bytes() == JSONL
