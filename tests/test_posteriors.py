"""The Gaussian posterior and the priors it is measured against."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats
from scipy.linalg import block_diag

from nashgp.kernels import RBF
from nashgp.layers import Inducing, SparseGPLayer
from nashgp.likelihoods import Gaussian
from nashgp.means import Linear
from nashgp.model import DeepGP
from nashgp.posteriors import (
    AbstractVariational,
    GaussianPosterior,
    gaussian_posterior,
    sample_prior,
)
from nashgp.priors import AbstractPrior, GPPrior

# Inducing inputs and outputs of each layer; two are alike, or one key for both would not be seen.
SHAPES = [(3, 2), (3, 2), (4, 1)]


def model(prior=None, shapes=SHAPES):
    """A deep GP whose layers have the given shapes."""
    random, width, layers = np.random.default_rng(0), 2, []
    for number, (num_inducing, num_outputs) in enumerate(shapes):
        mean = Linear(width, num_outputs, key=jr.key(number))
        z = jnp.asarray(random.normal(size=(num_inducing, width)))
        layers.append(SparseGPLayer(RBF(1.2, 0.8), mean, z, num_outputs))
        width = num_outputs
    return DeepGP(tuple(layers), Gaussian(0.1), prior or GPPrior())


def posterior(shapes=SHAPES):
    """Random means and roots; the upper triangle is rubbish, and diagonals have both signs."""
    random = np.random.default_rng(1)
    means = tuple(jnp.asarray(random.normal(size=shape)) for shape in shapes)
    roots = []
    for num_inducing, num_outputs in shapes:
        root = 0.5 * random.normal(size=(num_outputs, num_inducing, num_inducing))
        roots.append(jnp.asarray(root + np.diag([1.0, -1.2, 0.8, 1.1][:num_inducing])))
    return GaussianPosterior(means, tuple(roots))


def flat(values):
    """All layers of stacked draws side by side, an output at a time."""
    return np.concatenate(
        [np.moveaxis(np.asarray(v), 1, 2).reshape(len(v), -1) for v in values], axis=1
    )


def joint(posterior):
    """Mean and covariance of what `flat` returns: one block per layer and output."""
    mean = flat([np.asarray(m)[None] for m in posterior.means])[0]
    roots = [np.tril(r) for root in posterior.roots for r in np.asarray(root)]
    return mean, block_diag(*[r @ r.T for r in roots])


@eqx.filter_jit
def draw(posterior, model, num):
    return posterior.sample_and_kl(jr.key(0), model, num)


def assert_moments(draws, mean, covariance):
    """5 standard errors; a sample covariance has `(C_ii C_jj + C_ij²) / S` as variance."""
    num, diagonal = len(draws), np.diag(covariance)
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 5.0 * np.sqrt(diagonal / num))
    error = np.sqrt((np.outer(diagonal, diagonal) + covariance**2) / num)
    assert np.all(np.abs(np.cov(draws.T) - covariance) < 5.0 * error)


def test_draws_have_their_mean_and_covariance_and_nothing_in_common(x64):
    """Different outputs and different layers are independent: zero blocks of the covariance."""
    values = draw(posterior(), model(), 40_000)[0]
    assert_moments(flat(values), *joint(posterior()))


def test_log_density_matches_scipy(x64):
    values, _ = draw(posterior(), model(), 5)
    got = jax.vmap(posterior().log_density)(values)
    want = stats.multivariate_normal(*joint(posterior())).logpdf(flat(values))
    np.testing.assert_allclose(got, want, rtol=1e-10)


def test_kl_to_the_gp_prior_is_the_mean_of_log_q_minus_log_p(x64):
    q, gp = posterior(), model()
    values, kl = draw(q, gp, 40_000)
    log_p = jax.vmap(lambda v: gp.prior.log_density(gp.layers, v))(values)
    gaps = np.asarray(jax.vmap(q.log_density)(values) - log_p)
    assert abs(gaps.mean() - kl) < 5.0 * gaps.std() / 40_000**0.5
    assert kl > 1.0  # or five standard errors would prove little
    _, again = q.sample_and_kl(jr.key(1), gp, 1)
    np.testing.assert_allclose(again, kl, rtol=1e-13)  # exact, so no draw enters


def test_kl_is_zero_at_the_prior_alone(x64):
    gp = model()
    start = gaussian_posterior(gp, hidden_scale=1.0)
    np.testing.assert_allclose(start.sample_and_kl(jr.key(0), gp, 1)[1], 0.0, atol=1e-14)
    for scale in (0.9, 1.1):
        moved = gaussian_posterior(gp, hidden_scale=scale)
        assert moved.sample_and_kl(jr.key(0), gp, 1)[1] > 0.01


class TwoHumps(AbstractPrior):
    """`0.3 N(-1, ½²) + 0.7 N(2, 1)` for each inducing value."""

    def sample(self, key, layers):
        pick, normal = jr.split(key)
        shapes = [(layer.num_inducing, layer.num_outputs) for layer in layers]
        left = [jr.uniform(pick, shape) < 0.3 for shape in shapes]
        eps = [jr.normal(normal, shape) for shape in shapes]
        return tuple(jnp.where(a, 0.5 * e - 1.0, e + 2.0) for a, e in zip(left, eps, strict=True))

    def log_density(self, layers, values):
        def one(v):
            left = jnp.log(0.3) - 0.5 * ((v + 1.0) / 0.5) ** 2 - jnp.log(0.5)
            right = jnp.log(0.7) - 0.5 * (v - 2.0) ** 2
            return jnp.sum(jnp.logaddexp(left, right) - 0.5 * jnp.log(2.0 * jnp.pi))

        return sum((one(v) for v in values), start=jnp.zeros((), values[0].dtype))


def two_humps(v):
    return 0.3 * stats.norm.pdf(v, -1.0, 0.5) + 0.7 * stats.norm.pdf(v, 2.0, 1.0)


def single(mean, root):
    return GaussianPosterior((jnp.full((1, 1), mean),), (jnp.full((1, 1, 1), root),))


def integrated_kl(mean, root):
    """`∫ q log q/p` by the trapezoidal rule, which is exact to rounding for such functions."""
    v = mean + root * np.linspace(-10.0, 10.0, 4001)
    q = stats.norm.pdf(v, mean, root)
    return np.trapezoid(q * (stats.norm.logpdf(v, mean, root) - np.log(two_humps(v))), v)


def test_kl_to_any_other_prior_is_estimated_from_the_draws(x64):
    gp, q = model(TwoHumps(), [(1, 1)]), single(0.5, 0.8)
    values, kl = draw(q, gp, 40_000)
    v = np.asarray(values[0]).ravel()
    gaps = stats.norm.logpdf(v, 0.5, 0.8) - np.log(two_humps(v))
    np.testing.assert_allclose(kl, gaps.mean(), rtol=1e-12)
    assert abs(kl - integrated_kl(0.5, 0.8)) < 5.0 * gaps.std() / 40_000**0.5


def test_the_estimated_kl_has_the_right_gradient(x64):
    """A step down it is a step down the KL: 5 standard errors of 20,000 single draws."""
    gp = model(TwoHumps(), [(1, 1)])
    slope = jax.grad(lambda q, key: q.sample_and_kl(key, gp, 1)[1])
    slopes = jax.jit(jax.vmap(slope, (None, 0)))(single(0.5, 0.8), jr.split(jr.key(0), 20_000))
    step = 1e-5
    for got, dm, dr in ((slopes.means[0], step, 0.0), (slopes.roots[0], 0.0, step)):
        got = np.asarray(got).ravel()
        want = integrated_kl(0.5 + dm, 0.8 + dr) - integrated_kl(0.5 - dm, 0.8 - dr)
        want /= 2.0 * step
        assert abs(got.mean() - want) < 5.0 * got.std() / 20_000**0.5
        assert abs(want) > 10.0 * got.std() / 20_000**0.5  # a wrong sign would be seen


def test_the_prior_is_standard_normal_in_whitened_coordinates(x64):
    values = eqx.filter_jit(sample_prior)(jr.key(0), model(), 40_000)
    assert [v.shape[1:] for v in values] == SHAPES
    assert_moments(flat(values), np.zeros(16), np.eye(16))
    got = GPPrior().log_density(model().layers, tuple(v[0] for v in values))
    np.testing.assert_allclose(got, stats.norm.logpdf(flat(values)[0]).sum(), rtol=1e-12)


def test_the_prior_is_the_gaussian_process_in_its_own_coordinates(x64):
    """`log N(v | 0, I) = log N(u | m(z), K) + P log |det C|` for each layer."""
    layers = model().layers
    values = GPPrior().sample(jr.key(0), layers)
    want = 0.0
    for layer, v in zip(layers, values, strict=True):
        u, mean = np.asarray(layer.unwhiten(v)), np.asarray(layer.mean(layer.z))
        chol = np.asarray(layer.factor().chol)
        normal = stats.multivariate_normal(np.zeros(len(chol)), chol @ chol.T)
        want += np.sum(normal.logpdf((u - mean).T))
        want += layer.num_outputs * np.linalg.slogdet(chol)[1]
        np.testing.assert_allclose(chol @ chol.T, layer.kernel.gram(layer.z), atol=1e-7)
    np.testing.assert_allclose(GPPrior().log_density(layers, values), want, rtol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_start_is_sharp_in_hidden_layers_and_the_prior_in_the_last(dtype):
    shapes = [(3, 2), (4, 2), (5, 1)]
    with jax.enable_x64(dtype == "float64"):
        start = gaussian_posterior(model(shapes=shapes))
    for shape, scale, mean, root in zip(
        shapes, [1e-5, 1e-5, 1.0], start.means, start.roots, strict=True
    ):
        assert mean.dtype == root.dtype == dtype
        np.testing.assert_array_equal(mean, np.zeros(shape))
        expected = np.tile(scale * np.eye(shape[0]), (shape[1], 1, 1))
        np.testing.assert_allclose(root, expected, rtol=1e-6)


class Dirac(AbstractVariational):
    """All mass on ones."""

    def sample_and_kl(self, key, model, num):
        values = tuple(jnp.ones((num, *layer.mean(layer.z).shape)) for layer in model.layers)
        return values, jnp.zeros(())


def test_prediction_gets_gaussians_at_both_ends_and_draws_elsewhere(x64):
    gp = model()
    first, middle, last = posterior().inducing(jr.key(0), gp, 7)
    for inducing, root in ((first, posterior().roots[0]), (last, posterior().roots[2])):
        assert inducing.value.ndim == 2
        np.testing.assert_array_equal(inducing.root, jnp.tril(root))
    drawn = posterior().sample(jr.key(0), gp, 7)[1]
    assert middle.root is None
    np.testing.assert_array_equal(middle.value, drawn)
    for inducing in Dirac().inducing(jr.key(0), gp, 7):
        assert isinstance(inducing, Inducing) and inducing.root is None
        np.testing.assert_array_equal(inducing.value, jnp.ones_like(inducing.value))
        assert inducing.value.shape[0] == 7


def test_an_upper_triangle_gets_no_gradient(x64):
    """Neither through the draws nor through the KL: what is not used must not drift."""
    gp, q = model(), posterior()

    def value(q):
        values, kl = q.sample_and_kl(jr.key(0), gp, 3)
        return kl + sum(jnp.sum(v**3) for v in values) + q.log_density(tuple(v[0] for v in values))

    for root in jax.jit(jax.grad(value))(q).roots:
        np.testing.assert_array_equal(jnp.triu(root, 1), jnp.zeros_like(root))
        assert np.all(np.asarray(jnp.diagonal(root, axis1=1, axis2=2)) != 0.0)


def shared_and_not():
    """One root for the two outputs of the first two layers, and the same written out."""
    whole = posterior()
    roots = tuple(root[:1] for root in whole.roots)
    shared = GaussianPosterior(whole.means, roots)
    return shared, shared.unshared()


def test_a_shared_root_is_the_same_root_for_every_output(x64):
    """Draws, KL and density of the short form are those of the long one."""
    shared, apart = shared_and_not()
    assert [root.shape[0] for root in apart.roots] == [2, 2, 1]
    (values, kl), (same, kl_apart) = (draw(each, model(), 5) for each in (shared, apart))
    np.testing.assert_allclose(kl, kl_apart, rtol=1e-12)
    for one, two in zip(values, same, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-12)
    one = tuple(value[0] for value in values)
    np.testing.assert_allclose(shared.log_density(one), apart.log_density(one), rtol=1e-12)
    x = jnp.asarray(np.random.default_rng(2).normal(size=(6, 2)))
    for layer, short, long in zip(
        model().layers[:1], shared.gaussians(), apart.gaussians(), strict=False
    ):
        features = layer.features(x)
        for a, b in zip(layer.moments(features, short), layer.moments(features, long), strict=True):
            assert a.shape == b.shape == (6, 2)
            np.testing.assert_allclose(a, b, rtol=1e-12)


def test_the_gradient_of_a_shared_root_is_the_sum_over_outputs(x64):
    shared, apart = shared_and_not()

    def kl(posterior):
        return posterior.sample_and_kl(jr.key(0), model(), 1)[1]

    short, long = eqx.filter_grad(kl)(shared), eqx.filter_grad(kl)(apart)
    for one, two in zip(short.roots, long.roots, strict=True):
        np.testing.assert_allclose(one[0], jnp.sum(two, axis=0), rtol=1e-10)


def test_hidden_layers_start_shared_and_the_last_one_does_not(x64):
    start = gaussian_posterior(model(shapes=[(3, 2), (3, 2), (4, 2)]), shared=True)
    assert [root.shape for root in start.roots] == [(1, 3, 3), (1, 3, 3), (2, 4, 4)]
