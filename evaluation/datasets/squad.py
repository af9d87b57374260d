"""SQuAD's layout: articles of paragraphs, each with its questions; one JSON file, a gzipped one, or several.

Every distinct paragraph (white space folded) is a document; the relevant document of a question is its paragraph. A
question that is marked impossible has none.
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evaluation.datasets.model import Dataset, Document, Question, dataset, folded
from evaluation.figures import DocumentId
from serving.errors import Misconfigured


def load(name: str, paths: Sequence[Path], *, lang: str = "") -> Dataset:
    """Read files into one data set; documents are numbered from 0 in the order in which they are met.

    Raises:
        Misconfigured: A file cannot be read or has another layout.
    """
    numbers: dict[str, int] = {}
    questions: dict[str, Question] = {}
    for context, asked in (found for path in paths for found in _paragraphs(path)):
        number = numbers.setdefault(folded(context), len(numbers))
        for one in asked:
            given = str(one.get("id") or f"q{len(questions)}")
            unique = given if given not in questions else f"{given}#{len(questions)}"
            judged: dict[DocumentId, int] = {} if one.get("is_impossible") else {number: 1}
            questions[unique] = Question(id=unique, query=folded(one["question"]), judged=judged, lang=lang)
    documents = (Document(id=number, text=text) for text, number in numbers.items())
    return dataset(name, documents, questions.values())


def _paragraphs(path: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    try:
        raw = path.read_bytes()
        whole = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
        for article in whole["data"]:
            for paragraph in article["paragraphs"]:
                yield paragraph["context"], paragraph["qas"]
    except OSError as error:
        raise Misconfigured("DATASET_UNREADABLE", f"{path} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError, EOFError, zlib.error) as error:
        raise Misconfigured("DATASET_MALFORMED", f"{path} is no file in SQuAD's layout ({error!r})"[:250]) from error
