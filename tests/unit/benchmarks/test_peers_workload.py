"""The benchmark's requests."""

from itertools import islice
from pathlib import Path

import pytest

from benchmarks.peers.cells import seed_of
from benchmarks.peers.workload import WORKLOADS, Request, read_words, stream

CORPUS = Path(__file__).parents[3] / "data/helpcentre"


@pytest.fixture(scope="module")
def words() -> list[str]:
    """The words of the help-centre corpus."""
    return read_words(CORPUS)


def first(name: str, words: list[str], seed: int, count: int = 60) -> list[Request]:
    return list(islice(stream(name, words, seed), count))


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_the_same_seed_gives_the_same_requests(name: str, words: list[str]) -> None:
    """Every server is asked the same, and another seed asks something else."""
    assert first(name, words, 1) == first(name, words, 1)
    assert first(name, words, 1) != first(name, words, 2)


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_no_text_is_repeated(name: str, words: list[str]) -> None:
    """All texts of a stream differ, so that no cache can answer."""
    texts = [text for one in first(name, words, 3, 200) for text in (*one.texts, one.query) if text]
    assert len(set(texts)) == len(texts)


def test_passages_spread_in_length(words: list[str]) -> None:
    """A tenth of the passages has under 15 words and a tenth over 80, and requests hold 8 to 16 of them."""
    requests = first("passages", words, 4, 100)
    lengths = sorted(len(text.split()) for one in requests for text in one.texts)
    assert lengths[len(lengths) // 10] < 15
    assert lengths[-len(lengths) // 10] > 80
    assert {len(one.texts) for one in requests} == set(range(8, 17))


def test_mixed_traffic_holds_both(words: list[str]) -> None:
    """About 7 of 10 calls are one question, the others passages."""
    requests = first("mixed", words, 5, 400)
    questions = sum(one.role == "query" for one in requests)
    assert 0.6 < questions / 400 < 0.8
    assert all((len(one.texts) == 1) == (one.role == "query") for one in requests)


def test_rerank_requests_are_one_question_and_candidates(words: list[str]) -> None:
    """A question and 20 passages, or 2 to 8 of them."""
    assert {len(one.texts) for one in first("rerank", words, 6)} == {20}
    assert {len(one.texts) for one in first("rerank_few", words, 6)} == set(range(2, 9))
    assert all(one.query for one in first("rerank", words, 6))


def test_cells_ask_different_texts() -> None:
    """Two rounds, and two loads, have seeds of their own."""
    assert len({seed_of("mixed", load, turn) for load in ("c1", "c32", "o80") for turn in (-2, -1, 0, 1)}) == 12
