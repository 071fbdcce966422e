"""The deep GP: layers composed, a likelihood at the end, a prior over inducing values."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from nashgp.layers import Inducing, Moments, SparseGPLayer, is_stacked
from nashgp.likelihoods import AbstractLikelihood
from nashgp.linalg import safe_sqrt
from nashgp.priors import AbstractPrior, GPPrior
from nashgp.shapes import Key

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

    def noise(self, key: Key, num_draws: int, num_rows: int) -> Noise:
        """Fresh hidden noise; `num_rows = 1` shares each draw's noise over all rows.

        Training needs noise of its own for every row. A marginal prediction may share it: each
        row's law is the same, and no row's answer depends on its neighbours.
        """
        hidden = self.layers[:-1]
        keys = jr.split(key, len(self.layers))[: len(hidden)]
        return tuple(
            jr.normal(k, (num_draws, num_rows, layer.num_outputs), layer.z.dtype)
            for k, layer in zip(keys, hidden, strict=True)
        )

    def propagate(
        self, x: Float[Array, "N D"], inducing: tuple[Inducing, ...], noise: Noise
    ) -> Moments:
        """Marginal law of the last layer's output for every draw.

            f_l = E(f_l | f_{l-1}) + √Var(f_l | f_{l-1}) ε_l,        ε_l from `noise`

        `inducing` holds draws stacked along a leading axis S, or Gaussians without it. The first
        layer's features do not depend on the draw, so they are computed once.
        """
        first = self.layers[0]
        features = first.features(x)
        if is_stacked(inducing[0]):
            moments = jax.vmap(lambda values: first.moments(features, values))(inducing[0])
        else:
            moments = jax.tree.map(lambda leaf: leaf[None], first.moments(features, inducing[0]))
        for layer, values, eps in zip(self.layers[1:], inducing[1:], noise, strict=True):
            moments = self._next(layer, self._settle(moments), values, eps)
        return self._settle(moments)

    def _next(
        self, layer: SparseGPLayer, below: Moments, values: Inducing, eps: Float[Array, "S R P"]
    ) -> Moments:
        """Draw the output of the layer below, and take it through `layer`.

        The rows of all draws go through as one long batch: one large matmul is several times
        faster than many small ones.
        """
        hidden = below.mean + safe_sqrt(below.variance) * eps

        def by_draw(leaf: Float[Array, "SN ..."]) -> Float[Array, "S N ..."]:
            return leaf.reshape(*hidden.shape[:2], *leaf.shape[1:])

        features = layer.features(hidden.reshape(-1, hidden.shape[2]))
        if is_stacked(values):
            return jax.vmap(layer.moments)(jax.tree.map(by_draw, features), values)
        return jax.tree.map(by_draw, layer.moments(features, values))

    def _settle(self, moments: Moments) -> Moments:
        """Drop the conditional variance when conditionals are deterministic."""
        if not self.deterministic:
            return moments
        return moments._replace(conditional=jnp.zeros_like(moments.conditional))
