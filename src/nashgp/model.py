"""The deep GP: layers composed, a likelihood at the end, a prior over inducing values."""

from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from nashgp.layers import Features, Inducing, Moments, SparseGPLayer, is_stacked
from nashgp.likelihoods import AbstractLikelihood
from nashgp.linalg import safe_sqrt
from nashgp.noise import normal
from nashgp.priors import AbstractPrior, GPPrior
from nashgp.shapes import Key, Scalar

T = TypeVar("T")

Noise = tuple[Float[Array, "S R _P"], ...]
"""Standard normal noise of the hidden layers, one array per hidden layer; R is N or 1."""


class DeepGP(eqx.Module):
    """`p(y | f_L) Π_l p(f_l | u_l, f_{l-1}) p(u)`, with `f_0 = x`.

    With `deterministic` set, every conditional `p(f_l | u_l, f_{l-1})` is replaced by its mean.
    Then `p(u | y)` is one density with a gradient, the same for every engine, which is what a
    comparison of posteriors needs.
    """

    layers: tuple[SparseGPLayer, ...]
    likelihood: AbstractLikelihood
    prior: AbstractPrior = GPPrior()
    deterministic: bool = eqx.field(static=True, default=False)

    def log_prior(self) -> Scalar:
        """Log density, up to a constant, of what means and likelihood have found of the inputs."""
        total = jnp.zeros((), self.layers[0].z.dtype) + self.likelihood.log_prior()
        for layer in self.layers:
            total += layer.mean.log_prior()
        return total

    def noise(self, key: Key, num_draws: int, num_rows: int) -> Noise:
        """Fresh hidden noise; `num_rows = 1` shares each draw's noise over all rows.

        Training needs noise of its own for every row. A marginal prediction may share it: each
        row's law is the same, and no row's answer depends on its neighbours.
        """
        hidden = self.layers[:-1]
        keys = jr.split(key, len(self.layers))[: len(hidden)]
        return tuple(
            normal(k, (num_draws, num_rows, layer.num_outputs), layer.z.dtype)
            for k, layer in zip(keys, hidden, strict=True)
        )

    def propagate(
        self, x: Float[Array, "N D"], inducing: tuple[Inducing, ...], noise: Noise
    ) -> Moments:
        """Marginal law of the last layer's output for every draw.

        `inducing` holds draws stacked along a leading axis S, or Gaussians without it.
        """
        features = self.last_features(x, inducing[:-1], noise)
        return self.moments(len(self.layers) - 1, features, inducing[-1])

    def last_features(
        self, x: Float[Array, "N D"], inducing: tuple[Inducing, ...], noise: Noise
    ) -> Features:
        """Features of the last layer, from the inducing values of the layers below it.

            f_l = E(f_l | f_{l-1}) + √Var(f_l | f_{l-1}) ε_l,        ε_l from `noise`

        Stacked over draws. The first layer's do not depend on the draw: they are computed once,
        and stay one entry in a model of one layer.
        """
        features = jax.tree.map(lambda leaf: leaf[None], self._features(self.layers[0], x))
        for below, (values, eps) in enumerate(zip(inducing, noise, strict=True)):
            moments = self.moments(below, features, values)
            hidden = moments.mean + safe_sqrt(moments.variance) * eps
            # All rows of all draws as one long batch: faster than many small matmuls.
            flat = self._features(self.layers[below + 1], hidden.reshape(-1, hidden.shape[2]))
            features = _by_draw(flat, hidden.shape[0])
        return features

    def moments(self, number: int, features: Features, values: Inducing) -> Moments:
        """Marginals of one layer for every draw, given its stacked features."""
        layer, num = self.layers[number], len(features.a)
        if not is_stacked(values):
            flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), features)
            return _by_draw(layer.moments(flat, values), num)
        if num == 1:
            one = jax.tree.map(lambda leaf: leaf[0], features)
            return jax.vmap(lambda v: layer.moments(one, v))(values)
        return jax.vmap(layer.moments)(features, values)

    def _features(self, layer: SparseGPLayer, x: Float[Array, "N D"]) -> Features:
        """Features of some rows, without conditional variance when conditionals are means."""
        features = layer.features(x)
        if not self.deterministic:
            return features
        return features._replace(residual=jnp.zeros_like(features.residual))


def _by_draw(tree: T, num_draws: int) -> T:
    """Split the rows of one long batch by draw."""
    return jax.tree.map(lambda leaf: leaf.reshape(num_draws, -1, *leaf.shape[1:]), tree)
