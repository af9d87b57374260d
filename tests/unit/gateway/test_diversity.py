"""Groups and maximal marginal relevance: against the engine's own, against plain Python, and by their properties."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import qdrant_edge as edge
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.diversity import MOST_COMPARED, Diversity, grouped, marginal_order, mmr, scaled
from gateway.fusion import Fused
from gateway.ports import Candidate

DIMENSION = 8


def _found(payloads: Sequence[dict[str, Any]]) -> list[Fused]:
    """Documents with these payloads, numbered from 0."""
    return [
        Fused(candidate=Candidate(id=number, score=-float(number), text=None, payload=payload))
        for number, payload in enumerate(payloads)
    ]


def _placed(scores: Sequence[float], vectors: Any) -> list[Fused]:
    """Documents with these scores and these vectors made of length 1, numbered from 0."""
    rows = np.asarray(vectors, dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return [
        Fused(candidate=Candidate(id=number, score=score, text=None, vector=row))
        for number, (score, row) in enumerate(zip(scores, rows, strict=True))
    ]


def _random(seed: int, count: int) -> list[Fused]:
    """Random documents by falling score; vectors crowd as E5's do."""
    random = np.random.default_rng(seed)
    return _placed(np.sort(random.random(count))[::-1].tolist(), random.normal(size=(count, DIMENSION)) + 2)


def _ids(found: Sequence[Fused]) -> list[Any]:
    return [one.candidate.id for one in found]


def _kept(payloads: Sequence[dict[str, Any]], key: str = "a", size: int = 1) -> list[Any]:
    return _ids(grouped(_found(payloads), key=key, size=size))


def _plain(relevance: Any, similarity: Any, lambda_: float, count: int) -> list[int]:
    """Choose by the definition, every maximum looked for anew."""
    chosen: list[int] = []
    rest = list(range(len(relevance)))
    while rest and len(chosen) < count:
        worth = {
            one: lambda_ * relevance[one] - (1 - lambda_) * max(similarity[one][other] for other in chosen)
            if chosen
            else relevance[one]
            for one in rest
        }
        best = max(rest, key=lambda one: (worth[one], -one))
        chosen.append(best)
        rest.remove(best)
    return chosen


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    """An engine with one vector per point."""
    params = edge.EdgeVectorParams(size=DIMENSION, distance=edge.Distance.Cosine)
    config = edge.EdgeConfig(vectors=params, wal_enabled=False)
    opened = edge.EdgeShard.create(str(tmp_path_factory.mktemp("mmr") / "shard"), config)
    yield opened
    opened.close()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.integers(1, 25))
def test_unscaled_it_chooses_as_the_engine_does(shard, seed, lambda_, count):
    """With the cosine to the query as relevance and bare cosines as similarity, the engine chooses the same."""
    random = np.random.default_rng(seed)
    points = [edge.Point(number, random.normal(size=DIMENSION).tolist(), {}) for number in range(25)]
    shard.update(edge.UpdateOperation.upsert_points(points))
    query = random.normal(size=DIMENSION).tolist()
    near = shard.query(edge.QueryRequest(limit=20, query=edge.Query.Nearest(query), with_vector=True))
    vectors = np.array([point.vector for point in near], np.float32)
    order = marginal_order(np.array([one.score for one in near]), vectors @ vectors.T, lambda_=lambda_, count=count)
    theirs = shard.query(edge.QueryRequest(limit=count, query=edge.Mmr(query, lambda_, 20)))
    assert [near[index].id for index in order] == [point.id for point in theirs]


@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(0, 10).map(lambda tenths: tenths / 10), st.data())
def test_it_chooses_by_its_definition(seed, size, lambda_, data):
    """The fast choice is the one that the definition gives in plain Python."""
    random = np.random.default_rng(seed)
    relevance, similarity = random.random(size), random.random((size, size))
    similarity += similarity.T
    count = data.draw(st.integers(0, size + 2))
    expected = _plain(relevance, similarity, lambda_, count)
    assert marginal_order(relevance, similarity, lambda_=lambda_, count=count) == expected


@given(st.integers(0, 2**32 - 1), st.integers(0, 40), st.integers(0, 50))
def test_with_lambda_1_the_order_stays(seed, size, count):
    """Relevance alone changes nothing."""
    found = _random(seed, size) if size else []
    assert mmr(found, lambda_=1.0, count=count) == found[:count]


