"""What the small servers beside this file serve: the sentence-transformers library, as its documentation calls it."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

ROWS = 32
"""The library's own default batch."""

Rows = Sequence[Any]
"""Texts of an encoder, (query, text) pairs of a reranker."""


def options() -> argparse.Namespace:
    """Read the command line that all these servers share."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("encoder", "reranker"), required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--backend", choices=("torch", "onnx"), default="torch")
    return parser.parse_args()


def load(kind: str, model: str, backend: str = "torch") -> Callable[[Rows], Any]:
    """Load a model and return what turns rows into float32 vectors or logits, one per row."""
    import torch  # noqa: PLC0415 - slow to load: a wrong option is told before

    if kind == "encoder":
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415

        encoder = SentenceTransformer(model, device="cpu", backend=backend)
        return lambda rows: encoder.encode(list(rows), batch_size=ROWS, normalize_embeddings=True)

    from sentence_transformers import CrossEncoder  # noqa: PLC0415

    reranker = CrossEncoder(model, device="cpu", backend=backend, max_length=512, activation_fn=torch.nn.Identity())
    return lambda rows: reranker.predict(list(rows), batch_size=ROWS)


def rows_of(body: dict[str, Any]) -> list[Any]:
    """Return the rows of a request's body."""
    query, texts = body.get("query"), body["texts"]
    return list(texts) if query is None else [(query, text) for text in texts]


def split(outputs: Any, counts: Sequence[int]) -> list[Any]:
    """Cut the outputs of several requests apart, as JSON values."""
    parts, begin = [], 0
    for count in counts:
        parts.append(outputs[begin : begin + count].tolist())
        begin += count
    return parts
