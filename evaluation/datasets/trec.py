"""TREC's text formats: judgments (`question 0 document grade`) and runs (`question Q0 document rank score tag`)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from evaluation.datasets.model import read_text
from evaluation.figures import DocumentId
from evaluation.measures import Judged, Ranking
from serving.errors import Misconfigured

QRELS_FIELDS, RUN_FIELDS = 4, 6


def read_qrels(path: Path) -> Mapping[str, Judged]:
    """Return question to document to grade; ids are text, grades below 1 are kept and mean not relevant.

    Raises:
        Misconfigured: The file cannot be read or a line is malformed.
    """
    found: defaultdict[str, dict[DocumentId, int]] = defaultdict(dict)
    for number, fields in _rows(path, QRELS_FIELDS):
        question, _, document, grade = fields
        try:
            found[question][document] = int(grade)
        except ValueError as error:
            raise Misconfigured("DATASET_MALFORMED", f"{path} line {number}: the grade is no whole number") from error
    return dict(found)


def read_run(path: Path) -> Mapping[str, Sequence[str]]:
    """Return question to documents in the order of their ranks.

    Raises:
        Misconfigured: The file cannot be read or a line is malformed.
    """
    found: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for number, fields in _rows(path, RUN_FIELDS):
        try:
            found[fields[0]].append((int(fields[3]), fields[2]))
        except ValueError as error:
            raise Misconfigured("DATASET_MALFORMED", f"{path} line {number}: the rank is no whole number") from error
    return {question: [document for _, document in sorted(places)] for question, places in found.items()}


def qrels_text(judgments: Mapping[str, Judged]) -> str:
    """Write judgments."""
    return "".join(
        f"{question} 0 {document} {grade}\n"
        for question, judged in judgments.items()
        for document, grade in judged.items()
    )


def run_text(run: Mapping[str, Ranking], tag: str) -> str:
    """Write a run; scores fall with the rank, so that a tool that sorts by score keeps our order."""
    return "".join(
        f"{question} Q0 {document} {rank} {len(ranked) - rank + 1} {tag}\n"
        for question, ranked in run.items()
        for rank, document in enumerate(ranked, start=1)
    )


def _rows(path: Path, count: int) -> list[tuple[int, list[str]]]:
    rows = [(number, line.split()) for number, line in enumerate(read_text(path).splitlines(), start=1)]
    for number, fields in rows:
        if fields and len(fields) != count:
            raise Misconfigured("DATASET_MALFORMED", f"{path} line {number}: {len(fields)} fields instead of {count}")
    return [(number, fields) for number, fields in rows if fields]
