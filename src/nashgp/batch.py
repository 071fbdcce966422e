"""Rows of data, and the part of them one step looks at."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, UInt8

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
    """All rows. Missing targets are 0 in `y` with weight 0, and so are rows that only pad.

    `num_rows` counts the rows that are not padding. It is an array, so that data of any size in
    one bucket run through the same compiled code. `x` may be bytes, such as pixels, which are kept
    as they are: the inputs are `(x - shift) / unit`, computed for the rows of a batch.
    """

    x: Float[Array, "N D"] | UInt8[Array, "N D"]
    y: Float[Array, "N Q"]
    weight: Float[Array, "N Q"]
    num_rows: Int[Array, ""]
    shift: Float[Array, " D"] | None = None
    unit: Scalar | None = None

    def __len__(self) -> int:
        return int(self.num_rows)

    def all(self) -> Batch:
        """Every row once."""
        one = jnp.ones((), dtype=self.y.dtype)
        return Batch(self._inputs(self.x), self.y, self.weight, one)

    def sample(self, key: Key, size: int | None) -> Batch:
        """`size` rows drawn with replacement, or every row once when that is no more work."""
        if size is None or size >= self.x.shape[0]:
            return self.all()
        rows = jr.randint(key, (size,), 0, self.num_rows, self.num_rows.dtype)
        scale = self.num_rows.astype(self.y.dtype) / size
        return Batch(self._inputs(self.x[rows]), self.y[rows], self.weight[rows], scale)

    def _inputs(self, x: Array) -> Float[Array, "N D"]:
        if self.shift is None or self.unit is None:
            return x
        return (x.astype(self.y.dtype) - self.shift[None]) / self.unit


def bucket(num: int) -> int:
    """The row count to pad `num` rows to: a multiple of 8, and eight sizes per factor of two."""
    step = max(8, (1 << (num - 1).bit_length()) // 16)
    return -(-num // step) * step


def make_data(
    x: Float[np.ndarray, "N D"] | UInt8[np.ndarray, "N D"],
    y: Float[np.ndarray, "N Q"],
    weight: Float[np.ndarray, " N"] | None = None,
    *,
    dtype: DTypeLike = np.float64,
    padded: bool = False,
    shift: Float[np.ndarray, " D"] | None = None,
    unit: float | None = None,
) -> Data:
    """Put rows on the device in one precision; NaN targets become missing ones.

    With `padded` the last row is repeated, with weight 0, up to the next `bucket` size. With
    `shift` and `unit`, `x` is bytes and stays so.
    """
    if len(x) == 0:
        raise InputError("x has no rows; pass at least one.")
    if len(y) != len(x):
        raise InputError(f"y has {len(y)} rows and x has {len(x)}; pass one target row per input.")
    kept = shift is not None and unit is not None
    if not kept and not np.all(np.isfinite(np.asarray(x, dtype))):
        raise InputError("x holds NaN or infinity; drop or impute those rows first.")
    if np.any(np.isinf(y)):
        raise InputError("y holds infinity; use NaN for a missing target.")
    rows = np.ones(len(x)) if weight is None else weight
    if not np.all(np.isfinite(rows)) or np.any(rows < 0.0):
        raise InputError("weight must hold finite numbers that are not negative.")
    observed = np.isfinite(y)
    total = bucket(len(x)) if padded else len(x)
    last = np.minimum(np.arange(total), len(x) - 1)  # padding repeats the last row
    counts = observed * rows[:, None]
    with scope(dtype):
        return Data(
            x=jnp.asarray(x[last], x.dtype if kept else dtype),
            y=jnp.asarray(np.where(observed, y, 0.0)[last], dtype),
            weight=jnp.asarray(np.pad(counts, [(0, total - len(x)), (0, 0)]), dtype),
            num_rows=jnp.asarray(len(x), jnp.int32),
            shift=jnp.asarray(shift, dtype) if kept else None,
            unit=jnp.asarray(unit, dtype) if kept else None,
        )
