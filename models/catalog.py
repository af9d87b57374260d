"""The catalog of supported models: reading it, and writing a revision and digests into it once. Downloads nothing."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from serving.bundle import FileEntry, Kind
from serving.errors import Misconfigured

CATALOG = Path(__file__).parent / "catalog.toml"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CatalogFile(_Frozen):
    """A file of a hub repository, pinned where size and digest are known."""

    name: str
    size: int | None = Field(default=None, gt=0)
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _both_or_neither(self) -> Self:
        if (self.size is None) != (self.sha256 is None):
            raise ValueError(f"{self.name}: size and sha256 come together")
        if Path(self.name).name != self.name:
            raise ValueError(f"{self.name}: a name, not a path")
        return self

    @property
    def pinned(self) -> FileEntry | None:
        """Size and digest, where they are known."""
        if self.size is None or self.sha256 is None:
            return None
        return FileEntry(size=self.size, sha256=self.sha256)


class CatalogModel(_Frozen):
    """A model on a hub, and how it is used."""

    id: str
    """Owner and name at the hub."""
    revision: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")
    """The commit, where it is pinned."""
    licence: str
    pooling: Literal["mean", "cls"] = "mean"
    """Encoder only."""
    query_prefix: str = ""
    passage_prefix: str = ""
    max_tokens: int
    files: tuple[CatalogFile, ...] = Field(min_length=1)


class Catalog(_Frozen):
    """What `catalog.toml` says."""

    encoder: CatalogModel
    reranker: CatalogModel

    def model(self, kind: Kind) -> CatalogModel:
        """Return the model of a kind."""
        return self.encoder if kind == "encoder" else self.reranker


def read(path: Path = CATALOG) -> Catalog:
    """Read a catalog.

    Raises:
        Misconfigured: It is missing or malformed.
    """
    try:
        return Catalog.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Misconfigured("CATALOG_MALFORMED", f"{path} cannot be read as TOML") from error
    except ValidationError as error:
        detail = error.errors()[0]
        place = ".".join(map(str, detail["loc"]))
        raise Misconfigured("CATALOG_MALFORMED", f"{path}: {place}: {detail['msg']}") from error


def pin(path: Path, kind: Kind, revision: str, files: Mapping[str, FileEntry]) -> list[str]:
    """Write what is not pinned yet, comments and order kept; what is pinned never changes.

    Args:
        path: The catalog.
        kind: Whose model.
        revision: The commit that was downloaded.
        files: Size and digest of each file, by name, verified.

    Returns:
        What was written, one line each, for people.

    Raises:
        Misconfigured: The catalog cannot be written.
    """
    import tomlkit  # noqa: PLC0415 - only who downloads has it

    document: Any = tomlkit.parse(path.read_text(encoding="utf-8"))
    model = document[kind]
    written = []
    if "revision" not in model:
        model.add("revision", revision)
        written.append(f"{kind}: revision {revision}")
    for row in model["files"]:
        if "sha256" not in row:
            entry = files[row["name"]]
            row.update(size=entry.size, sha256=entry.sha256)
            written.append(f"{kind}: {row['name']}, {entry.size} bytes, SHA-256 {entry.sha256}")
    if written:
        _replace(path, tomlkit.dumps(document))
    return written


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise Misconfigured("CATALOG_READ_ONLY", f"{path} cannot be written; nothing was pinned") from error
