"""From a fitted model and inputs to a predictive mixture, in chunks of constant memory."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree, Shaped

from nashgp.errors import InputError
from nashgp.mixtures import AbstractMixture, Blend, Mixture
from nashgp.posteriors import Ensemble, Fitted, members_of
from nashgp.precision import dtype_of, scoped
from nashgp.shapes import Key

Rows = Float[Array, "N ..."] | Float[np.ndarray, "N ..."]


def mixture(
    key: Key, fitted: Fitted | Ensemble, x: Float[Array, "N D"], *, num_samples: int
) -> AbstractMixture:
    """The predictive mixture at some inputs, from `num_samples` posterior draws.

    The draws and their hidden noise depend on the key alone and are shared by all rows, so a
    row's prediction does not depend on which other rows are asked for. The members of an ensemble
    have draws by their shares.
    """
    if isinstance(fitted, Ensemble):
        keys, deal = jr.split(key, len(fitted.members)), fitted.deal
        each = -(-num_samples // len(deal))  # draws of a whole turn
        parts = tuple(
            mixture(k, one, x, num_samples=each * deal.count(number))
            for number, (k, one) in enumerate(zip(keys, fitted.members, strict=True))
        )
        return Blend(parts, deal)
    return _of_one(key, fitted, x, num_samples)


@eqx.filter_jit  # by itself: all summaries share this program, and members of the same structure
def _of_one(key: Key, fitted: Fitted, x: Float[Array, "N D"], num_samples: int) -> Mixture:
    moments = fitted.posterior.marginals(key, fitted.model, x, num_samples)
    return Mixture(moments.mean, moments.variance, fitted.model.likelihood.at(x))


@eqx.filter_jit
def slopes(
    key: Key, fitted: Fitted | Ensemble, x: Float[Array, "N D"], num_samples: int
) -> Float[Array, "N R D"]:
    """`∂ E(y_r | x_n) / ∂ x_nd`: how the mean of each target moves with each input."""

    def totals(x: Float[Array, "N D"]) -> Float[Array, " R"]:
        return jnp.sum(mixture(key, fitted, x, num_samples=num_samples).moments()[0], axis=0)

    return jnp.moveaxis(jax.jacrev(totals)(x), 0, 1)  # rows do not see one another


@eqx.filter_jit
def _apply(
    summary: Callable[..., PyTree], mixture: AbstractMixture, others: tuple[Array, ...]
) -> PyTree:
    return summary(mixture, *others)


@scoped
def summarise(
    summary: Callable[..., PyTree[Array]],
    key: Key,
    fitted: Fitted | Ensemble,
    x: Rows,
    *others: Rows,
    num_samples: int = 100,
    chunk_size: int | None = None,
) -> PyTree[Shaped[np.ndarray, "N ..."]]:
    """`summary(mixture, *others)` of all rows, a chunk at a time, gathered in host memory.

    `summary` returns arrays whose first axis is the row. Memory does not grow with the rows.
    """
    layers = [layer for member in members_of(fitted) for layer in member.model.layers]
    widest = max(layer.num_inducing for layer in layers)
    size = chunk_size or rows_at_once(num_samples * widest)

    def one(x: Array, *others: Array) -> PyTree[Array]:
        return _apply(summary, mixture(key, fitted, x, num_samples=num_samples), others)

    return over_rows(one, (x, *others), dtype_of(fitted), size)


def rows_at_once(numbers_per_row: int) -> int:
    """A chunk whose largest array stays near 64 MB: a power of two from 8 to 1,024 rows."""
    rows = max(8, 2**23 // numbers_per_row)
    return min(1024, 1 << (rows.bit_length() - 1))


def over_rows(
    function: Callable[..., PyTree[Array]],
    arrays: tuple[Rows, ...],
    dtype: DTypeLike,
    size: int,
) -> PyTree[Shaped[np.ndarray, "N ..."]]:
    """`function` of chunks of rows, gathered: `size` rows each, what is left in eighths of that.

    The last eighth is padded. So a compiled `function` meets two shapes at most, whatever the
    number of rows, and at most `size / 8` rows are computed in vain.
    """
    host = tuple(np.asarray(array, dtype) for array in arrays)
    total, small = len(host[0]), max(1, size // 8)
    if total == 0:
        raise InputError("x has no rows; pass at least one.")
    whole = total - total % size
    starts = [(start, size) for start in range(0, whole, size)]
    starts += [(start, small) for start in range(whole, total, small)]
    parts = []
    for start, rows in starts:
        part = function(*(_pad(array[start : start + rows], rows) for array in host))
        keep = min(rows, total - start)
        parts.append(jax.tree.map(lambda leaf, keep=keep: np.asarray(leaf)[:keep], part))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _pad(rows: np.ndarray, size: int) -> Array:
    """Repeat the last row until there are `size` of them: finite, and dropped afterwards."""
    widths = [(0, size - len(rows))] + [(0, 0)] * (rows.ndim - 1)
    return jnp.asarray(np.pad(rows, widths, mode="edge"))


def moments(mixture: AbstractMixture) -> tuple[Float[Array, "N R"], Float[Array, "N R"]]:
    """Summary: mean and variance of the targets."""
    return mixture.moments()


def noise_variance(mixture: AbstractMixture) -> Float[Array, "N R"]:
    """Summary: the part of the targets' variance that is noise."""
    return mixture.noise_variance()


def log_density(
    mixture: AbstractMixture, y: Float[Array, "N Q"], weight: Float[Array, "N Q"] | None = None
) -> Float[Array, " N"]:
    """Summary: log density of each row of targets."""
    return mixture.log_density(y, jnp.ones_like(y) if weight is None else weight)


def cdf(mixture: AbstractMixture, y: Float[Array, "N Q"]) -> Float[Array, "N Q"]:
    """Summary: probability of a value no larger than each target."""
    return mixture.cdf(y)


def quantiles(
    q: Sequence[float], dtype: DTypeLike
) -> Callable[[AbstractMixture], Float[Array, "N Q T"]]:
    """A summary that gives the quantiles `q` of each target."""
    return eqx.Partial(_quantile, np.asarray(q, dtype))


def _quantile(q: Float[Array, " T"], mixture: AbstractMixture) -> Float[Array, "N Q T"]:
    return mixture.quantile(jnp.asarray(q))


def components(mixture: AbstractMixture) -> tuple[Float[Array, "N S R"], Float[Array, "N S R"]]:
    """Summary: mean and variance of the targets within each draw."""
    mean, variance = (jnp.moveaxis(part, 0, 1) for part in mixture.components())
    return mean, variance
