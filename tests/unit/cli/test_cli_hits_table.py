"""The table of hits."""

from io import StringIO

import pytest
from google.protobuf import struct_pb2
from rich.console import Console

from cli.hits_table import hits_table
from retrieval.gateway.v1 import gateway_pb2 as pb


def hit(number: int, before: int, after: int | None, text: str = "words", title: str = "") -> pb.Hit:
    payload = struct_pb2.Struct()
    payload.update({"title": title} if title else {})
    return pb.Hit(
        id=pb.DocumentId(number=number),
        retrieval_rank=before,
        retrieval_score=0.8431,
        rerank_rank=after,
        logit=None if after is None else 5.125 - after,
        text=text,
        payload=payload,
    )


def shown(*hits: pb.Hit, width: int = 80) -> list[str]:
    out = StringIO()
    Console(file=out, width=width, markup=False, emoji=False, highlight=False).print(
        hits_table(hits, title_field="title")
    )
    return out.getvalue().splitlines()


def test_ranks_before_and_after_and_the_way_between() -> None:
    """Who rose, who fell and who stayed is seen without counting."""
    _, *lines = shown(hit(41, 7, 1), hit(42, 1, 2), hit(43, 3, 3))
    rows = [line.split()[:4] for line in lines if "→" in line]
    assert rows == [["7", "→", "1", "▲"], ["1", "→", "2", "▼"], ["3", "→", "3", "="]]
    assert lines[0].split()[4:] == ["6", "0.8431", "4.12", "41"]


def test_a_hit_that_was_not_scored_has_no_rank_after() -> None:
    """Nothing is made up where the reranker did not read a document."""
    assert shown(hit(41, 7, None))[1].split() == ["7", "→", "-", "0.8431", "-", "41"]


@pytest.mark.parametrize("width", [80, 120])
def test_long_passages_are_cut_to_two_lines_and_end_with_an_ellipsis(width: int) -> None:
    """A row is a heading and at most two lines, none wider than the terminal."""
    lines = shown(hit(41, 1, 1, text="several words " * 60, title="A heading"), width=width)
    assert len(lines) == 4
    assert all(len(line.rstrip()) <= width for line in lines)
    assert lines[1].rstrip().endswith("41  A heading")
    assert lines[3].rstrip().endswith("…")


def test_stored_text_cannot_steer_the_terminal() -> None:
    """Escape sequences, markup and line breaks of a document are shown as text."""
    lines = shown(hit(41, 1, 1, text="a\x1b[31mb [bold]c[/bold]\r\n:smile:"))
    assert lines[2].strip() == "a\N{REPLACEMENT CHARACTER}[31mb [bold]c[/bold] :smile:"


def test_what_is_odd_about_a_document_is_said() -> None:
    """A cut pair and a document without text are marked."""
    odd = hit(41, 1, 1, text="")
    odd.truncated = True
    odd.text_missing = True
    assert "(cut for the reranker, no text)" in shown(odd)[1]
