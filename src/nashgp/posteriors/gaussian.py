"""The mean-field Gaussian posterior of DSVI: one full-covariance Gaussian per layer and output."""

import sys

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from nashgp.layers import Inducing
from nashgp.linalg import gaussian_kl
from nashgp.model import DeepGP
from nashgp.noise import normal
from nashgp.posteriors.base import AbstractVariational
from nashgp.priors import GPPrior, Values
from nashgp.shapes import Key, Scalar

Mean = Float[Array, "M P"]
Root = Float[Array, "R M M"]  # R is P, or 1 where all outputs share one


class GaussianPosterior(AbstractVariational):
    """`q(v) = Π_l Π_p N(v_lp | μ_lp, R_lp R_lpᵀ)`, with R lower triangular.

    A layer may have a single R for all its outputs: they have one kernel and one set of inducing
    inputs, and `P M²` numbers are too many in a wide layer.
    """

    means: tuple[Float[Array, "_M _P"], ...]
    roots: tuple[Float[Array, "_R _M _M"], ...]

    def gaussians(self) -> tuple[Inducing, ...]:
        return tuple(map(Inducing, *self.parts()))

    def sample_and_kl(self, key: Key, model: DeepGP, num: int) -> tuple[Values, Scalar]:
        """Draws `μ + R ε`; the KL is exact against the GP prior, else unbiased from the draws."""
        keys = jr.split(key, len(self.means))
        values = tuple(_draw(k, m, r, num) for k, m, r in zip(keys, *self.parts(), strict=True))
        return values, self.kl(model, values)

    def inducing(self, key: Key, model: DeepGP, num: int) -> tuple[Inducing, ...]:
        """Gaussians in the first and the last layer, draws in those between.

        Layers are independent, so a row's law is the same either way. The first layer is computed
        once for all draws and a last layer has few outputs; one between them would cost `P M²` for
        each row and draw when integrated out, and `M² + P M` when drawn.
        """
        gaussians, drawn = self.gaussians(), self.sample(key, model, num)
        between = range(1, len(gaussians) - 1)
        return tuple(Inducing(drawn[l]) if l in between else g for l, g in enumerate(gaussians))

    def kl(self, model: DeepGP, values: Values) -> Scalar:
        """`KL(q ‖ p)`, exact for the GP prior, else the mean of `log q - log p` over draws."""
        if type(model.prior) is GPPrior:
            zero = jnp.zeros((), dtype=model.layers[0].z.dtype)
            return sum(map(gaussian_kl, *self.parts()), start=zero)
        log_p = jax.vmap(lambda v: model.prior.log_density(model.layers, v))(values)
        return jnp.mean(jax.vmap(self.log_density)(values) - log_p)

    def log_density(self, values: Values) -> Scalar:
        """`log q(v)` of one joint draw."""
        return jnp.sum(jnp.stack(list(map(_log_density, values, *self.parts()))))

    def unshared(self, most: int = sys.maxsize) -> "GaussianPosterior":
        """The same with a root for each output, in layers where these have `most` numbers."""

        def copied(mean: Mean, root: Root) -> Float[Array, "_R M M"]:
            m, p = mean.shape
            return jnp.broadcast_to(root, (p, m, m)) if p * m**2 <= most else root

        return GaussianPosterior(self.means, tuple(map(copied, self.means, self.roots)))

    def parts(self) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Means and lower triangular roots of all layers."""
        return self.means, tuple(map(jnp.tril, self.roots))


def _draw(key: Key, mean: Mean, root: Root, num: int) -> Float[Array, "S M P"]:
    return mean[None] + times(root, normal(key, (num, *mean.shape), mean.dtype))


def times(root: Root, eps: Float[Array, "S M P"]) -> Float[Array, "S M P"]:
    """`R_p ε_p` of every output."""
    if len(root) < eps.shape[2]:
        return jnp.einsum("mk,skp->smp", root[0], eps)
    return jnp.einsum("pmk,skp->smp", root, eps)


def _log_density(value: Mean, mean: Mean, root: Root) -> Scalar:
    root = jnp.broadcast_to(root, (mean.shape[1], *root.shape[1:]))
    white = jax.vmap(lambda r, d: solve_triangular(r, d, lower=True))(root, (value - mean).T)
    log_det = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(root, axis1=1, axis2=2))))
    return -0.5 * jnp.sum(white**2 + jnp.log(2.0 * jnp.pi)) - log_det


def gaussian_posterior(
    model: DeepGP,
    *,
    hidden_scale: float = 1e-5,
    last_scale: float = 1.0,
    shared: bool = False,
    last_shared: bool = False,
) -> GaussianPosterior:
    """Start at mean zero with `R = scale · I`: hidden layers nearly deterministic, as published.

    With `shared`, the outputs of a hidden layer have one `R`, with `last_shared` those of the last.
    """
    scales = [hidden_scale] * (len(model.layers) - 1) + [last_scale]
    means, roots = [], []
    for number, (layer, scale) in enumerate(zip(model.layers, scales, strict=True), start=1):
        m, p, dtype = layer.num_inducing, layer.num_outputs, layer.z.dtype
        means.append(jnp.zeros((m, p), dtype))
        copies = 1 if (shared if number < len(model.layers) else last_shared) else p
        roots.append(jnp.tile(scale * jnp.eye(m, dtype=dtype)[None], (copies, 1, 1)))
    return GaussianPosterior(tuple(means), tuple(roots))
