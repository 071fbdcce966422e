"""The core against exact answers, in double precision.

References are dense NumPy written from the textbook formulas, with no call into the package.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nashgp import kernels, means, paths, predict, recipes
from nashgp.batch import make_data
from nashgp.engines import objective
from nashgp.layers import Inducing, SparseGPLayer
from nashgp.likelihoods import Gaussian
from nashgp.model import DeepGP
from nashgp.posteriors import Fitted, GaussianPosterior
from nashgp.transforms import Frozen
from tests.cases import ENGINES, LIKELIHOODS, PAIRS, rows, tiny_data, tiny_fitted
from tests.numeric import directional_error, log_normal

NOISE, VARIANCE, LENGTHS = 0.05, 1.4, np.array([0.9, 1.3])


def rbf(x, z):
    square = np.sum(((x[:, None] - z[None]) / LENGTHS) ** 2, axis=2)
    return VARIANCE * np.exp(-0.5 * square)


def problem(num=25):
    x = rows(num, 2, seed=7)
    y = np.sin(2.0 * x[:, 0]) + 0.3 * x[:, 1] + 0.2 * rows(num, 1, seed=8)[:, 0]
    return x, y


def one_layer(z, q_mean, q_cov):
    """A one-layer model whose posterior over *unwhitened* values is N(q_mean, q_cov)."""
    kernel = kernels.RBF(LENGTHS, VARIANCE)
    layer = SparseGPLayer(kernel, means.Zero(1), jnp.asarray(z), 1, jitter=1e-12)
    model = DeepGP((layer,), Gaussian([NOISE]))
    inverse = np.asarray(layer.factor().inverse)
    mean = inverse @ q_mean[:, None]
    root = np.linalg.cholesky(inverse @ q_cov @ inverse.T)
    return Fitted(model, GaussianPosterior((jnp.asarray(mean),), (jnp.asarray(root)[None],)))


def sparse_optimum(x, y, z):
    """Titsias' optimal q(u) = N(K Σ K_zx y / s², K Σ K), Σ = (K + K_zx K_xz / s²)⁻¹."""
    k, kzx = rbf(z, z), rbf(z, x)
    sigma = np.linalg.inv(k + kzx @ kzx.T / NOISE)
    return k @ sigma @ kzx @ y / NOISE, k @ sigma @ k


def value(fitted, x, y, power=0.0, **options):
    data = make_data(x, y[:, None])
    return float(objective(jr.key(0), fitted, data.all(), num_samples=1, power=power, **options))


def test_inducing_inputs_on_the_data_give_exact_gp_regression(x64):
    """Evidence and predictions of the exact GP to 1e-5, at every power."""
    x, y = problem()
    full = rbf(x, x) + NOISE * np.eye(len(x))
    fitted = one_layer(x, *sparse_optimum(x, y, x))
    for power in (0.0, 0.5, 1.0):
        assert abs(value(fitted, x, y, power) - log_normal(y, full)) < 1e-5

    new = rows(9, 2, seed=9)
    cross = rbf(new, x)
    mean = cross @ np.linalg.solve(full, y)
    variance = VARIANCE - np.sum(cross * np.linalg.solve(full, cross.T).T, axis=1) + NOISE
    got_mean, got_variance = predict.summarise(predict.moments, jr.key(0), fitted, new)
    np.testing.assert_allclose(got_mean[:, 0], mean, atol=1e-5)
    np.testing.assert_allclose(got_variance[:, 0], variance, atol=1e-5)


