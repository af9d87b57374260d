"""The demo encoder's vectors against torch: same weights, other code."""

from pathlib import Path

import numpy as np
import pytest

from models import golden
from serving.model import Model
from serving.tokens import Tokens

COSINE, ABSOLUTE, BATCH = 0.9999, 1e-4, 1e-5
LENGTHS = (3, 4, 8, 16, 31, 64, 127, 200, 333, 511, 512)


@pytest.fixture(scope="module")
def rows(served: dict[str, Model]) -> list[Tokens]:
    """The golden inputs, and their texts strung together and cut at lengths up to the limit."""
    tokenizer = served["encoder"].tokenizer
    texts = [text for text, _ in golden.inputs("encoder")]
    flowing = tokenizer.content_ids([" ".join(texts[1:16] * 6)])[0]
    cut = [tokenizer.single(flowing[length : 2 * length - 2]) for length in LENGTHS]
    return [tokenizer.single(ids) for ids in tokenizer.content_ids(texts)] + cut


def test_lengths(rows: list[Tokens]):
    """The rows reach from the shortest that has content to the limit."""
    assert {len(row) for row in rows} >= set(LENGTHS)


@pytest.mark.slow
@pytest.mark.torch
def test_vectors(served: dict[str, Model], rows: list[Tokens], reference_directories: dict[str, Path]):
    """Field failure 49: cosine of at least 0.9999 and no element off by 1e-4, from 3 to 512 tokens."""
    torch_model = pytest.importorskip("models.torch_model")
    reference = torch_model.load(reference_directories["encoder"], "encoder")
    for row in rows:
        ids = np.array([row.ids])
        expected = torch_model.run(reference, ids, np.ones_like(ids))[0]
        actual = served["encoder"].raw([row])[0]
        assert np.abs(actual - expected).max() <= ABSOLUTE
        assert actual @ expected >= COSINE


def test_alone_and_in_a_batch(served: dict[str, Model], rows: list[Tokens]):
    """A text's vector is the same alone as beside texts of any length."""
    mixed = [rows[0], rows[-1], rows[5], rows[14], rows[-4]]
    together = served["encoder"].raw(mixed)
    alone = np.concatenate([served["encoder"].raw([row]) for row in mixed])
    np.testing.assert_allclose(together, alone, atol=BATCH)
