"""`python -m benchmarks.ghz.make_questions`: makes questions.jsonl anew out of the help centre.

The questions that people ask there, titles, and beginnings of its texts: from one word to a whole passage, in many
languages. One text again and again would measure one length of batch, and a cache.
"""

import json
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path

HERE = Path(__file__).parent
HELP_CENTRE = HERE.parents[1] / "data" / "helpcentre"
CHARACTERS = (15, 60, 120, 240, 480, 100_000)
"""Lengths to which beginnings are cut, by turns; the last one is no limit."""


def questions(data: Path = HELP_CENTRE) -> list[str]:
    """Return the texts, long and short ones by turns, none twice."""
    asked = [line["query"] for line in lines(data / "queries.jsonl")]
    documents = list(lines(data / "documents.jsonl"))
    titles = [line["title"] for line in documents]
    beginnings = [line["text"][: CHARACTERS[place % len(CHARACTERS)]].strip() for place, line in enumerate(documents)]
    turns = chain.from_iterable(zip_longest(asked, titles, beginnings))
    return list(dict.fromkeys(text for text in turns if text))


def lines(path: Path) -> Iterator[dict[str, str]]:
    """Read JSON lines."""
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


if __name__ == "__main__":
    written = "".join(json.dumps({"query": text}, ensure_ascii=False) + "\n" for text in questions())
    (HERE / "questions.jsonl").write_text(written, encoding="utf-8")
