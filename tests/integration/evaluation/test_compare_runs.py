"""Two runs side by side: outputs directories, gateways, gates."""

from pathlib import Path

import grpc
import pytest
from evaluation_fakes import FakeSystem, opened, small_dataset, small_plan

from evaluation.compare import compare_evaluations, compare_runs, failures, gate
from evaluation.files import NotTogether
from evaluation.live import searched
from evaluation.phases.corpus import index, prepare
from evaluation.phases.evaluate import evaluate
from evaluation.plan import Plan
from evaluation.run import run_all
from serving.errors import InvalidRequest, Misconfigured


async def run(plan: Plan, fake: FakeSystem | None = None) -> None:
    async with opened(fake or FakeSystem()) as system:
        await run_all(plan, system)


async def test_a_run_against_itself_is_the_same(tmp_path: Path) -> None:
    """No measure differs, nobody wins, and the pools are known to be the same."""
    await run(small_plan(tmp_path))
    found = compare_runs(tmp_path, tmp_path)
    assert found.same_pools
    assert (found.question_count, found.only_a, found.only_b) == (3, (), ())
    assert all(change.difference == 0 and change.p_value == 1 and not change.wins for change in found.changes)


async def test_before_and_after_are_chosen_by_side(tmp_path: Path) -> None:
    """The compared values are those of the side that is asked for."""
    await run(small_plan(tmp_path))
    quality = evaluate(tmp_path).quality
    for side, means in (("before", quality.before), ("after", quality.after)):
        found = compare_runs(tmp_path, tmp_path, side)
        assert {change.measure: change.after for change in found.changes} == {
            name: value.mean for name, value in means.items()
        }


async def test_a_shallower_pool_loses(tmp_path: Path) -> None:
    """Run B with pools of one has lost the questions that need two, and the pools are said to differ."""
    await run(small_plan(tmp_path / "a"))
    await run(small_plan(tmp_path / "b", pool_size=1))
    found = compare_runs(tmp_path / "a", tmp_path / "b")
    changes = {change.measure: change for change in found.changes}
    assert not found.same_pools
    assert "Recall@4" not in changes  # only A has measured it
    assert changes["Recall@5"].difference < 0
    assert changes["Recall@5"].losses == ("q2",)


async def test_questions_of_one_run_only_are_left_out_and_named(tmp_path: Path) -> None:
    """The comparison is paired: what the other run does not have is in no figure."""
    data = small_dataset()
    await run(small_plan(tmp_path / "a", data))
    a = evaluate(tmp_path / "a")
    b = a.model_copy(update={"quality": a.quality.model_copy(update={"questions": a.quality.questions[1:]})})
    found = compare_evaluations(a, b)
    assert (found.question_count, found.only_a, found.only_b) == (2, ("q1",), ())
    empty = a.model_copy(update={"quality": a.quality.model_copy(update={"questions": ()})})
    with pytest.raises(Misconfigured, match="no answerable question in common"):
        compare_evaluations(a, empty)


async def test_runs_of_two_corpora_are_refused(tmp_path: Path) -> None:
    """Differences between corpora are no differences between systems."""
    await run(small_plan(tmp_path / "a"))
    texts = {1: "red apple pie", 2: "tree", 3: "sea of red", "four": "red"}
    await run(small_plan(tmp_path / "b", small_dataset(texts=texts)))
    with pytest.raises(NotTogether, match="different corpora"):
        compare_runs(tmp_path / "a", tmp_path / "b")


async def test_a_gateway_is_measured_as_callers_see_it(tmp_path: Path) -> None:
    """Whole searches give the quality that the frozen pools give, one per question, and leave the collection alone."""
    fake, plan = FakeSystem(), small_plan(tmp_path)
    async with opened(fake) as system:
        frozen, _ = await run_all(plan, system)
        before, collection = len(fake.searches), dict(fake.collections)
        live = await searched(plan, system)
        assert len(fake.searches) - before == 1 + len(plan.dataset.questions)
        assert fake.collections == collection
        fake.failing["tree"] = grpc.StatusCode.DEADLINE_EXCEEDED
        worse = await searched(plan, system)
    assert live.quality == frozen.quality
    assert live.pool_digest == frozen.pool_digest
    assert worse.quality.missing_count == 1
    change = {one.measure: one for one in compare_evaluations(live, worse).changes}["hit@5"]
    assert change.losses == ("q3",)


async def test_a_gateway_without_the_collection_is_an_error(tmp_path: Path) -> None:
    """There is nothing to measure where nothing was indexed."""
    fake = FakeSystem()
    async with opened(fake) as system:
        prepare(plan := small_plan(tmp_path))
        await index(plan, system)
        fake.collections.clear()
        with pytest.raises(grpc.aio.AioRpcError):
            await searched(plan, system)


def test_gates_hold_or_say_what_failed() -> None:
    """A value below the gate is one sentence; one that equals it passes."""
    gates = [gate("nDCG@5=0.9"), gate("hit@1 = 0.5")]
    assert failures({"nDCG@5": 0.9, "hit@1": 0.5}, gates) == ()
    assert failures({"nDCG@5": 0.8999, "hit@1": 0.4}, gates) == (
        "nDCG@5 is 0.8999, below 0.9",
        "hit@1 is 0.4000, below 0.5",
    )
    with pytest.raises(InvalidRequest, match="was not measured; there are MRR@5"):
        failures({"MRR@5": 1.0}, gates)


@pytest.mark.parametrize("text", ["nDCG@5", "nDCG@5=", "=0.9", "nDCG@5=high", "nDCG@5=nan", "quality=0.9"])
def test_a_gate_that_cannot_fail_is_refused(text: str) -> None:
    """A misspelt gate would let everything through."""
    with pytest.raises(InvalidRequest):
        gate(text)
