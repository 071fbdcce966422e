"""Weighed draws: the exact evidence and posterior from any generator and any Player 1."""

import importlib

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.special import logsumexp

from nashgp import means
from nashgp.batch import make_data
from nashgp.errors import InputError
from nashgp.kernels import RBF
from nashgp.layers import Inducing, SparseGPLayer
from nashgp.likelihoods import Gaussian
from nashgp.model import DeepGP
from nashgp.posteriors import (
    Fitted,
    GaussianPosterior,
    MixturePosterior,
    anchored_posterior,
    gaussian_posterior,
)
from nashgp.precision import cast
from nashgp.weighing import Weighed, log_joint, weigh

pytestmark = pytest.mark.usefixtures("x64")

NOISE = 0.3


def problem():
    """One layer of two inducing inputs and five rows, with conditionals that are their means."""
    layer = SparseGPLayer(RBF([0.8]), means.Zero(1), jnp.asarray([[-0.5], [0.6]]), 1)
    model = cast(DeepGP((layer,), Gaussian([NOISE]), deterministic=True), "float64")
    x = np.linspace(-1.0, 1.0, 5)[:, None]
    y = np.random.default_rng(0).normal(size=x.shape)
    return model, make_data(x, y)


def exact(model, data):
    """Evidence, mean and covariance of `y = A v + noise`, `v ~ N(0, I)`."""
    layer, y = model.layers[0], np.asarray(data.y)[:, 0]
    gram = np.asarray(layer.kernel.gram(layer.z)) + 1e-8 * np.eye(2)
    a = np.linalg.solve(np.linalg.cholesky(gram), np.asarray(layer.kernel.cross(layer.z, data.x))).T
    cov = a @ a.T + NOISE * np.eye(len(y))
    evidence = -0.5 * (y @ np.linalg.solve(cov, y) + np.linalg.slogdet(2.0 * np.pi * cov)[1])
    inverse = np.linalg.inv(np.eye(2) + a.T @ a / NOISE)
    return evidence, inverse @ a.T @ y / NOISE, inverse


def mixed(seed, model, shift=0.0):
    """A generator with much to tell, and a Player 1 that talks nonsense."""
    frame = GaussianPosterior((jnp.full((2, 1), shift),), (1.2 * jnp.eye(2)[None],))
    made = anchored_posterior(
        jr.key(seed), frame, model, noise_dim=2, width=8, first_mix=0.5, rank=2
    )
    stray = 0.05 * jr.normal(jr.key(seed + 100), made.player1.read.weights[-1].shape)
    return eqx.tree_at(lambda p: p.player1.read.weights[-1], made, stray)


@pytest.mark.parametrize("num_importance", [1, 20])
@pytest.mark.parametrize("parts", [1, 2])
def test_weights_give_evidence_and_posterior_whatever_player_1_says(parts, num_importance):
    model, data = problem()
    if parts == 1:
        posterior = mixed(0, model)
    else:
        both = [mixed(seed, model, shift) for seed, shift in ((0, -0.7), (1, 0.7))]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *both)
        posterior = MixturePosterior(stacked, jnp.asarray([0.3, 0.7]))
    found = weigh(jr.key(1), Fitted(model, posterior), data, 40_000, num_importance=num_importance)
    evidence, mean, cov = exact(model, data)
    log_w = np.asarray(found.log_weight)
    error = np.std(np.exp(log_w - evidence)) / len(log_w) ** 0.5
    assert error < 0.03
    assert np.exp(found.log_evidence - evidence) == pytest.approx(1.0, abs=4.0 * error)
    assert 1_000 < found.effective < 40_000
    smooth, shape = found.smoothed()
    assert shape < 0.7
    assert smooth.log_evidence == pytest.approx(found.log_evidence, abs=1e-9)
    assert smooth.effective == pytest.approx(found.effective, rel=0.2)
    draws = np.asarray(found.resample(jr.key(2), 40_000)[0])[:, :, 0]
    spread = np.sqrt(np.diag(cov))
    slack = 4.0 / found.effective**0.5
    np.testing.assert_allclose(np.mean(draws, axis=0), mean, atol=slack * spread.max())
    np.testing.assert_allclose(np.cov(draws.T), cov, atol=2.0 * slack * spread.max() ** 2)
    plain = np.asarray(found.values[0])[:, :, 0]  # and the generator was nowhere near
    assert np.max(np.abs(np.mean(plain, axis=0) - mean) / spread) > 0.3 or parts == 2


