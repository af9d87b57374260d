"""The reference implementation, torch in fp32, with pooling and head inside. Import this only where torch is needed."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from serving.bundle import Kind
from serving.errors import Misconfigured

ATTENTION = "eager"
"""ONNX Runtime's optimizer knows the pattern that this implementation of attention leaves in an exported graph."""


class Encoder(torch.nn.Module):  # type: ignore[misc] # torch is not followed
    """Token ids to vectors.

    Args:
        body: A transformers model whose first output is the tokens' states.
        pooling: "mean" of the real tokens' states, or the first token's ("cls").
    """

    def __init__(self, body: Any, pooling: str) -> None:
        super().__init__()
        self.body = body
        self.pooling = pooling

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        """Return float32 [batch, hidden] of L2 norm 1 for int64 [batch, tokens] ids and mask."""
        states = self.body(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)[0]
        if self.pooling == "cls":
            return torch.nn.functional.normalize(states[:, 0], dim=-1)
        mask = attention_mask.unsqueeze(1).to(states.dtype)
        return torch.nn.functional.normalize(torch.matmul(mask, states).squeeze(1), dim=-1)


class Reranker(torch.nn.Module):  # type: ignore[misc] # torch is not followed
    """Token ids of pairs to logits.

    Args:
        body: A transformers sequence classification model with one label.
    """

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        """Return float32 [batch] for int64 [batch, tokens] ids and mask."""
        return self.body(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)[0].squeeze(-1)


def load(source: Path, kind: Kind, pooling: str = "mean") -> Any:
    """Load a Hugging Face directory in fp32, ready for inference.

    Raises:
        Misconfigured: It cannot be loaded, or a weight is missing, as where a reranker has no classification head.
    """
    transformers.utils.logging.disable_progress_bar()
    options = {"attn_implementation": ATTENTION, "dtype": torch.float32, "local_files_only": True}
    encoder = kind == "encoder"
    if encoder:
        options["add_pooling_layer"] = False
    automatic = transformers.AutoModel if encoder else transformers.AutoModelForSequenceClassification
    try:
        body, found = automatic.from_pretrained(source, output_loading_info=True, **options)
    except (OSError, ValueError) as error:
        raise Misconfigured("MODEL_MALFORMED", f"{source} holds no model that transformers can load") from error
    if missing := sorted(found["missing_keys"]):
        raise Misconfigured(
            "MODEL_WEIGHTS_MISSING", f"{source} has no weights for {', '.join(missing[:3])}; is it a {kind}?"
        )
    if not encoder and body.config.num_labels != 1:
        raise Misconfigured("MODEL_LABELS", f"{source}: a head of {body.config.num_labels} labels, a reranker has one")
    return (Encoder(body, pooling) if encoder else Reranker(body)).eval()


def run(model: Any, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Compute the model's output for int64 [batch, tokens] ids and mask."""
    with torch.inference_mode():
        output: npt.NDArray[np.float32] = model(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()
    return output


def versions() -> dict[str, str]:
    """Return the versions of torch and transformers."""
    return {"torch": torch.__version__, "transformers": transformers.__version__}
