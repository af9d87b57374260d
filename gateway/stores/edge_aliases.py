"""Aliases of collections in a directory: one file, replaced as a whole."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.stores.edge_meta import write_durably
from serving.errors import Misconfigured

ALIASES_NAME = ".aliases.json"


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    aliases: Mapping[str, str] = {}


class Aliases:
    """Alias -> collection.

    Args:
        path: The file.
        targets: What it says.
    """

    def __init__(self, path: Path, targets: Mapping[str, str]) -> None:
        self._path = path
        self._targets = dict(targets)

    @classmethod
    def load(cls, directory: Path, collections: Iterable[str]) -> Self:
        """Read the file, leaving out aliases of collections that are no longer there.

        Raises:
            Misconfigured: `ALIASES_MALFORMED`, it is not ours or from another version.
        """
        path = directory / ALIASES_NAME
        try:
            read = _File.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return cls(path, {})
        except (ValidationError, OSError) as error:
            raise Misconfigured(
                "ALIASES_MALFORMED",
                f"{path} cannot be read as aliases of this version; restore it from a copy, or delete it and "
                "assign the aliases again",
            ) from error
        there = set(collections)
        return cls(path, {alias: target for alias, target in read.aliases.items() if target in there})

    def __contains__(self, alias: str) -> bool:
        return alias in self._targets

    def resolve(self, name: str) -> str:
        """Return the collection that a name stands for: its own, or the one that the alias points at."""
        return self._targets.get(name, name)

    def of(self, collection: str) -> Sequence[str]:
        """Return the aliases of a collection, sorted."""
        return sorted(alias for alias, target in self._targets.items() if target == collection)

    def assign(self, alias: str, collection: str) -> None:
        """Point an alias at a collection, durably."""
        self._write({**self._targets, alias: collection})

    def delete(self, aliases: Iterable[str]) -> None:
        """Delete aliases, durably."""
        gone = set(aliases)
        self._write({alias: target for alias, target in self._targets.items() if alias not in gone})

    def _write(self, targets: Mapping[str, str]) -> None:
        write_durably(self._path, _File(aliases=targets).model_dump_json(indent=2) + "\n")
        self._targets = dict(targets)
