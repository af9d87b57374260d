"""The study of what fills the pool, over fakes: what is searched, what is read once, and what follows from it."""

from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from evaluation_fakes import FakeSystem, opened, small_dataset, small_plan
from first_stage_fakes import PLAIN_BYTES, WORD_BYTES, FakeFirstStage, opened_with_encoder

from evaluation.files import read
from evaluation.first_stage.collections import name_of
from evaluation.first_stage.options import WEIGHTS, Kept
from evaluation.first_stage.records import POOLS, STUDY, RetrievalPools, RetrievalStudy
from evaluation.first_stage.study import Wanted, study_retrieval
from evaluation.first_stage.synonym_records import SYNONYMS, Move, SynonymStudy
from evaluation.first_stage.synonyms import SynonymFile, SynonymTrial, alias_of
from evaluation.first_stage.union import rerank_union, reranking
from evaluation.phases.rerank import rerank_pool
from evaluation.records import FrozenCandidate
from evaluation.system import System
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import InvalidRequest, Misconfigured

LEXICAL = pb.LexicalParameters(average_words=4.0)
TWO_SENTENCES = "grey stone wall. red brick"
TEXTS = {1: "red apple pie", 2: "green apple tree", 3: "blue sea and sky", "four": TWO_SENTENCES, 5: "sky scraper"}


def words(kept: Kept) -> pb.LexicalParameters | None:
    return None if kept is Kept.STEMS else LEXICAL


async def study(outputs: Path, system: System, *names: str, synonyms: bool = False) -> RetrievalStudy:
    plan = small_plan(outputs, small_dataset(texts=TEXTS))
    return await study_retrieval(plan, system, Wanted(options=names, words=words, synonyms=synonyms))


async def test_every_option_is_run_or_says_why_not(tmp_path: Path) -> None:
    """All that there is to run is in the record, in one order, and what is not is named with its reason."""
    async with opened_with_encoder(FakeFirstStage()) as system:
        found = await study(tmp_path, system)
    assert [option.name for option in found.options] == [
        "dense",
        "lexical",
        "lexical-no-function-words",
        "rrf",
        "weighted",
        "dbsf",
        "sentences",
        "sentences-rerank-parent",
        "exact",
    ]
    assert set(found.left_out) == {
        "lexical-stems",
        "lexical+synonyms",
        "dense+synonyms",
        "rrf+synonyms",
        "lsa-12",
        "lsa-128",
    }
    assert found.question_count == 3
    assert found.exact_overlap == 1.0
    assert read(RetrievalStudy, tmp_path / STUDY, "study retrieval") == found


async def test_each_questions_texts_are_reranked_once(tmp_path: Path) -> None:
    """One reranking per question holds every text of every option, none twice, sentences beside whole documents."""
    fake = FakeFirstStage()
    async with opened_with_encoder(fake) as system:
        await study(tmp_path, system)
    assert [request.query for request in fake.reranks] == ["red apple pie", "sea of red", "tree"]
    for request in fake.reranks:
        ids = [candidate.id for candidate in request.candidates]
        assert len(ids) == len(set(ids))
    assert {"four", "four#2"} <= {candidate.id for candidate in fake.reranks[1].candidates}


async def test_what_is_derived_equals_reranking_that_pool_alone(tmp_path: Path) -> None:
    """Every option's order out of the union is the order that the reranker gives its pool by itself."""
    async with opened_with_encoder(FakeFirstStage()) as system:
        await study(tmp_path, system)
        frozen = read(RetrievalPools, tmp_path / POOLS, "study retrieval")
        texts = {**TEXTS, "four#1": "grey stone wall", "four#2": "red brick"}
        for question in frozen.questions:
            for filled in question.pools.values():
                candidates = [
                    FrozenCandidate(id=member.document, rank=rank, score=0, text=texts[member.read])
                    for rank, member in enumerate(filled.members, 1)
                ]
                alone = await rerank_pool(system, "", question.query, candidates, "longest_first")
                assert reranking(filled, question.texts) == alone.ranked


