"""Messages to records and back: every check that needs no backend.

Numbers in brackets are those of field failures.
"""

import math
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from gateway import convert, convert_filters, convert_values
from gateway.filters import AnyOf, DateRange, Exists, Filter, HasId, Range, TextMatch
from gateway.pipeline import Hit, Result
from gateway.ports import Candidate, Document, Model, Scored
from gateway.search_query import RerankMode
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import InvalidRequest

TEXT_ID = "0b5f2a6e-9f1c-4d21-8a77-3f0c5e6a1b2d"
MODEL = Model(id="m", revision="r", digest="sha256:0", precision="fp32", device="cpu")


def search(**fields: Any) -> pb.SearchRequest:
    return pb.SearchRequest(**{"query": "q", "collection": "c", **fields})


def condition(**fields: Any) -> pb.Filter:
    return pb.Filter(must=[pb.Condition(**fields)])


def instant(text: str) -> Timestamp:
    made = Timestamp()
    made.FromJsonString(text)
    return made


def any_of(*values: Any) -> pb.Filter:
    message = pb.AnyOf(key="k")
    for value in values:
        one = message.values.add()
        if isinstance(value, bool):
            one.bool_value = value
        elif isinstance(value, float | int):
            one.number_value = value
        elif isinstance(value, str):
            one.string_value = value
        elif isinstance(value, list):
            one.list_value.extend(value)
    return condition(any_of=message)


def nested(depth: int) -> pb.Filter:
    inner = condition(exists=pb.Exists(key="k"))
    for _ in range(depth - 1):
        inner = condition(filter=inner)
    return inner


def document(**fields: Any) -> pb.Document:
    return pb.Document(**{"id": pb.DocumentId(number=1), "text": "t", **fields})


def refused(call: Any, *arguments: Any) -> tuple[str, str]:
    with pytest.raises(InvalidRequest) as caught:
        call(*arguments)
    return caught.value.reason, caught.value.field


def test_what_is_not_said_has_the_documented_default() -> None:
    """20 candidates, 5 hits, REQUIRED, no filter and no payload."""
    read = convert.search_of(search())
    assert (read.pool_size, read.top_k, read.rerank) == (20, 5, RerankMode.REQUIRED)
    assert (read.filter, read.payload_fields) == (None, ())


def test_the_default_of_top_k_follows_a_small_pool() -> None:
    """A pool of 3 gives 3 hits, not an error about 5."""
    assert convert.search_of(search(pool_size=3)).top_k == 3


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"pool_size": 0}, "pool_size"),
        ({"pool_size": -1}, "pool_size"),
        ({"pool_size": 201}, "pool_size"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 21}, "top_k"),
        ({"pool_size": 3, "top_k": 4}, "top_k"),
        ({"rerank": 9}, "rerank"),
        ({"query": ""}, "query"),
        ({"query": " \t\n\u3000"}, "query"),
        ({"query": "x" * 65_537}, "query"),
        ({"query": "\u718a" * 21_846}, "query"),
        ({"collection": ""}, "collection"),
        ({"collection": "../c"}, "collection"),
        ({"collection": ".hidden"}, "collection"),
        ({"collection": "c\n"}, "collection"),
        ({"collection": "c" * 129}, "collection"),
    ],
)
def test_what_is_out_of_range_is_named(fields: dict[str, Any], field: str) -> None:
    """Sizes count bytes and not characters; a zero is not taken for unset (40, 67)."""
    assert refused(convert.search_of, search(**fields))[1] == field


def test_the_largest_legal_values_pass() -> None:
    """The documented limits themselves are allowed."""
    read = convert.search_of(search(query="x" * 65_536, collection="c" * 128, pool_size=200, top_k=200))
    assert (read.pool_size, read.top_k) == (200, 200)


