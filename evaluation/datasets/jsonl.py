"""The help centre's layout: `documents.jsonl` and `queries.jsonl` in a directory.

A document has `id`, `text` and perhaps `title`; a question has `id`, `query`, `relevant` (a list of document ids, or an
object from id to grade) and perhaps `split` and `lang`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from evaluation.datasets.model import TEST, Dataset, Document, Question, dataset, lines
from evaluation.figures import DocumentId
from evaluation.records import Population
from serving.errors import Misconfigured

T = TypeVar("T", bound=BaseModel)

DOCUMENTS, QUERIES = "documents.jsonl", "queries.jsonl"
HELPCENTRE = "helpcentre"
HELPCENTRE_POPULATION = Population(
    document_count=200,
    question_count=80,
    dev_count=20,
    test_count=60,
    answerable_test_count=48,
    unanswerable_test_count=12,
)


class _Document(BaseModel):
    model_config = ConfigDict(strict=True)

    id: DocumentId
    text: str
    title: str = ""


class _Question(BaseModel):
    model_config = ConfigDict(strict=True)

    id: DocumentId
    query: str
    relevant: list[DocumentId] | dict[str, int]
    split: str = TEST
    lang: str = ""


def fits(place: Path) -> bool:
    """Return whether a directory has the two files."""
    return (place / DOCUMENTS).is_file() and (place / QUERIES).is_file()


def load(place: Path) -> Dataset:
    """Read a directory; one that is called `helpcentre` has to have the help centre's population.

    Raises:
        Misconfigured: A line is malformed, or the population is another.
    """
    documents = _read_all(_Document, place / DOCUMENTS)
    questions = _read_all(_Question, place / QUERIES)
    known: Mapping[str, DocumentId] = {str(document.id): document.id for document in documents}
    found = dataset(
        place.resolve().name,
        (Document(id=document.id, text=document.text, title=document.title) for document in documents),
        (_question(question, known) for question in questions),
    )
    if found.name == HELPCENTRE:
        require_population(found.population, HELPCENTRE_POPULATION)
    return found


def require_population(found: Population, wanted: Population) -> None:
    """Check the numbers of documents and questions.

    Raises:
        Misconfigured: One is another.
    """
    for name, count in wanted.model_dump().items():
        if (actual := getattr(found, name)) != count:
            raise Misconfigured(
                "POPULATION_MISMATCH",
                f"{name} is {actual}, the help centre has {count}: the files are not the original ones",
            )


def _question(line: _Question, known: Mapping[str, DocumentId]) -> Question:
    pairs = line.relevant.items() if isinstance(line.relevant, dict) else [(found, 1) for found in line.relevant]
    judged = {known.get(str(found), found): grade for found, grade in pairs if grade > 0}
    return Question(id=str(line.id), query=line.query, judged=judged, split=line.split, lang=line.lang)


def _read_all(shape: type[T], path: Path) -> list[T]:
    return [_read(shape, path, number, line) for number, line in enumerate(lines(path))]


def _read(shape: type[T], path: Path, number: int, line: dict[str, object]) -> T:
    try:
        return TypeAdapter(shape).validate_python(line)
    except ValidationError as error:
        detail = error.errors()[0]
        where = ".".join(map(str, detail["loc"]))
        raise Misconfigured("DATASET_MALFORMED", f"{path}, object {number + 1}: {where}: {detail['msg']}") from error
