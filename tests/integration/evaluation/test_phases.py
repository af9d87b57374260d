"""The phases over real gRPC against servers that answer by words in common."""

import json
from pathlib import Path

import grpc
import pytest
from evaluation_fakes import (
    ENCODER,
    OTHER_RERANKER,
    RERANKER,
    FakeSystem,
    opened,
    small_dataset,
    small_plan,
    until_reranked,
)

from evaluation import records
from evaluation.datasets.model import dataset
from evaluation.files import NotTogether, read
from evaluation.phases.corpus import index, prepare
from evaluation.phases.evaluate import evaluate
from evaluation.phases.exercise import exercise
from evaluation.phases.negatives import negatives
from evaluation.phases.rerank import rerank
from evaluation.phases.retrieve import retrieve
from evaluation.records import Candidates, Indexed, Record, Reranked
from evaluation.run import run_all
from retrieval.gateway.v1 import gateway_pb2
from serving.errors import NotFound


async def test_all_phases_leave_their_files(tmp_path: Path) -> None:
    """One call runs everything; each file carries corpus, models and collection, and each phase is told of."""
    told: list[Record] = []
    async with opened(FakeSystem()) as system:
        evaluation, good = await run_all(small_plan(tmp_path), system, told.append)
    assert good
    assert [type(record).__name__ for record in told] == [
        "Prepared",
        "Indexed",
        "Candidates",
        "Reranked",
        "Negatives",
        "Evaluation",
        "Exercise",
    ]
    assert evaluation.quality.before["Recall@4"].mean == 1.0
    names = {"candidates.json", "reranked.json", "negatives.json", "evaluation.json", "exercise.json"}
    for name in sorted(names):
        provenance = json.loads((tmp_path / name).read_text())["provenance"]
        assert provenance["corpus"]["digest"] == small_dataset().digest
        assert provenance["encoder"]["digest"] == ENCODER
        assert provenance["collection"].startswith("eval-small-")
        assert (provenance["reranker"] or {}).get("digest") == (None if name == "candidates.json" else RERANKER)


async def test_pools_are_frozen_without_reranking(tmp_path: Path) -> None:
    """Every search asks for the whole pool with reranking off; a warm-up is first and is in no file."""
    fake = FakeSystem()
    async with opened(fake) as system:
        candidates, _ = await until_reranked(small_plan(tmp_path), system)
    searches = fake.searches[1:]  # the first tells the encoder's device
    assert [search.query for search in searches] == ["red apple pie", *(pool.query for pool in candidates.questions)]
    assert {(search.rerank, search.include_pool, search.pool_size) for search in searches} == {
        (gateway_pb2.RERANK_OFF, True, 4)
    }
    assert len(candidates.questions) == 8
    first = candidates.questions[0]
    assert [candidate.rank for candidate in first.candidates] == [1, 2, 3, 4]
    assert (first.candidates[0].id, first.candidates[0].text) == (1, "red apple pie")
    assert first.latency.dense > 0
    assert candidates.questions[1].relevant == ("four", 3)
    assert candidates.questions[1].grades == (2, 1)


async def test_the_reranker_sees_exactly_the_frozen_pool(tmp_path: Path) -> None:
    """Ids and texts in retrieval order, once per question after a warm-up, and no search again."""
    fake = FakeSystem()
    async with opened(fake) as system:
        prepare(plan := small_plan(tmp_path))
        await index(plan, system)
        candidates = await retrieve(plan, system)
        searched = len(fake.searches)
        reranked = await rerank(tmp_path, system)
    assert len(fake.searches) == searched
    sent = [[(one.id, one.text) for one in request.candidates] for request in fake.reranks]
    frozen = [[(str(one.id), one.text) for one in pool.candidates] for pool in candidates.questions]
    assert sent == [frozen[0], *frozen]
    for pool, before in zip(reranked.questions, candidates.questions, strict=True):
        assert sorted(map(str, pool.ranked)) == sorted(str(one.id) for one in before.candidates)
        assert [pair.score for pair in pool.pairs] == sorted((pair.score for pair in pool.pairs), reverse=True)
        ranks = {one.id: one.rank for one in before.candidates}
        assert all(pair.retrieval_rank == ranks[pair.id] for pair in pool.pairs)


