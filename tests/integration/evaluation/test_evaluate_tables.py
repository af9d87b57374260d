"""What the terminal shows of a record fits an ordinary window and says what matters."""

from pathlib import Path

import pytest
from evaluation_fakes import FakeSystem, opened, small_plan
from rich.console import Console

from cli.evaluate_tables import print_comparison, print_record
from evaluation.compare import compare_runs
from evaluation.records import Record
from evaluation.run import run_all


async def shown(outputs: Path, fake: FakeSystem) -> str:
    told: list[Record] = []
    async with opened(fake) as system:
        await run_all(small_plan(outputs), system, told.append)
    console = Console(width=80, record=True, color_system=None, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        for record in told:
            print_record(console, record)
    return captured.get()


async def test_every_phase_is_shown(tmp_path: Path) -> None:
    """Population, counts, measures before and after, times and the abstention study are there, unwrapped."""
    text = await shown(tmp_path, FakeSystem())
    for words in (
        "6 documents, 8 questions: 4 dev, 4 test, of which 3 answerable and 1 not",
        "documents 6, dimension 16, device cpu, points_count 6",
        "8 pools of 4",
        "ok    empty_pool: ranked: [], truncated: false",
        "3 answerable test questions; 1 without a relevant document left out; 0 missing",
        "over all 4 test questions, pool 4",
        "A new rule to evaluate, not a validated capability",
    ):
        assert words in text
    for name in ("Recall@4", "MRR@5", "nDCG@5"):
        assert any(line.split()[:1] == [name] and len(line.split()) == 10 for line in text.splitlines())
    assert "…" not in text


async def test_a_failed_check_is_shown_as_wrong(tmp_path: Path) -> None:
    """What must not be so does not look like what may."""
    fake = FakeSystem()
    fake.reports_truncation = False
    assert "WRONG truncated_pair: truncated: false, cut: []" in await shown(tmp_path, fake)


async def test_a_comparison_names_both_runs(tmp_path: Path) -> None:
    """The table says which is which, and how many questions it is about."""
    await shown(tmp_path, FakeSystem())
    console = Console(width=80, record=True, color_system=None)
    with console.capture() as captured:
        print_comparison(console, compare_runs(tmp_path, tmp_path), "a", "b")
    assert "b against a, 3 questions" in captured.get()


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
