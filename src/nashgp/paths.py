"""Function draws: whole functions from the posterior that can be evaluated anywhere, again."""

import equinox as eqx
import jax.random as jr
from jaxtyping import Array, Float

from nashgp.layers import SparseGPLayer
from nashgp.model import DeepGP
from nashgp.posteriors import Fitted
from nashgp.priors import Values
from nashgp.shapes import Key

NUM_FEATURES = 1024


class LayerPath(eqx.Module):
    """One draw of one layer: a prior draw from random features, corrected at the inducing inputs.

        f(x) = m(x) + φ(x) w + A(x) (v - C⁻¹ φ(z) w),        w ~ N(0, I)

    Matheron's rule. Each draw has features of its own, and `E φ(x) · φ(x') = k(x, x')` exactly, so
    the covariance over draws is that of the GP for any number of features; more of them make the
    draws more Gaussian. `weight` is absent when conditionals are deterministic.
    """

    layer: SparseGPLayer
    key: Key
    weight: Float[Array, "F P"] | None
    correction: Float[Array, "M P"]

    def __call__(self, x: Float[Array, "N D"]) -> Float[Array, "N P"]:
        features = self.layer.features(x)
        values = features.mean + features.a @ self.correction
        if self.weight is None:
            return values
        return values + self.layer.kernel.features(self.key, x, len(self.weight)) @ self.weight


class FunctionDraws(eqx.Module):
    """S functions drawn jointly over layers: the same draw is the same function at every call."""

    paths: tuple[LayerPath, ...]

    def hidden(self, x: Float[Array, "N D"]) -> tuple[Float[Array, "S N _P"], ...]:
        """The output of every layer, the last included."""

        def one(paths: tuple[LayerPath, ...]) -> tuple[Array, ...]:
            outputs, h = [], x
            for path in paths:
                h = path(h)
                outputs.append(h)
            return tuple(outputs)

        return eqx.filter_vmap(one)(self.paths)

    def __call__(self, x: Float[Array, "N D"]) -> Float[Array, "S N P"]:
        """The latent functions at some inputs."""
        return self.hidden(x)[-1]


def draw_functions(
    key: Key, fitted: Fitted, num: int, *, num_features: int = NUM_FEATURES
) -> FunctionDraws:
    """Draw `num` functions from the posterior of a fitted model."""
    draw, rest = jr.split(key)
    values = fitted.posterior.sample(draw, fitted.model, num)

    def one(key: Key, values: Values) -> tuple[LayerPath, ...]:
        return _draw_layers(key, fitted.model, values, num_features)

    return FunctionDraws(eqx.filter_vmap(one)(jr.split(rest, num), values))


def _draw_layers(
    key: Key, model: DeepGP, values: Values, num_features: int
) -> tuple[LayerPath, ...]:
    keys = jr.split(key, len(model.layers))
    paths = []
    for k, layer, v in zip(keys, model.layers, values, strict=True):
        spectrum, normal = jr.split(k)
        if model.deterministic:
            paths.append(LayerPath(layer, spectrum, None, v))
            continue
        w = jr.normal(normal, (num_features, layer.num_outputs), v.dtype)
        prior_z = layer.kernel.features(spectrum, layer.z, num_features) @ w
        paths.append(LayerPath(layer, spectrum, w, v - layer.factor().inverse @ prior_z))
    return tuple(paths)


evaluate = eqx.filter_jit(lambda draws, x: draws(x))
"""Compiled evaluation of function draws."""

__all__ = ["FunctionDraws", "LayerPath", "draw_functions", "evaluate"]
