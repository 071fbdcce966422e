"""Function draws: whole functions from the posterior that can be evaluated anywhere, again."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from nashgp.layers import Features, SparseGPLayer
from nashgp.posteriors import Fitted
from nashgp.shapes import Key

NUM_FEATURES = 1024


class LayerDraw(eqx.Module):
    """What one draw of one layer needs beside the layer; stacked along S for many draws.

    `weight` is absent when conditionals are deterministic.
    """

    key: Key
    weight: Float[Array, "*S F P"] | None
    correction: Float[Array, "*S M P"]


def _evaluate_layer(
    layer: SparseGPLayer, draws: LayerDraw, x: Float[Array, "S N D"]
) -> Float[Array, "S N P"]:
    """Draws of one layer: prior draws from random features, corrected at the inducing inputs.

        f(x) = m(x) + φ(x) w + A(x) (v - C⁻¹ φ(z) w),        w ~ N(0, I)

    Matheron's rule. Each draw has features of its own, and `E φ(x) · φ(x') = k(x, x')` exactly, so
    the covariance over draws is that of the GP for any number of features; more of them make the
    draws more Gaussian.
    """

    def one(draw: LayerDraw, known: Features, x: Float[Array, "N D"]) -> Float[Array, "N P"]:
        values = known.mean + known.a @ draw.correction
        if draw.weight is None:
            return values
        return values + layer.kernel.features(draw.key, x, len(draw.weight)) @ draw.weight

    flat = layer.features(x.reshape(-1, x.shape[2]))  # of all draws at once: one factor, one matmul
    known = jax.tree.map(lambda leaf: leaf.reshape(*x.shape[:2], *leaf.shape[1:]), flat)
    return eqx.filter_vmap(one)(draws, known, x)


class FunctionDraws(eqx.Module):
    """S functions drawn jointly over layers: the same draw is the same function at every call."""

    layers: tuple[SparseGPLayer, ...]
    draws: tuple[LayerDraw, ...]

    def __len__(self) -> int:
        return self.draws[0].correction.shape[0]

    def hidden(self, x: Float[Array, "N D"]) -> tuple[Float[Array, "S N _P"], ...]:
        """The output of every layer, the last included."""
        outputs, h = [], jnp.broadcast_to(x, (len(self), *x.shape))
        for layer, draw in zip(self.layers, self.draws, strict=True):
            h = _evaluate_layer(layer, draw, h)
            outputs.append(h)
        return tuple(outputs)

    def __call__(self, x: Float[Array, "N D"]) -> Float[Array, "S N P"]:
        """The latent functions at some inputs."""
        return self.hidden(x)[-1]


def draw_functions(
    key: Key, fitted: Fitted, num: int, *, num_features: int = NUM_FEATURES
) -> FunctionDraws:
    """Draw `num` functions from the posterior of a fitted model."""
    draw, rest = jr.split(key)
    values = fitted.posterior.sample(draw, fitted.model, num)

    keys = jr.split(rest, len(fitted.model.layers))
    layers = zip(keys, fitted.model.layers, values, strict=True)
    deterministic = fitted.model.deterministic
    draws = tuple(
        _draw_layer(k, layer, v, deterministic or layer.low_rank, num_features)
        for k, layer, v in layers
    )
    return FunctionDraws(fitted.model.layers, draws)


def _draw_layer(
    key: Key,
    layer: SparseGPLayer,
    values: Float[Array, "S M P"],
    deterministic: bool,
    num_features: int,
) -> LayerDraw:
    """The draws of one layer, each with random features of its own."""
    inverse = layer.factor().inverse

    def one(key: Key, v: Float[Array, "M P"]) -> LayerDraw:
        spectrum, normal = jr.split(key)
        if deterministic:
            return LayerDraw(spectrum, None, v)
        w = jr.normal(normal, (num_features, layer.num_outputs), v.dtype)
        prior_z = layer.kernel.features(spectrum, layer.z, num_features) @ w
        return LayerDraw(spectrum, w, v - inverse @ prior_z)

    return eqx.filter_vmap(one)(jr.split(key, len(values)), values)


evaluate = eqx.filter_jit(lambda draws, x: draws(x))
"""Compiled evaluation of function draws."""

__all__ = ["FunctionDraws", "LayerDraw", "draw_functions", "evaluate"]
