"""The parts that many messages share, read and written: identifiers, payloads, names, numbers."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

from google.protobuf import struct_pb2

from gateway.ids import MAX_TEXT_BYTES as MAX_ID_BYTES
from gateway.ids import parse_text
from gateway.ports import DocumentId, Model, Payload
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import InvalidRequest
from serving.limits import require_size

T = TypeVar("T")

MAX_TEXT_BYTES = 65_536
MAX_PAYLOAD_BYTES = 65_536
# Objects and lists within one another, the payload itself among them. A Qdrant server takes no more; protobuf reads a
# message that nests 100 messages, and an object in an export's payload is three.
MAX_PAYLOAD_DEPTH = 30
MAX_IDS = 1_000
MAX_KEY_CHARACTERS = 512
MAX_LANGUAGE_CHARACTERS = 64
# Beyond this a double no longer tells neighbouring whole numbers apart.
MAX_EXACT = 2**53
RESERVED_PREFIX = "_twostage"
COLLECTION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def collection_name(name: str, field: str = "collection") -> str:
    """Check a collection's name, which is also a directory's."""
    if not COLLECTION_NAME.fullmatch(name):
        raise InvalidRequest("COLLECTION_NAME", "1 to 128 of a-z A-Z 0-9 . _ - are wanted", field=field)
    return name


def check_text(text: str, field: str) -> None:
    """Check what can be checked of a text without its tokens; whether it is blank is the encoder's to say."""
    require_size(text, MAX_TEXT_BYTES, field=field)
    if not text.strip():
        raise InvalidRequest("TEXT_BLANK", "no visible character", field=field)


def known(values: Mapping[Any, T], value: Any, field: str) -> T:
    """Return what a value of an enum stands for.

    Raises:
        InvalidRequest: `ENUM_UNKNOWN`.
    """
    if value not in values:
        raise InvalidRequest("ENUM_UNKNOWN", f"no such value: {value}", field=field)
    return values[value]


def ids_of(messages: Sequence[pb.DocumentId], field: str = "ids") -> list[DocumentId]:
    """Read a list of identifiers."""
    if not 1 <= len(messages) <= MAX_IDS:
        raise InvalidRequest("ID_COUNT", f"{len(messages)}, 1 to {MAX_IDS} are wanted", field=field)
    return [id_of(message, f"{field}[{index}]") for index, message in enumerate(messages)]


def id_of(message: pb.DocumentId, field: str) -> DocumentId:
    """Read an identifier."""
    kind = message.WhichOneof("kind")
    if kind is None:
        raise InvalidRequest("ID_REQUIRED", "number or text is required", field=field)
    if kind == "number":
        return message.number
    size = len(message.text.encode("utf-8", "replace"))
    if not 1 <= size <= MAX_ID_BYTES:
        raise InvalidRequest("ID_SIZE", f"{size} bytes, 1 to {MAX_ID_BYTES} are wanted", field=field)
    return parse_text(message.text)


def payload_key(key: str, field: str) -> str:
    """Check a payload key, which stands in `field`."""
    if not key or key.startswith(RESERVED_PREFIX) or len(key) > MAX_KEY_CHARACTERS:
        wanted = f"a payload key of the caller's is required, of at most {MAX_KEY_CHARACTERS} characters"
        raise InvalidRequest("KEY", wanted, field=field)
    return key


def payload_of(message: struct_pb2.Struct, field: str) -> Payload:
    """Read a payload.

    Raises:
        InvalidRequest: `PAYLOAD_TOO_LARGE`, `PAYLOAD_KEY_RESERVED`, `NUMBER_NOT_FINITE`, or `PAYLOAD_MALFORMED` where
            it is nested too deep.
    """
    if message.ByteSize() > MAX_PAYLOAD_BYTES:
        raise InvalidRequest("PAYLOAD_TOO_LARGE", f"more than {MAX_PAYLOAD_BYTES} bytes", field=field)
    if any(key.startswith(RESERVED_PREFIX) for key in message.fields):
        raise InvalidRequest("PAYLOAD_KEY_RESERVED", f"keys that begin with {RESERVED_PREFIX} are taken", field=field)
    return {key: plain(value, field) for key, value in message.fields.items()}


def plain(value: struct_pb2.Value, field: str, *, depth: int = 1) -> Any:
    """Read a JSON value, giving whole numbers back their type: protobuf knows only doubles.

    Args:
        value: The value.
        field: Names it in errors.
        depth: How many objects and lists it lies in.

    Raises:
        InvalidRequest: `NUMBER_NOT_FINITE`, or `PAYLOAD_MALFORMED` where it is nested too deep.
    """
    if depth > MAX_PAYLOAD_DEPTH:
        raise InvalidRequest("PAYLOAD_MALFORMED", f"nested deeper than {MAX_PAYLOAD_DEPTH}", field=field)
    match value.WhichOneof("kind"):
        case "number_value":
            return _number(value.number_value, field)
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return {key: plain(inner, field, depth=depth + 1) for key, inner in value.struct_value.fields.items()}
        case "list_value":
            return [plain(inner, field, depth=depth + 1) for inner in value.list_value.values]
        case _:
            return None


def _number(value: float, field: str) -> int | float:
    if not math.isfinite(value):
        raise InvalidRequest("NUMBER_NOT_FINITE", "a number is not finite", field=field)
    return int(value) if value.is_integer() and abs(value) <= MAX_EXACT else value


def check_range(value: int, largest: int, field: str, *, smallest: int = 1) -> None:
    """Check that a number lies within both bounds."""
    if not smallest <= value <= largest:
        raise InvalidRequest("OUT_OF_RANGE", f"{value}, {smallest} to {largest} is wanted", field=field)


def id_message(identifier: DocumentId) -> pb.DocumentId:
    """Write an identifier."""
    if isinstance(identifier, int):
        return pb.DocumentId(number=identifier)
    return pb.DocumentId(text=str(identifier) if isinstance(identifier, UUID) else identifier)


def model_message(model: Model) -> pb.ModelReference:
    """Write a model reference."""
    return pb.ModelReference(
        id=model.id, revision=model.revision, digest=model.digest, precision=model.precision, device=model.device
    )


def struct_of(payload: Mapping[str, Any]) -> struct_pb2.Struct:
    """Write a payload."""
    struct = struct_pb2.Struct()
    struct.update(payload)
    return struct
