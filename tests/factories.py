"""Builders of tiny real bundles: a real ONNX graph, a real Unigram tokenizer, golden outputs computed with numpy.

`Recipe` has a knob for everything that may be wrong with a bundle; `remove`, `halve`, `make_lfs_pointer` and
`flip_byte` damage a finished one. The `reference_*` functions say what a bundle has to answer, independently of
`serving`: ids come from the tokenizers library's own templates and truncation, outputs from numpy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from encoder_server.settings import EncoderSettings
from reranker_server.settings import RerankerSettings
from serving.bundle import (
    GOLDEN_NAME,
    LFS_POINTER,
    MODEL_NAME,
    TOKENIZER_NAME,
    Bundle,
    Golden,
    GoldenRow,
    Kind,
    Manifest,
    Precision,
    SpecialTokens,
    file_entries,
    write_manifest,
)

EXTERNAL_NAME = "model.onnx.data"
DIMENSION = 8
BOS, PAD, EOS, UNK = range(4)
SPECIAL = SpecialTokens(bos=BOS, eos=EOS, pad=PAD, unk=UNK)
POISON = "poison"
"""A word whose row of the table is NaN where `Recipe.poison` is set."""
CRASH = "crash"
"""A word whose id the table does not have where `Recipe.crash` is set, so that the graph throws."""
WORDS = ("query", "passage", "panda", "bear", "what", "is", "tea", "river", "mountain", "paper", POISON)
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789<>/.,:;?!'-äöüß熊猫茶山"
GOLDEN_TEXTS = ("panda", "what is tea?", "A river, a mountain and 7 papers.", "熊猫喝茶", "größe", "panda " * 600)
GOLDEN_PAIRS = (
    ("what is panda?", "panda bear"),
    ("tea", "A river, a mountain and 7 papers. " * 3),
    ("panda bear " * 300, "river"),
    ("mountain " * 200, "tea paper " * 300),
)

FloatArray = npt.NDArray[np.float64]
OutputForm = Literal["flat", "column", "tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a tiny bundle is made, and what is wrong with it."""

    max_tokens: int = 64
    """Most tokens of a row, and rows of the graph's position table: one more makes it throw."""
    precision: Precision = "fp32"
    query_prefix: str = "query: "
    passage_prefix: str = "passage: "
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    """Graph inputs; a name beyond the three known ones makes an odd one."""
    input_type: int = TensorProto.INT64
    output_form: OutputForm = "flat"
    """`column` is [batch, 1] and `tokens` [batch, tokens], as of a model exported without its head."""
    output: str = ""
    """Name of the graph's output; default is `vectors` or `logits`."""
    poison: bool = False
    """Whether the word "poison" gives NaN."""
    crash: bool = False
    """Whether the word "crash" makes the graph throw."""
    frozen_tokens: int | None = None
    """Token count that the graph silently insists on, whatever axes it declares."""
    external_data: bool = False
    """Whether the weights lie in `model.onnx.data`."""
    golden_shift: float = 0.0
    """Added to every golden output."""
    golden_extra_tokens: int = 0
    """Added to every golden token count."""
    baked_truncation: int | None = None
    """Truncation that tokenizer.json brings along."""
    baked_padding: int | None = None
    """Fixed padding that tokenizer.json brings along."""
    whitespace_split: bool = True
    """Whether white space is dropped by the pre-tokenizer; else it becomes lone word boundaries."""
    extra_pieces: int = 0
    """Pieces of the tokenizer that the embedding table has no rows for."""
    special_tokens: SpecialTokens = SPECIAL
    """Ids in the manifest."""
    manifest: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Fields of the manifest to replace, unchecked."""


def tiny_encoder_bundle(directory: Path, **overrides: Any) -> Bundle:
    """Make an encoder of 8 dimensions; `overrides` are fields of `Recipe`."""
    return Bundle(write_bundle(directory, "encoder", Recipe(**overrides)))


def tiny_reranker_bundle(directory: Path, **overrides: Any) -> Bundle:
    """Make a reranker whose logits depend on every token of the pair and on their order."""
    return Bundle(write_bundle(directory, "reranker", Recipe(**overrides)))


def encoder_settings(bundle: Bundle, **overrides: Any) -> EncoderSettings:
    """Settings of a test's encoder server: loopback, a free port, one thread."""
    return EncoderSettings(**{**_common_settings(bundle), **overrides})