def test_every_kind_of_condition_is_read() -> None:
    """All clauses, all kinds and nesting arrive as the store's records."""
    message = pb.Filter(
        must=[
            pb.Condition(exists=pb.Exists(key="a.b")),
            pb.Condition(range=pb.Range(key="n", gte=1, lt=2.5)),
            pb.Condition(date_range=pb.DateRange(key="d", gt=instant("2024-05-01T12:00:00.000001+02:00"))),
            pb.Condition(text_match=pb.TextMatch(key="t", text="a b")),
        ],
        should=[pb.Condition(has_id=pb.HasId(ids=[pb.DocumentId(number=7), pb.DocumentId(text=TEXT_ID)]))],
        must_not=[pb.Condition(filter=any_of("x", "y"))],
    )
    assert convert_filters.filter_of(message) == Filter(
        must=[
            Exists(key="a.b"),
            Range(key="n", gte=1.0, lt=2.5),
            DateRange(key="d", gt=datetime(2024, 5, 1, 10, 0, 0, 1, tzinfo=UTC)),
            TextMatch(key="t", text="a b"),
        ],
        should=[HasId(ids=[7, UUID(TEXT_ID)])],
        must_not=[Filter(must=[AnyOf(key="k", values=["x", "y"])], should=[], must_not=[])],
    )


def test_whole_numbers_of_a_filter_are_integers() -> None:
    """Protobuf knows only doubles; the store compares integers."""
    (read,) = convert_filters.filter_of(any_of(1.0, 2.0)).must
    assert isinstance(read, AnyOf)
    assert [type(value) for value in read.values] == [int, int]


@pytest.mark.parametrize(
    "values",
    [
        pytest.param((), id="none"),
        pytest.param(("a", 1.0), id="mixed"),
        pytest.param((True, 1.0), id="truth and number"),
        pytest.param((True, False), id="two truth values"),
        pytest.param((1.5,), id="fraction"),
        pytest.param((1e300,), id="beyond exact"),
        pytest.param((math.nan,), id="nan"),
        pytest.param((math.inf,), id="infinity"),
        pytest.param((None,), id="null"),
        pytest.param(([1.0],), id="list"),
        pytest.param(("a",) * 257, id="too many"),
    ],
)
def test_values_that_cannot_be_compared_are_refused(values: tuple[Any, ...]) -> None:
    """Only text, whole numbers or one truth value, never a mixture, and never a failure of ours."""
    assert refused(convert_filters.filter_of, any_of(*values))[1] == "filter.must[0].values"


def test_a_filter_may_be_four_deep_and_not_five() -> None:
    """The depth is bounded, and the error says where it went too far."""
    convert_filters.filter_of(nested(4))
    reason, field = refused(convert_filters.filter_of, nested(5))
    assert (reason, field) == ("FILTER_DEPTH", "filter.must[0].must[0].must[0].must[0]")


def test_conditions_are_counted_over_all_nested_filters() -> None:
    """64 conditions are allowed in all: nesting does not multiply what one request may cost."""
    few = [pb.Condition(exists=pb.Exists(key="k"))] * 31
    half = pb.Condition(filter=pb.Filter(must=few))
    convert_filters.filter_of(pb.Filter(must=[half], should=[half]))
    assert refused(convert_filters.filter_of, pb.Filter(must=[half, half], should=few[:1]))[0] == "FILTER_SIZE"


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (condition(), "filter.must[0]"),
        (condition(exists=pb.Exists()), "filter.must[0].key"),
        (condition(exists=pb.Exists(key="_twostage_text")), "filter.must[0].key"),
        (condition(range=pb.Range(key="k")), "filter.must[0]"),
        (condition(range=pb.Range(key="k", gt=math.nan)), "filter.must[0]"),
        (condition(date_range=pb.DateRange(key="k")), "filter.must[0]"),
        (condition(date_range=pb.DateRange(lt=Timestamp())), "filter.must[0].key"),
        (condition(date_range=pb.DateRange(key="k", lt=Timestamp(nanos=1))), "filter.must[0]"),
        (condition(date_range=pb.DateRange(key="k", lt=Timestamp(seconds=2**62))), "filter.must[0]"),
        (condition(date_range=pb.DateRange(key="k", lt=Timestamp(nanos=-1_000))), "filter.must[0]"),
        (condition(text_match=pb.TextMatch(key="k")), "filter.must[0].text"),
        (condition(text_match=pb.TextMatch(key="k", text=" -!\u3000")), "filter.must[0].text"),
        (condition(text_match=pb.TextMatch(key="k", text="x" * 1_025)), "filter.must[0].text"),
        (condition(text_match=pb.TextMatch(text="x")), "filter.must[0].key"),
        (condition(has_id=pb.HasId()), "filter.must[0].has_id.ids"),
        (condition(has_id=pb.HasId(ids=[pb.DocumentId()])), "filter.must[0].has_id.ids[0]"),
    ],
)
def test_a_malformed_condition_is_named_by_its_path(message: pb.Filter, field: str) -> None:
    """The field says which condition of which clause is wrong."""
    assert refused(convert_filters.filter_of, message)[1] == field


