"""What a data set is, whatever file it came from."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evaluation.figures import DocumentId
from evaluation.records import Population
from serving.errors import Misconfigured

TEST, DEV = "test", "dev"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A passage that may answer."""

    id: DocumentId
    text: str
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question and how well each document answers it."""

    id: str
    query: str
    judged: Mapping[DocumentId, int]
    """Document to grade, 1 or more; empty where no document answers."""
    split: str = TEST
    lang: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Documents, questions and judgments; made by `dataset`, which checks them."""

    name: str
    documents: Sequence[Document]
    questions: Sequence[Question]
    digest: str
    """"sha256:" and 64 hexadecimal digits over everything, questions outside a sample included."""

    @property
    def population(self) -> Population:
        """How many of what."""
        splits = Counter(question.split for question in self.questions)
        answerable = sum(1 for question in self.questions if question.split == TEST and question.judged)
        return Population(
            document_count=len(self.documents),
            question_count=len(self.questions),
            dev_count=splits[DEV],
            test_count=splits[TEST],
            answerable_test_count=answerable,
            unanswerable_test_count=splits[TEST] - answerable,
        )

    @property
    def unknown_relevant_count(self) -> int:
        """Judgments of documents that are not there: no search can find them, and they count all the same."""
        known = {document.id for document in self.documents}
        return sum(1 for question in self.questions for found in question.judged if found not in known)


def dataset(name: str, documents: Iterable[Document], questions: Iterable[Question]) -> Dataset:
    """Check a data set and compute its digest.

    Args:
        name: What it is called.
        documents: In the order they are indexed; those without a visible character are left out, as none can be found.
        questions: In the order they are asked.

    Raises:
        Misconfigured: It has no document or no question, or an id occurs twice.
    """
    kept = tuple(document for document in documents if document.text.strip())
    asked = tuple(questions)
    if not kept or not asked:
        raise Misconfigured("DATASET_EMPTY", f"{name} has {len(kept)} documents and {len(asked)} questions")
    _require_unique(name, "document", (document.id for document in kept))
    _require_unique(name, "question", (question.id for question in asked))
    return Dataset(name=name, documents=kept, questions=asked, digest=_digest(kept, asked))


def sample(full: Dataset, count: int | None, seed: int) -> Dataset:
    """Draw that many questions of each split at random, in their order; documents and digest stay those of the whole.

    Args:
        full: What to draw from.
        count: Most questions of a split; None keeps all.
        seed: Equal seeds draw equal questions.
    """
    if count is None:
        return full
    kept: set[str] = set()
    for split in sorted({question.split for question in full.questions}):
        names = [question.id for question in full.questions if question.split == split]
        # Reproducible on purpose, and nothing depends on it being hard to guess.
        kept.update(random.Random(seed).sample(names, min(count, len(names))))  # noqa: S311
    return replace(full, questions=tuple(question for question in full.questions if question.id in kept))


def lines(path: Path) -> Iterator[dict[str, object]]:
    """Read one JSON object per line, blank lines left out.

    Raises:
        Misconfigured: The file cannot be read, or a line is no object.
    """
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            yield _object(path, number, line)


def read_text(path: Path) -> str:
    """Read a whole file as UTF-8, a byte order mark left out.

    Raises:
        Misconfigured: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise Misconfigured("DATASET_UNREADABLE", f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Misconfigured("DATASET_UNREADABLE", f"{path} is not UTF-8 at byte {error.start + 1}") from error


def folded(text: str) -> str:
    """Return text with every run of white space as one blank."""
    return " ".join(text.split())


def _object(path: Path, number: int, line: str) -> dict[str, object]:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise Misconfigured("DATASET_MALFORMED", f"{path} line {number}: not JSON: {error.msg}") from error
    if not isinstance(found, dict):
        raise Misconfigured("DATASET_MALFORMED", f"{path} line {number}: an object is wanted")
    return found


def _require_unique(name: str, what: str, ids: Iterable[DocumentId]) -> None:
    twice = [found for found, count in Counter(map(str, ids)).items() if count > 1]
    if twice:
        raise Misconfigured("DATASET_MALFORMED", f"{name}: {what} {twice[0]} occurs more than once")


def _digest(documents: Sequence[Document], questions: Sequence[Question]) -> str:
    whole = hashlib.sha256()
    for document in documents:
        whole.update(_line(["document", document.id, document.title, document.text]))
    for question in questions:
        judged = sorted(([str(found), grade] for found, grade in question.judged.items()), key=str)
        whole.update(_line(["question", question.id, question.split, question.lang, question.query, judged]))
    return f"sha256:{whole.hexdigest()}"


def _line(values: Sequence[object]) -> bytes:
    return json.dumps(values, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
