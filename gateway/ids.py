"""Document identifiers: unsigned 64-bit numbers, UUIDs, and any other text."""

import re
from uuid import UUID

from gateway.ports import DocumentId

MAX_NUMBER = 2**64 - 1
MAX_TEXT_BYTES = 512
HYPHENATED = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def parse_text(text: str) -> UUID | str:
    """Read an identifier that was given as text: a hyphenated UUID is one, everything else stays text."""
    return UUID(text) if HYPHENATED.fullmatch(text) else text


def sort_key(identifier: DocumentId) -> tuple[int, int, str]:
    """Order identifiers: numbers as numbers, then UUIDs, then text by code point."""
    if isinstance(identifier, int):
        return (0, identifier, "")
    if isinstance(identifier, UUID):
        return (1, identifier.int, "")
    return (2, 0, identifier)
