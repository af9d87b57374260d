"""Questions with their answers, tab-separated with a header: `question`, `answer`, `lang`.

Answers of one language are the documents: equal ones (white space folded) are one, those under 20 characters are left
out. Equal questions are one question with all their answers.
"""

import csv
import io
from pathlib import Path

from evaluation.datasets.model import Dataset, Document, Question, dataset, folded, read_text
from evaluation.figures import DocumentId
from serving.errors import Misconfigured

SHORTEST_ANSWER = 20


def load(name: str, path: Path, lang: str) -> Dataset:
    """Read the rows of one language; documents are numbered from 0 in the order in which they are met.

    Raises:
        Misconfigured: The file cannot be read, lacks a column or has no row of that language.
    """
    rows = csv.DictReader(io.StringIO(read_text(path), newline=""), delimiter="\t")
    if missing := {"question", "answer", "lang"} - set(rows.fieldnames or ()):
        raise Misconfigured("DATASET_MALFORMED", f"{path} has no column {min(missing)}")
    numbers: dict[str, int] = {}
    judged: dict[str, dict[DocumentId, int]] = {}
    for row in rows:
        answer = folded(row["answer"] or "")
        if row["lang"] == lang and len(answer) >= SHORTEST_ANSWER:
            number = numbers.setdefault(answer, len(numbers))
            judged.setdefault(folded(row["question"] or ""), {})[number] = 1
    documents = (Document(id=number, text=text) for text, number in numbers.items())
    questions = (
        Question(id=f"q{position}", query=query, judged=grades, lang=lang)
        for position, (query, grades) in enumerate(judged.items())
    )
    return dataset(name, documents, questions)
