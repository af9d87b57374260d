"""Speed, size, difference and independence of every form that a bundle has, beside its fp32 graph.

Forms take turns (A B A B), one run each, so that what else the machine does meets all of them; the ratio is the median
of the rounds' ratios. Beside wall time stands processor time, which a busy machine changes less. Differences are from
the bundle's golden outputs, which are torch's; the batch-mate column is the largest difference of a golden row computed
alone and beside three others.

    .venv/bin/python benchmarks/precision.py [BUNDLE ...] [--threads 2] [--rounds 5]
"""

import argparse
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import onnxruntime
from rich.console import Console
from rich.table import Table

from models import demo
from serving.bundle import Bundle, Precision
from serving.cpu import int8_flags
from serving.model import Model
from serving.session_options import SessionOptions
from serving.tokens import PairTruncation, Tokens

ROOT = Path(__file__).parents[1]
SHAPES = ((1, 12), (8, 64), (20, 200), (4, 512))
"""Rows and tokens of what is timed."""
SHORTEST_S = 0.02
"""A round of a form takes at least this long, so that the clock does not matter."""
MATES = 4
MEGABYTE = 1e6

console = Console(width=120)


@dataclass
class Times:
    """Seconds per run, a number per round."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", nargs="*", type=Path, help="default: the demo bundles")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    paths = arguments.bundles or demo.prepare(ROOT / ".twostage/bundles/demo", console.print)
    console.print(
        f"{platform.machine()} ({', '.join(int8_flags()) or 'no instructions for int8'}), {arguments.threads} threads, "
        f"Python {platform.python_version()}, onnxruntime {onnxruntime.__version__}"
    )
    for path in paths:
        measure(Bundle(path), arguments.threads, arguments.rounds)


def measure(bundle: Bundle, threads: int, rounds: int) -> None:
    """Measure all forms of a bundle and print two tables."""
    models = {
        precision: Model(
            bundle, bundle.manifest.kind, SessionOptions(device="cpu", threads=threads, precision=precision)
        )
        for precision in bundle.manifest.precisions
    }
    console.print(_differences(models))
    table = Table(title=f"{bundle.manifest.kind}: milliseconds per batch, median of {rounds} rounds")
    for heading in ("rows x tokens", "form", "wall", "tokens/s", "processor", "speed, wall", "speed, processor"):
        table.add_column(heading, justify="left" if heading == "form" else "right")
    for shape in SHAPES:
        times = timed(models, shape, rounds)
        for precision in models:
            _add(table, shape, precision, times)
    console.print(table)


def timed(models: dict[Precision, Model], shape: tuple[int, int], rounds: int) -> dict[Precision, Times]:
    """Let the forms take turns on one batch without padding, after a run of each that is not counted."""
    count, tokens = shape
    feeds = {name: model.prepare([_filled(model, tokens)] * count) for name, model in models.items()}
    repeats = {}
    for name, model in models.items():
        model.run(feeds[name])
        begun = time.perf_counter()
        model.run(feeds[name])
        repeats[name] = max(1, round(SHORTEST_S / (time.perf_counter() - begun)))
    times = {name: Times() for name in models}
    for _ in range(rounds):
        for name, model in models.items():
            wall, processor = time.perf_counter(), time.process_time()
            for _ in range(repeats[name]):
                model.run(feeds[name])
            times[name].wall.append((time.perf_counter() - wall) / repeats[name])
            times[name].processor.append((time.process_time() - processor) / repeats[name])
    return times


def _add(table: Table, shape: tuple[int, int], precision: Precision, times: dict[Precision, Times]) -> None:
    (rows, tokens), mine, base = shape, times[precision], next(iter(times.values()))
    wall = median(mine.wall)
    table.add_row(
        f"{rows} x {tokens}",
        precision,
        f"{1e3 * wall:.2f}",
        f"{rows * tokens / wall:,.0f}",
        f"{1e3 * median(mine.processor):.2f}",
        f"{_ratio(base.wall, mine.wall):.2f}",
        f"{_ratio(base.processor, mine.processor):.2f}",
        end_section=precision == list(times)[-1],
    )


def _ratio(base: Sequence[float], mine: Sequence[float]) -> float:
    return median(first / second for first, second in zip(base, mine, strict=True))


def _differences(models: dict[Precision, Model]) -> Table:
    table = Table(title=f"{next(iter(models.values())).bundle.manifest.model_id}: golden outputs")
    for heading in ("form", "MB", "largest difference", "tolerance", "least cosine", "batch-mates"):
        table.add_column(heading, justify="left" if heading == "form" else "right")
    for precision, model in models.items():
        alone = np.concatenate([model.raw([row]) for row in _golden(model)])
        expected = np.array([row.output for row in model.bundle.golden().rows]).reshape(alone.shape)
        together = np.concatenate([model.raw(_golden(model)[at : at + MATES]) for at in range(0, len(alone), MATES)])
        cosine = f"{(alone * expected).sum(axis=1).min():.5f}" if alone.ndim > 1 else ""
        size = (model.bundle.path / model.form.file).stat().st_size / MEGABYTE
        difference, mates = np.abs(alone - expected).max(), np.abs(alone - together).max()
        table.add_row(
            precision, f"{size:.1f}", f"{difference:.2g}", f"{model.form.tolerance:g}", cosine, f"{mates:.1g}"
        )
    return table


def _golden(model: Model) -> list[Tokens]:
    rows = []
    for row in model.bundle.golden().rows:
        first, *second = model.tokenizer.content_ids([row.text] if row.passage is None else [row.text, row.passage])
        single = model.tokenizer.single
        rows.append(model.tokenizer.pair(first, second[0], PairTruncation.LONGEST_FIRST) if second else single(first))
    return rows


def _filled(model: Model, tokens: int) -> Tokens:
    special = model.bundle.manifest.special_tokens
    ids = np.random.default_rng(tokens).integers(special.unk + 1, model.tokenizer.vocabulary, tokens - 2)
    return Tokens([special.bos, *ids.tolist(), special.eos], untruncated_count=tokens)


if __name__ == "__main__":
    main()
