"""Fusing ranked lists: against the engine's own fusion, and by the properties that each method has."""

from collections.abc import Sequence
from uuid import UUID

import numpy as np
import pytest
import qdrant_edge as edge
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fusion import (
    Fused,
    Fusion,
    FusionMethod,
    ListRank,
    WeightedList,
    fuse,
    min_max,
    three_sigma,
    weights,
)
from gateway.ports import Candidate, DenseQuery, DocumentId, LexicalQuery

DIMENSION = 8
WORDS = 6
DENSE = DenseQuery(vector=np.ones(DIMENSION, np.float32))
LEXICAL = LexicalQuery(text="one word")
RRF = Fusion(method=FusionMethod.RRF)
METHODS = [*FusionMethod]

scores = st.lists(st.floats(-1, 1, width=32), max_size=8, unique=True).map(lambda some: sorted(some, reverse=True))
rankings = st.lists(st.integers(0, 9), unique=True, max_size=8)


@st.composite
def weighted_lists(draw, *, least: int = 2, equal: bool = False) -> list[WeightedList]:
    """Several lists over ten documents, scores distinct within a list."""
    made = []
    for number in range(draw(st.integers(least, 4))):
        ids = draw(rankings)
        values = draw(st.lists(st.integers(-50, 50), min_size=len(ids), max_size=len(ids), unique=True))
        pairs = zip(ids, sorted(values, reverse=True), strict=True)
        weight = 0.25 if equal else draw(st.integers(1, 8)) / 8
        made.append(_list(str(number), [(one, value / 10) for one, value in pairs], weight))
    return made


def _list(name: str, pairs: Sequence[tuple[DocumentId, float]], weight: float = 0.5) -> WeightedList:
    candidates = [Candidate(id=one, score=score, text=f"text of {one}") for one, score in pairs]
    return WeightedList(name=name, weight=weight, candidates=candidates)


def _scores(fused: Sequence[Fused]) -> dict[DocumentId, float]:
    return {one.candidate.id: one.candidate.score for one in fused}


def _ids(fused: Sequence[Fused]) -> list[DocumentId]:
    return [one.candidate.id for one in fused]


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    """An engine with a dense and a sparse vector per point."""
    config = edge.EdgeConfig(
        vectors={"dense": edge.EdgeVectorParams(size=DIMENSION, distance=edge.Distance.Cosine)},
        sparse_vectors={"words": edge.EdgeSparseVectorParams()},
        wal_enabled=False,
    )
    opened = edge.EdgeShard.create(str(tmp_path_factory.mktemp("fusion") / "shard"), config)
    yield opened
    opened.close()


class Searches:
    """Random points and queries in an engine: its lists, and what it makes of them."""

    def __init__(self, shard, seed: int, limits: tuple[int, int]) -> None:
        self._shard = shard
        random = np.random.default_rng(seed)
        points = [edge.Point(number, _random_vectors(random), {}) for number in range(30)]
        shard.update(edge.UpdateOperation.upsert_points(points))
        dense = edge.Query.Nearest(random.normal(size=DIMENSION).tolist(), using="dense")
        words = edge.Query.Nearest(edge.SparseVector([0, 1, 2], random.random(3).tolist()), using="words")
        self._prefetches = [
            edge.Prefetch(limit=limit, query=one) for one, limit in zip((dense, words), limits, strict=True)
        ]
        self.lists = [
            _list(name, [(point.id, point.score) for point in self._query(one, limit)], 1.0)
            for name, one, limit in zip(("dense", "words"), (dense, words), limits, strict=True)
        ]

    def fused(self, fusion) -> dict[DocumentId, float]:
        return {point.id: point.score for point in self._query(fusion, 100, self._prefetches)}

    def _query(self, query, limit, prefetches=None):
        return self._shard.query(edge.QueryRequest(limit=limit, query=query, prefetches=prefetches or []))


def _random_vectors(random):
    indices = np.flatnonzero(random.random(WORDS) < 0.4).tolist() or [WORDS - 1]
    return {
        "dense": random.normal(size=DIMENSION).tolist(),
        "words": edge.SparseVector(indices, random.random(len(indices)).tolist()),
    }


seeds = st.integers(0, 2**32 - 1)
limits = st.tuples(st.integers(1, 30), st.integers(1, 30))


