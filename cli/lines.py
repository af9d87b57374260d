"""Documents out of named values: an id, a text, and the rest as payload; and out of lines of JSON, one object each."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf import struct_pb2

from retrieval.gateway.v1 import gateway_pb2 as pb

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
MAX_NUMBER = 2**64 - 1
"""Largest id that is a number."""
LARGEST_EXACT = 2**53
"""Payload numbers are doubles; whole numbers beyond this would change silently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Which fields of a line are what."""

    id: str = "id"
    text: str = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line that is a document."""

    number: int
    """In the file, from 1."""
    document: pb.Document
    original: str = ""
    """As it stands in the file, for the reject file."""
    surrogate_count: int = 0
    """Lone surrogates that were replaced by U+FFFD; no UTF-8 exists for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """A line that is none."""

    number: int
    problem: str
    original: str = ""


class _Wrong(Exception):
    """Something about a line is wrong; the message says what."""


def read_lines(lines: Iterable[bytes], fields: Fields) -> Iterator[Line | Malformed]:
    """Read every line of JSON that is not blank.

    Args:
        lines: As a binary file gives them.
        fields: Which fields are id and text.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        original = line.decode("utf-8", "replace").rstrip("\r\n")
        try:
            found = _object(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
        except _Wrong as error:
            yield Malformed(number=number, problem=str(error), original=original)
            continue
        yield document_line(number, found, fields, original)


def document_line(number: int, found: dict[str, Any], fields: Fields, original: str) -> Line | Malformed:
    """Make a document of named values; everything but id and text is payload.

    Args:
        number: Of the line, from 1.
        found: Name to value, of the types that JSON has. Taken apart.
        fields: Which are id and text.
        original: The line as it stands in the file.
    """
    cleaned = _Cleaned()
    try:
        document = _document(found, fields, cleaned)
    except _Wrong as error:
        return Malformed(number=number, problem=str(error), original=original)
    return Line(number=number, document=document, original=original, surrogate_count=cleaned.count)


def _document(found: dict[str, Any], fields: Fields, cleaned: "_Cleaned") -> pb.Document:
    for name in (fields.id, fields.text):
        if name not in found:
            raise _Wrong(f'no field "{name}"')
    text = found.pop(fields.text)
    if not isinstance(text, str):
        raise _Wrong(f'"{fields.text}" is {_kind(text)}, text is wanted')
    document = pb.Document(id=_id(found.pop(fields.id), fields.id, cleaned), text=cleaned.text(text))
    document.payload.CopyFrom(_struct(cleaned.value(found)))
    return document


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise _Wrong(f"not UTF-8 at byte {error.start + 1}") from error
    except json.JSONDecodeError as error:
        raise _Wrong(f"not JSON: {error.msg} at character {error.pos + 1}") from error
    except (RecursionError, ValueError) as error:
        raise _Wrong("nested too deep, or a number of too many digits") from error
    if not isinstance(found, dict):
        raise _Wrong(f"is {_kind(found)}, an object is wanted")
    return found


def _no_constant(name: str) -> None:
    raise _Wrong(f"{name} is no JSON")


def _id(value: Any, field: str, cleaned: "_Cleaned") -> pb.DocumentId:
    if isinstance(value, str):
        return pb.DocumentId(text=cleaned.text(value))
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER:
        return pb.DocumentId(number=value)
    raise _Wrong(f'"{field}" is {_kind(value)}, text or a whole number from 0 to 2^64 - 1 is wanted')


def _struct(payload: dict[str, Any]) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.update(payload)
    return struct


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), f"the number {value}"[:40])


class _Cleaned:
    """Copies values with lone surrogates replaced, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def text(self, text: str) -> str:
        cleaned, count = LONE_SURROGATE.subn("\N{REPLACEMENT CHARACTER}", text)
        self.count += count
        return cleaned

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.value(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner) for inner in value]
        if isinstance(value, int) and abs(value) > LARGEST_EXACT:
            raise _Wrong("a payload number is beyond 2^53; write it as text")
        if isinstance(value, float) and not math.isfinite(value):
            raise _Wrong(f"a payload number is {value}, which is no JSON")
        if value is None or isinstance(value, (bool, int, float)):
            return value
        raise _Wrong(f"a payload value is a {type(value).__name__}, which is no JSON")
