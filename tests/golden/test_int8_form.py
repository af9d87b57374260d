"""The demo bundles' int8 form: near the fp32 reference, and each text's output its own."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from serving.bundle import Bundle, Kind
from serving.model import Model
from serving.selftest import check_golden
from serving.session_options import SessionOptions
from serving.tokens import PairTruncation, Tokens

pytestmark = pytest.mark.slow

THREADS = 2
# What float32 attention and pooling leave of padding; a scale per tensor leaves 1e-2 of a vector and 1 of a logit.
ALONE = {"encoder": 1e-6, "reranker": 1e-4}
COSINE = 0.995
LENGTHS = (3, 5, 17, 33, 64, 65, 66, 67, 129, 131, 196, 261)

Load = Callable[[Kind], Model]


@pytest.fixture(scope="module")
def load(demo_bundles: Path) -> Load:
    """Loads a demo bundle's int8 form, each once."""
    options = SessionOptions(device="cpu", threads=THREADS, precision="int8")
    models: dict[Kind, Model] = {}

    def call(kind: Kind) -> Model:
        if kind not in models:
            models[kind] = Model(Bundle(demo_bundles / kind), kind, options)
        return models[kind]

    return call


def golden_rows(model: Model) -> list[Tokens]:
    """The golden inputs, tokenized."""
    rows = []
    for row in model.bundle.golden().rows:
        texts = [row.text] if row.passage is None else [row.text, row.passage]
        ids = model.tokenizer.content_ids(texts)
        single = row.passage is None
        rows.append(
            model.tokenizer.single(ids[0]) if single else model.tokenizer.pair(*ids, PairTruncation.LONGEST_FIRST)
        )
    return rows


@pytest.mark.parametrize("kind", ["encoder", "reranker"])
def test_golden_outputs(load: Load, kind: Kind):
    """Field failure 54: the golden outputs are met within the form's tolerance, and it is int8 that was run."""
    model = load(kind)
    report = check_golden(model)
    assert model.precision == "int8"
    assert report.row_count == 20
    assert model.bundle.manifest.tolerance < report.max_difference <= report.tolerance


def test_vectors_point_the_same_way(load: Load):
    """Field failure 54: no golden vector's cosine with the fp32 reference is below 0.995."""
    model = load("encoder")
    expected = np.array([row.output for row in model.bundle.golden().rows])
    actual = np.concatenate([model.raw([row]) for row in golden_rows(model)])
    assert (actual * expected).sum(axis=1).min() >= COSINE


@pytest.mark.parametrize("kind", ["encoder", "reranker"])
def test_alone_and_in_a_batch(load: Load, kind: Kind):
    """Field failure 11: a text gives the same alone as beside texts of any length."""
    model = load(kind)
    rows = golden_rows(model)
    shortest, longest, *others = sorted(rows, key=len)[:1] + sorted(rows, key=len)[-1:] + rows[4:7]
    mixed = [shortest, longest, *others]
    together = model.raw(mixed)
    alone = np.concatenate([model.raw([row]) for row in mixed])
    np.testing.assert_allclose(together, alone, rtol=0, atol=ALONE[kind])


@pytest.mark.parametrize("kind", ["encoder", "reranker"])
def test_padded_at_every_kind_of_length(load: Load, kind: Kind):
    """A text gives the same beside a longer one where a kernel's blocks of rows or columns have one left over.

    A difference of one bit before a rounding may come out as large as what the rounding itself loses.
    """
    model = load(kind)
    longest = max(golden_rows(model), key=len)
    for length in LENGTHS:
        row = Tokens(ids=[*longest.ids[: length - 1], longest.ids[-1]], untruncated_count=length)
        beside = model.raw([row, longest])[:1]
        np.testing.assert_allclose(beside, model.raw([row]), rtol=0, atol=ALONE[kind], err_msg=f"{length} tokens")
