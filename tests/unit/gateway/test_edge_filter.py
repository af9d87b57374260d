"""Filters in the words of qdrant-edge and of Qdrant, run by the engine, against the same filters in plain Python."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
import qdrant_edge as edge
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from qdrant_client import grpc as pb
from qdrant_engine import engine_filter
from store_fake import matches

from gateway.filters import AnyOf, Condition, DateRange, Exists, Filter, HasId, Range, TextMatch
from gateway.parameters import IndexKind, PayloadIndex
from gateway.stores.conditions import payload_path, quoted, require_indexes
from gateway.stores.edge_filter import MAX_NUMBERS_INDEXED, to_engine_filter, to_engine_index, useful_indexes
from gateway.stores.point_ids import to_point_id
from gateway.stores.qdrant_filter import to_qdrant_filter
from serving.errors import InvalidRequest

IDS = [1, 2**63 + 1, UUID(int=5), "a", "b c", 6, 7, 8]
NAMES = ["a", "a", "b", "a b", "é", "[0]", "", "c[]"]

integers = st.integers(-2, 2) | st.sampled_from([2**53 + 1, -(2**63), 2**63 - 1])
fractions = st.sampled_from([-1.5, 0.0, 1.0, 2.0, 2.5, 1e300])
words = st.sampled_from(["", "x", "X", "1", "true", "straße", "x y", "Y, x!", "foo_x"])
dates = st.sampled_from(
    [
        "2021-01-01",
        "2021-01-01T00:00:00",
        "2021-01-01 00:00:00",
        "2021-01-01T00:00:00Z",
        "2021-01-01t02:00:00.000000+02:00",
        "2021-01-01T00:00:00.0000005Z",
        "2020-12-31T23:59:59.999999Z",
        "1969-07-20T20:17:40Z",
        "2021-13-01",
        "20210101",
        "1",
    ]
)
scalars = st.none() | st.booleans() | integers | fractions | words | dates
values = scalars | st.lists(scalars, max_size=3)
payloads = st.dictionaries(
    st.sampled_from(NAMES),
    values | st.dictionaries(st.sampled_from(NAMES), values | st.dictionaries(st.sampled_from(NAMES), values)),
    max_size=4,
)
keys = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(".".join)
bounds = st.none() | fractions | st.integers(-2, 2).map(float)
instants = st.none() | st.sampled_from(
    [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(2021, 1, 1, tzinfo=UTC),
        datetime(2021, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        datetime(2021, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
        datetime(9999, 12, 31, tzinfo=UTC),
    ]
)
any_of = st.lists(words, max_size=3) | st.lists(integers, max_size=3) | st.lists(st.booleans(), min_size=1, max_size=2)
leaves = (
    st.builds(AnyOf, key=keys, values=any_of)
    | st.builds(Range, key=keys, gt=bounds, gte=bounds, lt=bounds, lte=bounds)
    | st.builds(DateRange, key=keys, gt=instants, gte=instants, lt=instants, lte=instants)
    | st.builds(Exists, key=keys)
    | st.builds(HasId, ids=st.lists(st.sampled_from([*IDS, "absent", 99]), max_size=3))
)


def _filters(inner: Any) -> Any:
    some = st.lists(inner, max_size=2)
    return st.builds(Filter, must=some, should=some, must_not=some)


INDEXED = ("a", "b", "a b", "", "a.b", "b.a", "a.a.a")
conditions = st.recursive(leaves, _filters, max_leaves=6)
matches_of_text = st.builds(
    TextMatch,
    key=st.sampled_from(INDEXED),
    text=st.sampled_from(["x", "X y", "y", "straße", "STRASSE", "foo", "1", "2021"]),
)
conditions_with_text = st.recursive(leaves | matches_of_text, _filters, max_leaves=6)


@pytest.fixture(scope="module", params=[None, *IndexKind], ids=str)
def shard(request, tmp_path_factory):
    """An engine without payload indexes, and with each kind that can be declared, on the likeliest keys."""
    config = edge.EdgeConfig(vectors=edge.EdgeVectorParams(size=1, distance=edge.Distance.Cosine), wal_enabled=False)
    opened = edge.EdgeShard.create(str(tmp_path_factory.mktemp("filter") / "shard"), config)
    if request.param is not None:
        _index(opened, request.param)
    yield opened, request.param
    opened.close()


@pytest.fixture(scope="module")
def text_shard(tmp_path_factory):
    """An engine with text indexes."""
    config = edge.EdgeConfig(vectors=edge.EdgeVectorParams(size=1, distance=edge.Distance.Cosine), wal_enabled=False)
    opened = edge.EdgeShard.create(str(tmp_path_factory.mktemp("text") / "shard"), config)
    _index(opened, IndexKind.TEXT)
    yield opened
    opened.close()


def _index(opened: Any, kind: IndexKind) -> None:
    for key in INDEXED:
        opened.update(edge.UpdateOperation.create_field_index(payload_path(key), to_engine_index(kind)))


def through_the_wire(wanted: Filter) -> Any:
    """Translate for Qdrant, send, and read as its server does."""
    return engine_filter(pb.Filter.FromString(to_qdrant_filter(wanted).SerializeToString()))


TRANSLATIONS = [to_engine_filter, through_the_wire]


def _found(shard: Any, condition: Condition, translate: Any = to_engine_filter) -> set[Any]:
    wanted = translate(Filter(must=[condition]))
    return {one.id for one in shard.query(edge.QueryRequest(limit=100, filter=wanted))}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(payloads, min_size=len(IDS), max_size=len(IDS)), st.lists(conditions, min_size=1, max_size=6))
@example(
    [{"a": True}, {"a": 1}, {"a": 1.0}, {"a": [True]}, {"a": [1]}, {"a": "1"}, {}, {}], [AnyOf(key="a", values=[True])]
)
def test_the_engine_and_plain_python_agree(shard, stored, wanted):
    """For any payloads and any filter the engine finds exactly the documents that plain Python does."""
    opened, kind = shard
    _agree(opened, _whole(stored) if kind is IndexKind.INTEGER else stored, wanted, kind)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(payloads, min_size=len(IDS), max_size=len(IDS)), st.lists(conditions_with_text, min_size=1, max_size=6))
def test_words_are_found_as_in_plain_python(text_shard, stored, wanted):
    """With text indexes, filters that match words find exactly the documents that plain Python does."""
    _agree(text_shard, stored, wanted, IndexKind.TEXT)


def _whole(value: Any) -> Any:
    """Return a payload as an index of integers has it, to which 1.0 is 1."""
    if isinstance(value, dict | list):
        return {key: _whole(one) for key, one in value.items()} if isinstance(value, dict) else [*map(_whole, value)]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _suits(condition: Condition, kind: IndexKind | None) -> bool:
    """Tell whether the stores take a condition where keys have such an index."""
    declared = () if kind is None else [PayloadIndex(key=key, kind=kind) for key in INDEXED]
    try:
        require_indexes(Filter(must=[condition]), declared)
    except InvalidRequest:
        return False
    return True


def _agree(shard: Any, stored: list[Any], wanted: list[Condition], kind: IndexKind | None) -> None:
    documents = dict(zip(IDS, stored, strict=True))
    points = [edge.Point(to_point_id(one), [1.0], payload) for one, payload in documents.items()]
    shard.update(edge.UpdateOperation.upsert_points(points))
    for condition in (one for one in wanted if _suits(one, kind)):
        expected = {to_point_id(one) for one, payload in documents.items() if matches(condition, one, payload)}
        for translate in TRANSLATIONS:
            assert _found(shard, condition, translate) == expected, (condition, translate)


@pytest.mark.parametrize("translate", TRANSLATIONS)
@pytest.mark.parametrize("key", ['a"', "a\\b", 'a.b".c'])
def test_keys_that_the_engine_cannot_write_are_refused(key, translate):
    """A quotation mark or backslash in a key is the caller's error, not the engine's."""
    for condition in (Exists(key=key), AnyOf(key=key, values=["x"]), Range(key=key, gt=0)):
        with pytest.raises(InvalidRequest) as raised:
            translate(Filter(must=[condition]))
        assert (raised.value.reason, raised.value.field) == ("FILTER_MALFORMED", "filter")


@pytest.mark.parametrize("translate", TRANSLATIONS)
@pytest.mark.parametrize("values", [["a", 1], [True, 1], [1, True], [1.5], [None]])
def test_any_of_takes_one_type(values, translate):
    """Mixed or other types are refused rather than compared by accident."""
    with pytest.raises(InvalidRequest):
        translate(Filter(must=[AnyOf(key="a", values=values)]))


@pytest.mark.parametrize("translate", TRANSLATIONS)
def test_an_id_out_of_range_is_refused(translate):
    """A HasId with an impossible number is the caller's error."""
    with pytest.raises(InvalidRequest) as raised:
        translate(Filter(must=[HasId(ids=[2**64])]))
    assert raised.value.reason == "DOCUMENT_ID_RANGE"


