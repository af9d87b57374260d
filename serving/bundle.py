"""A model on disk: manifest, digests, golden outputs. Knows neither how a bundle is made nor how it is run.

A bundle is a directory::

    model.onnx        the graph (and `model.onnx.data` where the weights exceed 2 GB)
    model.int8.onnx   a further form of the same model, where there is one; likewise `model.fp16.onnx`
    tokenizer.json    the tokenizer as Hugging Face's tokenizers library writes it
    golden.json       inputs, and the fp32 reference model's outputs for them
    bundle.json       the manifest: what the model is, and size and SHA-256 of every other file
"""

import hashlib
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from serving.errors import Misconfigured

MANIFEST_NAME = "bundle.json"
MODEL_NAME = "model.onnx"
TOKENIZER_NAME = "tokenizer.json"
GOLDEN_NAME = "golden.json"
LFS_POINTER = b"version https://git-lfs"

Kind = Literal["encoder", "reranker"]
Precision = Literal["fp32", "fp16", "int8"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(_Frozen):
    """One file of the bundle: bytes and lower-case hexadecimal SHA-256."""

    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class SpecialTokens(_Frozen):
    """Ids that only the pair and single templates may place."""

    bos: int
    eos: int
    pad: int
    unk: int


class Form(_Frozen):
    """The same model in one precision: a graph of the same inputs and output, which may differ a little more."""

    file: str
    """The graph's name, for example "model.int8.onnx"; it is listed in `files` as every other file is."""
    weights: str
    """How the weights are stored, for people."""
    tolerance: float = Field(gt=0)
    """Largest absolute difference from the golden outputs, which are the fp32 reference's for every form."""


class Manifest(_Frozen):
    """What `bundle.json` says."""

    schema_version: Literal[1] = 1
    kind: Kind
    model_id: str
    """Hub id of the original, or a name of our own for a model that is on no hub."""
    source: str
    """Where the weights came from, for people."""
    revision: str
    """Revision at the source: a commit, or a package version."""
    architecture: str
    """For example "BertModel" or "XLMRobertaForSequenceClassification"."""
    precision: Precision
    """Of `model.onnx`."""
    weights: str
    """How the weights are stored, for people, for example "4-bit embedding table, fp32 linear weights"."""
    vocabulary: int = Field(gt=0)
    """Rows of the embedding table; every token id is below."""
    max_tokens: int = Field(gt=3)
    """Most tokens of one row: min(tokenizer limit, positions the table really has)."""
    special_tokens: SpecialTokens
    inputs: tuple[str, ...]
    """Graph inputs, each int64 [batch, tokens]: `input_ids`, `attention_mask` and, for some, `token_type_ids`."""
    output: str
    """Graph output: float32 [batch, dimension] of L2 norm 1 (encoder) or float32 [batch] of logits (reranker)."""
    dimension: int | None = None
    """Encoder only: numbers per vector."""
    pooling: Literal["mean", "cls"] | None = None
    """Encoder only: how token states became a vector, inside the graph."""
    query_prefix: str = ""
    passage_prefix: str = ""
    attention: str = ""
    """How attention is computed, for people, for example "com.microsoft.MultiHeadAttention x 12"."""
    tolerance: float = Field(gt=0)
    """Largest absolute difference from the golden outputs: per vector element, or per logit."""
    forms: dict[Precision, Form] = Field(default_factory=dict)
    """Further forms beside `model.onnx`, by precision."""
    tools: dict[str, str] = Field(default_factory=dict)
    """Versions of what made the bundle."""
    files: dict[str, FileEntry]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        missing = {MODEL_NAME, TOKENIZER_NAME, GOLDEN_NAME} - self.files.keys()
        if missing:
            raise ValueError(f"files: {', '.join(sorted(missing))} not listed")
        if self.kind == "encoder" and (self.dimension is None or self.pooling is None):
            raise ValueError("an encoder has a dimension and a pooling")
        if any(Path(name).name != name for name in self.files):
            raise ValueError("files: names, not paths")
        if self.precision in self.forms:
            raise ValueError(f"forms: {self.precision} is what {MODEL_NAME} is")
        unlisted = {form.file for form in self.forms.values()} - self.files.keys()
        if unlisted:
            raise ValueError(f"forms: {', '.join(sorted(unlisted))} not listed in files")
        return self

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Every precision that the bundle has, that of `model.onnx` first."""
        return self.precision, *self.forms

    def form(self, precision: Precision) -> Form:
        """Return the form of one of `precisions`."""
        if precision == self.precision:
            return Form(file=MODEL_NAME, weights=self.weights, tolerance=self.tolerance)
        return self.forms[precision]


class GoldenRow(_Frozen):
    """One input of the self-test and what the reference model makes of it."""

    text: str
    """Encoder: the text with its prefix, as tokenized. Reranker: the query."""
    passage: str | None = None
    """Reranker: the passage."""
    token_count: int
    """Tokens after truncation to the bundle's limit, special tokens included."""
    output: tuple[float, ...]
    """The vector, or one logit."""


class Golden(_Frozen):
    """What `golden.json` says: about 20 inputs from 1 to `max_tokens` tokens, in several scripts."""

    reference: str
    """What computed the outputs, for people, for example "torch 2.13.0, BertModel, fp32"."""
    rows: tuple[GoldenRow, ...] = Field(min_length=1)


class Bundle:
    """A bundle directory whose manifest was read and whose files have the size that it names.

    Raises:
        Misconfigured: A file is missing, cut short or is a Git LFS pointer, or the manifest is malformed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = _read_manifest(path / MANIFEST_NAME)
        self.digest = f"sha256:{sha256(path / MANIFEST_NAME)}"
        for name, entry in self.manifest.files.items():
            _check_size(path / name, entry)

    @property
    def model_path(self) -> Path:
        """The ONNX graph."""
        return self.path / MODEL_NAME

    @property
    def tokenizer_path(self) -> Path:
        """The tokenizer."""
        return self.path / TOKENIZER_NAME

    def verify(self) -> None:
        """Recompute every file's SHA-256.

        Raises:
            Misconfigured: One differs from the manifest.
        """
        for name, entry in self.manifest.files.items():
            actual = sha256(self.path / name)
            if actual != entry.sha256:
                raise Misconfigured(
                    "BUNDLE_DIGEST_MISMATCH",
                    f"{self.path / name}: SHA-256 is {actual[:12]}..., the manifest says {entry.sha256[:12]}...; "
                    "prepare the bundle again",
                )

    def golden(self) -> Golden:
        """Read the self-test.

        Raises:
            Misconfigured: `golden.json` is malformed.
        """
        try:
            return Golden.model_validate_json((self.path / GOLDEN_NAME).read_bytes())
        except ValidationError as error:
            raise Misconfigured("BUNDLE_MALFORMED", f"{self.path / GOLDEN_NAME}: {_first(error)}") from error


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in lower-case hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write `bundle.json`, the last step of making a bundle: without it the directory is none."""
    (directory / MANIFEST_NAME).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def file_entries(directory: Path) -> dict[str, FileEntry]:
    """Measure every file of a directory but the manifest."""
    files = sorted(path for path in directory.iterdir() if path.is_file() and path.name != MANIFEST_NAME)
    return {path.name: FileEntry(size=path.stat().st_size, sha256=sha256(path)) for path in files}


def _read_manifest(path: Path) -> Manifest:
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise Misconfigured("BUNDLE_MISSING", f"{path} cannot be read; run `twostage models prepare`") from error
    except ValidationError as error:
        raise Misconfigured("BUNDLE_MALFORMED", f"{path}: {_first(error)}") from error


def _check_size(path: Path, entry: FileEntry) -> None:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(len(LFS_POINTER))
    except OSError as error:
        hint = "copy it beside model.onnx" if path.name.endswith(".data") else "prepare the bundle again"
        raise Misconfigured("BUNDLE_FILE_MISSING", f"{path} cannot be read; {hint}") from error
    if start == LFS_POINTER:
        raise Misconfigured("BUNDLE_LFS_POINTER", f"{path} is a Git LFS pointer, not the file; run `git lfs pull`")
    if size != entry.size:
        raise Misconfigured(
            "BUNDLE_FILE_SIZE", f"{path} has {size} bytes, the manifest says {entry.size}; prepare the bundle again"
        )


def _first(error: ValidationError) -> str:
    detail = error.errors()[0]
    return f"{'.'.join(map(str, detail['loc'])) or 'manifest'}: {detail['msg']}"
