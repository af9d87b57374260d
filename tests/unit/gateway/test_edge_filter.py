"""Filters in the words of qdrant-edge and of Qdrant, run by the engine, against the same filters in plain Python."""

from typing import Any
from uuid import UUID

import pytest
import qdrant_edge as edge
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from qdrant_client import grpc as pb
from qdrant_engine import engine_filter
from store_fake import matches

from gateway.ports import AnyOf, Condition, Exists, Filter, HasId, Range
from gateway.stores.conditions import quoted
from gateway.stores.edge_filter import MAX_NUMBERS_INDEXED, to_engine_filter, useful_indexes
from gateway.stores.point_ids import to_point_id
from gateway.stores.qdrant_filter import to_qdrant_filter
from serving.errors import InvalidRequest

IDS = [1, 2**63 + 1, UUID(int=5), "a", "b c", 6, 7, 8]
NAMES = ["a", "a", "b", "a b", "é", "[0]", "", "c[]"]

integers = st.integers(-2, 2) | st.sampled_from([2**53 + 1, -(2**63), 2**63 - 1])
fractions = st.sampled_from([-1.5, 0.0, 1.0, 2.0, 2.5, 1e300])
words = st.sampled_from(["", "x", "X", "1", "true", "straße"])
scalars = st.none() | st.booleans() | integers | fractions | words
values = scalars | st.lists(scalars, max_size=3)
payloads = st.dictionaries(
    st.sampled_from(NAMES),
    values | st.dictionaries(st.sampled_from(NAMES), values | st.dictionaries(st.sampled_from(NAMES), values)),
    max_size=4,
)
keys = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(".".join)
bounds = st.none() | fractions | st.integers(-2, 2).map(float)
any_of = st.lists(words, max_size=3) | st.lists(integers, max_size=3) | st.lists(st.booleans(), min_size=1, max_size=2)
leaves = (
    st.builds(AnyOf, key=keys, values=any_of)
    | st.builds(Range, key=keys, gt=bounds, gte=bounds, lt=bounds, lte=bounds)
    | st.builds(Exists, key=keys)
    | st.builds(HasId, ids=st.lists(st.sampled_from([*IDS, "absent", 99]), max_size=3))
)


def _filters(inner: Any) -> Any:
    some = st.lists(inner, max_size=2)
    return st.builds(Filter, must=some, should=some, must_not=some)


conditions = st.recursive(leaves, _filters, max_leaves=6)


@pytest.fixture(scope="module", params=[None, edge.PayloadSchemaType.Keyword, edge.PayloadSchemaType.Float], ids=str)
def shard(request, tmp_path_factory):
    """An engine without payload indexes, and with either kind that the store makes, on the likeliest keys."""
    config = edge.EdgeConfig(vectors=edge.EdgeVectorParams(size=1, distance=edge.Distance.Cosine), wal_enabled=False)
    opened = edge.EdgeShard.create(str(tmp_path_factory.mktemp("filter") / "shard"), config)
    for path in ('"a"', '"b"', '"a b"', '""', '"a"."b"', '"b"."a"', '"a"."a"."a"') if request.param else ():
        opened.update(edge.UpdateOperation.create_field_index(path, request.param))
    yield opened
    opened.close()


def through_the_wire(wanted: Filter) -> Any:
    """Translate for Qdrant, send, and read as its server does."""
    return engine_filter(pb.Filter.FromString(to_qdrant_filter(wanted).SerializeToString()))


TRANSLATIONS = [to_engine_filter, through_the_wire]


def _found(shard: Any, condition: Condition, translate: Any = to_engine_filter) -> set[Any]:
    wanted = translate(Filter(must=[condition]))
    return {one.id for one in shard.query(edge.QueryRequest(limit=100, filter=wanted))}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(payloads, min_size=len(IDS), max_size=len(IDS)), st.lists(conditions, min_size=1, max_size=6))
@example(
    [{"a": True}, {"a": 1}, {"a": 1.0}, {"a": [True]}, {"a": [1]}, {"a": "1"}, {}, {}], [AnyOf(key="a", values=[True])]
)
def test_the_engine_and_plain_python_agree(shard, stored, wanted):
    """For any payloads and any filter the engine finds exactly the documents that plain Python does."""
    documents = dict(zip(IDS, stored, strict=True))
    points = [edge.Point(to_point_id(one), [1.0], payload) for one, payload in documents.items()]
    shard.update(edge.UpdateOperation.upsert_points(points))
    for condition in wanted:
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
    numbers = list(range(2**53, 2**53 + count))
    stored = [numbers[0], numbers[1], numbers[-1] + 1, float(numbers[0]), [numbers[-1]], str(numbers[0]), None, -1]
    points = [edge.Point(to_point_id(one), [1.0], {"a": value}) for one, value in zip(IDS, stored, strict=True)]
    shard.update(edge.UpdateOperation.upsert_points(points))
    assert _found(shard, AnyOf(key="a", values=numbers)) == {
        to_point_id(IDS[0]),
        to_point_id(IDS[1]),
        to_point_id(IDS[4]),
    }
