"""Ids of parts and what they say of their documents."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ids import MAX_NUMBER, MAX_TEXT_BYTES, parse_text
from gateway.part_ids import parent_of, possible_part
from gateway.ports import DocumentId

TEXTS = st.text(min_size=1, max_size=20) | st.from_regex(r"(text:)*[0-9]*(#[0-9]*)*", fullmatch=True).filter(bool)
IDS = st.integers(0, MAX_NUMBER) | st.uuids() | TEXTS.map(parse_text)


@given(IDS, st.integers(1, 16_384))
def test_a_parts_id_tells_its_document(parent: DocumentId, number: int) -> None:
    """Whatever kind of id a document has, it is told exactly by the ids of its parts."""
    made = possible_part(parent, number)
    assert made is not None
    assert parent_of(made) == parent
    assert type(parent_of(made)) is type(parent)


@given(TEXTS)
def test_an_id_is_a_parts_only_where_its_document_would_make_it(text: str) -> None:
    """Where an id tells of a document, one of that document's parts has it."""
    parent = parent_of(text)
    if parent is not None:
        assert possible_part(parent, int(text.rpartition("#")[2])) == text


@pytest.mark.parametrize(
    "identifier",
    [
        7,
        UUID(int=7),
        "x",
        "#1",
        "x#",
        "x#0",
        "x#01",
        "x#1 ",
        "x#-1",
        "x#\u0661",
        "x#123456",
        "text:x#1",
        "text:#1",
        "007#1",
        f"{MAX_NUMBER + 1}#1",
        "00000000-0000-0000-0000-00000000000A#1",
    ],
)
def test_most_ids_are_no_parts(identifier: DocumentId) -> None:
    """Numbers, UUIDs, and texts that no document would give a part are nobody's parts."""
    assert parent_of(identifier) is None


@pytest.mark.parametrize(
    ("identifier", "parent"),
    [
        ("x#1", "x"),
        ("x#1#2", "x#1"),
        ("x\n#1", "x\n"),
        ("7#1", 7),
        ("text:7#1", "7"),
        ("text:007#1", "007"),
        ("text:text:7#1", "text:7"),
        (f"{UUID(int=10)}#3", UUID(int=10)),
        (f"{'x' * (MAX_TEXT_BYTES - 2)}#1", "x" * (MAX_TEXT_BYTES - 2)),
    ],
)
def test_whose_part_has_an_id(identifier: str, parent: DocumentId) -> None:
    """Texts that could be taken for a number are told apart."""
    assert parent_of(identifier) == parent