async def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    """evaluation.json computed twice is the same file; a second run differs in times only."""
    fake = FakeSystem()
    async with opened(fake) as system:
        for name in ("a", "b"):
            await until_reranked(small_plan(tmp_path / name), system)
            evaluate(tmp_path / name)
    first = (tmp_path / "a" / records.EVALUATION).read_bytes()
    evaluate(tmp_path / "a")
    assert (tmp_path / "a" / records.EVALUATION).read_bytes() == first
    one, other = (json.loads((tmp_path / name / records.EVALUATION).read_bytes()) for name in ("a", "b"))
    assert one["latency"]["total"]["values"] != other["latency"]["total"]["values"]
    for part in ("quality", "abstention", "pool_digest", "provenance"):
        assert json.dumps(one[part]) == json.dumps(other[part])


async def test_latency_is_of_all_test_questions(tmp_path: Path) -> None:
    """Unanswerable questions are timed too, dev ones are not, and total is dense + rerank question by question."""
    async with opened(FakeSystem()) as system:
        await until_reranked(small_plan(tmp_path), system)
    latency = evaluate(tmp_path).latency
    assert (latency.question_count, len(latency.total.values)) == (4, 4)
    for dense, rerank_ms, total in zip(latency.dense.values, latency.rerank.values, latency.total.values, strict=True):
        assert total == pytest.approx(dense + rerank_ms, abs=2e-6)
    assert latency.stages["encode"].compute == 1.0
    assert latency.reference is None


async def test_the_tutorials_times_stand_beside_ours(tmp_path: Path) -> None:
    """Only the help centre has somebody else's figures to compare with."""
    async with opened(FakeSystem()) as system:
        await until_reranked(small_plan(tmp_path, small_dataset("helpcentre")), system)
    reference = evaluate(tmp_path).latency.reference
    assert reference is not None
    assert (reference.dense, reference.rerank, reference.total) == (5.70, 48.92, 54.63)


async def test_grades_bring_their_measures_along(tmp_path: Path) -> None:
    """Where grades differ, linear, exponential and binary gain are three measures; q2's grades are 2 and 1."""
    async with opened(FakeSystem()) as system:
        await until_reranked(small_plan(tmp_path), system)
    quality = evaluate(tmp_path).quality
    assert {"nDCG@5", "nDCG_exp@5", "nDCG_bin@5"} <= quality.before.keys()
    assert quality.headline == ("Recall@4", "MRR@5", "nDCG@5")
    assert [change.measure for change in quality.changes[:3]] == list(quality.headline)
    (second,) = (question for question in quality.questions if question.id == "q2")
    assert second.relevant == ("four", 3)


async def test_no_study_of_abstention_without_unanswerable_questions(tmp_path: Path) -> None:
    """A split without either kind gives no figure; where there is one, it is no validated rule (field failure 78b)."""
    data = small_dataset()
    answerable = dataset("small", data.documents, [question for question in data.questions if question.judged])
    async with opened(FakeSystem()) as system:
        await until_reranked(small_plan(tmp_path / "some", data), system)
        await until_reranked(small_plan(tmp_path / "none", answerable), system)
    study = evaluate(tmp_path / "some").abstention
    assert study is not None
    assert study.sentence.startswith("A new rule to evaluate, not a validated capability")
    assert "chosen on 4 dev questions (1 without an answer)" in study.sentence
    assert [signal.signal for signal in study.signals] == ["retrieval_score", "logit"]
    assert {signal.tested.threshold == signal.chosen.threshold for signal in study.signals} == {True}
    assert evaluate(tmp_path / "none").abstention is None


async def test_indexing_counts(tmp_path: Path) -> None:
    """indexed.json has documents, dimension, device and points_count, and how many were cut."""
    data = small_dataset(texts={1: "word " * 600, 2: "two", 3: "three", "four": "four"})
    async with opened(FakeSystem()) as system:
        prepare(plan := small_plan(tmp_path, data))
        indexed = await index(plan, system)
    assert (indexed.document_count, indexed.points_count, indexed.dimension, indexed.device) == (4, 4, 16, "cpu")
    assert indexed.truncated_count == 1


