"""What batches of many shapes cost on this machine: the demo bundles computed, and a `Device` fitted to their times."""

import random
import statistics
import time
from pathlib import Path

import numpy as np

from benchmarks.simulation.devices import Device
from serving.bundle import Bundle
from serving.session import Session
from serving.session_options import SessionOptions

LENGTHS = (8, 16, 32, 64, 128, 256, 400)
ROWS = (1, 2, 4, 8, 16, 32)
MOST_TOKENS = 2_048
ROUNDS = 5
FIRST_ID = 1_000
LAST_ID = 10_000

Shape = tuple[int, int]
"""Rows, padded length."""


def measure(path: Path, threads: int) -> dict[Shape, float]:
    """Return seconds per shape: the median of interleaved rounds, after one that is not counted."""
    session = Session(Bundle(path), SessionOptions(device="cpu", threads=threads))
    shapes = [(rows, length) for rows in ROWS for length in LENGTHS if rows * length <= MOST_TOKENS]
    times: dict[Shape, list[float]] = {shape: [] for shape in shapes}
    generator = random.Random(0)  # noqa: S311 - a simulation, not a secret
    for turn in range(ROUNDS + 1):
        generator.shuffle(shapes)
        for shape in shapes:
            ids = np.random.default_rng(turn).integers(FIRST_ID, LAST_ID, shape, np.int64)
            begun = time.perf_counter()
            session.run(ids, np.ones_like(ids))
            if turn:
                times[shape].append(time.perf_counter() - begun)
    return {shape: statistics.median(seconds) for shape, seconds in sorted(times.items())}


def fit(name: str, times: dict[Shape, float]) -> Device:
    """Fit fixed, per-token, per-row and attention cost by least squares on the relative error."""
    parts = np.array([(1.0, rows * length, rows, rows * length * length) for rows, length in times], np.float64)
    seconds = np.array(list(times.values()), np.float64)
    found = np.linalg.lstsq(parts / seconds[:, None], np.ones(len(seconds)), rcond=None)[0]
    fixed, per_token, per_row, per_pair = (float(part) for part in found)
    return Device(name=name, fixed=fixed, per_token=per_token, per_row=per_row, per_pair=per_pair)
