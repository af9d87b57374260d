"""What a phase refuses, and what it leaves alone: inputs that do not belong together, servers that are not there."""

from pathlib import Path

import pytest
from evaluation_fakes import (
    OTHER_ENCODER,
    FakeSystem,
    opened,
    small_dataset,
    small_plan,
    until_reranked,
)

from evaluation import records
from evaluation.files import NotTogether, write
from evaluation.phases.corpus import index, prepare
from evaluation.phases.evaluate import evaluate
from evaluation.phases.rerank import rerank
from evaluation.phases.retrieve import retrieve
from evaluation.plan import Plan
from evaluation.system import open_system
from serving.errors import AlreadyExists, Misconfigured, Unavailable


async def test_a_lost_document_fails_the_index(tmp_path: Path) -> None:
    """A store that acknowledged more than it holds is not measured."""
    fake = FakeSystem()
    fake.lost = 1
    async with opened(fake) as system:
        prepare(plan := small_plan(tmp_path))
        with pytest.raises(Misconfigured, match="5 of 6 documents are in"):
            await index(plan, system)
    assert not (tmp_path / records.INDEXED).exists()


async def test_a_collection_of_the_users_is_not_dropped(tmp_path: Path) -> None:
    """A name that the user gave is made anew only when that is asked for; one of our own always is."""
    fake = FakeSystem()
    fake.collections["mine"] = {9: "precious"}
    plan = small_plan(tmp_path)
    mine = Plan(dataset=plan.dataset, outputs=tmp_path, configuration=plan.configuration, collection="mine")
    async with opened(fake) as system:
        prepare(mine)
        with pytest.raises(AlreadyExists, match="--recreate"):
            await index(mine, system)
        assert fake.collections["mine"] == {9: "precious"}
        assert (await index(mine, system, recreate=True)).points_count == 6
        await index(plan, system)
        assert (await index(plan, system)).points_count == 6


async def test_title_and_text_are_another_passage(tmp_path: Path) -> None:
    """The rule says what is stored, frozen and reranked; a collection of the other rule is refused."""
    async with opened(FakeSystem()) as system:
        prepare(plan := small_plan(tmp_path, passage="title+text"))
        await index(plan, system)
        candidates = await retrieve(plan, system)
        with pytest.raises(NotTogether, match=r"indexed\.json has other passages"):
            await retrieve(small_plan(tmp_path), system)
    assert candidates.questions[0].candidates[0].text == "title 1\nred apple pie"


async def test_another_corpus_is_refused(tmp_path: Path) -> None:
    """Neither an index nor pools of other documents are gone on with."""
    other = small_dataset(texts={1: "other", 2: "words", 3: "here", "four": "now"})
    async with opened(FakeSystem()) as system:
        prepare(plan := small_plan(tmp_path))
        with pytest.raises(NotTogether, match=r"prepared\.json is of another corpus: .*evaluate prepare` again"):
            await index(small_plan(tmp_path, other), system)
        await index(plan, system)
        with pytest.raises(NotTogether, match=r"indexed\.json is of another corpus: .*evaluate index` again"):
            await retrieve(small_plan(tmp_path, other), system)


async def test_another_encoder_is_refused(tmp_path: Path) -> None:
    """A collection that was indexed with one encoder is not searched with the next one."""
    fake = FakeSystem()
    async with opened(fake) as system:
        prepare(plan := small_plan(tmp_path))
        await index(plan, system)
        fake.encoder = OTHER_ENCODER
        with pytest.raises(NotTogether, match=r"indexed with another encoder: sha256:d+ against sha256:e+; run"):
            await retrieve(plan, system)
    assert not (tmp_path / records.CANDIDATES).exists()


async def test_a_reranking_of_other_pools_is_refused(tmp_path: Path) -> None:
    """Pools that were retrieved again under other conditions do not go with the old reranking."""
    async with opened(FakeSystem()) as system:
        await until_reranked(small_plan(tmp_path), system)
        await retrieve(small_plan(tmp_path, pool_size=3), system)
    with pytest.raises(NotTogether, match=r"reranked\.json is of other pools: .*evaluate rerank` again"):
        evaluate(tmp_path)


async def test_pools_that_were_edited_are_refused(tmp_path: Path) -> None:
    """A judgment, a text or a candidate that was changed by hand is found by the digest."""
    async with opened(FakeSystem()) as system:
        candidates, _ = await until_reranked(small_plan(tmp_path), system)
        first = candidates.questions[0]
        for change in (
            {"relevant": (2,)},
            {"query": "other"},
            {"candidates": first.candidates[1:]},
            {"candidates": (first.candidates[0].model_copy(update={"text": "other"}), *first.candidates[1:])},
        ):
            changed = (first.model_copy(update=change), *candidates.questions[1:])
            write(candidates.model_copy(update={"questions": changed}), tmp_path / records.CANDIDATES)
            with pytest.raises(NotTogether, match="not those that were frozen"):
                await rerank(tmp_path, system)
            with pytest.raises(NotTogether, match="not those that were frozen"):
                evaluate(tmp_path)


async def test_a_reranking_that_lost_a_candidate_is_refused(tmp_path: Path) -> None:
    """The reranked ids have to be the pool's, all of them."""
    async with opened(FakeSystem()) as system:
        _, reranked = await until_reranked(small_plan(tmp_path), system)
    first = reranked.questions[0]
    shorter = first.model_copy(update={"ranked": first.ranked[1:], "pairs": first.pairs[1:]})
    write(reranked.model_copy(update={"questions": (shorter, *reranked.questions[1:])}), tmp_path / records.RERANKED)
    with pytest.raises(NotTogether, match="q1: not the pool's candidates"):
        evaluate(tmp_path)


async def test_a_server_that_is_down_ends_the_phase(tmp_path: Path) -> None:
    """Nobody answering is no result of zero."""
    async with opened(FakeSystem()) as system:
        prepare(plan := small_plan(tmp_path))
        await index(plan, system)
        await retrieve(plan, system)
    async with open_system("127.0.0.1:1", "127.0.0.1:1") as nobody:
        with pytest.raises(Unavailable, match="no reranker answers"):
            await rerank(tmp_path, nobody)
    assert not (tmp_path / records.RERANKED).exists()