@pytest.mark.parametrize("number", [0, 1, 2**53 + 1, 9_223_372_036_854_775_813, 2**64 - 1])
def test_numbers_of_the_whole_unsigned_range_come_back(number: int) -> None:
    """Ids beyond 2^63 survive both conversions (34)."""
    read = convert_values.id_of(pb.DocumentId(number=number), "id")
    assert read == number
    assert convert_values.id_message(read) == pb.DocumentId(number=number)


@pytest.mark.parametrize(
    ("given", "returned"),
    [
        (TEXT_ID, TEXT_ID),
        (TEXT_ID.upper(), TEXT_ID),
        (TEXT_ID.replace("-", ""), TEXT_ID.replace("-", "")),
        ("{" + TEXT_ID + "}", "{" + TEXT_ID + "}"),
        ("12", "12"),
        (" spaced ", " spaced "),
        ("\u718a/\u00e9", "\u718a/\u00e9"),
        ("x" * 512, "x" * 512),
    ],
)
def test_text_ids_come_back(given: str, returned: str) -> None:
    """A hyphenated UUID comes back in lower case, and everything else byte for byte (34)."""
    assert convert_values.id_message(convert_values.id_of(pb.DocumentId(text=given), "id")).text == returned


@pytest.mark.parametrize("message", [pb.DocumentId(), pb.DocumentId(text=""), pb.DocumentId(text="\u718a" * 171)])
def test_ids_without_a_kind_or_of_a_wrong_size_are_refused(message: pb.DocumentId) -> None:
    """An id is required and has 1 to 512 bytes (34)."""
    assert refused(convert_values.id_of, message, "ids[3]")[1] == "ids[3]"


def test_payload_keeps_its_types() -> None:
    """Whole numbers come back as integers, fractions and what is beyond 2^53 as doubles, the rest as it was."""
    payload = {
        "n": 3,
        "f": 1.5,
        "big": 1e300,
        "neg": -7,
        "t": True,
        "none": None,
        "s": "x",
        "l": [1, [2.5]],
        "o": {"k": 0},
    }
    (read,) = convert.documents_of([document(payload=convert_values.struct_of(payload))])
    assert read.payload == payload
    assert {key: type(value) for key, value in read.payload.items()} == {key: type(v) for key, v in payload.items()}
    assert type(read.payload["l"][0]) is int
    assert type(read.payload["o"]["k"]) is int


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"text": ""}, "TEXT_BLANK", "text"),
        ({"text": "x" * 65_537}, "TEXT_TOO_LARGE", "text"),
        ({"id": None}, "ID_REQUIRED", "id"),
        ({"payload": convert_values.struct_of({"_twostage_text": "x"})}, "PAYLOAD_KEY_RESERVED", "payload"),
        ({"payload": convert_values.struct_of({"k": "x" * 65_536})}, "PAYLOAD_TOO_LARGE", "payload"),
        ({"payload": convert_values.struct_of({"k": [math.nan]})}, "NUMBER_NOT_FINITE", "payload"),
        ({"payload": convert_values.struct_of({"k": {"i": math.inf}})}, "NUMBER_NOT_FINITE", "payload"),
    ],
)
def test_a_wrong_document_is_named(fields: dict[str, Any], reason: str, field: str) -> None:
    """The error says which document and which of its fields."""
    messages = [document(id=pb.DocumentId(text="fine")), document(**fields)]
    assert refused(convert.documents_of, messages) == (reason, f"documents[1].{field}")


