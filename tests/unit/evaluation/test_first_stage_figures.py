"""Figures of the study out of pools written by hand: orders, gaps, changes, and what is said of them."""

from pathlib import Path

import pytest
from evaluation_fakes import small_plan
from first_stage_fakes import frozen_pools, pool, studied

from evaluation.first_stage.figures import compared, exact_overlap, figures, gap, measures
from evaluation.first_stage.records import Member, OptionPool, RetrievalPools
from evaluation.first_stage.union import ranking, reranking
from evaluation.records import FailedSearch

LOST = FailedSearch(id="q9", split="test", lang="en", query="gone", relevant=(1,), error="INTERNAL: as told")


def two_questions(plan_outputs: Path, failed: tuple[FailedSearch, ...] = ()) -> RetrievalPools:
    """In q1 the words have what the vectors miss; in q2 nobody has it; the reranker likes high numbers."""
    logits = {number: float(number) for number in range(1, 7)}
    questions = (
        studied(
            "q1",
            (3, 5),
            {"dense": pool(1, 3, ms=4.0), "lexical": pool(5, 3, ms=1.0), "exact": pool(1, 2)},
            logits,
        ),
        studied(
            "q2",
            (6,),
            {"dense": pool(1, 2, ms=8.0), "lexical": pool(2, ms=3.0), "exact": pool(2, 1)},
            logits,
        ),
    )
    return frozen_pools(small_plan(plan_outputs, pool_size=2), questions, failed)


def test_an_options_order_is_the_union_without_the_rest() -> None:
    """The reranker's order of a pool keeps the logits' order and has the pool's documents alone; ties go by number."""
    question = studied("q", (1,), {"dense": pool(10, 9, 2)}, {2: 0.5, 9: 1.0, 10: 1.0, 7: 3.0})
    assert ranking(question.pools["dense"]) == (10, 9, 2)
    assert reranking(question.pools["dense"], question.texts) == (9, 10, 2)


def test_a_parent_stands_where_the_text_that_was_read_stands() -> None:
    """The same documents are ordered by the sentence's logit or by the whole text's, as each option reads."""
    logits: dict[int | str, float] = {1: 2.0, 2: 1.0, "1#2": -3.0, "2#1": 4.0}
    sentences = OptionPool(
        members=(Member(document=1, read="1#2", score=0.9), Member(document=2, read="2#1", score=0.8))
    )
    question = studied("q", (1,), {"sentences": sentences, "whole": pool(1, 2)}, logits)
    assert reranking(question.pools["sentences"], question.texts) == (2, 1)
    assert reranking(question.pools["whole"], question.texts) == (1, 2)


def test_the_shared_gap_is_what_neither_list_has(tmp_path: Path) -> None:
    """Relevant documents are counted by which list has them, and a question with none of them in either is named."""
    found = gap(two_questions(tmp_path))
    assert found is not None
    assert (found.both, found.vectors_only, found.lexical_only, found.neither) == (1, 0, 1, 1)
    assert (found.relevant_count, found.questions) == (3, ("q2",))
    assert figures(two_questions(tmp_path)).gaps == (found,)
    assert found.sentence.startswith("1 of 3 relevant documents are in neither the dense nor the lexical top 2")


def test_the_indexs_recall_is_against_the_exact_pool(tmp_path: Path) -> None:
    """Half of the first question's exact pool and all of the second's is in the dense one: three quarters."""
    assert exact_overlap(two_questions(tmp_path)) == pytest.approx(0.75)


def test_ranks_of_every_relevant_document_are_kept(tmp_path: Path) -> None:
    """The record has the places of all relevant documents of every option, before and after reranking."""
    first = figures(two_questions(tmp_path)).questions[0]
    assert first.before == {"dense": (2,), "lexical": (1, 2), "exact": ()}
    assert first.after == {"dense": (1,), "lexical": (1, 2), "exact": ()}


def test_every_option_is_compared_with_dense_on_both_sides(tmp_path: Path) -> None:
    """Before, words gain recall in one question; after, the order of it as well; dense is compared with nothing."""
    study = figures(two_questions(tmp_path))
    by_name = {option.name: option for option in study.options}
    assert by_name["dense"].changes_before == ()
    recall = by_name["lexical"].changes_before[0]
    assert (recall.measure, recall.before, recall.after, recall.wins) == ("Recall@2", 0.25, 0.5, ("q1",))
    assert by_name["exact"].changes_after[0].losses == ("q1",)
    assert study.measures == measures(2)
    assert study.compared == compared(2) == ("Recall@2", "MRR", "nDCG@5")


def test_other_ways_to_index_words_are_compared_with_the_plain_one(tmp_path: Path) -> None:
    """Without function words the document is one place lower in every question: the change is from `lexical`."""
    filled = {"dense": pool(1, 2), "lexical": pool(1, 2), "lexical-no-function-words": pool(2, 1)}
    question = studied("q", (1,), filled, {1: 1.0, 2: 0.0})
    changes = figures(frozen_pools(small_plan(tmp_path), (question,))).word_changes
    assert list(changes) == ["lexical-no-function-words"]
    mrr = changes["lexical-no-function-words"][1]
    assert (mrr.measure, mrr.before, mrr.after, mrr.losses) == ("MRR", 1.0, 0.5, ("q",))


def test_costs_stand_beside_gains(tmp_path: Path) -> None:
    """The median of what the gateway told of the first stage, the collection's bytes, and none where none was told."""
    by_name = {option.name: option for option in figures(two_questions(tmp_path)).options}
    assert (by_name["dense"].first_stage_ms_p50, by_name["dense"].disk_bytes) == (6.0, 1_024)
    assert by_name["exact"].first_stage_ms_p50 is None


def test_a_question_that_failed_counts_as_nothing_found(tmp_path: Path) -> None:
    """It is in every mean as 0, for every option alike, and is counted."""
    whole = figures(two_questions(tmp_path))
    less = figures(two_questions(tmp_path, (LOST,)))
    assert (less.question_count, less.failed_count) == (3, 1)
    before, after = (study.options[0].before["Recall@2"].mean for study in (whole, less))
    assert after == pytest.approx(before * 2 / 3, abs=1e-6)


def test_the_conclusion_says_what_is_noise_and_what_is_not(tmp_path: Path) -> None:
    """One question of two proves nothing; ten that all lose do, and the option is named on the side where it loses."""
    assert "before reranking all are within noise; after reranking all are within noise" in (
        figures(two_questions(tmp_path)).sentence
    )
    logits = {1: 2.0, 2: 1.0}
    many = tuple(
        studied(f"q{number}", (1,), {"dense": pool(1, 2), "lexical": pool(2, 1)}, logits) for number in range(10)
    )
    study = figures(frozen_pools(small_plan(tmp_path), many))
    assert study.sentence.startswith(
        "Against dense, before reranking nDCG@5 of lexical falls; after reranking all are within noise (10 questions"
    )


def test_mrr_is_of_the_whole_pool_where_that_is_short() -> None:
    """A pool of ten or less has no cut-off to name."""
    assert "MRR" in measures(10)
    assert "MRR@10" in measures(20)


def test_equal_pools_give_equal_figures(tmp_path: Path) -> None:
    """The figures follow from the file of pools alone, also after it was written and read."""
    pools = two_questions(tmp_path)
    again = RetrievalPools.model_validate_json(pools.model_dump_json())
    assert figures(again).model_dump_json() == figures(pools).model_dump_json()
