"""Folders of documents, questions and judgments apart: BEIR's layout, and TREC judgments beside JSON lines.

BEIR: `corpus.jsonl` (`_id`, `title`, `text`), `queries.jsonl` (`_id`, `text`) and `qrels/test.tsv`, perhaps
`qrels/dev.tsv` (a header, then question, document and grade). TREC: `documents.jsonl` (`id`, `text`, perhaps `title`),
`queries.tsv` (question id, a tab, the question) and `qrels.txt`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from evaluation.datasets import trec
from evaluation.datasets.model import DEV, TEST, Dataset, Document, Question, dataset, lines, read_text
from evaluation.figures import DocumentId
from evaluation.measures import Judged
from serving.errors import Misconfigured

CORPUS, BEIR_QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels"
DOCUMENTS, TREC_QUERIES, TREC_QRELS = "documents.jsonl", "queries.tsv", "qrels.txt"
BEIR_COLUMNS, QUERY_COLUMNS = 3, 2


def fits_beir(place: Path) -> bool:
    """Return whether a directory has BEIR's layout."""
    return (place / CORPUS).is_file() and (place / BEIR_QUERIES).is_file() and (place / QRELS / "test.tsv").is_file()


def fits_trec(place: Path) -> bool:
    """Return whether a directory has documents, questions and TREC judgments."""
    return all((place / name).is_file() for name in (DOCUMENTS, TREC_QUERIES, TREC_QRELS))


def load_beir(place: Path) -> Dataset:
    """Read BEIR's layout; a question of `test.tsv` or `dev.tsv` is asked, others of the file are not.

    Raises:
        Misconfigured: A file cannot be read or is malformed.
    """
    texts = {str(line["_id"]): str(line["text"]) for line in _with(place / BEIR_QUERIES, "_id", "text")}
    questions = [
        Question(id=name, query=_query(place, texts, name), judged=_relevant(grades), split=split)
        for split in (TEST, DEV)
        if (path := place / QRELS / f"{split}.tsv").is_file()
        for name, grades in _beir_qrels(path).items()
    ]
    return dataset(place.resolve().name, _documents(place / CORPUS, "_id"), questions)


def load_trec(place: Path) -> Dataset:
    """Read documents, questions and TREC judgments; a question without judgments is unanswerable.

    Raises:
        Misconfigured: A file cannot be read or is malformed.
    """
    qrels = trec.read_qrels(place / TREC_QRELS)
    questions = [
        Question(id=name, query=text, judged=_relevant(qrels.get(name, {})))
        for name, text in _columns(place / TREC_QUERIES, QUERY_COLUMNS)
    ]
    return dataset(place.resolve().name, _documents(place / DOCUMENTS, "id"), questions)


def _documents(path: Path, id_field: str) -> Iterable[Document]:
    for line in _with(path, id_field, "text"):
        yield Document(id=str(line[id_field]), text=str(line["text"]), title=str(line.get("title") or ""))


def _with(path: Path, *fields: str) -> Iterable[dict[str, object]]:
    for number, line in enumerate(lines(path), start=1):
        for field in fields:
            if field not in line:
                raise Misconfigured("DATASET_MALFORMED", f'{path}, object {number}: no field "{field}"')
        yield line


def _query(place: Path, texts: Mapping[str, str], name: str) -> str:
    if name not in texts:
        raise Misconfigured("DATASET_MALFORMED", f"{place / BEIR_QUERIES} has no question {name}, which is judged")
    return texts[name]


def _beir_qrels(path: Path) -> Mapping[str, Judged]:
    found: defaultdict[str, dict[DocumentId, int]] = defaultdict(dict)
    for position, (question, document, grade) in enumerate(_columns(path, BEIR_COLUMNS)):
        if position == 0 and not grade.lstrip("-").isdigit():
            continue  # the header
        try:
            found[question][document] = int(grade)
        except ValueError as error:
            raise Misconfigured("DATASET_MALFORMED", f"{path}: {grade[:20]!r} is no grade") from error
    return found


def _columns(path: Path, count: int) -> Iterable[list[str]]:
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        columns = line.rstrip("\r").split("\t", count - 1)
        if len(columns) != count:
            raise Misconfigured("DATASET_MALFORMED", f"{path} line {number}: {count} columns are wanted")
        yield columns


def _relevant(grades: Judged) -> Mapping[DocumentId, int]:
    return {document: grade for document, grade in grades.items() if grade > 0}
