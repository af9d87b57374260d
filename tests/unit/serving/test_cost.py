"""The cost model: what it learns from batches whose cost is known."""

import random
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.cost import FEWEST, MEMORY, REFIT_EVERY, Cost, CostModel

CPU = Cost(fixed=4e-3, per_token=2.5e-4)
GPU = Cost(fixed=2e-3, per_token=2.2e-6)
SHAPES = [(rows * length, rows) for rows, length in product((1, 2, 5, 16, 60), (8, 40, 150, 400))]

seeds = st.integers(0, 2**32 - 1)
# A clock counts nanoseconds, and may be wrong.
times = st.one_of(st.sampled_from([-1.0, 0.0, 1e-9]), st.floats(1e-9, 10.0))
coefficients = st.builds(
    Cost,
    fixed=st.floats(1e-4, 1e-1),
    per_token=st.floats(1e-6, 1e-3),
    per_row=st.floats(0, 1e-3),
)


def taught(
    true: Cost,
    count: int,
    *,
    noise: float = 0.0,
    outliers: float = 0.0,
    slower: float = 20.0,
    seed: int = 0,
    model: CostModel | None = None,
) -> CostModel:
    """Let a model see so many batches of mixed shapes; outliers are a share of them that takes so much longer."""
    model = model or CostModel()
    generator = random.Random(seed)  # noqa: S311 - a test has to be repeatable
    for _ in range(count):
        padded, rows = generator.choice(SHAPES)
        seconds = true.seconds(padded, rows) * generator.lognormvariate(0, noise)
        model.observe(padded, rows, seconds * (slower if generator.random() < outliers else 1.0))
    return model


def worst_error(found: Cost, true: Cost) -> float:
    """Return the largest relative error of a prediction over all shapes."""
    return max(abs(found.seconds(*shape) / true.seconds(*shape) - 1) for shape in SHAPES)


def test_a_prediction_is_the_sum_of_its_parts():
    """Seconds are fixed, per padded token and per row."""
    assert Cost(fixed=1.0, per_token=0.1, per_row=0.01).seconds(30, 2) == pytest.approx(1 + 3 + 0.02)


def test_nothing_is_known_before_a_few_batches():
    """A model that has seen too little promises nothing; with the batch that suffices it knows."""
    model = CostModel()
    for index, (padded, rows) in enumerate(SHAPES[:FEWEST]):
        assert model.cost == Cost(), index
        model.observe(padded, rows, CPU.seconds(padded, rows))
    assert worst_error(model.cost, CPU) < 1e-6


@settings(max_examples=25, deadline=None)
@given(coefficients, seeds)
def test_exact_times_give_back_the_coefficients(true: Cost, seed: int):
    """Without noise the parts are found, not only their sum."""
    found = taught(true, MEMORY, seed=seed).cost
    assert found.fixed == pytest.approx(true.fixed, rel=1e-3)
    assert found.per_token == pytest.approx(true.per_token, rel=1e-3)
    assert found.per_row == pytest.approx(true.per_row, rel=1e-3, abs=1e-8)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([CPU, GPU]), seeds, st.sampled_from([0.0, 0.05, 0.1]))
def test_predictions_survive_noise_and_outliers(true: Cost, seed: int, outliers: float):
    """With 10 % of noise, and up to a tenth of the batches taking 20 times as long, predictions are within 15 %."""
    assert worst_error(taught(true, MEMORY, noise=0.1, outliers=outliers, seed=seed).cost, true) < 0.15


@pytest.mark.parametrize("true", [CPU, GPU])
def test_batches_beside_a_busy_neighbour_are_left_out(true: Cost):
    """A fifth of the batches taking 3 times as long leaves predictions within 4.5 % on average."""
    errors = [
        worst_error(taught(true, MEMORY, noise=0.1, outliers=0.2, slower=3.0, seed=seed).cost, true)
        for seed in range(10)
    ]
    assert np.mean(errors) < 0.045


@pytest.mark.parametrize("true", [CPU, GPU])
def test_the_fixed_cost_in_tokens_is_found_under_noise(true: Cost):
    """What padding may cost follows from fixed cost per token cost: within a quarter of the truth."""
    found = taught(true, MEMORY, noise=0.1, outliers=0.05).cost
    assert found.fixed / found.per_token == pytest.approx(true.fixed / true.per_token, rel=0.25)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 500), st.integers(1, 64), times), min_size=FEWEST, max_size=3 * FEWEST))
def test_no_part_is_ever_negative_or_not_a_number(batches: list[tuple[int, int, float]]):
    """Whatever was seen, sense or nonsense, each part is a finite number of at least 0."""
    model = CostModel()
    for length, rows, seconds in batches:
        model.observe(length * rows, rows, seconds)
    parts = [model.cost.fixed, model.cost.per_token, model.cost.per_row]
    assert np.isfinite(parts).all()
    assert min(parts) >= 0


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 500), st.integers(1, 64), st.floats(1e-4, 1.0))
def test_batches_that_are_all_alike_are_predicted_and_their_neighbours_sensibly(length: int, rows: int, seconds: float):
    """Of one shape only its sum can be known: it is predicted, half of it costs no more and twice of it not double."""
    model = CostModel()
    for _ in range(MEMORY):
        model.observe(length * rows, rows, seconds)
    assert model.cost.seconds(length * rows, rows) == pytest.approx(seconds, rel=1e-3)
    assert 0 < model.cost.seconds(length * rows // 2, rows) <= seconds * 1.001
    assert seconds < model.cost.seconds(2 * length * rows, 2 * rows) < 2 * seconds


def test_rows_of_one_length_tell_tokens_and_rows_not_apart_but_predict_both():
    """Where tokens and rows grow together the sum is right for any number of rows of that length."""
    true = Cost(fixed=1e-3, per_token=1e-5, per_row=1e-4)
    model = CostModel()
    for index in range(MEMORY):
        rows = 1 + index % 16
        model.observe(50 * rows, rows, true.seconds(50 * rows, rows))
    for rows in (1, 8, 40):
        assert model.cost.seconds(50 * rows, rows) == pytest.approx(true.seconds(50 * rows, rows), rel=1e-3)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_machine_that_changes_its_speed_is_followed(factor: float):
    """After a full memory at the new speed nothing of the old one is left."""
    model = taught(CPU, 2 * MEMORY, noise=0.05)
    changed = Cost(fixed=factor * CPU.fixed, per_token=factor * CPU.per_token)
    assert worst_error(taught(changed, MEMORY + REFIT_EVERY, noise=0.05, model=model).cost, changed) < 0.1


def test_a_burst_of_slow_batches_is_forgotten():
    """A neighbour that made batches 20 times as slow for a while leaves no trace once it is gone."""
    slow = Cost(fixed=20 * CPU.fixed, per_token=20 * CPU.per_token)
    model = taught(slow, 32, model=taught(CPU, MEMORY, noise=0.05), noise=0.05)
    assert worst_error(model.cost, CPU) < 0.15


def test_a_batch_that_took_no_time_teaches_nothing():
    """A clock too coarse for a batch cannot make the model believe that work is free."""
    model = taught(CPU, FEWEST)
    before = model.cost
    for _ in range(2 * REFIT_EVERY):
        model.observe(100, 1, 0.0)
    assert model.cost == before
