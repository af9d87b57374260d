"""The demo models as other people's servers read them: Hugging Face directories with a plain ONNX graph beside.

The weights are those of our bundles: the 4-bit blocks as float32, which is what our graph multiplies by. The graphs
have only standard operators, with separate inputs, since that is what exporters make and what these libraries' own
loaders take; ours with fused attention has `com.microsoft` operators and the pooling inside.
"""

import json
import warnings
from pathlib import Path
from typing import Any

from models import e5file, reference, weights
from models.e5file import E5File
from serving.bundle import Kind

OPSET = 17
INPUTS = ("input_ids", "attention_mask")
MAX_TOKENS = 512
GRAPH = "onnx/model.onnx"


def prepare(out: Path) -> dict[Kind, Path]:
    """Write `<out>/encoder` and `<out>/reranker` where they are missing."""
    paths: dict[Kind, Path] = {"encoder": out / "encoder", "reranker": out / "reranker"}
    for kind, path in paths.items():
        if not (path / GRAPH).exists():
            _write(kind, path)
    return paths


def _write(kind: Kind, path: Path) -> None:
    file = E5File(e5file.locate())
    reference.write(file, path, weights.read_adapter() if kind == "reranker" else None)
    if kind == "encoder":
        _write_sentence_transformers(path, file.shape.hidden)
    _write_graph(kind, path)


def _write_sentence_transformers(path: Path, dimension: int) -> None:
    """Write the module list of the sentence-transformers library: body, mean pooling, L2 normalization."""
    names = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": index, "name": str(index), "path": place, "type": f"sentence_transformers.models.{name}"}
        for index, (place, name) in enumerate(names.items())
    ]
    pooling = {"word_embedding_dimension": dimension, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (path / "1_Pooling").mkdir(exist_ok=True)
    (path / "2_Normalize").mkdir(exist_ok=True)
    _write_json(path / "modules.json", modules)
    _write_json(path / "1_Pooling/config.json", pooling)
    _write_json(path / "sentence_bert_config.json", {"max_seq_length": MAX_TOKENS, "do_lower_case": False})


def _write_graph(kind: Kind, path: Path) -> None:
    """Export the body to `last_hidden_state`, or the classifier to `logits`, as the hub's ONNX files have them."""
    import torch  # noqa: PLC0415 - only where graphs are made

    from models import torch_model  # noqa: PLC0415

    class Body(torch.nn.Module):  # type: ignore[misc] # torch is not followed
        def __init__(self, body: Any) -> None:
            super().__init__()
            self.body = body

        def forward(self, ids: Any, mask: Any) -> Any:
            return self.body(input_ids=ids, attention_mask=mask, return_dict=False)[0]

    model = Body(torch_model.load(path, kind).body)
    encoder = kind == "encoder"
    output = "last_hidden_state" if encoder else "logits"
    target = path / f"{GRAPH}.part"
    target.parent.mkdir(exist_ok=True)
    example = (torch.ones(2, 8, dtype=torch.int64), torch.ones(2, 8, dtype=torch.int64))
    batch = {0: "batch", 1: "tokens"}
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            example,
            str(target),
            input_names=list(INPUTS),
            output_names=[output],
            dynamic_axes={**dict.fromkeys(INPUTS, batch), output: batch if encoder else {0: "batch"}},
            opset_version=OPSET,
            dynamo=False,
        )
    target.rename(path / GRAPH)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
