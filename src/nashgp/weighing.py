"""Draws of a posterior that was trained, weighed so that they stand for the true one.

    w_s = p(y, v_s) / W_s        W_s = 1/(J+1) Σ_j q(h_s | ε_j) N(ε_j) / r(ε_j | h_s)

ε_0 is the noise that made the draw and ε_1 .. ε_J are Player 1's guesses. That is how the bound of
an anchored posterior draws them, and from there `E 1/W = 1/q(v)`: the weights are right on average
for every J and every Player 1. Their mean is the evidence `p(y)`, and how uneven they are tells how
far the posterior was from the truth.
"""

import importlib
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from nashgp.batch import Batch, Data
from nashgp.errors import InputError
from nashgp.layers import Inducing
from nashgp.likelihoods import masked_sum
from nashgp.model import DeepGP
from nashgp.posteriors import AnchoredPosterior, Fitted
from nashgp.posteriors.anchored import log_mean_exp
from nashgp.posteriors.mixture import MixturePosterior, densities
from nashgp.precision import scoped
from nashgp.priors import Values
from nashgp.shapes import Key, Scalar

AT_ONCE = 100  # draws that are in memory together with all their guesses and rows

Game = AnchoredPosterior | MixturePosterior


class Weighed(NamedTuple):
    """Draws and the logarithms of their weights, which no one has normalised."""

    values: Values
    log_weight: Float[Array, " S"]

    @property
    def log_evidence(self) -> float:
        """`log p(y)`: the weights' mean; its expectation is never above the truth."""
        return float(log_mean_exp(self.log_weight))

    @property
    def effective(self) -> float:
        """How many draws of equal weight tell as much: `(Σ w)² / Σ w²`."""
        return float(1.0 / jnp.sum(jax.nn.softmax(self.log_weight) ** 2))

    def smoothed(self) -> tuple["Weighed", float]:
        """The same with the largest weights smoothed, and the shape k of their tail.

        Below 0.7 averages with the smoothed weights can be trusted. Vehtari et al., "Pareto
        smoothed importance sampling" (2024), by ArviZ.
        """
        try:
            arviz = importlib.import_module("arviz")
        except ImportError as error:
            raise InputError("smoothing needs ArviZ; run `pip install 'nashgp[arviz]'`.") from error
        smooth, shape = arviz.psislw(np.asarray(self.log_weight, np.float64))
        level = self.log_evidence + np.log(len(smooth))  # ArviZ lets them sum to one
        weight = jnp.asarray(np.asarray(smooth) + level, self.log_weight.dtype)
        return self._replace(log_weight=weight), float(shape)

    def resample(self, key: Key, num: int) -> Values:
        """`num` draws of equal weight, each there as often as its weight says, or once more."""
        ends = jnp.cumsum(jax.nn.softmax(self.log_weight))
        levels = (jnp.arange(num, dtype=ends.dtype) + jr.uniform(key, (), ends.dtype)) / num
        which = jnp.minimum(jnp.searchsorted(ends, levels), len(ends) - 1)
        return jax.tree.map(lambda value: value[which], self.values)


@scoped
def weigh(
    key: Key,
    fitted: Fitted,
    data: Data,
    num: int = 1_000,
    *,
    num_importance: int = 100,
    num_noise: int = 100,
) -> Weighed:
    """At least `num` draws of an anchored posterior, weighed by all rows.

    Hidden noise is averaged over `num_noise` draws for each row by itself, which makes weights more
    uneven and leaves them right on average; a `deterministic` model has none. The posterior must
    cover all layers; where the last is integrated out, it is exact given those below.
    """
    posterior = fitted.posterior
    if not isinstance(posterior, Game):
        kind = type(posterior).__name__
        raise InputError(
            f"draws of a {kind} cannot be weighed; an anchored game of all layers can."
        )
    return _weigh(key, fitted.model, posterior, data, num, num_importance, num_noise)


@eqx.filter_jit
def _weigh(
    key: Key,
    model: DeepGP,
    posterior: Game,
    data: Data,
    num: int,
    num_importance: int,
    num_noise: int,
) -> Weighed:
    parts, weight = _parts(posterior)
    batch, each = data.all(), max(1, AT_ONCE // len(weight))
    num_turns = -(-num // (each * len(weight)))

    def turn(key: Key) -> Weighed:
        draw, rest = jr.split(key)
        values, log_q = _drawn(draw, parts, weight, each, num_importance)

        def one(key: Key, values: Values) -> Scalar:
            return log_joint(key, model, values, batch, num_noise)

        return Weighed(values, jax.vmap(one)(jr.split(rest, len(log_q)), values) - log_q)

    turns = jax.lax.map(turn, jr.split(key, num_turns))  # all at once would fill the memory
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), turns)


def log_joint(key: Key, model: DeepGP, values: Values, batch: Batch, num_noise: int = 1) -> Scalar:
    """`Σ_n log E p(y_n | f_n, v) + log p(v)` of one draw, the mean over hidden noise of the row.

    All targets of a row share that noise.
    """
    num = 1 if model.deterministic or len(model.layers) == 1 else num_noise
    eps = model.noise(key, num, len(batch.x))
    inducing = tuple(Inducing(jnp.broadcast_to(v, (num, *v.shape))) for v in values)
    moments = model.propagate(batch.x, inducing, eps)
    likelihood = model.likelihood.at(batch.x)

    def rows(mean: Array, variance: Array) -> Float[Array, " N"]:
        terms = likelihood.log_predictive(mean, variance, batch.y)
        return jax.vmap(masked_sum)(terms[:, None], batch.weight[:, None])

    each = jax.vmap(rows, out_axes=1)(moments.mean, moments.variance)
    fit = batch.scale * jnp.sum(log_mean_exp(each))
    return fit + model.prior.log_density(model.layers, values)


def _drawn(
    key: Key,
    parts: AnchoredPosterior,
    weight: Float[Array, " C"],
    each: int,
    num_importance: int,
) -> tuple[Values, Float[Array, " S"]]:
    """Draws and `log W`; as many from each part, which counts as its weight says."""
    values, log_q = densities(key, parts, each, num_importance)
    mixed = jax.nn.logsumexp(log_q + jnp.log(weight)[None, None], axis=2)
    stands_for = jnp.log(weight * len(weight))  # of a draw of each part, one on average
    flat = jax.tree.map(lambda v: v.reshape(-1, *v.shape[2:]), values)
    return flat, (mixed - stands_for[:, None]).reshape(-1)


def _parts(posterior: Game) -> tuple[AnchoredPosterior, Float[Array, " C"]]:
    """The parts of a mixture and their weights; a game by itself is one of a single part."""
    if isinstance(posterior, MixturePosterior):
        return posterior.parts, posterior.weight
    parts = jax.tree.map(lambda leaf: leaf[None], posterior)
    return parts, jnp.ones(1, posterior.frame.means[0].dtype)
