"""Reading documents out of lines."""

import json

import pytest
from google.protobuf import json_format

from cli.lines import Fields, Line, Malformed, read_lines

FIELDS = Fields()


def one(text: str | bytes, fields: Fields = FIELDS) -> Line | Malformed:
    (found,) = read_lines([text if isinstance(text, bytes) else text.encode()], fields)
    return found


def test_everything_but_id_and_text_is_payload() -> None:
    """Fields of any shape are kept as they are."""
    line = one('{"id": 7, "text": "words", "tags": ["a", {"b": null}], "open": true, "n": 1.5}')
    assert isinstance(line, Line)
    assert (line.document.id.number, line.document.text) == (7, "words")
    assert json_format.MessageToDict(line.document.payload) == {"tags": ["a", {"b": None}], "open": True, "n": 1.5}


def test_fields_can_have_other_names() -> None:
    """Id and text are taken from the fields named, and a field called id is then payload."""
    line = one('{"key": "k", "body": "words", "id": 3}', Fields(id="key", text="body"))
    assert isinstance(line, Line)
    assert (line.document.id.text, line.document.text) == ("k", "words")
    assert json_format.MessageToDict(line.document.payload) == {"id": 3}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not JSON: "),
        ("[1]", "is a list, an object is wanted"),
        ('{"text": "x"}', 'no field "id"'),
        ('{"id": 1}', 'no field "text"'),
        ('{"id": 1, "text": null}', '"text" is null, text is wanted'),
        ('{"id": true, "text": "x"}', '"id" is a truth value, '),
        ('{"id": -1, "text": "x"}', '"id" is the number -1, '),
        ('{"id": 1.5, "text": "x"}', '"id" is the number 1.5, '),
        (f'{{"id": {2**64}, "text": "x"}}', '"id" is the number 18446744073709551616, '),
        ('{"id": 1, "text": "x", "n": NaN}', "NaN is no JSON"),
        (f'{{"id": 1, "text": "x", "n": {{"m": [{2**53 + 1}]}}}}', "a payload number is beyond 2^53"),
        (b'{"id": 1, "text": "\xff"}', "not UTF-8 at byte 20"),
        ("[" * 100_000, "nested too deep"),
        (f'{{"id": {"9" * 5_000}, "text": "x"}}', "nested too deep, or a number of too many digits"),
    ],
)
def test_what_is_wrong_is_said(text: str | bytes, problem: str) -> None:
    """A line that is no document is reported with its reason and raises nothing."""
    found = one(text)
    assert isinstance(found, Malformed)
    assert found.problem.startswith(problem)


def test_numbers_of_lines_count_blank_ones() -> None:
    """Line numbers are those an editor shows."""
    found = list(read_lines([b"\n", b"  \n", b"x\n", b'{"id": 1, "text": "a"}'], FIELDS))
    assert [line.number for line in found] == [3, 4]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    """Files saved by Windows editors are read."""
    assert isinstance(one(b'\xef\xbb\xbf{"id": 1, "text": "a"}'), Line)


def test_lone_surrogates_are_replaced_and_counted() -> None:
    """Field failure 41: what no UTF-8 exists for becomes U+FFFD in id, text, keys and values; real pairs stay."""
    line = one(json.dumps({"id": "i\udc00", "text": "t\ud800 \U0001f600", "k\ud801": ["v\udfff"]}))
    assert isinstance(line, Line)
    assert (line.document.id.text, line.document.text) == ("i\ufffd", "t\ufffd \U0001f600")
    assert json_format.MessageToDict(line.document.payload) == {"k\ufffd": ["v\ufffd"]}
    assert line.surrogate_count == 4