def test_a_key_is_taken_literally():
    """Brackets, blanks and dots inside one quoted key mean nothing to the engine."""
    assert quoted("a[0].b c") == '"a[0].b c"'


def test_indexes_are_only_of_kinds_that_change_no_answer():
    """Text is indexed as keywords, numbers as fractions, truth values and existence not at all."""
    nested = Filter(
        should=[AnyOf(key="deep", values=[1])], must_not=[Exists(key="e"), AnyOf(key="flag", values=[True])]
    )
    wanted = Filter(must=[AnyOf(key="a.b c", values=["x"]), Range(key="r", gt=1), nested, HasId(ids=[1])])
    kinds = {path: str(kind) for path, kind in useful_indexes(wanted).items()}
    keyword, fraction = str(edge.PayloadSchemaType.Keyword), str(edge.PayloadSchemaType.Float)
    assert kinds == {'a."b c"': keyword, "r": fraction, "deep": fraction}


@pytest.mark.parametrize("count", [MAX_NUMBERS_INDEXED, MAX_NUMBERS_INDEXED + 1])
def test_any_number_of_numbers_is_compared_exactly(shard, count):
    """Few numbers go by the index and many by comparison, with the same answer, above 2^53 too."""
    opened, kind = shard
    numbers = list(range(2**53, 2**53 + count))
    if not _suits(AnyOf(key="a", values=numbers), kind):
        return
    stored = [numbers[0], numbers[1], numbers[-1] + 1, -float(numbers[0]), [numbers[-1]], str(numbers[0]), None, -1]
    points = [edge.Point(to_point_id(one), [1.0], {"a": value}) for one, value in zip(IDS, stored, strict=True)]
    opened.update(edge.UpdateOperation.upsert_points(points))
    assert _found(opened, AnyOf(key="a", values=numbers)) == {
        to_point_id(IDS[0]),
        to_point_id(IDS[1]),
        to_point_id(IDS[4]),
    }


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        (IndexKind.FLOAT, [DateRange(key="a", gt=datetime(2021, 1, 1, tzinfo=UTC))]),
        (IndexKind.DATETIME, [Range(key="a", gt=1), AnyOf(key="a", values=[1])]),
    ],
)
def test_numbers_and_dates_are_not_compared_by_each_others_index(kind, refused):
    """What an engine would answer from the wrong index is refused, and only at that key and for that kind."""
    everything = [
        DateRange(key="a", gt=datetime(2021, 1, 1, tzinfo=UTC)),
        Range(key="a", gt=1),
        AnyOf(key="a", values=[1]),
        AnyOf(key="a", values=["1"]),
        Exists(key="a"),
    ]
    assert [one for one in everything if not _suits(one, kind)] == refused
    elsewhere = [PayloadIndex(key="a.b", kind=kind)]
    require_indexes(Filter(should=everything, must=[Filter(must_not=everything)]), elsewhere)
