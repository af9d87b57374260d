"""Hits as a table: where each stood before the reranker and where it stands now."""

from collections.abc import Iterable

from google.protobuf import json_format
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from cli.answers import identifier
from cli.console import one_line
from retrieval.gateway.v1 import gateway_pb2 as pb

PASSAGE_CHARACTERS = 400
"""More than two lines on the widest terminal that is read."""


def hits_table(hits: Iterable[pb.Hit], *, title_field: str = "", lines: int = 2) -> Table:
    """Lay hits out, best first.

    Args:
        hits: As the gateway answered.
        title_field: Payload key of a heading, or nothing.
        lines: Most lines of a passage.
    """
    table = Table(box=None, expand=True, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("moved", no_wrap=True)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("logit", justify="right", no_wrap=True)
    table.add_column("passage", ratio=1)
    for hit in hits:
        table.add_row(_ranks(hit), _moved(hit), *_numbers(hit), _passage(hit, title_field, lines))
    return table


def _ranks(hit: pb.Hit) -> Text:
    after = str(hit.rerank_rank) if hit.HasField("rerank_rank") else "-"
    return Text.assemble((f"{hit.retrieval_rank}", "dim"), (" → ", "dim"), (after, "bold"))


def _moved(hit: pb.Hit) -> Text:
    up = hit.retrieval_rank - hit.rerank_rank
    if not hit.HasField("rerank_rank"):
        return Text("")
    if up == 0:
        return Text("=", "dim")
    return Text(f"▲ {up}", "green") if up > 0 else Text(f"▼ {-up}", "red")


def _numbers(hit: pb.Hit) -> tuple[Text, Text]:
    logit = f"{hit.logit:.2f}" if hit.HasField("logit") else "-"
    # Four significant digits: fused scores are hundredths, cosines tenths, BM25 tens.
    return Text(f"{hit.retrieval_score:.4g}"), Text(logit, "bold")


def _passage(hit: pb.Hit, title_field: str, lines: int) -> "_Clipped":
    title = json_format.MessageToDict(hit.payload).get(title_field, "") if title_field else ""
    head = Text.assemble((f"{identifier(hit.id)}", "cyan"), (f"  {one_line(str(title))}", "bold") if title else "")
    flags = [
        word
        for word, shown in (
            (f"part {hit.part} of {hit.part_count}", hit.part),
            ("cut for the reranker", hit.truncated),
            ("no text", hit.text_missing),
        )
        if shown
    ]
    if flags:
        head.append(f"  ({', '.join(flags)})", "yellow")
    if hit.lists:
        head.append(f"  [{', '.join(f'{one.list} {one.rank}' for one in hit.lists)}]", "dim")
    return _Clipped(head, Text(one_line(hit.text[:PASSAGE_CHARACTERS])), lines)


class _Clipped:
    """A heading on one line and a text on a few, cut to the width of the column with an ellipsis."""

    def __init__(self, head: Text, text: Text, lines: int) -> None:
        self._head = head
        self._text = text
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        head = self._head.copy()
        head.truncate(width, overflow="ellipsis")
        yield head
        wrapped = self._text.wrap(console, width)
        shown = wrapped[: self._lines]
        for number, line in enumerate(shown, start=1):
            line.rstrip()
            if number == self._lines and len(wrapped) > self._lines:
                line.truncate(width - 1)
                line.append("…")
            yield line
