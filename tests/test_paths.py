"""Function draws: real functions with the right joint law."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nashgp import means, paths
from nashgp.layers import SparseGPLayer
from nashgp.likelihoods import Gaussian
from nashgp.model import DeepGP
from nashgp.posteriors import Fitted, gaussian_posterior
from tests.cases import KERNELS, disturb, rows, tiny_fitted


@pytest.mark.parametrize("name", ["rbf", "matern12", "rational-quadratic", "periodic", "nested"])
def test_joint_covariance_over_inputs(name, x64):
    """`K - A Aᵀ + A S Aᵀ` and the mean, from 8,000 draws; 5 standard errors."""
    layer = SparseGPLayer(KERNELS[name](2), means.Zero(1), jnp.asarray(rows(4, 2, seed=2)), 1)
    model = DeepGP((layer,), Gaussian([0.1]))
    fitted = disturb(Fitted(model, gaussian_posterior(model, last_scale=0.4)))
    x = jnp.asarray(rows(5, 2, seed=3))

    draws = eqx.filter_jit(
        lambda key: paths.draw_functions(key, fitted, 8_000, num_features=32)(x)[:, :, 0]
    )(jr.key(0))
    draws = np.asarray(draws)
    a = np.asarray(layer.features(x).a)
    root = np.tril(np.asarray(fitted.posterior.roots[0][0]))
    expected = np.asarray(layer.kernel.gram(x)) - a @ a.T + a @ root @ root.T @ a.T
    mean = a @ np.asarray(fitted.posterior.means[0])[:, 0]

    centred = draws - mean
    assert np.all(np.abs(centred.mean(axis=0)) < 5 * centred.std(axis=0) / 8_000**0.5)
    products = centred[:, :, None] * centred[:, None, :]
    error = products.std(axis=0) / 8_000**0.5
    assert np.all(np.abs(products.mean(axis=0) - expected) < 5 * error + 1e-9)


def test_the_same_draw_is_the_same_function(x64):
    """Any order, any company, any number of calls."""
    draws = paths.draw_functions(jr.key(0), tiny_fitted(num_layers=3), 4)
    x = jnp.asarray(rows(6, 2, seed=3))
    together = np.asarray(paths.evaluate(draws, x))
    backwards = paths.evaluate(draws, x[::-1])[:, ::-1]
    np.testing.assert_allclose(backwards, together, atol=1e-12)
    np.testing.assert_allclose(paths.evaluate(draws, x[2:3])[:, 0], together[:, 2], atol=1e-12)
    assert np.std(together, axis=0).min() > 1e-3  # four different functions


def test_draws_are_continuous_functions_of_their_input(x64):
    draws = paths.draw_functions(jr.key(0), tiny_fitted(num_layers=2), 3)
    x = jnp.asarray(rows(1, 2))
    near = np.asarray(paths.evaluate(draws, jnp.concatenate([x, x + 1e-7])))
    assert np.max(np.abs(near[:, 0] - near[:, 1])) < 1e-4


def test_two_layer_draws_have_the_marginals_of_propagate(x64):
    fitted = tiny_fitted(num_layers=2)
    x = jnp.asarray(rows(2, 2, seed=3))
    values = eqx.filter_jit(
        lambda key: paths.draw_functions(key, fitted, 10_000, num_features=128)(x)
    )(jr.key(0))
    noise = fitted.model.noise(jr.key(1), 20_000, 1)
    moments = eqx.filter_jit(fitted.model.propagate)(x, fitted.posterior.gaussians(), noise)
    mean = np.asarray(moments.mean).mean(axis=0)
    variance = np.asarray(moments.variance).mean(axis=0) + np.asarray(moments.mean).var(axis=0)
    sd = variance**0.5
    assert np.all(np.abs(np.asarray(values).mean(axis=0) - mean) < 0.06 * sd)  # 5 errors of 1 %
    np.testing.assert_allclose(np.asarray(values).var(axis=0), variance, rtol=0.1)


def test_hidden_functions_compose_and_deterministic_models_have_no_residual(x64):
    fitted = tiny_fitted(num_layers=2)
    draws = paths.draw_functions(jr.key(0), fitted, 2)
    x = jnp.asarray(rows(3, 2))
    hidden, last = draws.hidden(x)
    assert hidden.shape == (2, 3, 2) and last.shape == (2, 3, 2)
    np.testing.assert_array_equal(last, draws(x))

    model = DeepGP(fitted.model.layers, fitted.model.likelihood, deterministic=True)
    frozen = paths.draw_functions(jr.key(0), Fitted(model, fitted.posterior), 2)
    values = fitted.posterior.sample(jr.split(jr.key(0))[0], model, 2)
    first = model.layers[0]
    expected = first.mean(x) + first.features(x).a @ values[0][1]
    np.testing.assert_allclose(frozen.hidden(x)[0][1], expected, atol=1e-12)
