"""What has to hold before a server says that it is serving: every shape runs, and golden outputs are met."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from serving.bundle import GoldenRow
from serving.errors import Misconfigured
from serving.model import Model
from serving.tokens import PairTruncation, Tokens

log = logging.getLogger(__name__)

# A dynamic axis that an export froze shows at one of these (batch, tokens).
PROBE_SHAPES = ((1, 3), (2, 17), (3, 512))
GOLDEN_BATCH_ROWS = 4
CAUSE_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestReport:
    """How far the golden outputs were missed."""

    row_count: int
    max_difference: float
    tolerance: float


def self_test(model: Model) -> SelfTestReport:
    """Run every probe shape, then recompute the golden outputs on the real device.

    Raises:
        Misconfigured: A shape does not run, an output is not finite, or one is off by more than the tolerance.
    """
    for batch, tokens in PROBE_SHAPES:
        _probe(model, batch, min(tokens, model.max_tokens))
    return check_golden(model)


def check_golden(model: Model) -> SelfTestReport:
    """Recompute the golden outputs in batches of mixed lengths.

    Raises:
        Misconfigured: A token count differs or an output is off by more than the tolerance.
    """
    tolerance = model.bundle.manifest.tolerance
    # A server that is set to fewer tokens than the bundle's golden rows cannot recompute the longer ones.
    golden = [row for row in model.bundle.golden().rows if row.token_count <= model.max_tokens]
    worst = 0.0
    bounds = [*range(0, len(golden), GOLDEN_BATCH_ROWS), len(golden)]
    for begin, end in pairwise(bounds):
        difference = _difference(model, golden[begin:end])
        if not difference <= tolerance:  # NaN too
            raise Misconfigured(
                "GOLDEN_MISMATCH",
                f"{model.bundle.path}: golden outputs missed by {difference:.2g} on {model.session.device}, tolerance "
                f"{tolerance:g}; prepare the bundle again, or use another precision or device",
            )
        worst = max(worst, difference)
    return SelfTestReport(row_count=len(golden), max_difference=worst, tolerance=tolerance)


def _difference(model: Model, golden: Sequence[GoldenRow]) -> float:
    rows = [_tokenize(model, row) for row in golden]
    try:
        actual = model.raw(rows)
        expected = np.array([row.output for row in golden], np.float64).reshape(actual.shape)
    except Exception as error:  # the engine's, or an output of another length
        raise Misconfigured(
            "GOLDEN_MISMATCH", f"{model.bundle.path}: golden rows cannot be compared ({_cause(error)})"
        ) from error
    return float(np.abs(actual - expected).max())


def _probe(model: Model, batch: int, tokens: int) -> None:
    manifest = model.bundle.manifest
    special = manifest.special_tokens
    filler = special.unk
    row = Tokens([special.bos, *[filler] * (tokens - 2), special.eos], untruncated_count=tokens)
    try:
        finite = np.isfinite(model.raw([row] * batch)).all()
    except Exception as error:  # whatever the engine throws means the same here
        raise Misconfigured(
            "MODEL_SHAPE", f"{model.bundle.path}: ({batch}, {tokens}) does not run ({_cause(error)})"
        ) from error
    if not finite:
        raise Misconfigured(
            "MODEL_NON_FINITE",
            f"{model.bundle.path}: ({batch}, {tokens}) gives a non-finite output on {model.session.device} "
            f"in {manifest.precision}",
        )


def _tokenize(model: Model, row: GoldenRow) -> Tokens:
    texts = [row.text] if row.passage is None else [row.text, row.passage]
    ids = model.tokenizer.content_ids(texts)
    tokens = (
        model.tokenizer.single(ids[0])
        if row.passage is None
        else model.tokenizer.pair(ids[0], ids[1], PairTruncation.LONGEST_FIRST)
    )
    if len(tokens) != row.token_count:
        raise Misconfigured(
            "GOLDEN_MISMATCH",
            f"{model.bundle.path}: a golden text has {len(tokens)} tokens, the reference counted {row.token_count}; "
            "tokenizer.json is of another model",
        )
    return tokens


def _cause(error: Exception) -> str:
    """Say in one line what the engine said; a self-test holds no user's text."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:CAUSE_CHARACTERS]