def test_one_layer_elbo_matches_an_independent_formula(x64):
    """Any q(u), not only the optimal one: expected log likelihood minus KL, all dense."""
    x, y = problem()
    z, random = rows(6, 2, seed=10), np.random.default_rng(11)
    m = random.normal(size=6)
    root = np.tril(random.normal(size=(6, 6))) * 0.3 + 0.5 * np.eye(6)
    s = root @ root.T

    k = rbf(z, z)
    projection = np.linalg.solve(k, rbf(z, x)).T
    mean = projection @ m
    residual = VARIANCE - np.sum(projection * rbf(x, z), axis=1)
    spread = np.sum((projection @ s) * projection, axis=1)
    likelihood = -0.5 * np.sum(
        np.log(2 * np.pi * NOISE) + ((y - mean) ** 2 + residual + spread) / NOISE
    )
    kl = 0.5 * (
        np.trace(np.linalg.solve(k, s))
        + m @ np.linalg.solve(k, m)
        - 6
        + np.linalg.slogdet(k)[1]
        - np.linalg.slogdet(s)[1]
    )
    assert abs(value(one_layer(z, m, s), x, y) - (likelihood - kl)) < 1e-6


@pytest.mark.parametrize("power", [0.0, 1e-4, 0.3, 0.5, 1.0])
def test_the_best_gaussian_reaches_the_closed_form_of_every_power(power, x64):
    """`log N(y | 0, Q + D) - (1-a)/(2a) Σ log(1 + a q/s²)`: VFE at 0, FITC at 1."""
    x, y = problem()
    z = rows(6, 2, seed=10)
    k, kzx = rbf(z, z), rbf(z, x)
    nystrom = kzx.T @ np.linalg.solve(k, kzx)
    residual = VARIANCE - np.diag(nystrom)
    d = power * residual + NOISE
    closed = log_normal(y, nystrom + np.diag(d))
    if power == 0.0:
        closed -= np.sum(residual) / (2 * NOISE)
    else:
        closed -= (1 - power) / (2 * power) * np.sum(np.log(1 + power * residual / NOISE))

    sigma = np.linalg.inv(k + (kzx / d) @ kzx.T)
    best = one_layer(z, k @ sigma @ kzx @ (y / d), k @ sigma @ k)
    assert abs(value(best, x, y, power) - closed) < 1e-5
    exact = log_normal(y, rbf(x, x) + NOISE * np.eye(len(x)))
    if power == 0.0:
        assert closed < exact  # only the ELBO is a bound of the exact model


@pytest.mark.parametrize(
    ("name", "drawn"),
    [(name, True) for name in LIKELIHOODS]
    + [(name, False) for name in ("gaussian", "bernoulli", "robust-max")],
)
def test_the_objective_is_monotone_in_the_power(name, drawn, x64):
    """Jensen: (1/a) log E p^a grows with a. Same key, same draws, so no Monte Carlo slack."""
    fitted, data = tiny_fitted(name), tiny_data(name)
    run = eqx.filter_jit(
        lambda power: objective(
            jr.key(0), fitted, data.all(), num_samples=4, power=power, draw_inducing=drawn
        )
    )
    values = [float(run(jnp.asarray(a))) for a in (0.0, 0.01, 0.2, 0.5, 0.8, 1.0)]
    assert np.all(np.diff(values) > -1e-9), values
    assert values[-1] > values[0] + 1e-3


@pytest.mark.parametrize(("engine", "name"), [p for p in PAIRS if p[0].startswith("dsvi")])
def test_gradients_of_the_full_objective_match_finite_differences(name, engine, x64):
    """Two layers, every parameter at once: kernels, inducing inputs, likelihood, posterior."""
    settings = ENGINES[engine]
    fitted, data = tiny_fitted(name), tiny_data(name)

    def payoff(fitted):
        return objective(
            jr.key(0),
            fitted,
            data.all(),
            num_samples=2,
            power=settings.power,
            draw_inducing=settings.draw_inducing,
        )

    assert directional_error(payoff, fitted, step=1e-6) < 2e-6


