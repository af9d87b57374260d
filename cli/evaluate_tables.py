"""What `twostage evaluate` shows of each phase, and the gates that it can fail at."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.console import EXIT_NOT_SO, fail

if TYPE_CHECKING:
    from evaluation.compare import Comparison, Gate
    from evaluation.figures import Abstention, Change, Latency, Quality
    from evaluation.measures import Scores
    from evaluation.records import Record

INDENT = "  "
SHOWN_IDS = 8


def print_record(console: Console, record: "Record") -> None:
    """Print what a phase found."""
    name = type(record).__name__
    console.print(Text(_TITLES[name], "bold"))
    _PRINTERS[name](console, record)


def print_comparison(console: Console, found: "Comparison", run_a: str, run_b: str) -> None:
    """Print run B against run A."""
    console.print(Text(f"{run_b} against {run_a}, {found.question_count} questions", "bold"))
    if not found.same_pools:
        print_line(console, "the pools differ: the first stages differ too, not only the reranking")
    for name, only in ((run_a, found.only_a), (run_b, found.only_b)):
        if only:
            print_line(console, f"only in {name}, left out: {', '.join(only[:SHOWN_IDS])} ({len(only)})")
    _print_changes(console, found.changes, ("A", "B"))


def print_scores(console: Console, scores: "Scores") -> None:
    """Print the means of a run."""
    answered = len(next(iter(scores.values.values()), ()))
    console.print(Text(f"{answered} answerable questions", "bold"))
    table = plain_table("measure", "mean")
    for name in scores.values:
        table.add_row(name, f"{scores.mean(name):.4f}")
    console.print(table)
    for what, names in (
        ("without a relevant document, left out", scores.skipped),
        ("missing in the run, counted as 0", scores.missing),
        ("of the run without judgments, left out", scores.unjudged),
    ):
        if names:
            print_line(console, f"{len(names)} questions {what}: {', '.join(names[:SHOWN_IDS])}")


def gates(texts: Sequence[str]) -> list["Gate"]:
    """Read what `--fail-below` says.

    Raises:
        InvalidRequest: One has another form.
    """
    from evaluation.compare import gate  # noqa: PLC0415 - see cli.evaluate

    return [gate(text) for text in texts]


def require(wanted: Sequence["Gate"], means: Mapping[str, float]) -> None:
    """Exit where a gate is not met.

    Raises:
        typer.Exit: One is not met.
        InvalidRequest: One names a measure that was not measured.
    """
    from evaluation.compare import failures  # noqa: PLC0415 - see cli.evaluate

    if found := failures(means, wanted):
        fail(EXIT_NOT_SO, "; ".join(found))


def _print_prepared(console: Console, record: Any) -> None:
    corpus = record.provenance.corpus
    population = corpus.population
    print_line(console, f"{corpus.name}, {corpus.digest[:19]}")
    print_line(
        console,
        f"{'/'.join(str(count) for count in population.model_dump().values())}: "
        f"{population.document_count} documents, {population.question_count} questions: {population.dev_count} dev, "
        f"{population.test_count} test, of which {population.answerable_test_count} answerable and "
        f"{population.unanswerable_test_count} not",
    )
    if record.unknown_relevant_count:
        print_line(console, f"{record.unknown_relevant_count} judgments name documents that are not there")


def _print_indexed(console: Console, record: Any) -> None:
    print_line(
        console,
        f"documents {record.document_count}, dimension {record.dimension}, device {record.device}, points_count "
        f"{record.points_count}; {record.truncated_count} cut at the encoder's limit; {record.seconds:.1f} s",
    )


def _print_candidates(console: Console, record: Any) -> None:
    size = record.provenance.configuration.pool_size
    print_line(
        console, f"{len(record.questions)} pools of {size}, {record.pool_digest[:19]}; {len(record.failed)} failed"
    )


def _print_reranked(console: Console, record: Any) -> None:
    pairs = sum(len(pool.pairs) for pool in record.questions)
    cut = sum(pool.truncated_count for pool in record.questions)
    print_line(console, f"{len(record.questions)} pools, {pairs} pairs, {cut} cut; {len(record.failed)} failed")


def _print_negatives(console: Console, record: Any) -> None:
    for check in record.checks:
        mark = Text("ok    " if check.passed else "WRONG ", "green" if check.passed else "bold red")
        console.print(Text.assemble(INDENT, mark, f"{check.name}: {check.found}"), soft_wrap=True)


def _print_exercise(console: Console, record: Any) -> None:
    print_line(
        console,
        f"{record.question}: removed_relevant {list(record.removed_relevant)}, {record.candidate_count} candidates, "
        f"returned {list(record.returned_relevant)}, recall {record.recall:g}",
    )


def _print_evaluation(console: Console, record: Any) -> None:
    _print_quality(console, record.quality)
    _print_latency(console, record.latency)
    print_line(console, f"{record.truncated_pair_count} of {record.pair_count} pairs were cut at the reranker's limit")
    _print_abstention(console, record.abstention)


def _print_abstention(console: Console, study: "Abstention | None") -> None:
    if study is None:
        print_line(console, "no study of abstention: a split lacks answerable or unanswerable questions")
        return
    print_line(console, study.sentence)
    for signal in study.signals:
        tested = signal.tested
        print_line(
            console,
            f"{signal.signal}: AUC {signal.auc:.3f} ({signal.auc_low:.3f} to {signal.auc_high:.3f}); threshold "
            f"{tested.threshold:.4f} answers {tested.answered_answerable_count} of {tested.answerable_count} and "
            f"abstains on {tested.abstained_unanswerable_count} of {tested.unanswerable_count}",
        )


def _print_quality(console: Console, quality: "Quality") -> None:
    print_line(
        console,
        f"{quality.question_count} answerable {quality.split} questions; {quality.skipped_unanswerable_count} without "
        f"a relevant document left out; {quality.missing_count} missing, counted as 0",
    )
    _print_changes(console, quality.changes, ("before", "after"))


def _print_changes(console: Console, changes: Sequence["Change"], names: tuple[str, str]) -> None:
    table = plain_table("measure", *names, "change", "95 % interval", "p", "better", "worse")
    for change in changes:
        table.add_row(
            change.measure,
            f"{change.before:.4f}",
            Text(f"{change.after:.4f}", "bold"),
            f"{change.difference:+.4f}",
            f"{change.low:+.3f} to {change.high:+.3f}",
            Text(f"{change.p_value:.3f}", "bold" if change.significant else "dim"),
            str(len(change.wins)),
            str(len(change.losses)),
        )
    console.print(table)
    for change in changes[:3]:
        print_line(console, change.sentence)


def _print_latency(console: Console, latency: "Latency") -> None:
    reference = latency.reference
    table = plain_table("ms per question", "mean", "p50", "p95", "p99", *(("tutorial's mean",) if reference else ()))
    for name in ("dense", "rerank", "total"):
        spread = getattr(latency, name)
        cells = [f"{value:.2f}" for value in (spread.mean, spread.p50, spread.p95, spread.p99)]
        table.add_row(name, *cells, *((f"{getattr(reference, name):.2f}",) if reference else ()))
    console.print(table)
    print_line(console, f"over all {latency.question_count} {latency.split} questions, pool {latency.pool_size}")
    if reference:
        print_line(console, reference.source)


def _print_studies(console: Console, record: Any) -> None:
    table = plain_table("pool depth", "Recall", "nDCG@5", "MRR@5", "rerank ms")
    for point in record.pool_depth:
        means = [point.measures[name].mean for name in (f"Recall@{point.depth}", "nDCG@5", "MRR@5")]
        table.add_row(str(point.depth), *(f"{mean:.4f}" for mean in means), f"{point.rerank_ms_mean:.0f}")
    console.print(table)
    for point in (*record.pool_depth[1:], *record.truncation[1:]):
        print_line(console, point.sentence)


def plain_table(first: str, *others: str) -> Table:
    """Make a table without lines: names at the left, figures at the right."""
    table = Table(box=None, padding=(0, 1, 0, 1), header_style="dim")
    table.add_column(first, no_wrap=True)
    for column in others:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def print_line(console: Console, text: str) -> None:
    """Print a line below a heading."""
    console.print(Text(INDENT + text), soft_wrap=True)


_TITLES = {
    "Prepared": "prepare",
    "Indexed": "index",
    "Candidates": "retrieve",
    "Reranked": "rerank",
    "Negatives": "negatives",
    "Evaluation": "evaluate",
    "Exercise": "exercise",
    "Studies": "studies",
}
_PRINTERS: Mapping[str, Callable[[Console, Any], None]] = {
    "Prepared": _print_prepared,
    "Indexed": _print_indexed,
    "Candidates": _print_candidates,
    "Reranked": _print_reranked,
    "Negatives": _print_negatives,
    "Evaluation": _print_evaluation,
    "Exercise": _print_exercise,
    "Studies": _print_studies,
}
