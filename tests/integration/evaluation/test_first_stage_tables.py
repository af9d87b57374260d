"""What the terminal shows of the study of what fills the pool fits an ordinary window and leaves nothing out."""

from pathlib import Path

from evaluation_fakes import small_dataset, small_plan
from first_stage_fakes import FakeFirstStage, opened_with_encoder
from rich.console import Console

from cli.evaluate_study_tables import print_retrieval, print_synonyms
from evaluation.first_stage.collections import name_of
from evaluation.first_stage.options import Kept
from evaluation.first_stage.study import Wanted, study_retrieval
from evaluation.first_stage.synonyms import SynonymFile, SynonymTrial, alias_of
from retrieval.gateway.v1 import gateway_pb2 as pb

LEXICAL = pb.LexicalParameters(average_words=4.0)


def ordinary() -> Console:
    return Console(width=80, record=True, color_system=None, highlight=False, markup=False, emoji=False)


async def test_every_option_has_its_figures(tmp_path: Path) -> None:
    """Measures on both sides, the comparison with dense, costs, the gap and what was left out are there, uncut."""
    fake = FakeFirstStage()
    async with opened_with_encoder(fake) as system:
        wanted = Wanted(words=lambda _: LEXICAL)
        study = await study_retrieval(small_plan(tmp_path, small_dataset(), pool_size=11), system, wanted)
    with (console := ordinary()).capture() as captured:
        print_retrieval(console, study)
    text = captured.get()
    assert "…" not in text
    rows = [line.split() for line in text.splitlines()]
    assert [len(row) for row in rows if row and row[0] == "sentences-rerank-parent"] == [7, 7, 7, 3]
    assert [len(row) for row in rows if row and row[0] == "dense"] == [7, 7, 3]
    for words in (
        "small: 6 documents, 3 answerable test questions",
        "nDCG@5 against dense, question by question",
        "lexical-stems against lexical: MRR@10 is the same on 3 questions.",
        "weighted: 0.5 for vectors, by MRR@10 on 3 dev questions (0.1: ",
        "the dense pool has 100.00% of the exact nearest documents",
        "0 of 4 relevant documents are in neither the dense nor the lexical top 11",
        "rrf+synonyms left out: there are no synonyms",
        "Against dense, before reranking all are within noise",
    ):
        assert words in text


async def test_every_entry_has_its_moves(tmp_path: Path) -> None:
    """Each entry is shown with the questions it fires in, and the whole file with what it is worth."""
    name = name_of(small_plan(tmp_path), Kept.WORDS)
    async with opened_with_encoder(FakeFirstStage({alias_of(name, 1): {"tree": "sea"}})) as system:
        study = await SynonymTrial(
            plan=small_plan(tmp_path),
            system=system,
            file=SynonymFile(
                digest="sha256:0", entries=[{"from": "tree", "to": ["sea"]}, {"from": "nobody", "to": ["says"]}]
            ),
            split="dev",
            per_entry=True,
        ).run(LEXICAL)
    with (console := ordinary()).capture() as captured:
        print_synonyms(console, study)
    text = captured.get()
    assert "small, dev: fires in 0 of 3 questions" in text
    assert any(line.split()[:5] == ["tree", "->", "sea", "dev-q3", "1"] for line in text.splitlines())
    assert any(line.split() == ["nobody", "->", "says", "nothing"] for line in text.splitlines())
    assert "lexical: MRR@10 is the same on 3 questions." in text
