"""What indexing shows: a bar meanwhile, and afterwards what became of the lines."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from cli.console import answers, note, notes
from cli.indexing import Indexed
from cli.record import Outcome

SHOWN = 20
"""Problems printed; the reject file has all."""
SPEED_PERIOD_S = 30.0


class _Rate(ProgressColumn):
    """Documents per second over the last while; those of an interrupted run do not count."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or task.finished_speed or 0:.0f}/s", "dim")


@contextmanager
def progress_bar(line_count: int | None) -> Iterator[Callable[[Outcome], None]]:
    """Show a bar with rate and time left on a terminal, and nothing elsewhere."""
    console = notes()
    columns = (TextColumn("indexing"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(
        *columns,
        console=console,
        transient=True,
        speed_estimate_period=SPEED_PERIOD_S,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("", total=line_count, start=False)

        def progress(outcome: Outcome) -> None:
            if not bar.tasks[0].started:
                # What was done before takes no part in the estimate.
                bar.reset(task, total=line_count, completed=outcome.done_count)
                return
            bar.update(task, completed=outcome.done_count)

        yield progress


def as_document(indexed: Indexed, rejects: Path | None = None) -> dict[str, Any]:
    """Return what `--json` prints."""
    outcome, counts = indexed.outcome, indexed.outcome.counts
    return {
        "collection": indexed.collection,
        "complete": indexed.complete,
        "line_count": outcome.line_count,
        "stored_count": counts.stored,
        "resumed_count": outcome.resumed_count,
        "truncated_count": counts.truncated,
        "split_count": counts.split,
        "part_count": counts.parts,
        "surrogate_count": outcome.surrogate_count,
        "document_count": indexed.document_count,
        "missing_count": indexed.missing_count,
        "unexpected_count": indexed.unexpected_count,
        "exact": indexed.exact,
        "malformed_count": outcome.malformed_count,
        "refused_count": outcome.refused_count,
        "malformed": [{"number": line.number, "problem": line.problem} for line in outcome.malformed],
        "refused": [asdict(line) for line in outcome.refused],
        "rejects": str(rejects) if rejects is not None and outcome.rejected_count else None,
        "seconds": round(indexed.seconds, 3),
    }


def print_indexed(indexed: Indexed, rejects: Path | None = None) -> None:
    """Print what became of the lines."""
    outcome = indexed.outcome
    _print_problems(outcome, rejects)
    now = outcome.stored_count - outcome.resumed_count
    rate = now / indexed.seconds if indexed.seconds else 0
    console = answers()
    console.print(
        Text.assemble(
            (f"{outcome.stored_count}", "bold"),
            f" of {outcome.line_count} documents stored in {indexed.seconds:.1f} s ({rate:.0f}/s); ",
            (indexed.collection, "bold"),
            f" holds {indexed.document_count}",
            ", all accounted for" if indexed.exact and indexed.counted else "",
        ),
        soft_wrap=True,
    )
    for count, what in _remarks(outcome):
        if count:
            console.print(Text(f"  {count} {what}"))
    if indexed.missing_count:
        note(f"{indexed.missing_count} documents were acknowledged and are not in the collection", "bold red")
    if indexed.unexpected_count:
        note(f"{indexed.unexpected_count} documents in the collection are not of this run", "bold red")


def _remarks(outcome: Outcome) -> list[tuple[int, str]]:
    counts = outcome.counts
    return [
        (outcome.resumed_count, "of them by the interrupted run before"),
        (counts.truncated, "cut to what the encoder reads; they are stored whole"),
        (counts.split, f"split into {counts.parts} parts"),
        (outcome.surrogate_count, "lone surrogates replaced by U+FFFD"),
        (outcome.malformed_count, "malformed lines left out"),
        (outcome.refused_count, "documents refused"),
    ]


def _print_problems(outcome: Outcome, rejects: Path | None) -> None:
    problems = sorted(
        [(line.number, f"malformed: {line.problem}") for line in outcome.malformed]
        + [(line.number, f"refused: {line.reason}: {line.message}") for line in outcome.refused]
    )
    for number, problem in problems[:SHOWN]:
        note(f"line {number}: {problem}", "red")
    if outcome.rejected_count > SHOWN:
        note(f"and {outcome.rejected_count - SHOWN} more", "red")
    if rejects is not None and outcome.rejected_count:
        note(f"all of them, with the lines as they are: {rejects}", "red")
