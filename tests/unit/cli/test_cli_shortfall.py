"""What `twostage search` says of an answer that was not reranked, or not wholly."""

import pytest

from cli.answers import response_document, shortfalls
from retrieval.gateway.v1 import gateway_pb2 as pb

PART = pb.Degradation(stage="rerank", reason="TIME_SHORT", reranked_count=6, pool_count=20)
NONE = pb.Degradation(
    rerank_skipped_reason="RERANKER_UNAVAILABLE", stage="rerank", reason="RERANKER_UNAVAILABLE", pool_count=20
)


@pytest.mark.parametrize(
    ("degradation", "words"),
    [
        (PART, ["reranked in part: 6 of 20 candidates, TIME_SHORT"]),
        (NONE, ["not reranked: RERANKER_UNAVAILABLE"]),
        (pb.Degradation(rerank_skipped_reason="DEADLINE_SPENT"), ["not reranked: DEADLINE_SPENT"]),
        (pb.Degradation(text_missing_count=2), []),
        (
            pb.Degradation(write_skipped_reason="DEADLINE_SPENT", rerank_skipped_reason="RERANKER_FAILED"),
            ["no hypothetical passages: DEADLINE_SPENT", "not reranked: RERANKER_FAILED"],
        ),
        (pb.Degradation(), []),
    ],
)
def test_a_shortfall_in_words(degradation: pb.Degradation, words: list[str]) -> None:
    """A part is told from nothing, an older gateway is understood, and missing texts are no shortfall."""
    assert shortfalls(degradation) == words


def test_json_has_every_field_of_a_degradation() -> None:
    """Programs get counts and reasons, and null where nothing is missing."""
    document = response_document(pb.SearchResponse(degradation=PART))["degradation"]
    assert document == {
        "rerank_skipped_reason": "",
        "text_missing_count": 0,
        "stage": "rerank",
        "reason": "TIME_SHORT",
        "reranked_count": 6,
        "pool_count": 20,
        "write_skipped_reason": "",
    }
    assert response_document(pb.SearchResponse())["degradation"] is None