def test_two_layer_moments_match_plain_monte_carlo(x64):
    """400,000 draws of u and then f, layer by layer in NumPy, against `propagate`."""
    fitted = tiny_fitted(num_layers=2)
    first, last = fitted.model.layers
    x = rows(1, 2, seed=5)
    random, num = np.random.default_rng(0), 400_000

    def draw(layer, mean, root, h):
        """f(h) for each row of h with an inducing draw of its own, from dense conditionals."""
        z = np.asarray(layer.z)
        length = np.asarray(layer.kernel.lengthscale)
        signal = float(layer.kernel.variance)

        def k(a, b):
            return signal * np.exp(-0.5 * np.sum(((a[:, None] - b[None]) / length) ** 2, axis=2))

        gram = k(z, z)
        chol = np.linalg.cholesky(gram + 1e-8 * np.trace(gram) / len(z) * np.eye(len(z)))
        a = np.linalg.solve(chol, k(z, h))  # [M, rows]
        out = []
        for p in range(mean.shape[1]):
            v = mean[:, p] + random.normal(size=(len(h), len(z))) @ np.tril(root[p]).T
            conditional = np.maximum(signal - np.sum(a**2, axis=0), 0.0)
            out.append(np.sum(v.T * a, axis=0) + np.sqrt(conditional) * random.normal(size=len(h)))
        return np.stack(out, axis=1)

    mean, root = (tuple(np.asarray(leaf) for leaf in part)
                  for part in (fitted.posterior.means, fitted.posterior.roots))  # fmt: skip
    hidden = x + draw(first, mean[0], root[0], np.repeat(x, num, axis=0))
    plain = draw(last, mean[1], root[1], hidden)

    noise = fitted.model.noise(jr.key(1), 50_000, 1)
    for name, inducing in {
        "integrated": fitted.posterior.gaussians(),
        "drawn": tuple(map(Inducing, fitted.posterior.sample(jr.key(2), fitted.model, 50_000))),
    }.items():
        moments = eqx.filter_jit(fitted.model.propagate)(jnp.asarray(x), inducing, noise)
        got_mean = np.asarray(moments.mean)[:, 0]
        got_variance = np.asarray(moments.variance)[:, 0]
        # 5 standard errors: sd/√50,000 = 0.0045 sd for the mean, about √2 of that for the variance
        total = got_variance.mean(axis=0) + got_mean.var(axis=0)
        sd = plain.std(axis=0)
        assert np.all(np.abs(got_mean.mean(axis=0) - plain.mean(axis=0)) < 0.025 * sd), name
        np.testing.assert_allclose(total, plain.var(axis=0), rtol=0.035, err_msg=name)


def test_drawn_and_integrated_objectives_agree_on_average(x64):
    """The two estimators of the ELBO have the same mean."""
    fitted, data = tiny_fitted(), tiny_data()

    @eqx.filter_jit
    def estimates(draw_inducing):
        one = lambda key: objective(  # noqa: E731
            key, fitted, data.all(), num_samples=1, draw_inducing=draw_inducing
        )
        return jax.vmap(one)(jr.split(jr.key(0), 20_000))

    drawn, integrated = np.asarray(estimates(True)), np.asarray(estimates(False))
    error = np.hypot(drawn.std(), integrated.std()) / 20_000**0.5
    assert abs(drawn.mean() - integrated.mean()) < 5 * error
    assert drawn.std() > 1.1 * integrated.std()  # shared draws are the noisier estimate


def test_minibatches_estimate_the_full_objective_without_bias(x64):
    fitted, data = tiny_fitted(num_layers=1), tiny_data(num=40)
    full = float(objective(jr.key(0), fitted, data.all(), num_samples=1))

    @jax.jit
    def estimates(keys):
        one = lambda key: objective(  # noqa: E731
            key, fitted, data.sample(key, 10), num_samples=1
        )
        return jax.vmap(one)(keys)

    parts = np.asarray(estimates(jr.split(jr.key(1), 20_000)))
    assert abs(parts.mean() - full) < 5 * parts.std() / 20_000**0.5


