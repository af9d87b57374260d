"""The Cranfield collection: `cran.all.1400`, `cran.qry` and `cranqrel` in a directory.

A question's number in the judgments is its position in `cran.qry`, not the number after its `.I`. The codes 1 (a
complete answer) to 4 (of minimum interest) become the grades 4 to 1. Two documents have no text and are left out.

Source: the note that comes with the judgments (`cranqrel.readme`).
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from evaluation.datasets.model import Dataset, Document, Question, dataset, folded, read_text
from evaluation.figures import DocumentId
from serving.errors import Misconfigured

DOCUMENTS, QUERIES, JUDGMENTS = "cran.all.1400", "cran.qry", "cranqrel"
BEST_CODE, WORST_CODE = 1, 4
_ENTRY = re.compile(r"^\.I +(\d+)[ \t]*$", re.MULTILINE)
_FIELD = re.compile(r"^\.([TABW])[ \t]*$", re.MULTILINE)


def fits(place: Path) -> bool:
    """Return whether a directory has the three files."""
    return all((place / name).is_file() for name in (DOCUMENTS, QUERIES, JUDGMENTS))


def load(place: Path) -> Dataset:
    """Read the directory.

    Raises:
        Misconfigured: A file cannot be read or is malformed.
    """
    documents = [
        Document(id=number, title=fields.get("T", ""), text=fields.get("W", ""))
        for number, fields in _entries(place / DOCUMENTS)
    ]
    judged = _judgments(place / JUDGMENTS)
    questions = [
        Question(id=str(position), query=fields["W"], judged=judged.get(position, {}), lang="en")
        for position, (_, fields) in enumerate(_entries(place / QUERIES), start=1)
    ]
    return dataset("cranfield", documents, questions)


def _entries(path: Path) -> list[tuple[int, dict[str, str]]]:
    _, *parts = _ENTRY.split(read_text(path))
    return [(int(number), _fields(body)) for number, body in zip(parts[::2], parts[1::2], strict=True)]


def _fields(body: str) -> dict[str, str]:
    _, *parts = _FIELD.split(body)
    return {name: folded(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _judgments(path: Path) -> Mapping[int, Mapping[DocumentId, int]]:
    found: defaultdict[int, dict[DocumentId, int]] = defaultdict(dict)
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        try:
            question, document, code = map(int, line.split())
        except ValueError as error:
            raise Misconfigured("DATASET_MALFORMED", f"{path} line {number}: three numbers are wanted") from error
        if BEST_CODE <= code <= WORST_CODE:
            found[question][document] = WORST_CODE + 1 - code
    return found
