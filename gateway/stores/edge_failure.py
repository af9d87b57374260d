"""Errors as they cross from one process to another. Knows no engine."""

from dataclasses import dataclass
from typing import Any, Self

from serving.errors import ServiceError


class EngineError(Exception):
    """What the engine said, in the words of the process that it said it in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error taken apart, because an exception with keyword-only arguments does not pickle."""

    kind: type[ServiceError]
    args: tuple[Any, ...]
    attributes: dict[str, Any]
    cause: str | None

    @classmethod
    def of(cls, error: ServiceError) -> Self:
        """Take an error apart."""
        cause = None if error.__cause__ is None else f"{type(error.__cause__).__name__}: {error.__cause__}"
        return cls(kind=type(error), args=error.args, attributes=dict(error.__dict__), cause=cause)

    def error(self) -> ServiceError:
        """Put it together again, with the words of its cause."""
        made = self.kind.__new__(self.kind, *self.args)
        made.__dict__.update(self.attributes)
        made.__cause__ = None if self.cause is None else EngineError(self.cause)
        return made
