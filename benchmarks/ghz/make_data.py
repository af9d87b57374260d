"""`python -m benchmarks.ghz.make_data COLLECTION`: makes of questions.jsonl the data files that ghz sends, in data/."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.ghz.make_questions import HELP_CENTRE, HERE, lines

POOL = 20
STREAM_BATCHES, BATCH_TEXTS = 16, 16
"""Messages of one encode stream, and texts of one message."""


def files(collection: str) -> dict[str, list[Mapping[str, Any]]]:
    """Return the messages of every data file, by its name."""
    texts = [line["query"] for line in lines(HERE / "questions.jsonl")]
    passages = [line["text"] for line in lines(HELP_CENTRE / "documents.jsonl")]
    searches = [{"query": text, "collection": collection, "poolSize": POOL, "topK": 5} for text in texts]
    return {
        "search": searches,
        "search-stream": [{"request": search} for search in searches],
        "encode": [_encode([text]) for text in texts],
        "encode-stream": [
            {"sequence": str(number), "request": _encode(texts[number * BATCH_TEXTS : (number + 1) * BATCH_TEXTS])}
            for number in range(STREAM_BATCHES)
        ],
        "rerank": [{"query": text, "candidates": _pool(passages, number)} for number, text in enumerate(texts)],
    }


def _encode(texts: Sequence[str]) -> Mapping[str, Any]:
    return {"texts": list(texts), "inputType": "INPUT_TYPE_QUERY", "vectorFormat": "VECTOR_FORMAT_BYTES"}


def _pool(passages: Sequence[str], number: int) -> list[Mapping[str, str]]:
    """Return candidates that are different for every question, but the same again."""
    places = [(number * POOL + place) % len(passages) for place in range(POOL)]
    return [{"id": str(place), "text": passages[place]} for place in places]


def main(collection: str, directory: Path = HERE / "data") -> None:
    """Write the files."""
    directory.mkdir(exist_ok=True)
    for name, messages in files(collection).items():
        text = ",\n".join(json.dumps(message, ensure_ascii=False) for message in messages)
        (directory / f"{name}.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
