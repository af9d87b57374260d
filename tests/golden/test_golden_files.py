"""The committed golden outputs are what torch gives; `python -m models.golden` writes them again."""

from pathlib import Path

import numpy as np
import pytest

from models import golden
from serving.bundle import Golden

# Torch itself differs by about this much between machines and thread counts.
ABSOLUTE = {"encoder": 2e-6, "reranker": 1e-4}


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["encoder", "reranker"])
def test_they_are_the_reference_models(reference_directories: dict[str, Path], kind: str):
    """Texts, token counts and outputs of the committed file are computed again and met."""
    torch_model = pytest.importorskip("models.torch_model")
    model = torch_model.load(reference_directories[kind], kind)

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return torch_model.run(model, ids, mask)

    expected = golden.compute(reference_directories[kind], kind, 512, run, "this test").rows
    committed = Golden.model_validate_json(golden.DEMO[kind].read_bytes()).rows
    inputs, others = ([(row.text, row.passage, row.token_count) for row in rows] for rows in (committed, expected))
    assert inputs == others
    outputs, computed = (np.array([row.output for row in rows]) for rows in (committed, expected))
    np.testing.assert_allclose(outputs, computed, atol=ABSOLUTE[kind], rtol=0)


@pytest.mark.parametrize("kind", ["encoder", "reranker"])
def test_they_cover_what_goes_wrong(kind: str):
    """About 20 rows, from a handful of tokens to the limit, in several scripts, in a file of moderate size."""
    rows = Golden.model_validate_json(golden.DEMO[kind].read_bytes()).rows
    assert len(rows) == 20
    assert min(row.token_count for row in rows) <= 6
    assert max(row.token_count for row in rows) == 512
    text = "".join(row.text + (row.passage or "") for row in rows)
    accented, cyrillic, arabic, han, kana, thai, emoji, digit = "é", "ж", "ك", "如", "す", "เ", "🙂", "7"
    assert {accented, cyrillic, arabic, han, kana, thai, emoji, digit} <= set(text)
    assert golden.DEMO[kind].stat().st_size < 300_000


def test_write_and_read(tmp_path: Path):
    """What is written is read back the same, numbers to seven digits."""
    original = Golden.model_validate_json(golden.DEMO["reranker"].read_bytes())
    golden.write(original, tmp_path / "golden.json")
    assert Golden.model_validate_json((tmp_path / "golden.json").read_bytes()) == original
