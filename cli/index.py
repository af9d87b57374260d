"""`twostage index`: a file of documents into a collection, and whether all of it arrived."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import grpc
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from cli import options
from cli.calls import CallFailed, Gateway, gateway_at, run
from cli.console import EXIT_MISCONFIGURED, EXIT_NOT_SO, answers, fail, note, notes, print_json
from cli.lines import Fields, read_lines
from cli.upsert import Outcome, upsert
from retrieval.gateway.v1 import gateway_pb2 as pb

CALL_TIMEOUT_S = 30.0
SHOWN = 20
"""Problems printed; `--json` has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """What `index_lines` did."""

    outcome: Outcome
    document_count: int
    """Documents in the collection afterwards, counted by the store."""
    missing_count: int
    """Documents that were acknowledged and are not there."""
    seconds: float

    @property
    def complete(self) -> bool:
        """Whether every line is a document in the collection."""
        return not (self.missing_count or self.outcome.malformed or self.outcome.refused)


def index(  # noqa: PLR0917 - options, all given by name
    file: Annotated[
        str, typer.Argument(metavar="FILE.jsonl", help="One JSON object per line; - reads standard input.")
    ],
    collection: options.Collection,
    gateway: options.Gateway = options.DEFAULT_GATEWAY,
    text_field: Annotated[str, typer.Option(metavar="FIELD", help="Field that is searched and shown.")] = "text",
    id_field: Annotated[str, typer.Option(metavar="FIELD", help="Field that is the id: text or a number.")] = "id",
    truncate: Annotated[bool, typer.Option("--truncate", help="Encode the beginning of too long texts.")] = False,
    recreate: Annotated[bool, typer.Option("--recreate", help="Drop the collection first, with all in it.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Index documents: every field but id and text is kept as payload.

    Creates the collection where there is none. Documents with a known id are replaced, so running it again after a
    crash does no harm. Exits 1 where a line was malformed or refused, or a stored document is missing afterwards.
    """
    if text_field == id_field:
        fail(EXIT_MISCONFIGURED, f'"{text_field}" cannot be both id and text')
    with _opened(file) as (source, line_count), _progress(line_count) as progress:
        fields = Fields(id=id_field, text=text_field)
        work = index_lines(gateway, collection, source, fields, truncate=truncate, recreate=recreate, progress=progress)
        indexed = run(work, gateway)
    print_json(as_document(collection, indexed)) if as_json else _print(collection, indexed)
    raise typer.Exit(0 if indexed.complete else EXIT_NOT_SO)


async def index_lines(
    address: str,
    collection: str,
    source: IO[bytes],
    fields: Fields,
    *,
    truncate: bool = False,
    recreate: bool = False,
    progress: Callable[[Outcome], None] = lambda _: None,
) -> Indexed:
    """Index every line of a file, then count.

    Raises:
        CallFailed: The gateway cannot store documents now.
        grpc.aio.AioRpcError: A call failed.
    """
    begun = time.monotonic()
    async with gateway_at(address) as gateway:
        before = await _collection(gateway, collection, recreate=recreate)
    outcome = Outcome()
    lines = read_lines(source, fields)
    try:
        await upsert(address, collection, lines, truncate=truncate, outcome=outcome, progress=progress)
    except (grpc.aio.AioRpcError, CallFailed):
        note(f"stopped after {outcome.stored_count} stored documents; running it again starts over and does no harm")
        raise
    async with gateway_at(address) as gateway:
        request = pb.DescribeCollectionRequest(collection=collection)
        after = (await gateway.collections.DescribeCollection(request, timeout=CALL_TIMEOUT_S)).collection
    # Where documents were there before, those of this file may have replaced any number of them.
    expected = max(before.document_count, outcome.stored_count)
    return Indexed(
        outcome=outcome,
        document_count=after.document_count,
        missing_count=max(0, expected - after.document_count),
        seconds=time.monotonic() - begun,
    )


async def _collection(gateway: Gateway, name: str, *, recreate: bool) -> pb.Collection:
    describe = pb.DescribeCollectionRequest(collection=name)
    try:
        found = (await gateway.collections.DescribeCollection(describe, timeout=CALL_TIMEOUT_S)).collection
        if not recreate:
            return found
        await gateway.collections.DropCollection(pb.DropCollectionRequest(collection=name), timeout=CALL_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.NOT_FOUND:
            raise
    create = pb.CreateCollectionRequest(collection=name)
    return (await gateway.collections.CreateCollection(create, timeout=CALL_TIMEOUT_S)).collection


@contextmanager
def _opened(file: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """Open a file and count its lines; standard input cannot be read twice."""
    if file == "-":
        yield sys.stdin.buffer, None
        return
    try:
        with Path(file).open("rb") as source:
            line_count = sum(1 for _ in source)
            source.seek(0)
            yield source, line_count
    except OSError as error:
        fail(EXIT_MISCONFIGURED, f"{file} cannot be read: {error.strerror}")


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.completed / (task.elapsed or 1):.0f}/s", "dim")


@contextmanager
def _progress(line_count: int | None) -> Iterator[Callable[[Outcome], None]]:
    """Show a bar on a terminal, and nothing elsewhere."""
    console = notes()
    columns = (TextColumn("indexing"), BarColumn(), MofNCompleteColumn(), _Rate())
    with Progress(
        *columns, console=console, transient=True, speed_estimate_period=10, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=line_count)

        def progress(outcome: Outcome) -> None:
            done = outcome.stored_count + len(outcome.malformed) + len(outcome.refused)
            bar.update(task, completed=done)

        yield progress


def as_document(collection: str, indexed: Indexed) -> dict[str, Any]:
    """Return what `--json` prints."""
    outcome = indexed.outcome
    return {
        "collection": collection,
        "complete": indexed.complete,
        "line_count": outcome.line_count,
        "stored_count": outcome.stored_count,
        "truncated_count": outcome.truncated_count,
        "surrogate_count": outcome.surrogate_count,
        "document_count": indexed.document_count,
        "missing_count": indexed.missing_count,
        "malformed": [asdict(line) for line in outcome.malformed],
        "refused": [asdict(line) for line in outcome.refused],
        "seconds": round(indexed.seconds, 3),
    }


def _print(collection: str, indexed: Indexed) -> None:
    outcome = indexed.outcome
    for number, problem in _problems(outcome)[:SHOWN]:
        note(f"line {number}: {problem}", "red")
    if len(_problems(outcome)) > SHOWN:
        note(f"and {len(_problems(outcome)) - SHOWN} more, all of them with --json", "red")
    rate = outcome.stored_count / indexed.seconds if indexed.seconds else 0
    console = answers()
    console.print(
        Text.assemble(
            (f"{outcome.stored_count}", "bold"),
            f" of {outcome.line_count} documents stored in {indexed.seconds:.1f} s ({rate:.0f}/s); ",
            (collection, "bold"),
            f" holds {indexed.document_count}",
        )
    )
    for count, what in (
        (outcome.truncated_count, "cut to what the encoder reads; they are stored whole"),
        (outcome.surrogate_count, "lone surrogates replaced by U+FFFD"),
        (len(outcome.malformed), "malformed lines left out"),
        (len(outcome.refused), "documents refused"),
    ):
        if count:
            console.print(Text(f"  {count} {what}"))
    if indexed.missing_count:
        note(f"{indexed.missing_count} documents were acknowledged and are not in the collection", "bold red")


def _problems(outcome: Outcome) -> list[tuple[int, str]]:
    malformed = [(line.number, f"malformed: {line.problem}") for line in outcome.malformed]
    refused = [(line.number, f"refused: {line.reason}: {line.message}") for line in outcome.refused]
    return sorted([*malformed, *refused])
