"""What has to hold before a server says that it is serving: every shape runs, and golden outputs are met."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from serving.bundle import Bundle, GoldenRow, Kind
from serving.cpu import int8_flags
from serving.errors import DeviceOutOfMemory, Misconfigured
from serving.model import Model
from serving.session_options import SessionOptions
from serving.shapes import warm_shapes
from serving.tokens import PairTruncation, Tokens

log = logging.getLogger(__name__)

# Tokens of each row. A dynamic axis that an export froze shows at one of the first three, each of one length; a mask
# that a precision cannot express shows in the last one, where a text of one token is mostly padding.
PROBES = ((3,), (17, 17), (512, 512, 512), (3, 17, 512))
GOLDEN_BATCH_ROWS = 4
CAUSE_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestReport:
    """How far the golden outputs were missed."""

    row_count: int
    max_difference: float
    tolerance: float


def load_tested(
    bundle: Bundle, kind: Kind, options: SessionOptions, max_tokens: int | None = None
) -> tuple[Model, SelfTestReport]:
    """Load a model and test it; a form that `auto` took and that fails here gives way to fp32, with a warning.

    Raises:
        Misconfigured: The model cannot run here, or not as its golden outputs say.
    """
    model = Model(bundle, kind, options, max_tokens)
    try:
        return model, self_test(model)
    except Misconfigured as error:
        if options.precision != "auto" or model.precision == "fp32" or "fp32" not in bundle.manifest.precisions:
            raise
        log.warning("%s is not served, fp32 is: %s", model.precision, error.message)
    del model  # two do not have to fit into memory
    return load_tested(bundle, kind, replace(options, precision="fp32"), max_tokens)


def self_test(model: Model) -> SelfTestReport:
    """Run every probe, then recompute the golden outputs on the real device.

    Raises:
        Misconfigured: A shape does not run, an output is not finite, or one is off by more than the tolerance.
    """
    for lengths in PROBES:
        _probe(model, [min(tokens, model.max_tokens) for tokens in lengths])
    return check_golden(model)


def warm_up(model: Model, *, max_rows: int, max_batch_tokens: int) -> None:
    """Run every shape that a GPU will see, the largest first; on a CPU, where a new shape costs nothing, none.

    Args:
        model: What to run.
        max_rows: Rows of a batch.
        max_batch_tokens: Padded tokens of a batch.

    Raises:
        Misconfigured: A shape does not run, for example because the largest batch does not fit into memory.
    """
    begun = time.monotonic()
    device = model.session.device
    shapes = list(warm_shapes(device, limit=model.max_tokens, max_rows=max_rows, max_batch_tokens=max_batch_tokens))
    for rows, tokens in shapes:
        _probe(model, [tokens] * rows)
    if shapes:
        log.info("%d shapes warmed up in %.1f s", len(shapes), time.monotonic() - begun)


def check_golden(model: Model) -> SelfTestReport:
    """Recompute the golden outputs in batches of mixed lengths.

    Raises:
        Misconfigured: A token count differs or an output is off by more than the tolerance.
    """
    tolerance = model.form.tolerance
    # A server that is set to fewer tokens than the bundle's golden rows cannot recompute the longer ones.
    golden = [row for row in model.bundle.golden().rows if row.token_count <= model.max_tokens]
    worst = 0.0
    bounds = [*range(0, len(golden), GOLDEN_BATCH_ROWS), len(golden)]
    for begin, end in pairwise(bounds):
        difference = _difference(model, golden[begin:end])
        if not difference <= tolerance:  # NaN too
            raise Misconfigured(
                "GOLDEN_MISMATCH",
                f"{model.bundle.path}: golden outputs missed by {difference:.2g} on {_where(model)}, tolerance "
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


def _probe(model: Model, lengths: Sequence[int]) -> None:
    shape = f"({len(lengths)}, {max(lengths)})"
    try:
        finite = np.isfinite(model.raw([_filler(model, tokens) for tokens in lengths])).all()
    except DeviceOutOfMemory as error:
        raise Misconfigured(
            "DEVICE_MEMORY",
            f"{model.bundle.path}: {shape} does not fit into the memory of {model.session.device}; "
            "lower max_batch_tokens, or give the device more",
        ) from error
    except Exception as error:  # whatever the engine throws means the same here
        raise Misconfigured("MODEL_SHAPE", f"{model.bundle.path}: {shape} does not run ({_cause(error)})") from error
    if not finite:
        raise Misconfigured(
            "MODEL_NON_FINITE", f"{model.bundle.path}: {shape} gives a non-finite output on {_where(model)}"
        )


def _filler(model: Model, tokens: int) -> Tokens:
    special = model.bundle.manifest.special_tokens
    return Tokens([special.bos, *[special.unk] * (tokens - 2), special.eos], untruncated_count=tokens)


def _where(model: Model) -> str:
    """Say device and precision, and for int8, which some CPUs compute wrongly, what this one has for it."""
    instructions = f" ({', '.join(int8_flags()) or 'no instructions for it'})" if model.precision == "int8" else ""
    return f"{model.session.device} in {model.precision}{instructions}"


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