def reranker_settings(bundle: Bundle, **overrides: Any) -> RerankerSettings:
    """Settings of a test's reranker server: loopback, a free port, one thread."""
    return RerankerSettings(**{**_common_settings(bundle), **overrides})


def write_bundle(directory: Path, kind: Kind, recipe: Recipe) -> Path:
    """Write all files of a bundle; the directory is made where it is missing."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_graph(directory, kind, recipe)
    (directory / TOKENIZER_NAME).write_text(tokenizer_json(recipe), encoding="utf-8")
    golden = Golden(reference="numpy", rows=tuple(_golden_rows(kind, recipe)))
    (directory / GOLDEN_NAME).write_text(golden.model_dump_json(), encoding="utf-8")
    write_manifest(directory, _manifest(directory, kind, recipe))
    return directory


def remove(directory: Path, name: str) -> None:
    """Lose a file."""
    (directory / name).unlink()


def halve(directory: Path, name: str) -> None:
    """Cut a file to its first half, as an interrupted copy does."""
    data = (directory / name).read_bytes()
    (directory / name).write_bytes(data[: len(data) // 2])


def make_lfs_pointer(directory: Path, name: str) -> None:
    """Replace a file by what a clone without Git LFS leaves of it."""
    (directory / name).write_bytes(LFS_POINTER + b"/spec/v1\noid sha256:0\nsize 1\n")


def flip_byte(directory: Path, name: str) -> None:
    """Change one byte, so that only the digest can tell."""
    data = bytearray((directory / name).read_bytes())
    data[len(data) // 2] ^= 1
    (directory / name).write_bytes(data)


def reference_ids(text: str, passage: str | None = None, *, max_tokens: int = 64) -> list[int]:
    """Return the ids of a row as the tokenizers library makes them, templates and truncation included."""
    tokenizer = Tokenizer.from_str(tokenizer_json(Recipe()))
    tokenizer.enable_truncation(max_tokens, strategy="longest_first")
    ids: list[int] = tokenizer.encode(text, passage).ids
    return ids


def reference_vector(ids: list[int]) -> FloatArray:
    """Return the vector of a row: masked mean of table and positions, L2 norm 1; float64 [8]."""
    mean = (_table()[ids] + _positions(len(ids))).mean(0)
    norm: FloatArray = mean / np.linalg.norm(mean)
    return norm


def reference_logit(ids: list[int]) -> float:
    """Return the logit of a row: the dot product of its head-weighted and its tail-weighted mean."""
    states = _table()[ids] + _positions(len(ids))
    head, tail = _weights(len(ids))
    return float((head @ states) @ (tail @ states) / len(ids) ** 2)


@lru_cache
def vocabulary() -> tuple[str, ...]:
    """Pieces by id: special tokens first, as in XLM-R; "crash" and "<mask>" last."""
    words = [f"\u2581{word}" for word in WORDS]
    return ("<s>", "<pad>", "</s>", "<unk>", "\u2581", *words, *LETTERS, "<mask>", f"\u2581{CRASH}")


@lru_cache
def tokenizer_json(recipe: Recipe) -> str:
    """Return the contents of tokenizer.json."""
    pieces = [*vocabulary(), *(f"\u2581extra{index}" for index in range(recipe.extra_pieces))]
    scores = [0.0 if piece[0] == "<" and len(piece) > 1 else -1.0 - 4.0 * (len(piece) == 1) for piece in pieces]
    tokenizer = Tokenizer(models.Unigram(list(zip(pieces, scores, strict=True)), unk_id=UNK, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex("[\u0001-\u0008\u000e-\u001f\u007f]"), ""),
            normalizers.Replace(Regex("[\u200b\t\n\r]"), " "),
            normalizers.NFKC(),
        ]
    )
    metaspace = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    splits = [pre_tokenizers.WhitespaceSplit(), metaspace] if recipe.whitespace_split else [metaspace]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", BOS), ("</s>", EOS)]
    )
    if recipe.baked_truncation is not None:
        tokenizer.enable_truncation(recipe.baked_truncation)
    if recipe.baked_padding is not None:
        tokenizer.enable_padding(length=recipe.baked_padding)
    text: str = tokenizer.to_str()
    return text


def _common_settings(bundle: Bundle) -> dict[str, Any]:
    return {
        "bundle": bundle.path,
        "host": "127.0.0.1",
        "port": 0,
        "threads": 1,
        "tokenizer_threads": 1,
        "grace_s": 1.0,
        "device": "cpu",
    }


def _manifest(directory: Path, kind: Kind, recipe: Recipe) -> Manifest:
    encoder = kind == "encoder"
    manifest = Manifest(
        kind=kind,
        model_id=f"tiny-{kind}",
        source="tests",
        revision="1",
        architecture="TinyModel",
        precision=recipe.precision,
        weights="fp32",
        vocabulary=len(vocabulary()),
        max_tokens=recipe.max_tokens,
        special_tokens=recipe.special_tokens,
        inputs=("input_ids", "attention_mask", *(["token_type_ids"] if "token_type_ids" in recipe.inputs else [])),
        output="vectors" if encoder else "logits",
        dimension=DIMENSION if encoder else None,
        pooling="mean" if encoder else None,
        query_prefix=recipe.query_prefix if encoder else "",
        passage_prefix=recipe.passage_prefix if encoder else "",
        tolerance=1e-4,
        files=file_entries(directory),
    )
    return manifest.model_copy(update=dict(recipe.manifest))


def _golden_rows(kind: Kind, recipe: Recipe) -> list[GoldenRow]:
    rows = []
    for text, passage in [(text, None) for text in GOLDEN_TEXTS] if kind == "encoder" else GOLDEN_PAIRS:
        ids = reference_ids(text, passage, max_tokens=recipe.max_tokens)
        output = reference_vector(ids) if kind == "encoder" else np.array([reference_logit(ids)])
        rows.append(
            GoldenRow(
                text=text,
                passage=passage,
                token_count=len(ids) + recipe.golden_extra_tokens,
                output=tuple(float(number) + recipe.golden_shift for number in output),
            )
        )
    return rows


@lru_cache
def _table() -> FloatArray:
    return np.random.default_rng(7).normal(size=(len(vocabulary()), DIMENSION)).astype(np.float32).astype(np.float64)


def _positions(count: int) -> FloatArray:
    steps = np.arange(count)[:, None] * (1 + np.arange(DIMENSION)) / 5
    return (0.3 * np.sin(steps)).astype(np.float32).astype(np.float64)


def _weights(count: int) -> tuple[FloatArray, FloatArray]:
    steps = np.arange(count)
    head, tail = 1 / (1 + steps / 8), 1 - 0.5 / (1 + steps / 8)
    return head.astype(np.float32).astype(np.float64), tail.astype(np.float32).astype(np.float64)


class _Graph:
    """Collects nodes and weights of a graph.

    Args:
        recipe: What is asked for.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, values: npt.NDArray[Any]) -> str:
        """Add a constant and return its name."""
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def node(self, operation: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node and return its output's name."""
        self.nodes.append(helper.make_node(operation, inputs, [output], **attributes))
        return output

    def first(self, name: str, values: FloatArray) -> str:
        """Cut a table to the row's token count; a longer row keeps what there is and fails where it is added."""
        table = self.weight(f"{name}_table", values.astype(np.float32))
        return self.node("Slice", [table, "zero", "token_count", "zero"], name)

    def states(self) -> str:
        """Add table, positions and types; return [batch, tokens, 8]."""
        table = _table().astype(np.float32)
        if self.recipe.poison:
            table[vocabulary().index(f"\u2581{POISON}")] = np.nan
        if self.recipe.crash:
            table = table[:-1]
        self.weight("zero", np.zeros(1, np.int64))
        self.weight("one", np.ones(1, np.int64))
        self.weight("two", np.full(1, 2, np.int64))
        ids = self.node("Cast", ["input_ids"], "ids", to=TensorProto.INT64)
        self.node("Slice", [self.node("Shape", [ids], "shape"), "one", "two"], "token_count")
        states = self.node("Gather", [self.weight("table", table), ids], "words")
        states = self.node("Add", [states, self.first("positions", _positions(self.recipe.max_tokens))], "placed")
        if "token_type_ids" in self.recipe.inputs:
            # Only type 0, which is nothing, leaves the output what the reference says.
            types = self.weight("types", np.array([[0.0] * DIMENSION, [9.0] * DIMENSION], np.float32))
            typed = self.node("Gather", [types, "token_type_ids"], "typed")
            states = self.node("Add", [states, typed], "typed_states")
        if self.recipe.frozen_tokens is not None:
            shape = self.weight("frozen", np.array([-1, self.recipe.frozen_tokens, DIMENSION], np.int64))
            states = self.node("Reshape", [states, shape], "frozen_states")
        return states

    def masked(self, states: str) -> str:
        """Blot out padding; return [batch, tokens, 8] and leave the mask, float [batch, tokens], as `mask`."""
        self.node("Cast", ["attention_mask"], "mask", to=TensorProto.FLOAT)
        self.node("Unsqueeze", ["mask", "two"], "mask3")
        return self.node("Mul", [states, "mask3"], "masked")

    def vectors(self) -> str:
        """Mean and norm; return [batch, 8]."""
        masked = self.masked(self.states())
        total = self.node("ReduceSum", [masked, "one"], "total", keepdims=0)
        count = self.node("ReduceSum", ["mask", "one"], "count", keepdims=1)
        mean = self.node("Div", [total, count], "mean")
        norm = self.node("ReduceL2", [mean, "one"], "norm", keepdims=1)
        return self.node("Div", [mean, norm], "flat")

    def logits(self) -> str:
        """Dot product of two weighted means; return [batch]."""
        masked = self.masked(self.states())
        head, tail = _weights(self.recipe.max_tokens)
        sums = []
        for name, values in (("head", head), ("tail", tail)):
            weights = self.node("Unsqueeze", [self.first(name, values), "one"], f"{name}_column")
            weighted = self.node("Mul", [masked, weights], f"{name}_weighted")
            sums.append(self.node("ReduceSum", [weighted, "one"], f"{name}_sum", keepdims=0))
        product = self.node("ReduceSum", [self.node("Mul", sums, "products"), "one"], "product", keepdims=0)
        count = self.node("ReduceSum", ["mask", "one"], "count", keepdims=0)
        return self.node("Div", [product, self.node("Mul", [count, count], "square")], "flat")

    def formed(self, flat: str, rank: int) -> str:
        """Bring the answer into the recipe's form."""
        form = self.recipe.output_form
        if form == "column" and rank == 1:
            return self.node("Unsqueeze", [flat, "one"], "column")
        if form == "column":
            return self.node("ReduceSum", [flat, "one"], "column", keepdims=1)
        if form == "tokens":
            return self.node("ReduceSum", ["masked", "two"], "per_token", keepdims=0)
        return flat


def _write_graph(directory: Path, kind: Kind, recipe: Recipe) -> None:
    graph = _Graph(recipe)
    encoder = kind == "encoder"
    flat = graph.vectors() if encoder else graph.logits()
    output = recipe.output or ("vectors" if encoder else "logits")
    graph.node("Identity", [graph.formed(flat, 2 if encoder else 1)], output)
    inputs = [helper.make_tensor_value_info(name, recipe.input_type, ["batch", "tokens"]) for name in recipe.inputs]
    rank = 2 if encoder or recipe.output_form != "flat" else 1
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", "width"][:rank])]
    proto = helper.make_graph(graph.nodes, kind, inputs, outputs, graph.weights)
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save_model(
        model,
        directory / MODEL_NAME,
        save_as_external_data=recipe.external_data,
        location=EXTERNAL_NAME,
        size_threshold=128,
    )