@settings(max_examples=25, deadline=None)
@given(seeds, limits, st.integers(1, 100))
def test_ranks_are_fused_as_the_engine_does(shard, seed, limits, k):
    """Reciprocal rank fusion gives the engine's scores, whose k is one more because it counts ranks from 0."""
    searches = Searches(shard, seed, limits)
    ours = fuse(searches.lists, Fusion(method=FusionMethod.RRF, rrf_k=k))
    assert _scores(ours) == pytest.approx(searches.fused(edge.Fusion.Rrf(k=k + 1)), abs=1e-5)


@settings(max_examples=25, deadline=None)
@given(seeds, limits)
def test_distributions_are_fused_as_the_engine_does(shard, seed, limits):
    """Distribution-based fusion gives the engine's scores, lists of one document among them."""
    searches = Searches(shard, seed, limits)
    ours = fuse(searches.lists, Fusion(method=FusionMethod.DBSF))
    assert _scores(ours) == pytest.approx(searches.fused(edge.Fusion.Dbsf()), abs=1e-5)


@settings(max_examples=10, deadline=None)
@given(seeds, limits, st.sampled_from([(0.75, 0.25), (3.0, 1.0)]))
def test_a_weight_is_a_factor_and_not_what_the_engine_divides_ranks_by(shard, seed, limits, pair):
    """Ours is the sum of w / (k + rank); the engine's is the sum of w / (rank + w k), as the docstring says."""
    searches = Searches(shard, seed, limits)
    by_name = dict(zip(("dense", "words"), pair, strict=True))
    lists = [WeightedList(name=one.name, weight=by_name[one.name], candidates=one.candidates) for one in searches.lists]
    ours = fuse(lists, Fusion(method=FusionMethod.RRF, rrf_k=60))
    places = {one.candidate.id: [(by_name[place.list], place.rank) for place in one.lists] for one in ours}
    plain = {key: sum(weight / (60 + rank) for weight, rank in some) for key, some in places.items()}
    divided = {key: sum(weight / (rank + weight * 60) for weight, rank in some) for key, some in places.items()}
    assert _scores(ours) == pytest.approx(plain, abs=1e-12)
    assert searches.fused(edge.Fusion.Rrf(k=61, weights=list(pair))) == pytest.approx(divided, abs=1e-5)


def test_equal_scores_are_fused_as_the_engine_does(shard):
    """Where a list cannot tell its documents apart, each of them has 0.5 of it, here and in the engine."""
    searches = Searches(shard, 1, (30, 30))
    same = [edge.Point(number, {"dense": [1.0] * DIMENSION}, {}) for number in range(30)]
    shard.update(edge.UpdateOperation.upsert_points(same))
    query = edge.Query.Nearest([1.0] * DIMENSION, using="dense")
    prefetches = [edge.Prefetch(limit=30, query=query)] * 2
    theirs = searches._query(edge.Fusion.Dbsf(), 30, prefetches)
    assert {point.score for point in theirs} == {1.0}
    lists = [_list(name, [(number, 0.1) for number in range(30)]) for name in "ab"]
    assert set(_scores(fuse(lists, Fusion(method=FusionMethod.DBSF))).values()) == {1.0}


@pytest.mark.parametrize("method", METHODS)
@given(weighted_lists(equal=True), st.data())
def test_the_order_of_the_lists_does_not_matter(method, lists, data):
    """Under equal weights the lists may come in any order: same documents, same scores to the last bit."""
    fusion = Fusion(method=method)
    ours = [(one.candidate.id, one.candidate.score) for one in fuse(lists, fusion)]
    others = fuse(data.draw(st.permutations(lists)), fusion)
    assert ours == [(one.candidate.id, one.candidate.score) for one in others]


@pytest.mark.parametrize("method", METHODS)
@given(weighted_lists())
def test_every_document_comes_once_and_in_order(method, lists):
    """The fused list has exactly the documents of the lists, by falling score and then by id."""
    fused = fuse(lists, Fusion(method=method))
    assert sorted(_ids(fused)) == sorted({one.id for some in lists for one in some.candidates})
    keys = [(-one.candidate.score, one.candidate.id) for one in fused]
    assert keys == sorted(keys)