def test_ids_that_are_equal_in_other_letters_are_one() -> None:
    """A UUID given twice in different case would overwrite itself in one message."""
    messages = [document(id=pb.DocumentId(text=text)) for text in (TEXT_ID, TEXT_ID.upper())]
    assert refused(convert.documents_of, messages) == ("ID_DUPLICATE", "documents[1].id")


@pytest.mark.parametrize("count", [0, 257])
def test_the_number_of_documents_is_bounded(count: int) -> None:
    """1 to 256 documents make a message."""
    messages = [document(id=pb.DocumentId(number=index)) for index in range(count)]
    assert refused(convert.documents_of, messages) == ("DOCUMENT_COUNT", "documents")


@pytest.mark.parametrize("count", [0, 1_001])
def test_the_number_of_ids_is_bounded(count: int) -> None:
    """1 to 1,000 ids make a request."""
    messages = [pb.DocumentId(number=index) for index in range(count)]
    assert refused(convert_values.ids_of, messages) == ("ID_COUNT", "ids")


def test_an_answer_says_only_what_is_so() -> None:
    """What was not scored has no logit, a text not wanted is unset, and an empty payload is left out."""
    bare = Hit(candidate=Candidate(id=1, score=0.5, text="t"), retrieval_rank=1)
    full = Hit(
        candidate=Candidate(id="x", score=0.25, text="u", payload={"k": 1}),
        retrieval_rank=2,
        rerank_rank=1,
        scored=Scored(logit=-2.0, probability=0.125, truncated=True),
    )
    result = Result(hits=[full, bare], pool=[bare, full], encoder=MODEL)
    response = convert.response_of(result, search(include_text=False), store="s")
    first, second = response.hits
    assert (first.rerank_rank, first.logit, first.probability, first.truncated) == (1, -2.0, 0.125, True)
    assert dict(first.payload) == {"k": 1}
    assert not any(second.HasField(field) for field in ("rerank_rank", "logit", "probability", "text", "payload"))
    assert not first.HasField("text")
    assert not response.HasField("degradation")
    assert not response.provenance.HasField("reranker")
    assert not response.pool
    assert [hit.id.number for hit in convert.response_of(result, search(include_pool=True), store="s").pool] == [1, 0]


@pytest.mark.parametrize(
    ("fields", "stage", "reason", "written"),
    [
        ({"shortfall": "TIME_SHORT"}, "rerank", "TIME_SHORT", ""),
        ({"search_shortfall": "DEADLINE_SPENT"}, "search", "DEADLINE_SPENT", ""),
        ({"shortfall": "TIME_SHORT", "search_shortfall": "DEADLINE_SPENT"}, "rerank", "TIME_SHORT", ""),
        ({"write_skipped_reason": "WRITER_FAILED"}, "", "", "WRITER_FAILED"),
    ],
)
def test_whatever_did_less_is_told(fields: dict[str, str], stage: str, reason: str, written: str) -> None:
    """A stage and its reason, the reranker's before the search's, and the writer's reason in a field of its own."""
    bare = Hit(candidate=Candidate(id=1, score=0.5, text="t"), retrieval_rank=1)
    result = Result(hits=[bare], pool=[bare], encoder=MODEL, reranker=MODEL, **fields)
    told = convert.response_of(result, search(), store="s").degradation
    assert (told.stage, told.reason, told.write_skipped_reason) == (stage, reason, written)


def test_a_document_comes_back_as_it_was() -> None:
    """Reading and writing a document changes nothing."""
    message = document(id=pb.DocumentId(text="x"), payload=convert_values.struct_of({"a": [1, None, {"b": "c"}]}))
    (read,) = convert.documents_of([message])
    assert read == Document(id="x", text="t", payload={"a": [1, None, {"b": "c"}]})
    assert convert.document_message(read) == message
