"""Unsupervised rows: a model with latents for inputs, and its start at principal components."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from nashgp import means, recipes
from nashgp.batch import Data, make_data
from nashgp.errors import InputError
from nashgp.likelihoods import Gaussian
from nashgp.model import DeepGP
from nashgp.posteriors import (
    Below,
    Columns,
    Fitted,
    GaussianLatents,
    GaussianPosterior,
    LatentPosterior,
)
from nashgp.precision import scope
from nashgp.transforms import Frozen

NUM_ROUNDS = 30  # of filling in missing entries; the components of a start need no more
MOST_GROUPS = 8  # patterns of missing rows that have a factorisation each in every step
FIRST_SPREAD = 0.1  # standard deviation of a latent at the start

Table = Float[np.ndarray, "N Q"]


class Components(NamedTuple):
    """`y ≈ scores @ loadings`, the scores with variance 1 over the rows."""

    scores: Float[np.ndarray, "N D"]
    loadings: Float[np.ndarray, "D Q"]


def number_rows(y: Table, *, dtype: DTypeLike = np.float64) -> Data:
    """Rows whose input is their number; NaN is a missing entry."""
    return make_data(np.arange(len(y), dtype=np.float64)[:, None], y, dtype=dtype)


def principal_components(y: Table, num: int) -> Components:
    """The leading components of centred rows, missing entries filled in by the fit in rounds."""
    if num > min(y.shape):
        raise InputError(f"{len(y)} rows of {y.shape[1]} columns have no {num} components.")
    missing = np.isnan(y)
    left, size, right = np.linalg.svd(np.where(missing, 0.0, y), full_matrices=False)
    for _ in range(NUM_ROUNDS if np.any(missing) else 0):
        fit = (left[:, :num] * size[:num]) @ right[:num]
        left, size, right = np.linalg.svd(np.where(missing, fit, y), full_matrices=False)
    # The largest loading of a component is positive: a singular vector has no sign of its own.
    largest = np.argmax(np.abs(right[:num]), axis=1)
    sign = np.where(right[np.arange(num), largest] < 0.0, -1.0, 1.0)
    root = np.sqrt(len(y))
    return Components(
        left[:, :num] * sign * root, right[:num] * (sign * size[:num] / root)[:, None]
    )


def group_columns(y: Table) -> Columns:
    """Columns that miss the same rows, or all columns as one group if there are many patterns."""
    patterns, group = np.unique(np.isnan(y), axis=1, return_inverse=True)
    exact = patterns.shape[1] <= MOST_GROUPS
    group = group.reshape(-1) if exact else np.zeros(y.shape[1])
    num = patterns.shape[1] if exact else 1
    return Columns(jnp.asarray(group, jnp.int32), num, exact)


def start(
    y: Table,
    latent_dim: int,
    config: recipes.Config,
    *,
    dense: bool = False,
    seed: int = 0,
    dtype: DTypeLike = np.float64,
) -> Fitted:
    """A deep GP from latents to centred rows, at probabilistic PCA.

    The prior mean of the last layer takes as many components as it has inputs back to the columns,
    and the skip connections below hand it the first ones. In a `dense` model the rows are the
    inducing inputs; the outputs of a hidden layer then share one covariance of N x N.
    """
    width = latent_dim if config.num_layers == 1 else config.hidden_dim or latent_dim
    parts = principal_components(y, max(width, latent_dim))
    scores, loadings = parts.scores[:, :latent_dim], parts.loadings[:width]
    with scope(dtype):
        config = dataclasses.replace(config, likelihood=Gaussian(config.noise))
        if dense:  # the rows will take their place
            config = dataclasses.replace(config, num_inducing=1)
        built = recipes.build(scores, y.shape[1], config, seed=seed, dtype=dtype).model
        mean = means.Projection(Frozen(jnp.asarray(loadings, dtype)))
        model = eqx.tree_at(lambda model: model.layers[-1].mean, built, mean)
        spread = FIRST_SPREAD * np.tile(np.eye(latent_dim), (len(y), 1, 1))
        latents = GaussianLatents(jnp.asarray(scores, dtype), jnp.asarray(spread, dtype))
        inputs = _inputs(model, latents.mean)
        if dense:
            model = eqx.tree_at(lambda m: [layer.z for layer in m.layers], model, inputs)
        hidden = _hidden(model, config.hidden_scale, shared=config.shared or dense)
        z = tuple(each[None] for each in inputs) if dense else None
        below = Below(latents, hidden, dense)
        return Fitted(model, _at_prior(model, below, group_columns(y), z))


def _hidden(model: DeepGP, scale: float, *, shared: bool) -> GaussianPosterior:
    """Hidden layers at mean zero with `R = scale · I`."""
    shapes = [(layer.num_inducing, layer.num_outputs) for layer in model.layers[:-1]]
    dtype = model.layers[0].z.dtype
    roots = (scale * jnp.eye(m, dtype=dtype)[None] for m, _ in shapes)
    copies = (1 if shared else p for _, p in shapes)
    return GaussianPosterior(
        tuple(jnp.zeros(shape, dtype) for shape in shapes),
        tuple(jnp.tile(root, (num, 1, 1)) for root, num in zip(roots, copies, strict=True)),
    )


def _at_prior(
    model: DeepGP, below: Below, columns: Columns, z: tuple[Float[Array, "S _M _D"], ...] | None
) -> LatentPosterior:
    """One draw that has learned nothing: all values zero, and the last layer at its prior."""
    *values, last = (
        jnp.zeros((1, layer.num_inducing, layer.num_outputs), layer.z.dtype)
        for layer in model.layers
    )
    eye = jnp.eye(last.shape[1], dtype=last.dtype)
    root = jnp.tile(eye[None, None], (1, columns.num_groups, 1, 1))
    return LatentPosterior(below, columns, tuple(values), last, root, z)


def _inputs(model: DeepGP, x: Float[Array, "N D"]) -> list[Float[Array, "N _D"]]:
    """Inputs of every layer by the prior means of those below it."""
    inputs = [x]
    for layer in model.layers[:-1]:
        inputs.append(layer.mean(inputs[-1]))
    return inputs
