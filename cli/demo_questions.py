"""The demo's ten questions, out of the help centre's eighty."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from serving.errors import Misconfigured

DATA = Path("data/helpcentre")
FILES = ("documents.jsonl", "queries.jsonl")
# Every sixth test question, or the next one that any document answers: spread over the file, not chosen by outcome.
IDS = (
    "REF-000",
    "REF-006",
    "REF-012",
    "REF-018",
    "REF-025",
    "REF-030",
    "REF-036",
    "REF-042",
    "REF-048",
    "REF-055",
)


class Question(BaseModel):
    """A question and the documents that answer it."""

    model_config = ConfigDict(frozen=True)

    id: str
    lang: str
    query: str
    relevant: frozenset[int]


def find_data(given: Path | None) -> Path:
    """Return the directory with the help centre's files: the one given, the checkout's, or the working directory's.

    Raises:
        Misconfigured: None has them.
    """
    places = [given] if given else [Path(__file__).resolve().parents[1] / DATA, Path.cwd() / DATA]
    for place in places:
        if all((place / name).is_file() for name in FILES):
            return place
    looked = ", ".join(map(str, places))
    raise Misconfigured("DEMO_DATA_MISSING", f"no {' and '.join(FILES)} in {looked}; name their directory with --data")


def read_questions(data: Path) -> Sequence[Question]:
    """Read the ten questions, in order.

    Raises:
        Misconfigured: One is missing.
    """
    lines = (data / "queries.jsonl").read_bytes().splitlines()
    by_id = {question.id: question for question in map(TypeAdapter(Question).validate_json, filter(None, lines))}
    missing = [wanted for wanted in IDS if wanted not in by_id]
    if missing:
        raise Misconfigured("DEMO_DATA_MISSING", f"{data / 'queries.jsonl'} has no {', '.join(missing)}")
    return [by_id[wanted] for wanted in IDS]