@given(weighted_lists(), st.data())
def test_a_document_that_rises_in_a_list_does_not_fall(lists, data):
    """Under reciprocal rank fusion a document that changes places with the one above it gains, and no other does."""
    chosen = data.draw(st.integers(0, len(lists) - 1))
    ids = [one.id for one in lists[chosen].candidates]
    if len(ids) < 2:
        return
    lower = data.draw(st.integers(1, len(ids) - 1))
    ids[lower - 1], ids[lower] = ids[lower], ids[lower - 1]
    risen = ids[lower - 1]
    changed = _list(lists[chosen].name, [(one, 0.0) for one in ids], lists[chosen].weight)
    before = _scores(fuse(lists, RRF))
    after = _scores(fuse([*lists[:chosen], changed, *lists[chosen + 1 :]], RRF))
    assert {key for key in before if after[key] > before[key]} == {risen}


@pytest.mark.parametrize("method", METHODS)
@given(weighted_lists())
def test_ids_are_only_names(method, lists):
    """Other ids in the same order give the same scores in the same order."""
    fusion = Fusion(method=method)
    renamed = [
        _list(one.name, [(f"d{found.id}", found.score) for found in one.candidates], one.weight) for one in lists
    ]
    expected = [(f"d{one.candidate.id}", one.candidate.score) for one in fuse(lists, fusion)]
    assert [(one.candidate.id, one.candidate.score) for one in fuse(renamed, fusion)] == expected


@pytest.mark.parametrize("method", METHODS)
@given(weighted_lists())
def test_what_is_first_in_every_list_is_first(method, lists):
    """A document that leads every list leads their fusion."""
    led = [
        _list(one.name, [(99, 6.0), *((found.id, found.score) for found in one.candidates)], one.weight)
        for one in lists
    ]
    assert _ids(fuse(led, Fusion(method=method)))[0] == 99


@pytest.mark.parametrize("method", [FusionMethod.WEIGHTED, FusionMethod.DBSF])
@given(weighted_lists(), st.integers(1, 40), st.integers(-20, 20))
def test_the_size_of_a_lists_scores_does_not_matter(method, lists, factor, shift):
    """Scores of a list in other units, with another zero, fuse to the same: cosines and BM25 can be added."""
    fusion = Fusion(method=method)
    pairs = [(one.id, factor * one.score + shift) for one in lists[0].candidates]
    other = [_list(lists[0].name, pairs, lists[0].weight), *lists[1:]]
    assert _scores(fuse(other, fusion)) == pytest.approx(_scores(fuse(lists, fusion)), abs=1e-9)


@pytest.mark.parametrize("method", [FusionMethod.RRF, FusionMethod.WEIGHTED])
def test_with_all_weight_dense_the_order_is_the_dense_one(method):
    """Under dense_weight 1 what only the words find follows behind the dense list, with the score 0."""
    shares = weights([DENSE, LEXICAL], 1.0)
    dense = _list("dense", [(7, 0.9), (3, 0.8), (5, 0.7)], shares[0])
    lexical = _list("lexical", [(5, 12.0), (8, 11.0), (6, 10.0), (3, 9.0)], shares[1])
    fused = fuse([dense, lexical], Fusion(method=method))
    assert _ids(fused) == [7, 3, 5, 6, 8]
    assert [one.candidate.score for one in fused[3:]] == [0.0, 0.0]


@pytest.mark.parametrize(("dense_weight", "order"), [(1.0, [8, 9, 1, 2]), (0.0, [1, 2, 8, 9])])
def test_what_has_no_weight_comes_after_the_last_that_has(dense_weight, order):
    """Scaled scores end with 0: the last document of the list that counts is still before those of the other list."""
    shares = weights([DENSE, LEXICAL], dense_weight)
    dense = _list("dense", [(8, 0.9), (9, 0.8)], shares[0])
    lexical = _list("lexical", [(1, 12.0), (2, 11.0)], shares[1])
    fused = fuse([dense, lexical], Fusion(method=FusionMethod.WEIGHTED))
    assert _ids(fused) == order
    assert [one.candidate.score for one in fused] == [1.0, 0.0, 0.0, 0.0]


def test_a_weight_of_0_does_not_count_where_weights_do_not():
    """Distribution-based fusion has no weights, and none of its documents stands back for one."""
    lists = [_list("dense", [(8, 0.9), (9, 0.8)], 1.0), _list("lexical", [(1, 12.0), (2, 11.0)], 0.0)]
    assert _ids(fuse(lists, Fusion(method=FusionMethod.DBSF))) == [1, 8, 2, 9]


@pytest.mark.parametrize("method", METHODS)
@given(weighted_lists(least=1), st.integers(0, 12))
def test_a_limit_cuts_the_order(method, lists, limit):
    """So many as are wanted are the first of all."""
    fusion = Fusion(method=method)
    assert fuse(lists, fusion, limit=limit) == fuse(lists, fusion)[:limit]


