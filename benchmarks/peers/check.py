"""Whether a peer computes what we compute: one that does not is not timed."""

from itertools import islice

import numpy as np

from benchmarks.peers.target import FloatArray, Target
from benchmarks.peers.workload import Request, stream
from serving.bundle import Kind

LEAST_COSINE = 0.999
MOST_LOGIT_DIFFERENCE = 1e-2
COARSE = ("ours int8", "infinity torch bf16")
"""Targets that compute in fewer bits, and say so; these are held to less."""
LEAST_COARSE_COSINE = 0.99
MOST_COARSE_LOGIT_DIFFERENCE = 0.5
SEED = 7
CHECKED = {"encoder": ("queries", "passages"), "reranker": ("rerank",)}
REQUESTS = 4


class Disagrees(Exception):
    """A target's results are not ours."""


def samples(kind: Kind, words: list[str]) -> list[Request]:
    """Return the requests that are compared."""
    return [one for name in CHECKED[kind] for one in islice(stream(name, words, SEED), REQUESTS)]


async def agreement(target: Target, requests: list[Request], expected: list[FloatArray]) -> str:
    """Compare a target's results with ours; say how near they are.

    Raises:
        Disagrees: They are not near enough.
    """
    actual = [await target.answer(request) for request in requests]
    if [one.shape for one in actual] != [one.shape for one in expected]:
        raise Disagrees(f"shapes {[one.shape for one in actual]}, wanted {[one.shape for one in expected]}")
    coarse = target.name in COARSE
    if requests[0].kind == "encoder":
        return _vectors(actual, expected, LEAST_COARSE_COSINE if coarse else LEAST_COSINE)
    return _logits(actual, expected, MOST_COARSE_LOGIT_DIFFERENCE if coarse else MOST_LOGIT_DIFFERENCE)


def _vectors(actual: list[FloatArray], expected: list[FloatArray], wanted: float) -> str:
    mine, theirs = np.concatenate(expected), np.concatenate(actual)
    norms = np.linalg.norm(mine, axis=1) * np.linalg.norm(theirs, axis=1)
    least = float(((mine * theirs).sum(axis=1) / norms).min())
    if not least >= wanted:  # NaN too
        raise Disagrees(f"cosine {least:.6f}, at least {wanted} is wanted")
    return f"cosine {least:.6f}"


def _logits(actual: list[FloatArray], expected: list[FloatArray], allowed: float) -> str:
    most = max(float(np.abs(one - other).max()) for one, other in zip(actual, expected, strict=True))
    same = all(np.array_equal(np.argsort(one), np.argsort(other)) for one, other in zip(actual, expected, strict=True))
    if not (most <= allowed or same):
        raise Disagrees(f"logits differ by {most:.3g} and the order is another")
    return f"logits within {most:.2g}{', same order' if same else ''}"
