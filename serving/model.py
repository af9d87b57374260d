"""A bundle brought to life: tokenizer, session, and rows in, outputs out. Knows no request and no event loop."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from serving.bundle import Bundle, Form, Kind, Precision
from serving.errors import InferenceFailed, Misconfigured
from serving.session import FloatArray, IntArray, Session
from serving.session_options import SessionOptions
from serving.shapes import padded_rows, padded_tokens
from serving.tokens import FrozenTokenizer, Tokens, pad


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """One batch as the graph takes it."""

    ids: IntArray
    """Token ids, int64 [batch, tokens], filled up with the padding id."""
    mask: IntArray
    """1 on real tokens, 0 on padding, int64 [batch, tokens]."""
    row_count: int
    """Rows that are answered; the arrays may have more, of padding."""

    @property
    def padded_tokens(self) -> int:
        """Tokens that the device computes."""
        return self.ids.size


class Model:
    """Rows of token ids to outputs.

    Args:
        bundle: What to load; its digests are verified first.
        kind: What the bundle has to be.
        options: How to run it.
        max_tokens: Most tokens of a row; None is what the model can.

    Raises:
        Misconfigured: The bundle is of the other kind, damaged, contradicts itself, or cannot run here.
    """

    def __init__(self, bundle: Bundle, kind: Kind, options: SessionOptions, max_tokens: int | None = None) -> None:
        manifest = bundle.manifest
        if manifest.kind != kind:
            raise Misconfigured("BUNDLE_KIND", f"{bundle.path} is a bundle of kind {manifest.kind}, wanted {kind}")
        if max_tokens is not None and max_tokens > manifest.max_tokens:
            raise Misconfigured(
                "MAX_TOKENS", f"max_tokens={max_tokens} is over the limit of {manifest.model_id}: {manifest.max_tokens}"
            )
        bundle.verify()
        self.bundle = bundle
        self.max_tokens = max_tokens or manifest.max_tokens
        self.tokenizer = FrozenTokenizer(bundle.tokenizer_path, manifest.special_tokens, self.max_tokens)
        if self.tokenizer.vocabulary > manifest.vocabulary:
            raise Misconfigured(
                "TOKENIZER_MISMATCH",
                f"{bundle.path}: the tokenizer has {self.tokenizer.vocabulary} pieces, the embedding table "
                f"{manifest.vocabulary} rows; they are of different models",
            )
        self.session = Session(bundle, options)
        self._options = options

    def twin(self) -> Self:
        """Return this model with a session of its own, to run at the same time; the tokenizer is shared."""
        twin = copy(self)
        twin.session = Session(self.bundle, replace(self._options, precision=self.precision))
        return twin

    @property
    def precision(self) -> Precision:
        """The form that is really run."""
        return self.session.precision

    @property
    def form(self) -> Form:
        """What the manifest says of that form."""
        return self.bundle.manifest.form(self.precision)

    def compute(self, rows: Sequence[Tokens]) -> list[FloatArray | InferenceFailed]:
        """Prepare and run one batch."""
        return self.run(self.prepare(rows))

    def prepare(self, rows: Sequence[Tokens]) -> Feed:
        """Lay rows out as the arrays that the graph takes; no device is touched, so this may overlap a run."""
        special = self.bundle.manifest.special_tokens
        ids, mask = pad(rows, special.pad)
        count, longest = ids.shape
        wanted = self.padded_shape(count, longest)
        if wanted != ids.shape:
            ids = _enlarged(ids, wanted, special.pad)
            mask = _enlarged(mask, wanted, 0)
            # A row without any token would have nothing to attend to.
            ids[count:, 0], mask[count:, 0] = special.bos, 1
        return Feed(ids=ids, mask=mask, row_count=count)

    def padded_shape(self, row_count: int, longest: int) -> tuple[int, int]:
        """Return the shape, (rows, tokens), as which a batch of `row_count` rows is computed; see `serving.shapes`."""
        device = self.session.device
        return padded_rows(row_count, device), padded_tokens(longest, device, self.max_tokens)

    def run(self, feed: Feed) -> list[FloatArray | InferenceFailed]:
        """Compute one batch on the device; a row whose output is not finite fails alone.

        Returns:
            Per row, in order: float32 [dimension] of an encoder, float32 [] of a reranker, or InferenceFailed.

        Raises:
            RuntimeError: The output has another shape.
        """
        outputs = self._outputs(feed)
        finite = [bool(np.isfinite(output).all()) for output in outputs]
        return [
            output if good else InferenceFailed("NON_FINITE", "the model's output is not finite")
            for output, good in zip(outputs, finite, strict=True)
        ]

    def raw(self, rows: Sequence[Tokens]) -> FloatArray:
        """Compute one batch and return float32 [batch, dimension] or [batch], finite or not.

        Raises:
            RuntimeError: The output has another shape.
        """
        return self._outputs(self.prepare(rows))

    def _outputs(self, feed: Feed) -> FloatArray:
        output = self.session.run(feed.ids, feed.mask)
        dimension = self.bundle.manifest.dimension
        count = len(feed.ids)
        wanted = (count,) if dimension is None else (count, dimension)
        if output.shape != wanted:
            raise RuntimeError(f"output of shape {output.shape}, wanted {wanted}")
        return output[: feed.row_count]


def _enlarged(array: IntArray, shape: tuple[int, int], value: int) -> IntArray:
    return np.pad(array, [(0, shape[0] - array.shape[0]), (0, shape[1] - array.shape[1])], constant_values=value)
