"""The data sets in the repository are what their pages say, and their synonyms are of the dev questions."""

import re
from pathlib import Path

import pytest

from cli.evaluate_words import words_of
from evaluation.datasets.find import find
from evaluation.datasets.jsonl import load
from evaluation.datasets.model import Dataset, lines
from evaluation.first_stage.options import Kept
from evaluation.plan import Plan
from evaluation.records import Configuration
from gateway.synonyms import Synonyms, read_synonyms
from retrieval.gateway.v1 import gateway_pb2 as pb

DATA = Path(__file__).parents[3] / "data"
ITALIAN_FUNCTION_WORDS = (
    "a al alla ce chi con d da dal dei del della di e i il in la le lo mi mio non per più si sul sull un una"
)
"""Of the questions; whatever else they share with their passage is a content word."""


def italian() -> Dataset:
    return load(DATA / "italian")


def synonyms_of(name: str) -> Synonyms:
    path = DATA / name / "synonyms.yaml"
    return read_synonyms(path.read_bytes(), path.name)


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def test_the_italian_passages_have_their_population() -> None:
    """Eighteen passages, seven dev and eight test questions, each with one passage that is there."""
    found = italian()
    assert found.population.model_dump() == {
        "document_count": 18,
        "question_count": 15,
        "dev_count": 7,
        "test_count": 8,
        "answerable_test_count": 8,
        "unanswerable_test_count": 0,
    }
    assert found.unknown_relevant_count == 0
    assert {len(question.judged) for question in found.questions} == {1}


@pytest.mark.parametrize(("kind", "least", "most"), [("gap", 0, 0), ("keyword", 3, 5), ("paraphrase", 0, 3)])
def test_italian_questions_share_as_many_words_as_their_kind_says(kind: str, least: int, most: int) -> None:
    """A gap has no content word of its passage, a keyword question at least three, a paraphrase at most three."""
    texts = {document.id: document.text for document in italian().documents}
    asked = [line for line in lines(DATA / "italian" / "queries.jsonl") if line["kind"] == kind]
    assert asked
    for line in asked:
        relevant = line["relevant"]
        assert isinstance(relevant, list)
        shared = (words(str(line["query"])) & words(texts[relevant[0]])) - set(ITALIAN_FUNCTION_WORDS.split())
        assert least <= len(shared) <= most, (line["id"], shared)


@pytest.mark.parametrize(("name", "least"), [("helpcentre", 18), ("italian", 9)])
def test_every_synonym_is_there_for_a_dev_question(name: str, least: int) -> None:
    """The gateway reads the file, and no entry is there that no dev question could have been the reason for."""
    asked = [question for question in load(DATA / name).questions if question.split == "dev"]
    entries = synonyms_of(name).entries
    assert len(entries) == least
    for entry in entries:
        alone = Synonyms.of([entry])
        assert any(alone.words(question.query, question.lang) for question in asked), entry


def test_words_are_counted_as_the_gateway_counts_them() -> None:
    """The average is that of the passages' words; without function words it is less, and the language is named."""
    plan = Plan(dataset=italian(), outputs=Path(), configuration=Configuration(pool_size=5))
    plain, fewer = words_of(plan, Kept.WORDS), words_of(plan, Kept.NO_FUNCTION_WORDS)
    assert plain is not None
    assert fewer is not None
    counts = [len(re.findall(r"\w+", document.text)) for document in plan.dataset.documents]
    assert plain.average_words == pytest.approx(sum(counts) / len(counts), abs=0.06)
    assert (plain.language, plain.stop_words) == ("", False)
    assert (fewer.language, fewer.stop_words) == ("italian", True)
    assert fewer.average_words < plain.average_words


def test_a_corpus_of_several_languages_has_no_list_of_function_words() -> None:
    """The help centre is in three languages: neither function words nor stems of one of them are taken for all."""
    plan = Plan(dataset=find(str(DATA / "helpcentre"), None), outputs=Path(), configuration=Configuration(pool_size=5))
    assert words_of(plan, Kept.STEMS) is None
    assert words_of(plan, Kept.NO_FUNCTION_WORDS) is None
    found = words_of(plan, Kept.WORDS)
    assert found is not None
    assert found.tokenizer == pb.LEXICAL_TOKENIZER_UNSPECIFIED