def test_one_list_stays_as_it_is():
    """The order and the scores of a single list are kept under every method, and nothing is said of ranks."""
    only = _list("dense", [(2, 0.9), (1, 0.9), (3, -0.5)])
    for method in METHODS:
        assert fuse([only], Fusion(method=method)) == [Fused(candidate=one) for one in only.candidates]


def test_a_list_that_found_nothing_is_a_list():
    """Beside an empty list scores are fused all the same, and the ranks say who had the document."""
    fused = fuse([_list("dense", [(2, 0.9), (1, 0.8)]), _list("lexical", [])], RRF)
    assert _scores(fused) == {2: 0.5 / 61, 1: 0.5 / 62}
    assert fused[1].lists == [ListRank(list="dense", rank=2, score=0.8)]


def test_no_document_is_no_fault():
    """Lists without documents fuse to none, and so does no list at all."""
    for method in METHODS:
        assert fuse([_list("dense", []), _list("lexical", [])], Fusion(method=method)) == []
        assert fuse([], Fusion(method=method)) == []


def test_equal_scores_are_ordered_by_id():
    """Numbers come first, then UUIDs, then text, each in its own order."""
    ids: list[DocumentId] = ["a", UUID(int=2), 10, UUID(int=1), 9, "Z"]
    lists = [_list(str(number), [(one, 1.0)]) for number, one in enumerate(ids)]
    assert _ids(fuse(lists, RRF)) == [9, 10, UUID(int=1), UUID(int=2), "Z", "a"]


def test_a_document_is_as_its_first_list_has_it():
    """Payload, text and vector are the first list's; rank and score of every list are told in the lists' order."""
    vector = np.ones(2, np.float32)
    rich = Candidate(id=1, score=0.5, text="here", payload={"a": 1}, vector=vector)
    lists = [
        WeightedList(name="dense", weight=0.5, candidates=[rich]),
        _list("lexical", [(2, 9.0), (1, 8.0)]),
    ]
    best = fuse(lists, RRF)[0]
    assert (best.candidate.text, best.candidate.payload) == ("here", {"a": 1})
    assert best.candidate.vector is vector
    assert best.lists == [
        ListRank(list="dense", rank=1, score=0.5),
        ListRank(list="lexical", rank=2, score=8.0),
    ]


def test_a_document_counts_once_in_a_list():
    """What a list has twice counts at its first place, and those behind it move up."""
    twice = _list("a", [(1, 3.0), (1, 2.0), (2, 1.0)])
    assert fuse([twice, _list("b", [])], RRF) == fuse([_list("a", [(1, 3.0), (2, 1.0)]), _list("b", [])], RRF)
    assert _ids(fuse([twice], RRF)) == [1, 2]


@pytest.mark.parametrize(
    ("queries", "expected"),
    [
        ([], []),
        ([DENSE], [1.0]),
        ([LEXICAL, LEXICAL], [0.5, 0.5]),
        ([DENSE, LEXICAL], [0.8, 0.2]),
        ([DENSE, LEXICAL, DENSE, LEXICAL, DENSE, DENSE], [0.2, 0.1, 0.2, 0.1, 0.2, 0.2]),
    ],
)
def test_lists_of_a_kind_share_its_weight(queries, expected):
    """The dense lists share the dense weight evenly and the others the rest; one kind alone has all."""
    assert weights(queries, 0.8) == pytest.approx(expected)


@given(scores)
def test_min_max_reaches_from_0_to_1(some):
    """Scaled scores keep their order, from exactly 1 to exactly 0; a single one is 1."""
    scaled = min_max(some)
    assert scaled == sorted(scaled, reverse=True)
    if len(some) > 1:
        assert (scaled[0], scaled[-1]) == (1.0, 0.0)
    else:
        assert scaled == [1.0] * len(some)


@given(st.floats(-100, 100), st.integers(1, 9))
def test_scores_that_are_all_equal_are_scaled_without_a_spread(score, count):
    """Equal scores are 1 by least and greatest and 0.5 by distribution, whatever rounding makes of their mean."""
    assert min_max([score] * count) == [1.0] * count
    assert three_sigma([score] * count) == [0.5] * count


def test_an_outlier_goes_beyond_three_deviations():
    """A score further out than three standard deviations is not cut off, as it is not in the engine."""
    assert max(three_sigma([100.0, *[0.0] * 50])) > 1
