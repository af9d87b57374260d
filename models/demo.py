"""The demo profile: both bundles from packages alone, without torch, transformers or a hub, in seconds."""

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from models import e5file, golden, graph, quantize, weights
from models.build import building
from models.e5file import E5File
from models.unigram import tokenizer_json
from serving.bundle import (
    GOLDEN_NAME,
    MODEL_NAME,
    TOKENIZER_NAME,
    Bundle,
    Form,
    Kind,
    Manifest,
    file_entries,
    write_manifest,
)
from serving.errors import Misconfigured

RECIPE_NAME = "recipe"
"""Beside the manifest and not listed in it: what the bundle was made with, so that changes make it anew."""
RECIPE_MODULES = ("build", "charsmap", "demo", "e5file", "graph", "quantize", "unigram", "weights")
SOURCE = f"package {e5file.PACKAGE} {e5file.PACKAGE_VERSION}, 4-bit weights"
RERANKER_SOURCE = (
    "small cross-encoder: LoRA on multilingual-e5-small, trained on XQuAD, SQuAD-it, COVID FAQ, JaQuAD, PubMedQA and "
    "help-centre questions"
)
KINDS: tuple[Kind, ...] = ("encoder", "reranker")
VECTOR_TOLERANCE = 1e-4
LOGIT_TOLERANCE = 1e-3

Progress = Callable[[str], None]


def prepare(out: Path, progress: Progress) -> list[Path]:
    """Make the bundles `<out>/encoder` and `<out>/reranker`; those that are complete and up to date are left alone.

    A bundle appears under its name only when it is complete, and two of these may run at once.

    Args:
        out: Directory, made where it is missing.
        progress: Called with one line for people at each step.

    Returns:
        The bundles' directories.

    Raises:
        Misconfigured: The weights' package is missing or another version.
    """
    out.mkdir(parents=True, exist_ok=True)
    recipe = _recipe()
    with _only_one(out / ".lock"):
        for kind in KINDS:
            if _up_to_date(out / kind, recipe):
                progress(f"{kind}: up to date")
            else:
                progress(f"{kind}: making {out / kind}")
                _make(kind, out / kind, recipe)
    return [out / kind for kind in KINDS]


def _make(kind: Kind, target: Path, recipe: str) -> None:
    with building(target) as part:
        _write(kind, part)
        (part / RECIPE_NAME).write_text(recipe)


def _write(kind: Kind, part: Path) -> None:
    file = E5File(e5file.locate())
    model = graph.encoder(file) if kind == "encoder" else graph.reranker(file, weights.read_adapter())
    (part / MODEL_NAME).write_bytes(model.SerializeToString(deterministic=True))
    tokenizer = json.dumps(tokenizer_json(file.pieces), ensure_ascii=False, separators=(",", ":"))
    (part / TOKENIZER_NAME).write_text(tokenizer, encoding="utf-8")
    shutil.copyfile(golden.DEMO[kind], part / GOLDEN_NAME)
    int8 = quantize.write_int8(part, kind)
    write_manifest(part, _manifest(kind, file, graph.attention_of(model), int8, part))


def _manifest(kind: Kind, file: E5File, attention: str, int8: Form, part: Path) -> Manifest:
    encoder = kind == "encoder"
    return Manifest(
        kind=kind,
        model_id="intfloat/multilingual-e5-small" if encoder else "twostage/demo-reranker",
        source=SOURCE if encoder else RERANKER_SOURCE,
        revision=f"{e5file.PACKAGE}-{e5file.PACKAGE_VERSION}" if encoder else _adapter_revision(),
        architecture="BertModel" if encoder else "BertForSequenceClassification",
        precision="fp32",
        weights="4-bit embedding table, fp32 linear weights",
        vocabulary=file.shape.vocabulary,
        max_tokens=file.shape.positions,
        special_tokens=file.pieces.special,
        inputs=graph.INPUTS,
        output=graph.VECTORS if encoder else graph.LOGITS,
        dimension=file.shape.hidden if encoder else None,
        pooling="mean" if encoder else None,
        query_prefix="query: " if encoder else "",
        passage_prefix="passage: " if encoder else "",
        attention=attention,
        tolerance=VECTOR_TOLERANCE if encoder else LOGIT_TOLERANCE,
        forms={"int8": int8},
        tools={e5file.PACKAGE: e5file.PACKAGE_VERSION},
        files=file_entries(part),
    )


def _adapter_revision() -> str:
    return f"{e5file.PACKAGE}-{e5file.PACKAGE_VERSION}, adapter {_digest(weights.ADAPTER)[:12]}"


def _recipe() -> str:
    """Digest all that shapes the bundles: code, which names the 4-bit file's digest, adapter and golden outputs."""
    sources = [Path(__file__).with_name(f"{module}.py") for module in RECIPE_MODULES]
    return "\n".join(f"{_digest(path)} {path.name}" for path in [*sources, weights.ADAPTER, *golden.DEMO.values()])


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _up_to_date(path: Path, recipe: str) -> bool:
    try:
        Bundle(path)
        return (path / RECIPE_NAME).read_text() == recipe
    except (Misconfigured, OSError):
        return False


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Hold a lock that the operating system releases when the process ends, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
