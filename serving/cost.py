"""How long a batch takes, learned from the batches that were computed. Pure: no clock, no I/O, kept nowhere.

A batch costs `fixed + per_token x padded tokens + per_row x rows` seconds. The coefficients are fitted to the last
batches by least squares on the relative error, so that a batch of one short row counts as much as a full one; batches
that the fit misses by far more than its usual error (a machine that was suspended, a neighbour's burst) are left out of
a second fit.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Enough for three coefficients under noise, and few enough that a change of the machine's speed is soon seen.
MEMORY = 256
FEWEST = 6
REFIT_EVERY = 8
# 1.4826 x the median absolute deviation estimates a normal distribution's standard deviation; three of them are kept.
OUTLIER = 3 * 1.4826
USUAL_ERROR = 0.02
"""Relative error that is never an outlier, however well the other batches fit."""

_Rows = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds of a batch, in parts; none is negative."""

    fixed: float = 0.0
    """Per batch."""
    per_token: float = 0.0
    """Per padded token."""
    per_row: float = 0.0
    """Per row."""

    def seconds(self, padded_tokens: int, rows: int) -> float:
        """Predict one batch."""
        return self.fixed + self.per_token * padded_tokens + self.per_row * rows


class CostModel:
    """Fits a `Cost` to what is observed; before `FEWEST` batches it is all zero, which promises and forbids nothing."""

    def __init__(self) -> None:
        self.cost = Cost()
        self._seen: deque[tuple[float, float, float, float]] = deque(maxlen=MEMORY)
        self._unfitted = 0

    def observe(self, padded_tokens: int, rows: int, seconds: float) -> None:
        """Learn from one computed batch; every few of them the cost is fitted anew."""
        if seconds <= 0:
            return
        self._seen.append((1.0, padded_tokens, rows, seconds))
        self._unfitted += 1
        if len(self._seen) >= FEWEST and self._unfitted >= min(REFIT_EVERY, len(self._seen) - FEWEST + 1):
            self._unfitted = 0
            self.cost = _fit(np.array(self._seen, np.float64))


def _fit(seen: _Rows) -> Cost:
    """Fit to rows of (1, padded tokens, rows, seconds), float64 [batches, 4]."""
    relative = seen[:, :3] / seen[:, 3:]
    coefficients = _non_negative(relative)
    error = np.abs(relative @ coefficients - 1)
    kept = error <= max(OUTLIER * float(np.median(error)), USUAL_ERROR)
    fixed, per_token, per_row = _non_negative(relative[kept]) if kept.sum() >= FEWEST else coefficients
    return Cost(fixed=float(fixed), per_token=float(per_token), per_row=float(per_row))


def _non_negative(relative: _Rows) -> _Rows:
    """Solve `relative @ x = 1` with no coefficient below zero: the most negative one is taken out until none is.

    Columns are brought to one scale first, so that batches which are all alike (any split explains them) share their
    cost among the parts instead of giving all of it to the largest number.
    """
    scale = np.abs(relative).mean(axis=0)
    active = [index for index in range(relative.shape[1]) if scale[index] > 0]
    solution = np.zeros(relative.shape[1])
    while active:
        columns = relative[:, active] / scale[active]
        found = np.linalg.lstsq(columns, np.ones(len(columns)), rcond=1e-6)[0]
        if found.min() >= 0:
            solution[active] = found / scale[active]
            break
        del active[int(found.argmin())]
    return solution
