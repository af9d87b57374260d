"""What a batch costs on this device, measured once before serving; it also runs the largest batch that will be."""

import time

from serving.batching import BatchLimits
from serving.cost import CostModel
from serving.model import Model
from serving.tokens import Tokens

# (rows, tokens): one short query up to a long passage, so that fixed cost, tokens and rows can be told apart.
SHAPES = ((1, 8), (1, 32), (1, 128), (4, 32), (2, 128), (1, 512))
FULL_LENGTH = 128
"""Tokens of the rows of the full batch."""


def calibrate(model: Model, limits: BatchLimits) -> CostModel:
    """Time a few batches, within the limits, and return what they say."""
    costs = CostModel()
    full = (min(limits.max_batch_rows, limits.max_batch_tokens // FULL_LENGTH), FULL_LENGTH)
    for rows, tokens in (*SHAPES, full):
        length = min(tokens, model.max_tokens)
        if rows and rows * length <= limits.max_batch_tokens:
            costs.observe(rows * length, rows, _seconds(model, rows, length))
    return costs


def _seconds(model: Model, rows: int, length: int) -> float:
    """Time one batch of filler; the self-test has run before it, so that the memory is there."""
    special = model.bundle.manifest.special_tokens
    row = Tokens([special.bos, *[special.unk] * (length - 2), special.eos], untruncated_count=length)
    feed = model.prepare([row] * rows)
    begun = time.monotonic_ns()
    model.run(feed)
    return (time.monotonic_ns() - begun) / 1e9
