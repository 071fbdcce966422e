"""From data and a few settings to a sensible start."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float
from sklearn.cluster import KMeans

from nashgp import kernels, means
from nashgp.errors import InputError
from nashgp.layers import SparseGPLayer
from nashgp.likelihoods import AbstractLikelihood, Gaussian
from nashgp.model import DeepGP
from nashgp.posteriors import Fitted, gaussian_posterior
from nashgp.precision import scope
from nashgp.transforms import cast

KERNELS: dict[str, Callable[..., kernels.AbstractStationary]] = {
    "rbf": kernels.RBF,
    "matern12": kernels.Matern12,
    "matern32": kernels.Matern32,
    "matern52": kernels.Matern52,
    "rational-quadratic": kernels.RationalQuadratic,
}

KMEANS_ROWS = 20_000  # more rows than this do not move the centres, they only cost time


@dataclasses.dataclass(frozen=True)
class Config:
    """The shape of a deep GP. Widths left at None are chosen from the data."""

    num_layers: int = 2
    hidden_dim: int | None = None
    num_inducing: int = 128
    kernel: str | Callable[[int], kernels.AbstractKernel] = "rbf"
    likelihood: AbstractLikelihood | None = None
    hidden_scale: float = 1e-5
    noise: float = 0.1

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_inducing", "hidden_dim"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, got {value}.")
        if isinstance(self.kernel, str) and self.kernel not in KERNELS:
            known = ", ".join(KERNELS)
            raise InputError(f"kernel must be one of {known}, or a function; got {self.kernel!r}.")


def inducing_inputs(
    x: Float[np.ndarray, "N D"], num: int, *, seed: int
) -> Float[np.ndarray, "M D"]:
    """Centres of k-means clusters, or the distinct rows when there are no more than `num`."""
    distinct = np.unique(x, axis=0)
    if len(distinct) <= num:
        return distinct
    random = np.random.default_rng(seed)
    rows = x if len(x) <= KMEANS_ROWS else x[random.choice(len(x), KMEANS_ROWS, replace=False)]
    num = min(num, len(np.unique(rows, axis=0)))
    found = KMeans(num, n_init="auto", max_iter=50, random_state=seed).fit(rows)
    return np.asarray(found.cluster_centers_)


def build(
    x: Float[np.ndarray, "N D"],
    num_targets: int,
    config: Config,
    *,
    seed: int = 0,
    dtype: DTypeLike = np.float64,
) -> Fitted:
    """A deep GP at its start, with the Gaussian posterior of DSVI.

    Inducing inputs are k-means centres, pushed up through the frozen skip connections;
    lengthscales start at `√D`, the typical distance of standardised rows.
    """
    likelihood = config.likelihood
    with scope(dtype):
        if likelihood is None:
            likelihood = Gaussian(jnp.full(num_targets, config.noise))
        width = config.hidden_dim or min(x.shape[1], 30)
        widths = [width] * (config.num_layers - 1) + [likelihood.num_latent(num_targets)]
        z = inducing_inputs(x, config.num_inducing, seed=seed)
        layers, h = [], x
        for number, num_outputs in enumerate(widths, start=1):
            last = number == config.num_layers
            mean = means.Zero(num_outputs) if last else means.skip(h, num_outputs)
            kernel = _kernel(config, h.shape[1])
            layers.append(SparseGPLayer(kernel, mean, jnp.asarray(z, dtype), num_outputs))
            h, z = (np.asarray(mean(jnp.asarray(rows, float))) for rows in (h, z))
        model = cast(DeepGP(tuple(layers), likelihood), dtype)
        return Fitted(model, gaussian_posterior(model, hidden_scale=config.hidden_scale))


def _kernel(config: Config, num_inputs: int) -> kernels.AbstractKernel:
    if callable(config.kernel):
        return config.kernel(num_inputs)
    return KERNELS[config.kernel](lengthscale=np.full(num_inputs, num_inputs**0.5))
