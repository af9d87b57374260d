"""Whether a peer's results are ours."""

import numpy as np
import pytest

from benchmarks.peers.check import Disagrees, agreement
from benchmarks.peers.target import FloatArray
from benchmarks.peers.workload import Request

TEXTS = Request(kind="encoder", texts=("a", "b"))
PAIRS = Request(kind="reranker", query="q", texts=("a", "b", "c"))


class Answers:
    """A target that answers what it was made with."""

    def __init__(self, answer: object, name: str = "peer") -> None:
        self.name = name
        self._answer = np.array(answer, np.float32)

    async def answer(self, request: Request) -> FloatArray:
        return self._answer


async def compare(actual: object, expected: object, request: Request, name: str = "peer") -> str:
    return await agreement(Answers(actual, name), [request], [np.array(expected, np.float32)])  # type: ignore[arg-type]


async def test_vectors_of_another_length_agree() -> None:
    """Only the direction of a vector counts, and the worst one is told."""
    assert await compare([[2.0, 0.0], [0.0, 3.0]], [[1.0, 0.0], [0.0, 1.0]], TEXTS) == "cosine 1.000000"


@pytest.mark.parametrize("wrong", [[[1.0, 0.0], [0.1, 1.0]], [[0.0, 1.0], [1.0, 0.0]], [[np.nan, 0.0], [0.0, 1.0]]])
async def test_one_wrong_vector_is_enough(wrong: list[list[float]]) -> None:
    """A vector that is off, vectors in another order, and one that is no number are all noticed."""
    with pytest.raises(Disagrees, match="cosine"):
        await compare(wrong, [[1.0, 0.0], [0.0, 1.0]], TEXTS)


async def test_fewer_bits_are_held_to_less() -> None:
    """What a peer is refused for, our int8 form is allowed."""
    assert await compare([[1.0, 0.1], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]], TEXTS, "ours int8") == "cosine 0.995037"


async def test_logits_near_ours_or_in_our_order_agree() -> None:
    """Logits may be off by 0.01, or by more where the order is the same, as behind a sigmoid."""
    assert "within" in await compare([1.0, 1.004, -2.0], [1.002, 1.001, -2.0], PAIRS)
    assert "same order" in await compare([0.9, 0.5, 0.1], [4.0, 0.0, -3.0], PAIRS)


async def test_logits_in_another_order_disagree() -> None:
    """Scores that belong to other candidates are noticed."""
    with pytest.raises(Disagrees, match="order is another"):
        await compare([0.0, 4.0, -3.0], [4.0, 0.0, -3.0], PAIRS)


async def test_a_missing_result_disagrees() -> None:
    """Two results for three candidates are not compared but refused."""
    with pytest.raises(Disagrees, match="shapes"):
        await compare([1.0, 2.0], [1.0, 2.0, 3.0], PAIRS)
