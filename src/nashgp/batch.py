"""Rows of data, and the part of them one step looks at."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from nashgp.errors import InputError
from nashgp.precision import scope
from nashgp.shapes import Key, Scalar


class Batch(eqx.Module):
    """Some rows, and how many times each of them counts.

    `weight` is 0 where a target is missing; `scale` is rows in the data over rows in the batch,
    so that a sum over the batch estimates the sum over the data and nobody else stores N.
    """

    x: Float[Array, "N D"]
    y: Float[Array, "N Q"]
    weight: Float[Array, "N Q"]
    scale: Scalar


class Data(eqx.Module):
    """All rows. Missing targets are 0 in `y` with weight 0."""

    x: Float[Array, "N D"]
    y: Float[Array, "N Q"]
    weight: Float[Array, "N Q"]

    def __len__(self) -> int:
        return self.x.shape[0]

    def all(self) -> Batch:
        """Every row once."""
        return Batch(self.x, self.y, self.weight, jnp.ones((), dtype=self.x.dtype))

    def sample(self, key: Key, size: int | None) -> Batch:
        """`size` rows drawn with replacement, or every row once when that is no more work."""
        if size is None or size >= len(self):
            return self.all()
        rows = jr.randint(key, (size,), 0, len(self))
        scale = jnp.asarray(len(self) / size, dtype=self.x.dtype)
        return Batch(self.x[rows], self.y[rows], self.weight[rows], scale)


def make_data(
    x: Float[np.ndarray, "N D"],
    y: Float[np.ndarray, "N Q"],
    weight: Float[np.ndarray, " N"] | None = None,
    *,
    dtype: DTypeLike = np.float64,
) -> Data:
    """Put rows on the device in one precision; NaN targets become missing ones."""
    if len(x) == 0:
        raise InputError("x has no rows; pass at least one.")
    if len(y) != len(x):
        raise InputError(f"y has {len(y)} rows and x has {len(x)}; pass one target row per input.")
    if not np.all(np.isfinite(np.asarray(x, dtype))):
        raise InputError("x holds NaN or infinity; drop or impute those rows first.")
    if np.any(np.isinf(y)):
        raise InputError("y holds infinity; use NaN for a missing target.")
    rows = np.ones(len(x)) if weight is None else weight
    if not np.all(np.isfinite(rows)) or np.any(rows < 0.0):
        raise InputError("weight must hold finite numbers that are not negative.")
    observed = np.isfinite(y)
    with scope(dtype):
        return Data(
            x=jnp.asarray(x, dtype),
            y=jnp.asarray(np.where(observed, y, 0.0), dtype),
            weight=jnp.asarray(observed * rows[:, None], dtype),
        )
