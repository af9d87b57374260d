"""How a query and its passages become rows."""

from collections.abc import Sequence
from typing import Any

from reranker_server.model import tokenize
from serving.tokens import PairTruncation, Tokens


class CountingTokenizer:
    """Gives a text its length as its only id, and notes what it was asked to read."""

    max_tokens = 64

    def __init__(self) -> None:
        self.read: list[list[str]] = []

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        self.read.append(list(texts))
        return [[len(text)] for text in texts]

    def blank(self, ids: list[int]) -> bool:
        return ids == [0]

    def pair(self, query: list[int], passage: list[int], truncation: PairTruncation) -> Tokens:
        return Tokens([*query, *passage], untruncated_count=2)


def test_the_query_is_read_once_however_many_candidates_there_are() -> None:
    """All texts of a request are read in one go, the query once among them, and every pair begins with it."""
    tokenizer: Any = CountingTokenizer()
    passages = ["p" * length for length in (7, 0, 9, 11)]
    pairs = tokenize(tokenizer, "query", passages, truncation=PairTruncation.LONGEST_FIRST, skip_blank=True)
    assert tokenizer.read == [["query", *passages]]
    assert [row.ids for row in pairs.rows] == [[5, 7], [5, 9], [5, 11]]
    assert (pairs.indices, pairs.skipped) == ([0, 2, 3], [1])
