"""Priors over the inducing values of all layers, in whitened coordinates."""

import abc

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from nashgp.layers import SparseGPLayer
from nashgp.shapes import Key, Scalar

Layers = tuple[SparseGPLayer, ...]
Values = tuple[Float[Array, "... _M _P"], ...]
"""Whitened inducing values of every layer: one joint draw, or draws stacked along a first axis."""


class AbstractPrior(eqx.Module):
    """A distribution over the inducing values of all layers.

    The layers are passed so that a prior stated for `u` can use `layer.unwhiten`; a density stated
    for `u` then needs the Jacobian `P log |det C|` of each layer.
    """

    @abc.abstractmethod
    def sample(self, key: Key, layers: Layers) -> Values:
        """One joint draw of the whitened inducing values."""

    @abc.abstractmethod
    def log_density(self, layers: Layers, values: Values) -> Scalar:
        """The log density of one joint draw, in whitened coordinates."""


class GPPrior(AbstractPrior):
    """The Gaussian process itself: `v ~ N(0, I)`, independent over layers, inputs and outputs."""

    def sample(self, key: Key, layers: Layers) -> Values:
        keys = jr.split(key, len(layers))
        return tuple(
            jr.normal(k, (layer.num_inducing, layer.num_outputs), layer.z.dtype)
            for k, layer in zip(keys, layers, strict=True)
        )

    def log_density(self, layers: Layers, values: Values) -> Scalar:
        del layers  # whitening has taken the kernels out
        return sum(
            (-0.5 * jnp.sum(v**2 + jnp.log(2.0 * jnp.pi)) for v in values),
            start=jnp.zeros((), dtype=values[0].dtype),
        )