async def test_failed_questions_count_as_zero(tmp_path: Path) -> None:
    """A question whose search or reranking fails is in the mean with 0, and named in the file (field failure 77)."""
    fake = FakeSystem()
    fake.failing["sea of red"] = grpc.StatusCode.INTERNAL
    async with opened(fake) as system:
        candidates, _ = await until_reranked(small_plan(tmp_path), system)
        assert [(one.id, one.error) for one in candidates.failed] == [
            ("q2", "INTERNAL: as told"),
            ("dev-q2", "INTERNAL: as told"),
        ]
        quality = evaluate(tmp_path).quality
        assert (quality.question_count, quality.missing_count, quality.skipped_unanswerable_count) == (3, 1, 1)
        assert quality.before["Recall@4"].mean == pytest.approx(2 / 3, abs=1e-6)
        fake.failing = {"tree": grpc.StatusCode.DEADLINE_EXCEEDED}
        reranked = await rerank(tmp_path, system)
        assert set(reranked.failed) == {"q3", "dev-q3"}
        quality = evaluate(tmp_path).quality
        assert quality.missing_count == 2
        assert quality.after["Recall@4"].mean == pytest.approx(1 / 3, abs=1e-6)


async def test_a_first_question_that_fails_is_counted_like_any_other(tmp_path: Path) -> None:
    """The warm-up is made with it, and its failure there does not end the phase."""
    fake = FakeSystem()
    async with opened(fake) as system:
        await until_reranked(small_plan(tmp_path), system)
        fake.failing = {"red apple pie": grpc.StatusCode.DEADLINE_EXCEEDED}
        assert set((await rerank(tmp_path, system)).failed) == {"q1", "dev-q1"}


async def test_negatives_pass_on_a_good_system(tmp_path: Path) -> None:
    """Empty pool, truncated pair and empty collection are answered as they have to be, and nothing is left behind."""
    fake = FakeSystem()
    async with opened(fake) as system:
        await until_reranked(small_plan(tmp_path), system)
        fake.collections[f"{next(iter(fake.collections))}-empty"] = {}  # of a run that was killed
        found = await negatives(tmp_path, system)
    assert found.passed
    assert {check.name: check.found for check in found.checks} == {
        "empty_pool": "ranked: [], truncated: false",
        "truncated_pair": "truncated: true, cut: ['long'], tokens: 512",
        "empty_collection": "points_count: 0, pool: 0, hits: 0",
    }
    assert not any(name.endswith("-empty") for name in fake.collections)


async def test_negatives_find_what_is_wrong(tmp_path: Path) -> None:
    """Silent truncation and a hit out of nothing fail their check, and only that."""
    fake = FakeSystem()
    async with opened(fake) as system:
        await until_reranked(small_plan(tmp_path), system)
        fake.reports_truncation = False
        checks = {check.name: check.passed for check in (await negatives(tmp_path, system)).checks}
        assert checks == {"empty_pool": True, "truncated_pair": False, "empty_collection": True}
        fake.reports_truncation, fake.finds_in_empty = True, True
        found = await negatives(tmp_path, system)
        assert [check.name for check in found.checks if not check.passed] == ["empty_collection"]
        assert not found.passed
        fake.reranker = OTHER_RERANKER
        with pytest.raises(NotTogether, match="another reranker is serving"):
            await negatives(tmp_path, system)


async def test_the_exercise_takes_the_relevant_documents_away(tmp_path: Path) -> None:
    """What was removed from the pool never comes back, and recall is 0."""
    async with opened(FakeSystem()) as system:
        await until_reranked(small_plan(tmp_path), system)
        found = await exercise(tmp_path, system, "q2")
        with pytest.raises(NotFound, match="q4"):
            await exercise(tmp_path, system, "q4")
    assert set(found.removed_relevant) == {"four", 3}
    assert (found.candidate_count, found.recall, found.returned_relevant, found.passed) == (2, 0, (), True)
    assert not {"four", 3} & set(found.ranked)


async def test_files_are_what_phases_read(tmp_path: Path) -> None:
    """What a phase returns is what it wrote."""
    async with opened(FakeSystem()) as system:
        candidates, reranked = await until_reranked(small_plan(tmp_path), system)
    assert read(Candidates, tmp_path / records.CANDIDATES, "retrieve") == candidates
    assert read(Reranked, tmp_path / records.RERANKED, "rerank") == reranked
    assert read(Indexed, tmp_path / records.INDEXED, "index").points_count == 6
