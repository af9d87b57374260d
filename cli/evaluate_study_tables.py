"""What `twostage evaluate study` and `twostage evaluate synonyms` show."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.evaluate_tables import plain_table, print_line

if TYPE_CHECKING:
    from evaluation.figures import Change
    from evaluation.first_stage.records import RetrievalStudy
    from evaluation.first_stage.synonym_records import Entry, Move, SynonymStudy

KIB = 1024


def print_retrieval(console: Console, study: "RetrievalStudy") -> None:
    """Print what each option gains and costs."""
    name = study.provenance.corpus.name
    count = study.provenance.corpus.population.document_count
    console.print(Text(f"{name}: {count} documents, {study.question_count} answerable test questions", "bold"))
    for title, after in (("before reranking", False), ("after reranking", True)):
        _print_measures(console, study, title, after=after)
    _print_against_dense(console, study)
    _print_costs(console, study)
    if study.dense_weight is not None:
        print_line(console, _weight(study))
    if study.exact_overlap is not None:
        print_line(console, f"the dense pool has {study.exact_overlap:.2%} of the exact nearest documents")
    for gap in study.gaps:
        print_line(console, gap.sentence)
    for option, changes in study.word_changes.items():
        for change in changes[:2]:
            print_line(console, f"{option} against lexical: {change.sentence}")
    for option, why in study.left_out.items():
        print_line(console, f"{option} left out: {why}")
    if study.failed_count:
        print_line(console, f"{study.failed_count} questions failed and count as 0")
    print_line(console, study.sentence)


def print_synonyms(console: Console, study: "SynonymStudy") -> None:
    """Print what each entry, and all together, moved."""
    fired = len(study.whole.fired)
    title = f"{study.provenance.corpus.name}, {study.split}: fires in {fired} of {study.question_count} questions"
    console.print(Text(title, "bold"))
    if study.entries:
        table = plain_table("entry", "fires in", "lexical", "dense")
        table.columns[0].no_wrap = False
        for entry in study.entries:
            _add_entry(table, entry)
        console.print(table)
    for side, found in study.whole.sides.items():
        for change in found.changes:
            print_line(console, f"{side}: {change.sentence}")


def _print_measures(console: Console, study: "RetrievalStudy", title: str, *, after: bool) -> None:
    table = plain_table(title, *study.measures)
    for option in study.options:
        means = option.after if after else option.before
        table.add_row(option.name, *(f"{means[name].mean:.3f}" for name in study.measures))
    console.print(table)


def _print_against_dense(console: Console, study: "RetrievalStudy") -> None:
    print_line(console, f"{study.compared[-1]} against dense, question by question, before and after reranking")
    table = plain_table("", *("better", "worse", "p") * 2)
    for option in study.options[1:]:
        table.add_row(option.name, *_last(option.changes_before), *_last(option.changes_after))
    console.print(table)


def _last(changes: Sequence["Change"]) -> list[str | Text]:
    last = changes[-1]
    p_value = Text(f"{last.p_value:.3f}", "bold" if last.significant else "dim")
    return [str(len(last.wins)), str(len(last.losses)), p_value]


def _print_costs(console: Console, study: "RetrievalStudy") -> None:
    table = plain_table("cost", "first stage ms, p50", "KiB on disk")
    for option in study.options:
        milliseconds = option.first_stage_ms_p50
        if milliseconds is not None:
            table.add_row(option.name, f"{milliseconds:.1f}", f"{option.disk_bytes / KIB:,.0f}")
    table.add_row("(vectors alone)", "", f"{study.plain_disk_bytes / KIB:,.0f}")
    console.print(table)


def _weight(study: "RetrievalStudy") -> str:
    found = study.dense_weight
    if found is None or not found.question_count:
        return "weighted: there is no dev split to choose on, so that vectors and words weigh the same"
    tried = ", ".join(f"{weight}: {mean:.3f}" for weight, mean in found.tried.items())
    return f"weighted: {found.value:g} for vectors, by MRR@10 on {found.question_count} dev questions ({tried})"


def _add_entry(table: Table, entry: "Entry") -> None:
    """Add a row for each question in which an entry fires."""
    sides = zip(entry.moves["lexical"], entry.moves["dense"], strict=True)
    rows = [(move.question, _ranks(move), _ranks(other)) for move, other in sides] or [("nothing", "", "")]
    for number, row in enumerate(rows):
        table.add_row("" if number else entry.text, *row)


def _ranks(move: "Move") -> str:
    before, after = (str(rank) if rank else "none" for rank in (move.before, move.after))
    return f"{before} → {after}" if before != after else before
