"""What `collection.json` says of a collection on disk, and how such files are written."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.parameters import (
    CollectionParameters,
    IndexKind,
    LexicalParameters,
    LexicalTokenizer,
    PayloadIndex,
    Quantization,
)
from gateway.ports import Model
from serving.errors import Misconfigured

META_NAME = "collection.json"
ENGINE = "qdrant-edge-py 0.9.0"


class EncoderReference(BaseModel):
    """The encoder that a collection belongs to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    revision: str
    digest: str
    precision: str


class IndexReference(BaseModel):
    """A declared payload index."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    kind: IndexKind


class LexicalReference(BaseModel):
    """How words are indexed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    k1: float
    b: float
    average_words: float
    tokenizer: LexicalTokenizer
    language: str = ""
    stem: bool = False
    stop_words: bool = False
    extra_stop_words: tuple[str, ...] = ()
    fold_accents: bool = False


class ParametersReference(BaseModel):
    """How the collection was asked to be kept; what the embedded store does not need is kept for an export."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hnsw_m: int = 16
    hnsw_ef_construct: int = 128
    on_disk: bool = False
    quantization: Quantization = Quantization.NONE
    payload_indexes: Sequence[IndexReference] = ()
    lexical: LexicalReference | None = None

    @classmethod
    def of(cls, parameters: CollectionParameters) -> Self:
        """Write parameters."""
        return cls(
            hnsw_m=parameters.hnsw_m,
            hnsw_ef_construct=parameters.hnsw_ef_construct,
            on_disk=parameters.on_disk,
            quantization=parameters.quantization,
            payload_indexes=[IndexReference(key=one.key, kind=one.kind) for one in parameters.payload_indexes],
            lexical=None if parameters.lexical is None else LexicalReference(**asdict(parameters.lexical)),
        )

    def read(self) -> CollectionParameters:
        """Read them back; there is one shard and one copy."""
        return CollectionParameters(
            hnsw_m=self.hnsw_m,
            hnsw_ef_construct=self.hnsw_ef_construct,
            on_disk=self.on_disk,
            quantization=self.quantization,
            payload_indexes=tuple(PayloadIndex(key=one.key, kind=one.kind) for one in self.payload_indexes),
            lexical=None if self.lexical is None else LexicalParameters(**dict(self.lexical)),
        )


class CollectionMeta(BaseModel):
    """What `collection.json` says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    dimension: int = Field(gt=0)
    distance: Literal["cosine"] = "cosine"
    encoder: EncoderReference
    passage_prefix: str = ""
    parameters: ParametersReference = ParametersReference()
    hidden: bool = False
    """Whether it is being imported; what is hidden when the store opens was cut off, and is removed."""
    incarnation: str = ""
    """Of the collection; empty where an older gateway made it."""
    engine: str = ENGINE
    """What made the shard, for people."""

    def model(self) -> Model:
        """Return the encoder."""
        return Model(**self.encoder.model_dump())

    def write(self, directory: Path) -> None:
        """Write it durably, in one step."""
        write_durably(directory / META_NAME, self.model_dump_json(indent=2) + "\n")


def read_meta(path: Path) -> CollectionMeta:
    """Read a `collection.json`.

    Raises:
        Misconfigured: `COLLECTION_MALFORMED`, it is not ours or from another version.
    """
    try:
        return CollectionMeta.model_validate(json.loads(path.read_bytes()))
    except (ValidationError, ValueError, OSError) as error:
        raise Misconfigured(
            "COLLECTION_MALFORMED",
            f"{path} cannot be read as a collection of this version; "
            "restore it from a copy, or delete the directory and index again",
        ) from error


def write_durably(path: Path, text: str) -> None:
    """Replace a file in one step that survives a power cut."""
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