async def test_a_large_union_is_sent_in_several_calls() -> None:
    """More texts than a request may have are reranked all the same, into one order."""
    fake = FakeSystem()
    async with opened(fake) as system:
        found = await rerank_union(system, "red", dict.fromkeys(range(201), "red"), "longest_first")
    assert [len(request.candidates) for request in fake.reranks] == [200, 1]
    assert [text.id for text in found] == list(range(201))


async def test_sentences_stand_for_their_documents(tmp_path: Path) -> None:
    """Both options find the document by its sentence; one has the sentence read, the other the whole text."""
    fake = FakeFirstStage()
    async with opened_with_encoder(fake) as system:
        await study(tmp_path, system, "sentences", "sentences-rerank-parent")
    frozen = read(RetrievalPools, tmp_path / POOLS, "study retrieval")
    pools = frozen.questions[1].pools
    by_sentence, by_parent = pools["sentences"].members, pools["sentences-rerank-parent"].members
    assert [member.document for member in by_sentence] == [member.document for member in by_parent]
    assert ("four", "four#2") in {(member.document, member.read) for member in by_sentence}
    assert ("four", "four") in {(member.document, member.read) for member in by_parent}


async def test_documents_are_encoded_once_and_words_cost_what_the_store_tells(tmp_path: Path) -> None:
    """The collections beside the first are made of its export; the sizes with and without words stand in the record."""
    fake = FakeFirstStage()
    async with opened_with_encoder(fake) as system:
        found = await study(tmp_path, system, "lexical", "lexical-no-function-words")
    plan = small_plan(tmp_path, small_dataset(texts=TEXTS))
    assert set(fake.collections) == {name_of(plan, kept) for kept in (Kept.PLAIN, Kept.WORDS, Kept.NO_FUNCTION_WORDS)}
    assert fake.collections[name_of(plan, Kept.NO_FUNCTION_WORDS)] == fake.collections[name_of(plan, Kept.WORDS)]
    assert not fake.parameters[name_of(plan, Kept.PLAIN)].HasField("lexical")
    assert found.plain_disk_bytes == PLAIN_BYTES
    assert {option.disk_bytes for option in found.options} == {PLAIN_BYTES + WORD_BYTES}


async def test_the_weight_is_chosen_on_dev_alone(tmp_path: Path) -> None:
    """All weights are tried on dev questions; the test questions meet the chosen one and no other."""
    fake = FakeFirstStage()
    data = small_dataset(texts=TEXTS)
    apart = [
        question if question.split == "test" else replace(question, query=f"dev {number}")
        for number, question in enumerate(data.questions)
    ]
    plan = small_plan(tmp_path, replace(data, questions=apart))
    async with opened_with_encoder(fake) as system:
        found = await study_retrieval(plan, system, Wanted(options=["weighted"], words=words))
    weights: dict[str, set[float]] = {"dev": set(), "test": set()}
    for request in fake.searches:
        if request.retrieval.fusion.method == pb.FUSION_METHOD_WEIGHTED:
            split = "dev" if request.query.startswith("dev") else "test"
            weights[split].add(request.retrieval.fusion.dense_weight)
    assert found.dense_weight is not None
    assert weights == {"dev": set(WEIGHTS), "test": {found.dense_weight.value}}
    assert found.dense_weight.question_count == 3


async def test_a_question_that_fails_is_counted_and_ends_nothing(tmp_path: Path) -> None:
    """Its search fails under one option, so it is in no pool; the others go on."""
    fake = FakeFirstStage()
    fake.failing["tree"] = grpc.StatusCode.INTERNAL
    async with opened_with_encoder(fake) as system:
        found = await study(tmp_path, system, "lexical")
    assert (found.question_count, found.failed_count) == (3, 1)
    frozen = read(RetrievalPools, tmp_path / POOLS, "study retrieval")
    assert [(one.id, one.error) for one in frozen.failed] == [("q3", "INTERNAL: as told")]


