"""Ids of the parts of a split document, and ids as one text each. No two documents share one."""

import re
from uuid import UUID

from gateway.ids import MAX_NUMBER, MAX_TEXT_BYTES, parse_text
from gateway.ports import DocumentId
from serving.errors import InvalidRequest

TEXT = "text:"
NUMBER = "number:"
DECIMAL = re.compile(r"[0-9]+")
PART = re.compile(r"(.+)#[1-9][0-9]{0,4}", re.DOTALL)
"""Of a document's id and the number of a part, which is 16,384 at most."""


def part_id(parent: DocumentId, number: int, *, field: str = "id") -> str:
    """Return the id of a part: its parent's id, "#" and its number.

    A text id that would look like a number's, or like one that has been told apart in this way, is told apart by
    "text:" in front of it.

    Args:
        parent: Of the split document.
        number: Of the part, from 1.
        field: Names the parent's id in errors.

    Raises:
        InvalidRequest: `ID_SIZE`, the parent's id leaves no room.
    """
    made = f"{TEXT if _ambiguous(parent) else ''}{parent}#{number}"
    if len(made.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
        raise InvalidRequest("ID_SIZE", f"with #{number} it is over {MAX_TEXT_BYTES} bytes", field=field)
    return made


def first_part(parent: DocumentId) -> str | None:
    """Return the id of a document's first part; an id that leaves no room for it has none."""
    return possible_part(parent, 1)


def possible_part(parent: DocumentId, number: int) -> str | None:
    """Return the id of a part; None where the parent's id leaves no room for it, so that no such part is stored."""
    try:
        return part_id(parent, number)
    except InvalidRequest:
        return None


def parent_of(identifier: DocumentId) -> DocumentId | None:
    """Return the one document that could have a part of an id; None where the id looks like no part's."""
    found = PART.fullmatch(identifier) if isinstance(identifier, str) else None
    if found is None:
        return None
    text = found[1]
    if text.startswith(TEXT):
        told_apart = text.removeprefix(TEXT)
        return told_apart if _ambiguous(told_apart) else None
    # As it is written, since "007" is no number's part, nor is a UUID in upper case a UUID's.
    parent: DocumentId = int(text) if DECIMAL.fullmatch(text) else parse_text(text)
    possible = parent <= MAX_NUMBER if isinstance(parent, int) else True
    return parent if possible and str(parent) == text else None


def to_tagged(identifier: DocumentId) -> str:
    """Return an id as text that says what it is."""
    if isinstance(identifier, int):
        return f"{NUMBER}{identifier}"
    return str(identifier) if isinstance(identifier, UUID) else f"{TEXT}{identifier}"


def from_tagged(tagged: str) -> DocumentId:
    """Return the id that `to_tagged` was given."""
    if tagged.startswith(NUMBER):
        return int(tagged.removeprefix(NUMBER))
    return tagged.removeprefix(TEXT) if tagged.startswith(TEXT) else UUID(tagged)


def _ambiguous(identifier: DocumentId) -> bool:
    """Tell whether it is a text that in front of "#" could be taken for a number, or for one told apart."""
    return isinstance(identifier, str) and (DECIMAL.fullmatch(identifier) is not None or identifier.startswith(TEXT))
