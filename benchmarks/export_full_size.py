"""Export a reranker of BAAI/bge-reranker-v2-m3's exact measures with random weights: time, memory, parity, size.

Proves what a download would: a model over protobuf's 2 GiB becomes a bundle with external data, attention fused in
every layer, dynamic axes, and logits like torch's. Needs the extras cpu, demo (for a tokenizer) and export, 12 GB of
memory and 8 GB of disk.

    python benchmarks/export_full_size.py [--work DIRECTORY]
"""

import argparse
import logging
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
import transformers

from models import e5file, reference, torch_model
from models.export import ExportOptions, export
from models.tracing import INPUTS
from serving.bundle import MODEL_NAME, Bundle

CONFIGURATION = {
    "vocab_size": 250_002,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "max_position_embeddings": 8194,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "num_labels": 1,
}
"""Source: config.json of BAAI/bge-reranker-v2-m3."""
SHAPES = ((1, 3), (2, 17), (4, 128), (3, 512))
SEED = 20_240_501


def main() -> None:
    """Make, export, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, help="where the 5 GB go; a temporary directory is removed afterwards")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    with tempfile.TemporaryDirectory(dir=arguments.work) as directory:
        source, out = Path(directory) / "source", Path(directory) / "bundle"
        timed("random model", lambda: make(source))
        options = ExportOptions(model_id="random/bge-reranker-v2-m3-size", revision="random", source="random weights")
        timed("export, shapes and golden outputs", lambda: export(source, "reranker", out, options, print))
        manifest = Bundle(out).manifest
        print(f"attention: {manifest.attention}; max_tokens: {manifest.max_tokens}")
        for name, entry in manifest.files.items():
            print(f"{name}: {entry.size / 1e6:.1f} MB")
        compare(source, out)


def make(target: Path) -> None:
    """Write the random model's Hugging Face directory."""
    torch.manual_seed(SEED)
    model = transformers.XLMRobertaForSequenceClassification(transformers.XLMRobertaConfig(**CONFIGURATION))
    model.save_pretrained(target)
    reference.write_tokenizer(e5file.E5File(e5file.locate()), target)


def timed(name: str, work: object) -> None:
    """Run and print seconds, and the process's peak memory so far."""
    start = time.monotonic()
    assert callable(work)  # noqa: S101 - narrows the type
    work()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{name}: {time.monotonic() - start:.1f} s, peak memory so far {peak:.2f} GiB")


def compare(source: Path, out: Path) -> None:
    """Print the largest difference between onnxruntime and torch at a few shapes, with padding in every batch."""
    model = torch_model.load(source, "reranker")
    session = ort.InferenceSession(out / MODEL_NAME, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(SEED)
    for batch, tokens in SHAPES:
        mask = (np.arange(tokens) < tokens - np.arange(batch)[:, None]).astype(np.int64)
        ids = np.where(mask, generator.integers(4, CONFIGURATION["vocab_size"], mask.shape), 1)
        expected = torch_model.run(model, ids, mask)
        (actual,) = session.run(None, dict(zip(INPUTS, (ids, mask), strict=True)))
        difference = np.abs(actual - expected).max()
        print(f"({batch}, {tokens}): max abs difference {difference:.2g}, logits from {expected.min():.3f}")


if __name__ == "__main__":
    main()
