"""Posteriors against the truth: closed forms, and grids where there is none."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nashgp import diagnostics, kernels, means, recipes, train
from nashgp.batch import make_data
from nashgp.engines import DSVI
from nashgp.layers import SparseGPLayer
from nashgp.likelihoods import Bernoulli, Gaussian
from nashgp.model import DeepGP
from nashgp.posteriors import Fitted, gaussian_posterior

pytestmark = pytest.mark.usefixtures("x64")

NOISE = 0.1
NUM_STEPS = 4_000
ENGINE = DSVI(
    0.05, 16, draw_inducing=True, decay_steps=NUM_STEPS, network_rate=0.003, model_rate=0.0
)


def one_layer(likelihood, num_inducing: int) -> DeepGP:
    z = jnp.linspace(-1.0, 1.0, num_inducing)[:, None]
    layer = SparseGPLayer(kernels.RBF(0.8), means.Zero(1), z, 1)
    return DeepGP((layer,), likelihood)


def fit(model: DeepGP, data, *, anchored: bool, **settings) -> np.ndarray:
    """Draws of v after training with known hyperparameters."""
    start = Fitted(model, gaussian_posterior(model))
    if anchored:
        start = recipes.anchor(start, whole=True, noise_dim=2, width=16, **settings)
    after = train.run(jr.key(0), ENGINE, start, data, num_steps=NUM_STEPS, chunk=1_000).fitted
    same = jax.tree.map(np.array_equal, after.model, model)
    assert all(jax.tree.leaves(same))  # a known model stays what it is
    return diagnostics.flat(after.posterior.sample(jr.key(1), model, 20_000))


def test_the_anchored_game_finds_a_gaussian_posterior_from_far_away():
    """One layer, Gaussian noise: `v | y ~ N(S Aᵀ y / σ², S)`, `S⁻¹ = I + Aᵀ A / σ²`."""
    random = np.random.default_rng(0)
    x = random.uniform(-1.0, 1.0, (30, 1))
    y = np.sin(3.0 * x) + NOISE**0.5 * random.normal(size=x.shape)
    model = one_layer(Gaussian(np.full(1, NOISE)), 3)
    draws = fit(model, make_data(x, y), anchored=True, first_mix=1.0)
    a = np.asarray(model.layers[0].features(jnp.asarray(x)).a)
    covariance = np.linalg.inv(np.eye(3) + a.T @ a / NOISE)
    mean = covariance @ a.T @ y[:, 0] / NOISE
    apart = np.linalg.norm(np.cov(draws.T) - covariance) / np.linalg.norm(covariance)
    np.testing.assert_allclose(np.mean(draws, axis=0), mean, atol=0.02)
    assert apart < 0.05


def grid_draws(model: DeepGP, data, num: int) -> np.ndarray:
    """Draws from `p(v | y)` of two inducing values, by its values on a fine grid.

    The expected log likelihood is over `f` given `v`, as in the objective at power 0.
    """
    side = jnp.linspace(-4.5, 4.5, 181)
    v = jnp.stack(jnp.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    features = model.layers[0].features(data.x)

    def log_density(v):
        mean = features.mean + features.a @ v[:, None]
        terms = model.likelihood.data_term(
            jr.key(0), mean, features.residual[:, None], None, data.y, 0.0
        )
        return jnp.sum(terms) - 0.5 * jnp.sum(v**2)

    log_p = np.asarray(jax.lax.map(log_density, v, batch_size=1_000))
    random = np.random.default_rng(1)
    p = np.exp(log_p - np.max(log_p))
    places = random.choice(len(p), num, p=p / np.sum(p))
    width = float(side[1] - side[0])
    return np.asarray(v)[places] + width * random.uniform(-0.5, 0.5, (num, 2))


@pytest.mark.slow
def test_a_posterior_that_is_not_gaussian():
    """At most half as far from the truth as the Gaussian, by the sliced Wasserstein distance.

    Twelve rows, all of one kind: a steep edge on one side and a long tail on the other.
    """
    x, y = np.linspace(-1.0, 1.0, 12)[:, None], np.ones((12, 1))
    model, data = one_layer(Bernoulli(), 2), make_data(x, y)
    truth = grid_draws(model, data, 20_000)

    def distance(draws):
        measures = {"sliced": diagnostics.sliced_wasserstein}
        return diagnostics.compare(draws, truth, distances=measures)["sliced"]

    gaussian = distance(fit(model, data, anchored=False))
    anchored = distance(fit(model, data, anchored=True, first_mix=0.5))
    assert gaussian.excess > 10.0 * gaussian.error
    assert anchored.excess < 0.5 * gaussian.excess
