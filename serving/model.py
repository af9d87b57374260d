"""A bundle brought to life: tokenizer, session, and rows in, outputs out. Knows no request and no event loop."""

from collections.abc import Sequence

import numpy as np

from serving.bundle import Bundle, Kind
from serving.errors import InferenceFailed, Misconfigured
from serving.session import FloatArray, Session, SessionOptions
from serving.tokens import FrozenTokenizer, Tokens, pad


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

    def compute(self, rows: Sequence[Tokens]) -> list[FloatArray | InferenceFailed]:
        """Compute one batch; a row whose output is not finite fails alone.

        Returns:
            Per row, in order: float32 [dimension] of an encoder, float32 [] of a reranker, or InferenceFailed.
        """
        outputs = self.raw(rows)
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
        ids, mask = pad(rows, self.bundle.manifest.special_tokens.pad)
        output = self.session.run(ids, mask)
        dimension = self.bundle.manifest.dimension
        wanted = (len(rows),) if dimension is None else (len(rows), dimension)
        if output.shape != wanted:
            raise RuntimeError(f"output of shape {output.shape}, wanted {wanted}")
        return output