def test_with_lambda_1_equal_scores_stay_in_order():
    """Documents of one score keep the order that they came in."""
    found = _placed([0.5, 0.5, 0.5, 0.1], np.eye(4)[[3, 1, 2, 0]])
    assert mmr(found, lambda_=1.0, count=4) == found


def test_with_lambda_0_the_farthest_comes_next():
    """Difference alone takes, after the first, what is farthest from all chosen; equals in their order."""
    angles = np.radians([0, 5, 90, 40, 5])
    found = _placed([5.0, 4.0, 3.0, 2.0, 1.0], np.stack([np.cos(angles), np.sin(angles)], axis=1))
    assert _ids(mmr(found, lambda_=0.0, count=5)) == [0, 2, 3, 1, 4]


@pytest.mark.parametrize(
    ("scores", "unscaled"),
    [
        pytest.param([20.0, 19.0, 17.0, 4.0], [0, 1, 2, 3], id="BM25: difference would count for nothing"),
        pytest.param([1 / 61, 1 / 62, 1 / 63, 1 / 90], [0, 3, 2, 1], id="fused ranks: relevance would"),
    ],
)
def test_scaling_makes_relevance_and_difference_count(scores, unscaled):
    """Whatever the scores' size, a near copy of the first gives way and the hardly relevant stays last."""
    crowded = [[10.0, 0.0, 0.0, 0.0], [10.0, 0.1, 0.0, 0.0], [10.0, 0.0, 3.0, 0.0], [10.0, 0.0, 0.0, 5.0]]
    found = _placed(scores, crowded)
    rows = np.array([one.candidate.vector for one in found])
    assert marginal_order(np.array(scores), rows @ rows.T, lambda_=0.7, count=4) == unscaled
    assert _ids(mmr(found, lambda_=0.7, count=4)) == [0, 2, 1, 3]


def test_crowded_cosines_are_spread():
    """Beside a relevance from 0 to 1, cosines from 0.9 to 1 change nothing until they are scaled as well."""
    found = _placed([1.0, 0.9, 0.6, 0.0], [[10.0, 0.0], [10.0, 0.1], [10.0, 3.0], [10.0, 4.0]])
    rows = np.array([one.candidate.vector for one in found])
    relevance, cosines = np.array([1.0, 0.9, 0.6, 0.0]), rows @ rows.T
    assert cosines.min() > 0.9
    assert marginal_order(relevance, cosines, lambda_=0.5, count=4) == [0, 1, 2, 3]
    assert _ids(mmr(found, lambda_=0.5, count=4)) == [0, 2, 1, 3]


@pytest.mark.parametrize("seed", range(10))
def test_cosines_are_scaled_by_those_of_pairs(seed):
    """The greatest is that of the likest two documents, and not the 1 of a document with itself."""
    found = _random(seed, 20)
    rows = np.array([one.candidate.vector for one in found])
    cosines = rows @ rows.T
    pairs = cosines[np.triu_indices(len(found), 1)]
    similarity = (cosines - pairs.min()) / (pairs.max() - pairs.min())
    relevance = scaled(np.array([one.candidate.score for one in found]))
    assert _ids(mmr(found, lambda_=0.5, count=20)) == _plain(relevance, similarity, 0.5, 20)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.3, 0.7]),
    st.sampled_from([2.0, 16.0, 1 / 64]),
)
def test_the_unit_of_the_scores_does_not_matter(seed, size, lambda_, factor):
    """Scores that are all so many times as large choose the same documents."""
    found = _random(seed, size)
    other = _placed([factor * one.candidate.score for one in found], np.array([one.candidate.vector for one in found]))
    assert _ids(mmr(other, lambda_=lambda_, count=size)) == _ids(mmr(found, lambda_=lambda_, count=size))


@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(1, 25), st.floats(0, 1))
def test_it_chooses_each_document_at_most_once(seed, size, count, lambda_):
    """As many as wanted, or all there are, the best first, none twice and none changed."""
    found = _random(seed, size)
    chosen = mmr(found, lambda_=lambda_, count=count)
    assert len(chosen) == min(count, size) == len(set(_ids(chosen)))
    assert chosen[0] is found[0]
    assert all(one is found[one.candidate.id] for one in chosen)


