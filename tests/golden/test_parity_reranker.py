"""The demo reranker's logits against torch: same weights, other code, the last layer for the first token only."""

from pathlib import Path

import numpy as np
import pytest

from models import golden
from serving.model import Model
from serving.tokens import PairTruncation, Tokens

ABSOLUTE, BATCH = 1e-3, 1e-5


@pytest.fixture(scope="module")
def rows(served: dict[str, Model]) -> list[Tokens]:
    """The golden pairs, and each query with every fourth pair's passage."""
    tokenizer = served["reranker"].tokenizer
    pairs = [(query, passage or "") for query, passage in golden.inputs("reranker")]
    crossed = [(query, passage) for query, _ in pairs[2:10:3] for _, passage in pairs[::4]]
    return [tokenizer.pair(*tokenizer.content_ids(pair), PairTruncation.LONGEST_FIRST) for pair in [*pairs, *crossed]]


@pytest.mark.slow
@pytest.mark.torch
def test_logits(served: dict[str, Model], rows: list[Tokens], reference_directories: dict[str, Path]):
    """No logit is off by 1e-3, while the logits themselves lie many apart."""
    torch_model = pytest.importorskip("models.torch_model")
    reference = torch_model.load(reference_directories["reranker"], "reranker")
    seen = []
    for row in rows:
        ids = np.array([row.ids])
        (expected,) = torch_model.run(reference, ids, np.ones_like(ids))
        assert abs(served["reranker"].raw([row])[0] - expected) <= ABSOLUTE
        seen.append(expected)
    assert max(seen) - min(seen) > 10


def test_alone_and_in_a_batch(served: dict[str, Model], rows: list[Tokens]):
    """A pair's logit is the same alone as beside pairs of any length."""
    mixed = [rows[0], rows[19], rows[3], rows[17], rows[8]]
    together = served["reranker"].raw(mixed)
    alone = np.concatenate([served["reranker"].raw([row]) for row in mixed])
    np.testing.assert_allclose(together, alone, atol=BATCH)
