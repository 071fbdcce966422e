"""The paper's "diamond": seven rows and a prior of five modes, with its posterior in closed form.

The appendix leaves the rows open; its constants fix them (σ_C² and every δ_i come out right):

    x = (-1, 0, 0, 0, 0, 0, 1)    y = (0, -8, -4, 0, 4, 8, 0)

    f = μ_i exp(-8 x²) + d,   i uniform,   d ~ N(0, σ_A²),   y ~ N(f, σ_B²)

One inducing input at zero: `u = f(0) = μ_i + d`. The rows are one row of seven targets here, since
given `u` alone the component is random, which couples them.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from nashgp.batch import Data, make_data
from nashgp.kernels import Constant
from nashgp.layers import SparseGPLayer
from nashgp.likelihoods import AbstractLikelihood
from nashgp.means import Zero
from nashgp.model import DeepGP
from nashgp.posteriors import Fitted, gaussian_posterior
from nashgp.priors import AbstractPrior, Layers, Values
from nashgp.shapes import Key, Number, Scalar

X = np.array([-1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
Y = np.array([0.0, -8.0, -4.0, 0.0, 4.0, 8.0, 0.0])
CENTRES = np.array([-8.0, -4.0, 0.0, 4.0, 8.0])
PRIOR_VARIANCE = 1.0 / (4.0 - np.exp(-8.0))
NOISE_VARIANCE = 7.0 * np.exp(8.0)
PRINTED_WEIGHTS = np.array([0.1988, 0.2004, 0.2016, 0.2004, 0.1988])  # the paper's


class FiveModes(AbstractPrior):
    """`p(u) = 1/5 Σ_i N(u | μ_i, σ_A²)`, in whitened coordinates `v = u / σ_A`."""

    def _centres(self, layers: Layers) -> Float[Array, " C"]:
        return jnp.asarray(CENTRES, layers[0].z.dtype) / PRIOR_VARIANCE**0.5

    def sample(self, key: Key, layers: Layers) -> Values:
        which, noise = jr.split(key)
        centre = jr.choice(which, self._centres(layers))
        return (centre + jr.normal(noise, (1, 1), layers[0].z.dtype),)

    def log_density(self, layers: Layers, values: Values) -> Scalar:
        parts = -0.5 * (values[0][0, 0] - self._centres(layers)) ** 2
        return jax.nn.logsumexp(parts) - jnp.log(5.0 * (2.0 * jnp.pi) ** 0.5)


class SevenRows(AbstractLikelihood):
    """`p(y | u) = Σ_i p(i | u) Π_n N(y_n | u - μ_i (1 - exp(-8 x_n²)), σ_B²)`, one row of targets.

    It does not factorise over the targets; each column is given an equal share of its logarithm.
    """

    @property
    def is_discrete(self) -> bool:
        return False

    def num_latent(self, num_targets: int) -> int:
        return 1

    def log_prob(self, f: Float[Array, "N P"], y: Float[Array, "N Q"]) -> Float[Array, "N Q"]:
        centres = jnp.asarray(CENTRES, f.dtype)
        gap = 1.0 - jnp.exp(-8.0 * jnp.asarray(X, f.dtype) ** 2)
        shift = centres[:, None] * gap[None]
        log_which = jax.nn.log_softmax(-0.5 * (f - centres[None]) ** 2 / PRIOR_VARIANCE, axis=1)
        error = y[:, None] - (f[:, :, None] - shift[None])
        log_rows = jnp.sum(-0.5 * error**2 / NOISE_VARIANCE, axis=2)
        log_rows -= 0.5 * y.shape[1] * jnp.log(2.0 * jnp.pi * NOISE_VARIANCE)
        total = jax.nn.logsumexp(log_which + log_rows, axis=1)
        return jnp.broadcast_to(total[:, None] / y.shape[1], y.shape)

    def power_term(
        self,
        mean: Float[Array, "N P"],
        var: Float[Array, "N P"],
        y: Float[Array, "N Q"],
        power: Number,
    ) -> Float[Array, "N Q"]:
        del var, power  # x = z = 0: f is u
        return self.log_prob(mean, y)

    def moments(
        self, mean: Float[Array, "N P"], var: Float[Array, "N P"]
    ) -> tuple[Float[Array, "N R"], Float[Array, "N R"]]:
        return mean, var + NOISE_VARIANCE

    def cdf(
        self, mean: Float[Array, "N P"], var: Float[Array, "N P"], y: Float[Array, "N Q"]
    ) -> Float[Array, "N Q"]:
        return jax.scipy.stats.norm.cdf(y, mean, (var + NOISE_VARIANCE) ** 0.5)

    def sample(self, key: Key, f: Float[Array, "N P"]) -> Float[Array, "N Q"]:
        return f + NOISE_VARIANCE**0.5 * jr.normal(key, (len(f), len(X)), f.dtype)


def problem(dtype: str = "float32") -> tuple[Fitted, Data]:
    """The model with its inducing input at zero, and the rows; hyperparameters are known."""
    kernel = Constant(PRIOR_VARIANCE)
    layer = SparseGPLayer(kernel, Zero(1), jnp.zeros((1, 1), dtype), 1)
    model = DeepGP((layer,), SevenRows(), FiveModes())
    model = jax.tree.map(lambda a: a.astype(dtype) if eqx.is_inexact_array(a) else a, model)
    data = make_data(np.zeros((1, 1)), Y[None], dtype=dtype)
    return Fitted(model, gaussian_posterior(model)), data


class Truth:
    """`p(u | y) = Σ_i w_i N(u | μ_i + δ_i, σ_C²)`: Bayes' rule for each component."""

    def __init__(self) -> None:
        shape = np.exp(-8.0 * X**2)
        self.variance = 1.0 / (1.0 / PRIOR_VARIANCE + len(X) / NOISE_VARIANCE)
        rest = Y[None] - CENTRES[:, None] * shape
        self.shift = self.variance * np.sum(rest, axis=1) / NOISE_VARIANCE
        fit = np.sum(rest**2, axis=1) / NOISE_VARIANCE - self.shift**2 / self.variance
        weight = np.exp(-0.5 * (fit - np.min(fit)))
        self.weights = weight / np.sum(weight)

    def density(self, u: Float[np.ndarray, " G"]) -> Float[np.ndarray, " G"]:
        apart = u[:, None] - (CENTRES + self.shift)
        parts = np.exp(-0.5 * apart**2 / self.variance) / np.sqrt(2.0 * np.pi * self.variance)
        return parts @ self.weights
