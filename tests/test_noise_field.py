"""Noise that varies with the inputs: against formulas written plainly, and found in rows."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nashgp import DeepGPRegressor, load, recipes
from nashgp.batch import make_data
from nashgp.engines import NaturalGradient, collapsed_objective
from nashgp.likelihoods import Field, Gaussian
from nashgp.likelihoods.fields import CAP, DEVIATION, JITTER
from nashgp.mixtures import Blend, Mixture
from nashgp.posteriors import Fitted
from tests.cases import rows
from tests.numeric import log_normal


def plain(x, z, w):
    """`CAP tanh(s k(x, z) C⁻ᵀ w / CAP)`, by loops and NumPy's own algebra."""

    def kernel(a, b):
        length = 0.5 * a.shape[1] ** 0.5
        return np.array([[np.exp(-0.5 * np.sum((p - q) ** 2) / length**2) for q in b] for p in a])

    chol = np.linalg.cholesky(kernel(z, z) + JITTER * np.eye(len(z)))
    return CAP * np.tanh(DEVIATION * np.linalg.solve(chol, kernel(z, x)).T @ w / CAP)


def placed(z, w, noise=(0.1, 0.3)):
    """A likelihood whose field has the values `w`."""
    start = Gaussian(np.array(noise), varies=True).placed(z, len(noise))
    return eqx.tree_at(lambda each: each.field.value, start, jnp.asarray(w))


def test_a_field_is_a_gp_given_its_values(x64):
    z, w = rows(5, 3, seed=1), 3.0 * rows(5, 2, seed=2)
    likelihood, x = placed(z, w), jnp.asarray(rows(7, 3))
    h = likelihood.field(x)
    np.testing.assert_allclose(h, plain(rows(7, 3), z, w), rtol=1e-10)
    np.testing.assert_allclose(likelihood.at(x).noise, np.exp(h) * [[0.1, 0.3]])
    np.testing.assert_allclose(likelihood.log_prior(), -0.5 * np.sum(w**2))
    np.testing.assert_allclose(likelihood.noise, [0.1, 0.3])  # what it is where nothing was told
    np.testing.assert_allclose(likelihood.at(x + 100.0).noise, [[0.1, 0.3]] * 7)
    loud = eqx.tree_at(lambda each: each.field.value, likelihood, jnp.full((5, 2), 1e3))
    assert np.all(np.abs(loud.field(jnp.asarray(z))) <= CAP)
    assert Gaussian(0.1).at(x).log_prior() == 0.0


def test_under_its_prior_a_field_has_the_deviation_it_says(x64):
    z = rows(6, 2)
    many = Field(z, 4_000)
    drawn = eqx.tree_at(lambda each: each.value, many, jr.normal(jr.key(0), (6, 4_000)))
    spread = np.std(CAP * np.arctanh(np.asarray(drawn(jnp.asarray(z))) / CAP), axis=1)
    np.testing.assert_allclose(spread, DEVIATION, rtol=0.05)  # 4,000 draws: an error of 1.1 %


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_one_layer_has_the_evidence_of_a_gp_with_that_noise(power, x64):
    """With an inducing input at every row all powers are `log N(y | 0, K + diag σ² exp h)`."""
    x, y, z, w = rows(15, 2), rows(15, 1, seed=3), rows(4, 2, seed=1), rows(4, 1, seed=2)
    config = recipes.Config(1, None, 15, likelihood=Gaussian(np.array([0.2])))
    fitted = recipes.build(x, 1, config)
    model = eqx.tree_at(lambda each: each.likelihood, fitted.model, placed(z, w, [0.2]))
    hidden = type(fitted.posterior)((), ())
    options = {"num_samples": 1, "power": power}
    got = collapsed_objective(jr.key(0), model, hidden, make_data(x, y).all(), **options)
    gram = np.asarray(model.layers[0].kernel.gram(jnp.asarray(x)))
    noise = 0.2 * np.exp(plain(x, z, w))[:, 0]
    want = log_normal(y[:, 0], gram + np.diag(noise)) - 0.5 * np.sum(w**2)
    assert abs(float(got) - want) < 1e-4  # jitter of the inducing inputs

    # The natural gradient's step of rate one is that optimum.
    engine = NaturalGradient(0.0, power=power)
    state = engine.init(jr.key(0), Fitted(model, fitted.posterior))
    for key in jr.split(jr.key(1), 2):
        state, info = engine.step(key, state, make_data(x, y).all())
        assert abs(float(info.objective) - want) < 1e-4


def test_noise_of_mixtures_is_averaged(x64):
    x, z, w = jnp.asarray(rows(6, 2)), rows(3, 2, seed=1), rows(3, 2, seed=2)
    likelihood = placed(z, w).at(x)
    mean, variance = jr.normal(jr.key(0), (4, 6, 2)), jnp.ones((4, 6, 2))
    one, other = Mixture(mean, variance, likelihood), Mixture(mean, variance, Gaussian(0.7))
    np.testing.assert_allclose(one.noise_variance(), likelihood.noise)
    both = Blend((one, other), (0, 1, 1, 1))
    np.testing.assert_allclose(both.noise_variance(), 0.25 * np.asarray(likelihood.noise) + 0.525)


def quiet_and_loud(num=300):
    """A wave, with little noise on its left half and ten times as much on the right."""
    random = np.random.default_rng(0)
    x = random.uniform(-2.0, 2.0, size=(num, 1))
    deviation = np.where(x[:, 0] < 0.0, 0.3, 3.0)
    return x, 10.0 * np.sin(2.0 * x[:, 0]) + deviation * random.normal(size=num), deviation


def test_the_regressor_finds_where_noise_is_loud(tmp_path):
    x, y, deviation = quiet_and_loud()
    settings = dict(num_layers=1, num_inducing=20, num_steps=200, num_mixture=20, random_state=0)
    settings |= dict(engine="dsvi")
    model = DeepGPRegressor(likelihood="heteroscedastic", **settings).fit(x[:200], y[:200])
    assert model.power_ == 0.5  # nothing is judged
    found = model.predict_noise_std(x[200:])
    away = np.abs(x[200:, 0]) > 0.5  # the field is smooth, the truth is a step
    # Some fifty rows tell a deviation to 10 %; the smooth field reaches over the step.
    assert np.all(np.abs(np.log(found / deviation[200:]))[away] < 0.6)
    plain = DeepGPRegressor(**settings).fit(x[:200], y[:200])
    assert np.ptp(plain.predict_noise_std(x)) == 0.0
    np.testing.assert_allclose(plain.predict_noise_std(x[:1]), plain.noise_std_)
    gain = np.mean(model.log_density(x[200:], y[200:]) - plain.log_density(x[200:], y[200:]))
    assert gain > 0.2  # ½ log((0.3² + 3²) / 2) - ½ log(0.3 · 3) is 0.8 with noise alone

    drawn = model.sample_y(x[200:], 400) - model.predict(x[200:])[:, None]
    _, total = model.predict(x[200:], return_std=True)
    np.testing.assert_allclose(np.std(drawn, axis=1) / total, 1.0, atol=0.25)
    model.save(tmp_path / "model.nashgp")
    again = load(tmp_path / "model.nashgp")
    np.testing.assert_array_equal(again.predict_noise_std(x), model.predict_noise_std(x))
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
