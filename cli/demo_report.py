"""What the demo shows: per question the order before and after, at the end the means."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.answers import identifier, milliseconds, shares
from cli.console import one_line
from cli.demo_questions import Question
from cli.time_bar import legend
from retrieval.gateway.v1 import gateway_pb2 as pb

SHOWN = 3
INDENT = " " * 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A question and what the gateway answered."""

    question: Question
    response: pb.SearchResponse

    @property
    def before(self) -> list[int | str]:
        """Ids in retrieval order."""
        return [identifier(hit.id) for hit in self.response.pool]

    @property
    def after(self) -> list[int | str]:
        """Ids of the hits in reranked order."""
        return [identifier(hit.id) for hit in self.response.hits]


def reciprocal_rank(ids: Iterable[int | str], relevant: frozenset[int], depth: int) -> float:
    """Return 1 / rank of the first relevant id among the first `depth`, or 0.

    Source: the definition of MRR as TREC's question answering track uses it.
    """
    ranks = (rank for rank, found in enumerate(ids, start=1) if rank <= depth and found in relevant)
    return 1 / next(ranks, float("inf"))


def print_answer(console: Console, answered: Answered, counter: str) -> None:
    """Print one question: its first documents before and after, relevant ones marked, and the time."""
    question = answered.question
    head = Text.assemble(
        (f"  {counter:>5} ", "dim"), (question.id, "cyan"), f" {question.lang}  ", (one_line(question.query), "bold")
    )
    head.truncate(console.width, overflow="ellipsis")
    console.print(head)
    order = Text(INDENT)
    for name, ids in (("before", answered.before), ("after", answered.after)):
        order.append(f"{name}  ", "dim").append_text(_marked(ids[:SHOWN], question.relevant)).append("    ")
    console.print(order)
    line = Text(INDENT).append_text(
        legend(shares(answered.response.timings), milliseconds(answered.response.timings.total))
    )
    console.print(line)


def _marked(ids: Sequence[int | str], relevant: frozenset[int]) -> Text:
    line = Text()
    for found in ids:
        good = found in relevant
        line.append(f"{'✓' if good else '·'}{found!s:<4}", "bold green" if good else "dim")
    return line


def print_summary(console: Console, answered: Sequence[Answered], depth: int) -> None:
    """Print mean times, and MRR before and after."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("mean of", "dense ms", "rerank ms", "total ms", f"MRR@{depth} before", f"MRR@{depth} after"):
        table.add_column(column, justify="left" if column == "mean of" else "right")
    times = [found.response.timings for found in answered]
    spans = (
        _mean(milliseconds(time.dense) for time in times),
        _mean(milliseconds(time.rerank.total) for time in times),
        _mean(milliseconds(time.total) for time in times),
    )
    before = _mean(reciprocal_rank(found.before, found.question.relevant, depth) for found in answered)
    after = _mean(reciprocal_rank(found.after, found.question.relevant, depth) for found in answered)
    quality = (Text(f"{before:.3f}"), Text(f"{after:.3f}", "bold green" if after > before else "bold"))
    table.add_row(f"{len(answered)} questions", *(f"{span:.1f}" for span in spans), *quality)
    console.print()
    console.print(table)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
