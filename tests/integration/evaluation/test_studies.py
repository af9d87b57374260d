"""Studies over fakes: what is computed once, what is derived, and what is computed again."""

from pathlib import Path

from evaluation_fakes import FakeSystem, opened, small_dataset, small_plan

from evaluation import records
from evaluation.files import read
from evaluation.phases.corpus import index, prepare
from evaluation.records import Studies
from evaluation.studies import pool_depth, stored, studies
from evaluation.system import System
from retrieval.reranker.v1 import reranker_pb2


async def studied(outputs: Path, system: System, **texts: str) -> Studies:
    data = small_dataset(texts=None if not texts else {1: texts["one"], 2: "b", 3: "c", "four": "d", 5: "e"})
    prepare(plan := small_plan(outputs, data))
    await index(plan, system)
    return await studies(plan, system, depths=(1, 2, 4))


async def test_the_deepest_pool_is_reranked_once(tmp_path: Path) -> None:
    """One reranking per answerable test question and a warm-up; unanswerable and dev questions take no time."""
    fake = FakeSystem()
    async with opened(fake) as system:
        found = await studied(tmp_path, system)
    assert [request.query for request in fake.reranks] == ["red apple pie", "red apple pie", "sea of red", "tree"]
    assert {len(request.candidates) for request in fake.reranks} == {4}
    assert (found.question_count, [point.depth for point in found.pool_depth]) == (3, [1, 2, 4])
    assert [point.measured for point in found.pool_depth] == [False, False, True]
    assert read(Studies, tmp_path / records.STUDIES, "studies") == found


async def test_a_shallow_pool_is_the_deep_order_without_the_rest(tmp_path: Path) -> None:
    """What is derived for a depth equals reranking that many candidates."""
    fake = FakeSystem()
    async with opened(fake) as system:
        await studied(tmp_path / "deep", system)
        prepare(plan := small_plan(tmp_path / "two"))
        await index(plan, system)
        two = await studies(plan, system, depths=(1, 2))
    derived = pool_depth(stored(tmp_path / "deep"), (1, 2))
    assert [point.measures for point in derived] == [point.measures for point in two.pool_depth]


async def test_recall_grows_with_the_pool(tmp_path: Path) -> None:
    """Dense recall at each depth is the pool's, and the reranker's recall of the whole pool is the same."""
    async with opened(FakeSystem()) as system:
        found = await studied(tmp_path, system)
    dense = {point.depth: point.recall.mean for point in found.dense_depth}
    assert list(dense) == [1, 3]
    assert dense[1] < dense[3]
    assert found.pool_depth[0].measures["Recall@1"].mean == dense[1]


async def test_another_truncation_computes_only_what_was_cut(tmp_path: Path) -> None:
    """Only the pair over the limit is sent again, under the other rule, and it is counted in both."""
    fake = FakeSystem()
    async with opened(fake) as system:
        found = await studied(tmp_path, system, one="red " * 600)
    again = [request for request in fake.reranks if request.truncation == reranker_pb2.TRUNCATION_ONLY_PASSAGE]
    assert {tuple(one.id for one in request.candidates) for request in again} == {("1",)}
    assert [(point.policy, point.truncated_pair_count > 0) for point in found.truncation] == [
        ("longest_first", True),
        ("only_passage", True),
    ]
    assert found.truncation[1].measures == found.truncation[0].measures  # the fake cuts alike under both
