"""A two-layer posterior that is its own mirror image, so each of its two halves has weight 1/2.

    f = f_2(f_1(x)),    both with zero means and symmetric inducing inputs

Turning the sign of `f_1` and mirroring `f_2` changes neither the prior nor what the model says of
the rows. A step is either climbed by a rising `f_1` or by a falling one. Conditionals are their
means and all hyperparameters known, so every engine has the same target.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from nashgp.batch import Data, make_data
from nashgp.layers import SparseGPLayer
from nashgp.likelihoods import Gaussian
from nashgp.means import Zero
from nashgp.model import DeepGP
from nashgp.posteriors import Fitted, gaussian_posterior
from nashgp.precision import cast, scope
from nashgp.priors import Values
from nashgp.recipes import KERNELS


def problem(dtype: str = "float32") -> tuple[Fitted, Data]:
    """Twenty rows of a smooth step, and the model."""
    x = np.linspace(-1.0, 1.0, 20)[:, None]
    y = np.tanh(4.0 * x) + 0.05 * np.random.default_rng(0).normal(size=x.shape)
    with scope(dtype):
        layers = tuple(
            SparseGPLayer(
                KERNELS["rbf"](1.0), Zero(1), jnp.linspace(-reach, reach, num)[:, None], 1
            )
            for reach, num in ((1.0, 5), (2.0, 6))
        )
        model = cast(DeepGP(layers, Gaussian(np.full(1, 0.05)), deterministic=True), dtype)
        return Fitted(model, gaussian_posterior(model)), make_data(x, y, dtype=dtype)


def rising(model: DeepGP, values: Values) -> Float[np.ndarray, " S"]:
    """How far `f_1` rises from one end to the other, for each draw."""
    u = np.asarray(jax.jit(jax.vmap(model.layers[0].unwhiten))(values[0]))[:, :, 0]
    return u[:, -1] - u[:, 0]


def flipped(model: DeepGP, draws: Float[np.ndarray, "S D"]) -> Float[np.ndarray, "S D"]:
    """The mirror images: `u_1` with its sign turned, `u_2` read backwards, both whitened."""
    first, second = model.layers
    turn = np.arange(first.num_inducing, draws.shape[1])
    factor = eqx.filter_jit(lambda layer: layer.factor())(second)
    backwards = np.asarray(factor.inverse) @ np.asarray(factor.chol)[::-1]
    images = -draws
    images[:, turn] = draws[:, turn] @ backwards.T
    return images


def folded(model: DeepGP, draws: Float[np.ndarray, "*S D"]) -> Float[np.ndarray, "*S D"]:
    """All draws in the half where `f_1` rises, turned where they were not."""
    flat = draws.reshape(-1, draws.shape[-1])
    first = flat[:, : model.layers[0].num_inducing, None]
    falls = rising(model, (jnp.asarray(first),)) < 0.0
    return np.where(falls[:, None], flipped(model, flat), flat).reshape(draws.shape)