def test_documents_beyond_the_most_compared_are_left_out():
    """The document after the last one that is compared is not chosen, however different it is."""
    vectors = np.tile([[1.0, 0.0]], (MOST_COMPARED + 1, 1))
    vectors[-1] = [0.0, 1.0]
    found = _placed(np.arange(MOST_COMPARED + 1, 0, -1).astype(float).tolist(), vectors)
    assert _ids(mmr(found, lambda_=0.0, count=2)) == [0, 1]
    assert _ids(mmr(found[1:], lambda_=0.0, count=2)) == [1, MOST_COMPARED]


def test_a_missing_vector_is_our_fault():
    """Documents without vectors are not silently passed over."""
    with pytest.raises(ValueError, match="2 of 2 documents"):
        mmr(_found([{}, {}]), lambda_=0.5, count=1)


def test_scaling_keeps_the_shape_and_spreads():
    """The least becomes 0 and the greatest 1; equal values are 0."""
    assert scaled(np.array([[2.0, 4.0], [3.0, 2.0]])).tolist() == [[0.0, 1.0], [0.5, 0.0]]
    assert scaled(np.full(3, 7.0)).tolist() == [0.0, 0.0, 0.0]


def test_each_value_has_so_many_places():
    """Of one value the first `size` documents are kept, in order, however far apart they stand."""
    payloads = [{"a": "x"}, {"a": "y"}, {"a": "x"}, {"a": "x"}, {"a": "y"}, {"a": "z"}]
    assert _kept(payloads) == [0, 1, 5]
    assert _kept(payloads, size=2) == [0, 1, 2, 4, 5]
    assert _kept(payloads, size=3) == [0, 1, 2, 3, 4, 5]


def test_documents_without_a_value_are_not_limited():
    """Missing keys, null, empty lists, lists of null and keys of what is no object are no values."""
    payloads = [{}, {"a": None}, {"a": []}, {"a": [None]}, {"b": 1}, {}]
    assert _kept(payloads) == [0, 1, 2, 3, 4, 5]
    assert _kept([{"a": 1}, {"a": [{"b": 1}]}, {"a": "b"}, {"a": {"b": None}}] * 2, key="a.b") == [*range(8)]


def test_values_are_compared_as_json():
    """1, "1", true, objects and lists differ; 1.0 is 1, and the order of an object's keys is nothing."""
    different = [1, "1", True, 0, False, "", "true", {"b": 1}, {"b": True}, {"b": None}, {}, [[1]], [["1"]], [[]]]
    payloads = [{"a": value} for value in different]
    assert _kept(payloads) == [*range(len(different))]
    assert _kept([*payloads, *payloads]) == [*range(len(different))]
    assert _kept([{"a": 1}, {"a": 1.0}]) == [0]
    assert _kept([{"a": {"b": 1, "c": 2}}, {"a": {"c": 2.0, "b": 1}}]) == [0]


def test_dots_descend_into_objects():
    """The key names a value deep down; a key that has a dot itself is not looked for."""
    assert _kept([{"a": {"b": "x"}}, {"a": {"b": "x"}}, {"a.b": "x"}, {"a": {"b": "y"}}], key="a.b") == [0, 2, 3]


def test_a_list_counts_as_each_of_its_elements():
    """Its document is kept where every element has room, takes one place of each, and takes none where it is not."""
    payloads = [{"a": ["x", "y", "x"]}, {"a": "y"}, {"a": ["z", "x"]}, {"a": "z"}, {"a": "x"}]
    assert _kept(payloads) == [0, 3]
    assert _kept(payloads, size=2) == [0, 1, 2, 3]


@given(
    st.lists(st.one_of(st.none(), st.integers(0, 3), st.lists(st.integers(0, 3), max_size=3)), max_size=20),
    st.integers(1, 3),
)
def test_no_value_is_over_its_places_and_none_goes_without_need(values, size):
    """Whatever the payloads: kept documents stay within the limit, and each dropped one had no room left."""
    taken: Counter[int] = Counter()
    kept = set(_kept([{"a": value} for value in values], size=size))
    for number, value in enumerate(values):
        some = set(value if isinstance(value, list) else [] if value is None else [value])
        assert (number in kept) == all(taken[one] < size for one in some)
        taken.update(some if number in kept else ())
    assert max(taken.values(), default=0) <= size


def test_only_marginal_relevance_needs_vectors():
    """By default, and for groups alone, no vectors are read."""
    assert not Diversity().needs_vectors
    assert not Diversity(group_by="a").needs_vectors
    assert Diversity(mmr_lambda=0.0).needs_vectors