def test_hidden_noise_is_averaged_row_by_row():
    """Two layers: `p(y_n | v)` by quadrature over the hidden value of each row."""
    layers = tuple(
        SparseGPLayer(RBF([0.8]), means.Zero(1), jnp.asarray([[-0.5], [0.6]]), 1) for _ in range(2)
    )
    model = cast(DeepGP(layers, Gaussian([NOISE])), "float64")
    _, data = problem()
    values = (jnp.asarray([[0.4], [-0.8]]), jnp.asarray([[1.1], [-0.3]]))
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    features = layers[0].features(data.x)
    centre, spread = features.a @ values[0], np.sqrt(features.residual)
    hidden = np.asarray(centre) + np.asarray(spread)[:, None] * nodes[None]
    want = 0.0
    for y, places in zip(np.asarray(data.y)[:, 0], hidden, strict=True):
        above = layers[1].features(jnp.asarray(places)[:, None])
        variance = np.asarray(above.residual) + NOISE
        apart = y - np.asarray(above.a @ values[1])[:, 0]
        terms = -0.5 * (apart**2 / variance + np.log(2.0 * np.pi * variance))
        want += logsumexp(terms, b=weights / weights.sum())
    want += sum(float(-0.5 * jnp.sum(v**2 + jnp.log(2.0 * jnp.pi))) for v in values)
    got = log_joint(jr.key(0), model, values, data.all(), 20_000)
    assert float(got) == pytest.approx(want, abs=0.02)


def test_targets_of_a_row_share_its_hidden_noise():
    """The same target twice and its noise twice: each draw of the noise counts with its square."""
    layers = tuple(
        SparseGPLayer(RBF([0.8]), means.Zero(1), jnp.asarray([[-0.5], [0.6]]), outputs)
        for outputs in (1, 2)
    )
    both = cast(DeepGP(layers, Gaussian([NOISE, NOISE])), "float64")
    _, data = problem()
    twice = make_data(np.asarray(data.x), np.repeat(np.asarray(data.y), 2, axis=1))
    below = jnp.asarray([[0.4], [-0.8]])
    values = (below, jnp.tile(jnp.asarray([[1.1], [-0.3]]), (1, 2)))
    noise = both.noise(jr.key(0), 200, len(data.x))
    drawn = tuple(Inducing(jnp.broadcast_to(v, (200, *v.shape))) for v in values)
    moments = both.propagate(data.x, drawn, noise)
    variance = np.asarray(moments.conditional)[:, :, 0] + NOISE
    apart = np.asarray(data.y)[None, :, 0] - np.asarray(moments.mean)[:, :, 0]
    one = -0.5 * (apart**2 / variance + np.log(2.0 * np.pi * variance))
    want = np.sum(logsumexp(2.0 * one, axis=0) - np.log(200.0))
    want += sum(float(-0.5 * jnp.sum(v**2 + jnp.log(2.0 * jnp.pi))) for v in values)
    got = log_joint(jr.key(0), both, values, twice.all(), 200)
    assert float(got) == pytest.approx(want, abs=1e-6)


def test_resampling_repeats_draws_by_their_weight():
    weight = jnp.asarray([0.5, 0.0, 0.375, 0.125])
    weighed = Weighed((jnp.arange(4.0)[:, None, None],), jnp.log(weight) + 7.0)
    drawn = np.asarray(weighed.resample(jr.key(0), 8)[0]).ravel()
    np.testing.assert_array_equal(np.bincount(drawn.astype(int), minlength=4), [4, 0, 3, 1])
    assert weighed.effective == pytest.approx(1.0 / np.sum(np.asarray(weight) ** 2))
    assert weighed.log_evidence == pytest.approx(7.0 - np.log(4.0))


def test_only_a_game_has_weights():
    model, data = problem()
    with pytest.raises(InputError, match="GaussianPosterior cannot be weighed"):
        weigh(jr.key(0), Fitted(model, gaussian_posterior(model)), data)


def test_without_arviz_the_remedy_is_named(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InputError, match=r"pip install 'nashgp\[arviz\]'"):
        Weighed((), jnp.zeros(3)).smoothed()


def test_smoothing_tames_a_weight_that_outweighs_all_others():
    random = np.random.default_rng(0)
    log_weight = np.append(0.3 * random.normal(size=999), 8.0)
    weighed = Weighed((jnp.arange(1_000.0)[:, None, None],), jnp.asarray(log_weight))
    smooth, shape = weighed.smoothed()
    assert weighed.effective < 3.0 < 10.0 * shape
    assert smooth.effective > 3.0 * weighed.effective
    order = np.argsort(log_weight)
    assert np.all(np.diff(np.asarray(smooth.log_weight)[order]) >= 0.0)  # none overtakes another
