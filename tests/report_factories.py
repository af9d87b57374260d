"""Builders of a run's files for the report: real shapes, hand-made pools, figures computed by `evaluation` itself."""

import random
from collections.abc import Sequence
from pathlib import Path

from evaluation import pools, records
from evaluation.figures import DenseDepthPoint, DepthPoint, Interval, StageTime, TruncationPoint
from evaluation.files import write
from evaluation.phases.evaluate import evaluated
from evaluation.records import (
    Candidates,
    Configuration,
    Corpus,
    DenseTime,
    Exercise,
    FrozenCandidate,
    FrozenPool,
    Indexed,
    ModelUsed,
    Negative,
    Negatives,
    Population,
    Provenance,
    Reranked,
    RerankedPool,
    ScoredPair,
    Studies,
)

POOL_SIZE = 20
ENCODER = ModelUsed(
    id="intfloat/multilingual-e5-small",
    revision="c007d7ef6fd86656326059b28395a7a03a7c5846",
    digest="sha256:" + "5e" * 32,
    precision="fp32",
    device="cpu",
)
RERANKER = ModelUsed(
    id="BAAI/bge-reranker-v2-m3",
    revision="953dc6f6f85a1b2dbfca4c34a2796e7dde08d41e",
    digest="sha256:" + "b6" * 32,
    precision="fp32",
    device="cpu",
)
HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'> & \"quotes\" {{ 7 * 7 }}"
"""A document's text that would do something in a page that trusts it."""


def provenance(*, corpus: str = "helpcentre", digest: str = "sha256:" + "c0" * 32) -> Provenance:
    """Return what produced the files."""
    return Provenance(
        corpus=Corpus(
            name=corpus,
            digest=digest,
            population=Population(
                document_count=200,
                question_count=80,
                dev_count=20,
                test_count=60,
                answerable_test_count=48,
                unanswerable_test_count=12,
            ),
        ),
        configuration=Configuration(pool_size=POOL_SIZE),
        versions={"numpy": "2.4.6", "python": "3.11.7", "twostage": "0.1.0"},
        machine="Imaginary Processor 9000, 2 usable CPUs",
        collection="eval-helpcentre-c0c0c0c0-text",
        store="qdrant-edge",
        encoder=ENCODER,
        reranker=RERANKER,
    )
