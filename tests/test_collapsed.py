"""The last layer in closed form: against dense formulas, its model's evidence, and stationarity."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm, qmc

from nashgp import kernels, means, predict, train
from nashgp.batch import make_data
from nashgp.engines import Collapsed, NaturalGradient, collapsed_objective, objective
from nashgp.engines.collapsed import below_last
from nashgp.errors import InputError
from nashgp.layers import SparseGPLayer
from nashgp.likelihoods import Gaussian, StudentT
from nashgp.linalg import inverse_root
from nashgp.model import DeepGP
from nashgp.posteriors import CollapsedPosterior, Fitted, GaussianPosterior
from tests.cases import rows, tiny_data, tiny_fitted
from tests.numeric import directional_error, log_normal

NOISE = np.array([0.05, 0.2])
POWERS = (0.0, 0.3, 0.5, 1.0)


def rbf(x, z, length=0.9, variance=1.4):
    square = np.sum((x[:, None] - z[None]) ** 2, axis=2)
    return variance * np.exp(-0.5 * square / length**2)


def one_layer(z, noise=NOISE):
    """A one-layer model with a constant mean; its posterior is never looked at."""
    mean = means.Constant(np.linspace(0.4, -0.2, len(noise)))
    layer = SparseGPLayer(kernels.RBF(0.9, 1.4), mean, jnp.asarray(z), len(noise), jitter=1e-12)
    return DeepGP((layer,), Gaussian(noise))


NO_LAYERS = GaussianPosterior((), ())


@eqx.filter_jit
def collapsed(model, data, power, hidden=NO_LAYERS, key=None, num_samples=1):
    return collapsed_objective(
        jr.key(0) if key is None else key,
        model,
        hidden,
        data.all(),
        num_samples=num_samples,
        power=power,
    )


def dense(x, y, z, noise, power):
    """`log N(y | 0, Q + D) - (1-a)/2a Σ log(1 + a q/σ²)`, `Σ q/2σ²` in place of the last at 0."""
    cross = rbf(x, z)
    nystrom = cross @ np.linalg.solve(rbf(z, z), cross.T)
    q = 1.4 - np.diag(nystrom)
    value = log_normal(y, nystrom + np.diag(power * q + noise))
    if power == 0.0:
        return value - 0.5 * np.sum(q) / noise
    return value - 0.5 * (1.0 - power) / power * np.sum(np.log1p(power * q / noise))


@pytest.mark.parametrize("power", POWERS)
def test_one_layer_is_the_sparse_gp_of_every_power(power, x64):
    """VFE, FITC and between, to 1e-8: two outputs, noise of their own, missing targets."""
    x, z = rows(20, 2, seed=7), rows(6, 2, seed=10)
    y = rows(20, 2, seed=8)
    y[3, 0] = y[5, 1] = y[6, 1] = np.nan
    got = float(collapsed(one_layer(z), make_data(x, y), power))
    want = 0.0
    for column, (noise, offset) in enumerate(zip(NOISE, (0.4, -0.2), strict=True)):
        seen = np.isfinite(y[:, column])
        want += dense(x[seen], y[seen, column] - offset, z, noise, power)
    assert abs(got - want) < 1e-8 * max(1.0, abs(want))


def test_a_weight_counts_a_row_again(x64):
    x, y, model = rows(9, 2, seed=7), rows(9, 2, seed=8), one_layer(rows(4, 2, seed=10))
    weight = np.array([1.0, 2.0, 3.0] + [1.0] * 6)
    again = np.repeat(np.arange(9), weight.astype(int))
    heavy, long = make_data(x, y, weight), make_data(x[again], y[again])
    np.testing.assert_allclose(
        collapsed(model, heavy, 0.5), collapsed(model, long, 0.5), rtol=1e-10
    )


@pytest.mark.parametrize("power", [0.0, 0.7])
def test_the_gradient_is_that_of_the_collapsed_value(power, x64):
    """Through both layers, though the best Gaussian is held fixed: the envelope theorem."""
    fitted, data = tiny_fitted(), tiny_data()
    hidden = below_last(fitted)

    def payoff(parts):
        return collapsed(*(parts[0], data, power), hidden=parts[1], num_samples=2)

    assert directional_error(payoff, (fitted.model, hidden), step=1e-6) < 1e-6


@pytest.mark.parametrize("num_layers", [1, 2])
def test_no_gaussian_of_the_last_layer_does_better(num_layers, x64):
    """The collapsed value is above the drawn objective at any q(v_L), for the same hidden draws.

    With one layer it is reached by the stored Gaussian.
    """
    fitted, data = tiny_fitted(num_layers=num_layers), tiny_data()
    engine = Collapsed(num_samples=1, power=0.5)
    keys = jr.split(jr.key(0), 400)
    best = jax.jit(
        jax.vmap(lambda k: collapsed(fitted.model, data, 0.5, below_last(fitted), key=k))
    )(keys)
    other = jax.jit(jax.vmap(lambda k: objective(k, fitted, data.all(), num_samples=1, power=0.5)))(
        keys
    )
    assert np.mean(best) > np.mean(other) + 1.0
    if num_layers == 1:
        kept = engine.result(jr.key(0), engine.init(jr.key(0), fitted), data, 5).posterior
        assert kept.mean.shape[0] == 1  # nothing random below: one Gaussian is all
        q = GaussianPosterior((kept.mean[0],), (kept.root[0],))
        reached = objective(
            jr.key(0), Fitted(fitted.model, q), data.all(), num_samples=1, power=0.5
        )
        np.testing.assert_allclose(reached, best[0], rtol=1e-10)


def tiny_deep(seed):
    """A random two-layer model of three rows, with a hidden posterior away from the prior."""
    random = np.random.default_rng(seed)
    length, variance = random.uniform(0.5, 2.0, size=2), random.uniform(0.3, 2.0, size=2)
    layers = tuple(
        SparseGPLayer(
            kernels.RBF(length[i], variance[i]), mean, jnp.asarray(random.normal(size=(2, 1))), 1
        )
        for i, mean in enumerate((means.Identity(), means.Zero(1)))
    )
    model = DeepGP(layers, Gaussian([random.uniform(0.02, 0.5)]))
    q_means = tuple(jnp.asarray(random.normal(size=(2, 1))) for _ in layers)
    roots = tuple(jnp.asarray(0.5 * np.tril(random.normal(size=(1, 2, 2)))) for _ in layers)
    x, y = random.normal(size=(3, 1)), random.normal(size=(3, 1))
    return Fitted(model, GaussianPosterior(q_means, roots)), make_data(x, y)


def uniform_normals(num, width):
    """Quasi-random standard normal points."""
    return norm.ppf(qmc.Sobol(width, seed=0).random(num))


@pytest.mark.parametrize("seed", range(4))
def test_never_above_the_evidence_of_its_own_model(seed, x64):
    """`E_q log Z - KL ≤ log E_p Z`, the right side integrated over v_1 and the hidden noise.

    Z is the collapsed value of one draw in nats, computed here densely. The gap is also checked
    to close when q is the prior and the data say nothing.
    """
    fitted, data = tiny_deep(seed)
    model, hidden = fitted.model, below_last(fitted)
    first, last = model.layers
    points = uniform_normals(2**15, 5)
    features = first.features(data.x)
    a, residual = np.asarray(features.a), np.asarray(features.residual)
    h = np.asarray(data.x)[:, 0] + points[:, :2] @ a.T + np.sqrt(residual) * points[:, 2:]
    noise, y = float(model.likelihood.noise[0]), np.asarray(data.y)[:, 0]
    flat = last.features(jnp.asarray(h.reshape(-1, 1)))
    a, q = np.asarray(flat.a).reshape(-1, 3, 2), np.asarray(flat.residual).reshape(-1, 3)

    estimate = jax.jit(
        lambda keys, power: jax.vmap(lambda key: collapsed(model, data, power, hidden, key=key))(
            keys
        )
    )
    for power in (0.0, 0.5, 1.0):
        covariance = a @ np.swapaxes(a, 1, 2) + (power * q + noise)[:, :, None] * np.eye(3)
        quadratic = np.einsum("i,sij,j->s", y, np.linalg.inv(covariance), y)
        log_z = -0.5 * (quadratic + np.linalg.slogdet(2 * np.pi * covariance)[1])
        ratio = np.log1p(power * q / noise) / power if power else q / noise
        log_z -= 0.5 * (1.0 - power) * np.sum(ratio, axis=1)
        evidence = logsumexp(log_z) - np.log(len(log_z))
        values = np.asarray(estimate(jr.split(jr.key(1), 4_000), jnp.asarray(power)))
        error = values.std() / len(values) ** 0.5
        assert values.mean() < evidence + 4.0 * error
        assert values.mean() > np.mean(log_z) - 60.0  # a bound, not nonsense


@pytest.mark.parametrize("seed", range(4))
def test_the_elbo_is_never_above_the_exact_evidence(seed, x64):
    """Power 0, not collapsed: `p(y) = E N(y | 0, K(f_1, f_1) + σ² I)` over the exact layer 1."""
    fitted, data = tiny_deep(seed)
    first, last = fitted.model.layers
    x, y = np.asarray(data.x), np.asarray(data.y)[:, 0]
    root = np.linalg.cholesky(np.asarray(first.kernel.gram(data.x)) + 1e-10 * np.eye(3))
    h = x[:, 0] + uniform_normals(2**15, 3) @ root.T
    gram = jax.jit(jax.vmap(last.kernel.gram))(jnp.asarray(h[:, :, None]))
    covariance = np.asarray(gram) + float(fitted.model.likelihood.noise[0]) * np.eye(3)
    quadratic = np.einsum("i,sij,j->s", y, np.linalg.inv(covariance), y)
    log_z = -0.5 * (quadratic + np.linalg.slogdet(2 * np.pi * covariance)[1])
    evidence = logsumexp(log_z) - np.log(len(log_z))

    @eqx.filter_jit
    def estimate(draw_inducing):
        one = lambda key: objective(  # noqa: E731
            key, fitted, data.all(), num_samples=1, draw_inducing=draw_inducing
        )
        return jax.vmap(one)(jr.split(jr.key(1), 4_000))

    for draw_inducing in (False, True):
        values = np.asarray(estimate(draw_inducing))
        assert values.mean() < evidence + 4.0 * values.std() / len(values) ** 0.5


def test_one_natural_step_of_size_one_is_the_optimum(x64):
    """A conjugate model of one layer: from anywhere to the collapsed value in one step."""
    fitted, data = tiny_fitted(num_layers=1), tiny_data()
    for power in (0.0, 0.5):
        engine = NaturalGradient(learning_rate=0.0, rate=1.0, power=power)
        step = eqx.filter_jit(engine.step)
        state, info = step(jr.key(0), engine.init(jr.key(0), fitted), data.all())
        best = collapsed(fitted.model, data, power)
        np.testing.assert_allclose(info.objective, best, rtol=1e-10)
        after = engine.result(jr.key(0), state, data, 1)
        value = eqx.filter_jit(functools.partial(objective, num_samples=1, power=power))
        again = value(jr.key(1), after, data.all())
        np.testing.assert_allclose(again, best, rtol=1e-10)


def test_natural_parameters_of_a_posterior_and_back(x64):
    fitted = tiny_fitted()
    engine = NaturalGradient()
    back = engine.result(jr.key(0), engine.init(jr.key(0), fitted), tiny_data(), 1).posterior
    np.testing.assert_allclose(back.means[-1], fitted.posterior.means[-1], atol=1e-9)
    for got, root in zip(back.roots[-1], fitted.posterior.roots[-1], strict=True):
        np.testing.assert_allclose(got @ got.T, root @ root.T, atol=1e-9)
        np.testing.assert_array_equal(np.triu(got, 1), np.zeros_like(got))


@pytest.mark.parametrize(
    ("name", "shared"),
    [("gaussian", True), ("student-t", False), ("bernoulli", False), ("poisson", False)],
)
def test_natural_steps_end_where_the_gradient_vanishes(name, shared, x64):
    """Any likelihood, one layer: the update rests where the ELBO is stationary.

    Two outputs of unequal noise may share one covariance, which rests between those of each.
    """
    fitted, data = tiny_fitted(name, num_layers=1, last_shared=shared), tiny_data(name)
    engine = NaturalGradient(learning_rate=0.0, rate=0.3)
    outcome = train.run(jr.key(0), engine, fitted, data, num_steps=800)
    assert outcome.history.objective[-1] > outcome.history.objective[0]

    def elbo(posterior):
        return objective(jr.key(0), Fitted(fitted.model, posterior), data.all(), num_samples=1)

    slope = eqx.filter_jit(eqx.filter_grad(elbo))(outcome.fitted.posterior)
    assert max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(slope)) < 1e-3
    assert outcome.fitted.posterior.roots[0].shape == fitted.posterior.roots[0].shape


def test_natural_steps_fall_to_a_tenth_of_their_rate(x64):
    """From one state, the first step of a run and those beyond its end, where the rate is small."""
    fitted, data = tiny_fitted("bernoulli", num_layers=1), tiny_data("bernoulli")
    moved = {}
    for decay_steps in (None, 10):
        engine = NaturalGradient(learning_rate=0.0, rate=1e-3, decay_steps=decay_steps)
        start, step = engine.init(jr.key(0), fitted), eqx.filter_jit(engine.step)
        for taken in (0.0, 5.0, 10.0, 20.0):
            state = start._replace(taken=jnp.asarray(taken))
            after, _ = step(jr.key(0), state, data.all())
            gap = after.last.precision - start.last.precision
            moved[decay_steps, taken] = float(jnp.linalg.norm(gap))
    whole = moved[None, 0.0]
    shares = [moved[10, taken] / whole for taken in (0.0, 5.0, 10.0, 20.0)]
    np.testing.assert_allclose(shares, [1.0, 0.55, 0.1, 0.1], rtol=1e-2)
    assert moved[None, 20.0] == pytest.approx(whole)


def test_a_stored_posterior_predicts_like_the_sparse_gp(x64):
    """One layer: mean `A E v` and variance `k - Σ A² + Σ (A R)²` plus noise, from dense algebra."""
    x, y, z = rows(20, 2, seed=7), rows(20, 1, seed=8)[:, 0], rows(6, 2, seed=10)
    model = one_layer(z, NOISE[:1])
    engine = Collapsed(power=0.5)
    start = Fitted(model, GaussianPosterior((jnp.zeros((6, 1)),), (jnp.eye(6)[None],)))
    data = make_data(x, y[:, None])
    fitted = engine.result(jr.key(0), engine.init(jr.key(0), start), data, 100)

    new, k, kzx = rows(5, 2, seed=3), rbf(z, z), rbf(z, x)
    d = 0.5 * (1.4 - np.sum(kzx * np.linalg.solve(k, kzx), axis=0)) + NOISE[0]
    sigma, cross = np.linalg.inv(k + (kzx / d) @ kzx.T), rbf(new, z)
    mean = 0.4 + cross @ sigma @ (kzx / d) @ (y - 0.4)
    reduction = np.linalg.inv(k) - sigma
    variance = 1.4 - np.sum((cross @ reduction) * cross, axis=1) + NOISE[0]
    got_mean, got_variance = predict.summarise(predict.moments, jr.key(0), fitted, new)
    np.testing.assert_allclose(got_mean[:, 0], mean, atol=1e-8)
    np.testing.assert_allclose(got_variance[:, 0], variance, atol=1e-8)


def test_stored_draws_are_joint(x64):
    """The last layer of draw s is the best answer to *its own* hidden draw, and turns repeat."""
    fitted, data = tiny_fitted(), tiny_data()
    engine = Collapsed(power=0.5)
    state = engine.init(jr.key(0), fitted)
    kept = engine.result(jr.key(0), state, data, 4).posterior
    assert isinstance(kept, CollapsedPosterior) and len(kept.mean) == 4
    first, last = kept.inducing(jr.key(9), fitted.model, 6)
    np.testing.assert_array_equal(first.value[4:], kept.values[0][:2])
    np.testing.assert_array_equal(last.root[4:], kept.root[:2])
    np.testing.assert_array_equal(kept.inducing(jr.key(9), fitted.model, 3)[1].value, kept.mean[:3])
    hidden, drawn = kept.sample(jr.key(1), fitted.model, 8_000)
    np.testing.assert_array_equal(hidden[:4], kept.values[0])
    for turn in range(4):
        np.testing.assert_array_equal(hidden[turn::4], np.tile(kept.values[0][turn], (2_000, 1, 1)))
        spread = np.einsum("pmk,pmk->mp", kept.root[turn], kept.root[turn])
        gap = np.abs(drawn[turn::4].mean(axis=0) - kept.mean[turn])
        assert np.all(gap < 5.0 * np.sqrt(spread / 2_000))
        np.testing.assert_allclose(drawn[turn::4].var(axis=0), spread, rtol=0.2)
    again = Collapsed(power=0.5).init(jr.key(0), Fitted(fitted.model, kept))
    assert eqx.tree_equal(again.params, state.params)  # training can go on


def test_roots_of_inverses(x64):
    a = rows(5, 5)
    precision = jnp.asarray(a @ a.T + np.eye(5))
    root = inverse_root(precision)
    np.testing.assert_allclose(root @ root.T, np.linalg.inv(precision), atol=1e-12)
    np.testing.assert_array_equal(np.triu(root, 1), np.zeros((5, 5)))


def test_what_cannot_be_collapsed_is_refused(x64):
    fitted = tiny_fitted("student-t")
    assert isinstance(fitted.model.likelihood, StudentT)
    with pytest.raises(InputError, match="Gaussian likelihood"):
        Collapsed().init(jr.key(0), fitted)
