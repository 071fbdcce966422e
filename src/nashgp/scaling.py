"""Standardising rows, and the way back to the user's units."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nashgp.errors import InputError

Rows = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scaling:
    """The affine map that gives every column of the training rows mean 0 and deviation 1.

    A log density of scaled targets minus `Σ_q log s_q` is the log density in original units.
    """

    x_mean: Rows
    x_scale: Rows
    y_mean: Rows
    y_scale: Rows

    @classmethod
    def from_rows(cls, x: ArrayLike, y: ArrayLike, *, scale_targets: bool = True) -> "Scaling":
        """Measure inputs [N, D] and targets [N, Q]; give it training rows alone.

        Missing targets (NaN) are left out. Counts are not scaled: `scale_targets=False`.
        """
        y_mean, y_scale = _measure("y", y)
        if not scale_targets:
            y_mean, y_scale = np.zeros_like(y_mean), np.ones_like(y_scale)
        return cls(*_measure("X", x), y_mean, y_scale)

    @property
    def log_scale(self) -> float:
        """`Σ_q log s_q`, since `log p(y) = log p((y - m) / s) - Σ_q log s_q`."""
        return float(np.sum(np.log(self.y_scale)))

    def inputs(self, x: ArrayLike) -> Rows:
        """Scaled inputs."""
        return (np.asarray(x, np.float64) - self.x_mean) / self.x_scale

    def targets(self, y: ArrayLike) -> Rows:
        """Scaled targets."""
        return (np.asarray(y, np.float64) - self.y_mean) / self.y_scale

    def forward(self, x: ArrayLike, y: ArrayLike) -> tuple[Rows, Rows]:
        """Scaled inputs and targets."""
        return self.inputs(x), self.targets(y)


def is_constant(rows: ArrayLike) -> NDArray[np.bool_]:
    """Which columns hold one value only.

    A constant such as 0.1 has a tiny deviation by rounding, so equality is asked of the rows.
    """
    rows = np.asarray(rows)
    return np.all(rows == rows[:1], axis=0)


def _measure(name: str, rows: ArrayLike) -> tuple[Rows, Rows]:
    """Mean and standard deviation of each column, the latter 1 for a constant column."""
    rows = np.asarray(rows, np.float64)
    if rows.ndim != 2 or len(rows) == 0:
        raise InputError(f"{name} must be a table [N, columns] with N > 0, not {rows.shape}.")
    known = ~np.isnan(rows)
    if not np.all(np.any(known, axis=0)):
        column = int(np.argmin(np.any(known, axis=0)))
        raise InputError(f"{name} has no value in column {column}; leave that column out.")
    count = np.sum(known, axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.sum(np.where(known, rows, 0.0), axis=0) / count
        scale = np.sqrt(np.sum(np.where(known, rows - mean, 0.0) ** 2, axis=0) / count)
    if not np.all(np.isfinite(scale)):
        column = int(np.argmin(np.isfinite(scale)))
        raise InputError(f"{name} is too large to square in column {column}; change its unit.")
    lowest, highest = np.nanmin(rows, axis=0), np.nanmax(rows, axis=0)
    return mean, np.where((lowest == highest) | (scale == 0.0), 1.0, scale)