async def test_exact_search_needs_the_encoder(tmp_path: Path) -> None:
    """Without its address exact search is left out, and nothing else."""
    async with opened(FakeFirstStage()) as system:
        found = await study(tmp_path, system, "exact")
    assert [option.name for option in found.options] == ["dense"]
    assert found.left_out == {"exact": "the encoder is not named"}
    assert found.exact_overlap is None


async def test_synonyms_are_asked_for_where_there_are_some(tmp_path: Path) -> None:
    """They find what neither words nor vectors of the question have in common with the document."""
    plan = small_plan(tmp_path, small_dataset(texts=TEXTS))
    fake = FakeFirstStage({name_of(plan, Kept.WORDS): {"sea": "brick"}})
    async with opened_with_encoder(fake) as system:
        found = await study(tmp_path, system, "lexical", "lexical+synonyms", synonyms=True)
    ranks = {question.id: question.before for question in found.questions}
    assert ranks["q2"] == {"dense": ranks["q2"]["dense"], "lexical": (2, 3), "lexical+synonyms": (1, 3)}


def trial(outputs: Path, system: System, split: str, *, per_entry: bool) -> SynonymTrial:
    entries = [{"from": "pie", "to": ["tree"]}, {"from": "nobody", "to": ["says"]}]
    return SynonymTrial(
        plan=small_plan(outputs, small_dataset(texts=TEXTS)),
        system=system,
        file=SynonymFile(digest="sha256:0", entries=entries),
        split=split,
        per_entry=per_entry,
    )


def told(outputs: Path) -> FakeFirstStage:
    name = name_of(small_plan(outputs, small_dataset(texts=TEXTS)), Kept.WORDS)
    return FakeFirstStage({name: {"pie": "tree"}, alias_of(name, 1): {"pie": "tree"}})


async def test_each_entry_says_where_it_fires_and_what_it_moves(tmp_path: Path) -> None:
    """An entry fires in the questions that have its phrase; its moves are told by words and by vectors."""
    async with opened(told(tmp_path)) as system:
        found = await trial(tmp_path, system, "dev", per_entry=True).run(LEXICAL)
    first, second = found.entries
    assert (first.text, first.fired) == ("pie -> tree", ("dev-q1",))
    assert first.moves["lexical"] == (Move(question="dev-q1", before=1, after=1),)
    assert (second.fired, second.moves) == ((), {"lexical": (), "dense": ()})
    assert found.whole.fired == ("dev-q1",)
    assert read(SynonymStudy, tmp_path / SYNONYMS, "synonyms") == found


async def test_on_test_the_whole_file_is_reported_and_nothing_of_it(tmp_path: Path) -> None:
    """Means with and without it, but no entry and no single question; entries are refused before any call."""
    fake = told(tmp_path)
    async with opened(fake) as system:
        found = await trial(tmp_path, system, "test", per_entry=False).run(LEXICAL)
        before = len(fake.searches)
        with pytest.raises(InvalidRequest, match="refuses to tune on test"):
            await trial(tmp_path, system, "test", per_entry=True).run(LEXICAL)
    assert (found.entries, [side.moves for side in found.whole.sides.values()]) == ((), [(), ()])
    assert {change.measure for side in found.whole.sides.values() for change in side.changes} == {"MRR@10", "nDCG@5"}
    assert len(fake.searches) == before


async def test_a_split_without_questions_is_refused(tmp_path: Path) -> None:
    """There is nothing to try on, which is said."""
    async with opened(told(tmp_path)) as system:
        with pytest.raises(Misconfigured, match="no answerable train question"):
            await trial(tmp_path, system, "train", per_entry=False).run(LEXICAL)
