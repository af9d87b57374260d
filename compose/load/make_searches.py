"""`python compose/load/make_searches.py COLLECTION`: the searches that ghz sends in turn, as JSON on standard output.

The help centre's questions, titles and beginnings of texts: 480 texts of up to 400 characters in many languages. One
text again and again would measure caches and batches of one length.
"""
# ruff: noqa: INP001 - a script, in no package

import json
import sys
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path

DATA = Path(__file__).parents[2] / "data" / "helpcentre"
CHARACTERS = (60, 120, 240, 400)


def texts(data: Path = DATA) -> list[str]:
    """Return the texts, long and short ones by turns."""
    questions = [line["query"] for line in _lines(data / "queries.jsonl")]
    documents = list(_lines(data / "documents.jsonl"))
    titles = [line["title"] for line in documents]
    beginnings = [line["text"][: CHARACTERS[place % len(CHARACTERS)]] for place, line in enumerate(documents)]
    turns = chain.from_iterable(zip_longest(questions, titles, beginnings))
    return list(dict.fromkeys(text for text in turns if text))


def _lines(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def main(collection: str) -> None:
    """Write one search per text."""
    searches = [{"query": text, "collection": collection, "topK": 5} for text in texts()]
    lines = ",\n".join(json.dumps(search, ensure_ascii=False) for search in searches)
    sys.stdout.write(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(sys.argv[1])
