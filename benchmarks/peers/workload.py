"""What is asked: requests of real text in mixed lengths, the same for every server, never one repeated text.

Texts are stretches of the help-centre corpus. A stretch begins at any word and its length is drawn, so that every text
of a stream is another one, and the lengths spread as those of questions and passages do.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from serving.bundle import Kind

TEXTS_PER_REQUEST = (8, 16)
CANDIDATES = 20
FEW_CANDIDATES = (2, 8)
QUERY_SHARE = 0.7
"""Share of one-text requests in `mixed`."""

Role = Literal["query", "passage"]
PREFIX: Mapping[Role, str] = {"query": "query: ", "passage": "passage: "}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call: texts of one role to encode, or a query and passages to score."""

    kind: Kind
    texts: tuple[str, ...]
    role: Role = "passage"
    query: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A log-normal distribution of words per text, cut to a range."""

    median: float
    sigma: float
    least: int
    most: int

    def draw(self, rng: np.random.Generator) -> int:
        """Draw one length."""
        words = rng.lognormal(math.log(self.median), self.sigma)
        return int(min(max(words, self.least), self.most))


# In words; a word of this corpus is about 1.5 tokens, so passages span some 8 to 400 tokens and questions 5 to 30.
QUERY_WORDS = Lengths(median=8, sigma=0.4, least=2, most=18)
PASSAGE_WORDS = Lengths(median=32, sigma=0.8, least=3, most=240)


class Texts:
    """A stream of stretches of a corpus, all different.

    Args:
        words: The corpus.
        seed: The same seed gives the same stream.
    """

    def __init__(self, words: Sequence[str], seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self._words = words
        self._given: set[str] = set()

    def next(self, lengths: Lengths) -> str:
        """Return a text that this stream has not given before."""
        while True:
            count = lengths.draw(self.rng)
            begin = int(self.rng.integers(len(self._words) - count))
            text = " ".join(self._words[begin : begin + count])
            if text not in self._given:
                self._given.add(text)
                return text


def _query(texts: Texts) -> Request:
    return Request(kind="encoder", texts=(texts.next(QUERY_WORDS),), role="query")


def _passages(texts: Texts) -> Request:
    count = int(texts.rng.integers(TEXTS_PER_REQUEST[0], TEXTS_PER_REQUEST[1] + 1))
    return Request(kind="encoder", texts=tuple(texts.next(PASSAGE_WORDS) for _ in range(count)))


def _mixed(texts: Texts) -> Request:
    return _query(texts) if texts.rng.random() < QUERY_SHARE else _passages(texts)


def _pairs(texts: Texts, count: int) -> Request:
    passages = tuple(texts.next(PASSAGE_WORDS) for _ in range(count))
    return Request(kind="reranker", texts=passages, query=texts.next(QUERY_WORDS))


def _rerank(texts: Texts) -> Request:
    return _pairs(texts, CANDIDATES)


def _rerank_few(texts: Texts) -> Request:
    return _pairs(texts, int(texts.rng.integers(FEW_CANDIDATES[0], FEW_CANDIDATES[1] + 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A kind of traffic."""

    kind: Kind
    make: Callable[[Texts], Request]
    deadline_s: float
    """When an answer is too late to count as goodput."""
    about: str


WORKLOADS: Mapping[str, Workload] = {
    "queries": Workload(kind="encoder", make=_query, deadline_s=0.25, about="1 question of 5 to 30 tokens"),
    "passages": Workload(kind="encoder", make=_passages, deadline_s=2.0, about="8 to 16 passages of 8 to 400 tokens"),
    "mixed": Workload(kind="encoder", make=_mixed, deadline_s=2.0, about="7 of 10 calls a question, 3 are passages"),
    "rerank": Workload(kind="reranker", make=_rerank, deadline_s=5.0, about="1 question, 20 passages"),
    "rerank_few": Workload(kind="reranker", make=_rerank_few, deadline_s=2.0, about="1 question, 2 to 8 passages"),
}


def read_words(corpus: Path) -> list[str]:
    """Read the documents of a corpus as one list of words."""
    lines = (corpus / "documents.jsonl").read_text(encoding="utf-8").splitlines()
    documents = [json.loads(line) for line in lines]
    return [word for one in documents for word in f"{one['title']} {one['text']}".split()]


def stream(name: str, words: Sequence[str], seed: int) -> Iterator[Request]:
    """Yield a workload's requests without end, the same for the same seed."""
    texts, make = Texts(words, seed), WORKLOADS[name].make
    while True:
        yield make(texts)