def test_missing_targets_count_for_nothing(x64):
    """A NaN target equals a row without that output: objective and gradient."""
    fitted = tiny_fitted(num_layers=1)
    x = rows(12, 2)
    y = np.random.default_rng(1).normal(size=(12, 2))
    y[3, 0] = y[5, 1] = np.nan

    @eqx.filter_jit
    def compiled(fitted, batch):
        return objective(jr.key(0), fitted, batch, num_samples=1)

    def score(fitted, y):
        return compiled(fitted, make_data(x, y).all())

    total = float(score(fitted, y))
    by_hand = sum(
        float(score(fitted, np.where(np.arange(24).reshape(12, 2) == entry, y, np.nan)))
        for entry in np.flatnonzero(np.isfinite(y))
    )
    kl = -float(score(fitted, np.full_like(y, np.nan)))
    np.testing.assert_allclose(total + kl, by_hand + 22 * kl, rtol=1e-10)
    gradient = eqx.filter_grad(score)(fitted, y)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


def test_a_layer_of_low_rank_has_the_evidence_of_its_low_rank_kernel(x64):
    x, y = problem()
    z = x[::5]
    q_mean, q_cov = sparse_optimum(x, y, z)
    fitted = eqx.tree_at(
        lambda f: f.model.layers,
        one_layer(z, q_mean, q_cov),
        replace_fn=lambda layers: tuple(dataclasses.replace(l, low_rank=True) for l in layers),
    )
    low = rbf(x, z) @ np.linalg.solve(rbf(z, z), rbf(z, x))
    exact = log_normal(y, low + NOISE * np.eye(len(x)))
    np.testing.assert_allclose(value(fitted, x, y), exact, rtol=1e-8)  # no trace term is left
    draws = paths.draw_functions(jr.key(0), fitted, 4)
    values = fitted.posterior.sample(jr.split(jr.key(0))[0], fitted.model, 4)[0]
    told = fitted.model.layers[0].features(jnp.asarray(x)).a @ values
    np.testing.assert_allclose(draws(jnp.asarray(x)), told, atol=1e-12)


def test_what_a_skip_has_learned_is_paid_for_in_the_objective(x64):
    config = recipes.Config(2, 2, 5, learned_skip=True)
    start = recipes.build(rows(20, 3), 1, config)
    batch = make_data(rows(20, 3), rows(20, 1)).all()
    moved = 0.3 * rows(3, 2, seed=4)
    fitted = eqx.tree_at(lambda f: f.model.layers[0].mean.moved, start, jnp.asarray(moved))
    # The same map, but frozen there.
    weight = Frozen(fitted.model.layers[0].mean(jnp.eye(3)))
    frozen = eqx.tree_at(lambda f: f.model.layers[0].mean, fitted, means.Projection(weight))
    with_prior, without = (
        float(objective(jr.key(0), each, batch, num_samples=2)) for each in (fitted, frozen)
    )
    np.testing.assert_allclose(with_prior - without, -0.5 * np.sum(moved**2), rtol=1e-9)


def test_deterministic_conditionals_propagate_means_alone(x64):
    fitted = tiny_fitted(num_layers=2)
    model = DeepGP(fitted.model.layers, fitted.model.likelihood, deterministic=True)
    values = fitted.posterior.sample(jr.key(0), model, 3)
    x = jnp.asarray(rows(4, 2, seed=5))
    moments = model.propagate(x, tuple(map(Inducing, values)), model.noise(jr.key(1), 3, 4))
    first, last = model.layers
    for s in range(3):
        hidden = first.mean(x) + first.features(x).a @ values[0][s]
        expected = last.features(hidden).a @ values[1][s]
        np.testing.assert_allclose(moments.mean[s], expected, atol=1e-12)
    assert np.all(np.asarray(moments.conditional) == 0.0)

    def payoff(fitted):
        moved = Fitted(
            eqx.tree_at(lambda m: m.layers, model, fitted.model.layers), fitted.posterior
        )
        return objective(jr.key(0), moved, tiny_data().all(), num_samples=2, draw_inducing=True)

    assert directional_error(payoff, fitted, step=1e-6) < 2e-6
