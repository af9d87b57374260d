"""Settings of the reranker server: no legal answer may be too large for a client.

Numbers in brackets are those of field failures.
"""

from pathlib import Path

import pytest
from pydantic import ValidationError

from reranker_server.service import MAX_ID_BYTES
from reranker_server.settings import RerankerSettings
from retrieval.reranker.v1 import reranker_pb2 as pb
from serving.settings import CLIENT_MESSAGE_BYTES
from serving.timing import to_duration

MOST = 4_096


def test_the_largest_answer_that_may_be_set_fits_any_client() -> None:
    """The most candidates with the longest ids, all truncated, fit the 4 MiB of gRPC's default (14)."""
    settings = RerankerSettings(bundle=Path(), max_candidates=MOST)
    ranked = pb.RankedCandidate(
        id="i" * MAX_ID_BYTES, index=MOST, logit=-1.5, probability=0.1, truncated=True, token_count=8_192
    )
    hour = to_duration(3_600 * 10**9 + 999_999_999)
    answer = pb.RerankResponse(
        ranked=[ranked] * settings.max_candidates,
        truncated=True,
        truncated_count=MOST,
        query_truncated=True,
        timings=pb.Timings(total=hour, tokenize=hour, queue=hour, compute=hour),
        model=pb.ModelReference(id="i" * 500, revision="r" * 500, digest="d" * 71, precision="fp32", device="cuda"),
    )
    assert answer.ByteSize() <= CLIENT_MESSAGE_BYTES


def test_more_candidates_than_that_are_refused() -> None:
    """The settings stop where the proof ends."""
    with pytest.raises(ValidationError, match="max_candidates"):
        RerankerSettings(bundle=Path(), max_candidates=MOST + 1)
