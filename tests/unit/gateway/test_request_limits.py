"""What one request may hold: bombs are refused by looking, not by unpacking them."""

from typing import Any

import pytest
from google.protobuf import struct_pb2

from gateway.convert import documents_of, search_of
from gateway.convert_collections import header_of, parameters_of, stored_of
from gateway.convert_filters import _condition_count, filter_of
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import InvalidRequest

VECTOR = b"\0\0\x80\x3f" * 4


def refused(reader: Any, *arguments: Any) -> InvalidRequest:
    """Return the error of something that is refused."""
    with pytest.raises(InvalidRequest) as caught:
        reader(*arguments)
    return caught.value


def any_of(*values: struct_pb2.Value, key: str = "k") -> pb.Filter:
    """Make a filter."""
    return pb.Filter(must=[pb.Condition(any_of=pb.AnyOf(key=key, values=values))])


def test_a_million_conditions_are_counted_no_further_than_needed():
    """Counting stops soon after the limit, wherever the many are: no condition of a flat million is looked at."""
    flat = pb.Filter(must=[pb.Condition()] * 1_000_000)
    deep = pb.Filter(should=[pb.Condition(filter=pb.Filter(must=[pb.Condition()] * 60))] * 60)
    assert refused(filter_of, flat).reason == refused(filter_of, deep).reason == "FILTER_SIZE"
    assert _condition_count(flat, 64) == 1_000_000
    assert _condition_count(deep, 64) == 120


def test_as_many_conditions_as_are_allowed_pass():
    """64 conditions, those of inner filters counted, are read; one more is not."""
    leaf = pb.Condition(exists=pb.Exists(key="k"))
    inner = pb.Condition(filter=pb.Filter(should=[leaf] * 31))
    assert len(filter_of(pb.Filter(must=[inner, inner])).must) == 2
    assert refused(filter_of, pb.Filter(must=[inner, inner, leaf])).reason == "FILTER_SIZE"


def test_a_filter_as_deep_as_the_wire_allows_is_refused():
    """The depth of the message does not become the depth of a recursion."""
    bomb = pb.Filter()
    for _ in range(40):
        bomb = pb.Filter(must=[pb.Condition(filter=bomb)])
    assert refused(filter_of, bomb).reason == "FILTER_DEPTH"


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (any_of(struct_pb2.Value(string_value="x" * 1_025)), "VALUES"),
        (any_of(*[struct_pb2.Value(string_value="x")] * 257), "VALUES"),
        (any_of(struct_pb2.Value(string_value="x"), key="k" * 513), "KEY"),
        (pb.Filter(must=[pb.Condition(exists=pb.Exists(key="k" * 513))]), "KEY"),
        (pb.Filter(must=[pb.Condition(text_match=pb.TextMatch(key="k", text="x" * 1_025))]), "TEXT_MATCH"),
        (pb.Filter(must=[pb.Condition(has_id=pb.HasId(ids=[pb.DocumentId(number=1)] * 1_001))]), "ID_COUNT"),
    ],
)
def test_conditions_are_limited(wanted: pb.Filter, reason: str):
    """Values, keys, words and ids have a size and a number that a store is asked for at most."""
    assert refused(filter_of, wanted).reason == reason


def test_the_longest_values_pass():
    """The limits themselves are allowed."""
    filter_of(any_of(*[struct_pb2.Value(string_value="x" * 1_024)] * 256, key="k" * 512))


def test_payload_fields_are_limited():
    """A search names at most 256 payload keys."""
    request = pb.SearchRequest(query="q", collection="c", payload_fields=["k"] * 257)
    assert refused(search_of, request).field == "payload_fields"
    del request.payload_fields[-1]
    assert len(search_of(request).payload_fields) == 256


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"part": 1, "part_count": 2_000_000_000}, "part_count"),
        ({"part": 1, "part_count": 16_385}, "part_count"),
        ({"part": 3, "part_count": 2}, "part"),
        ({"part": 0, "part_count": 2}, "part"),
        ({"part": 1, "part_count": -1}, "part_count"),
    ],
)
def test_an_import_cannot_plant_a_document_of_two_billion_parts(fields: dict[str, int], field: str):
    """Whoever deletes the parent would go through all of them."""
    number = pb.DocumentId(number=1)
    document = pb.Document(id=pb.DocumentId(text="1#1"), text="t", parent=number, **fields)
    failed = refused(stored_of, [pb.StoredDocument(document=document, vector=VECTOR)], 4)
    assert failed.field == f"documents.documents[0].document.{field}"


def nested(levels: int, kind: str) -> struct_pb2.Struct:
    """Make a payload of so many objects or lists within one another, itself among them."""
    value = struct_pb2.Value(number_value=1)
    for _ in range(levels - 1):
        outer = struct_pb2.Value()
        if kind == "list":
            outer.list_value.values.append(value)
        else:
            outer.struct_value.fields["k"].CopyFrom(value)
        value = outer
    return struct_pb2.Struct(fields={"k": value})


@pytest.mark.parametrize("kind", ["list", "object"])
def test_payloads_are_nested_thirty_deep_at_most(kind: str):
    """In documents and in imports alike, so that what is stored can always be exported."""
    for levels in (30, 31):
        document = pb.Document(id=pb.DocumentId(number=1), text="t", payload=nested(levels, kind))
        stored = [pb.StoredDocument(document=document, vector=VECTOR)]
        if levels == 30:
            assert documents_of([document])[0].payload == stored_of(stored, 4)[0][0].payload
            continue
        for failed in (refused(documents_of, [document]), refused(stored_of, stored, 4)):
            assert (failed.reason, failed.field[-8:]) == ("PAYLOAD_MALFORMED", ".payload")


def test_texts_and_labels_of_an_import_are_limited():
    """As those of every other way in."""
    document = pb.Document(id=pb.DocumentId(number=1), text="x" * 65_537)
    assert refused(stored_of, [pb.StoredDocument(document=document, vector=VECTOR)], 4).reason == "TEXT_TOO_LARGE"
    for fields in ({"encoder": pb.ModelReference(digest="x" * 1_025)}, {"passage_prefix": "x" * 1_025}):
        header = pb.CollectionHeader(
            **{"format_version": 1, "dimension": 4, "encoder": pb.ModelReference(digest="d"), **fields}
        )
        assert refused(header_of, header).reason == "HEADER_SIZE"


def test_indexes_are_counted_before_they_are_read():
    """Thirty-three are too many, whatever they say."""
    wanted = pb.CollectionParameters(payload_indexes=[pb.PayloadIndex()] * 33)
    assert refused(parameters_of, wanted).reason == "INDEX_COUNT"
