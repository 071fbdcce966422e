"""The predictive mixture against brute force: sums over draws of integrals over a fine grid."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from nashgp.errors import InputError
from nashgp.likelihoods import Bernoulli, Gaussian, Poisson, RobustMax, Softmax, StudentT
from nashgp.mixtures import Blend, Mixture

# Name -> (likelihood, the same as a scipy distribution given f, means of the three draws).
# Two columns of targets each; the draws are far apart where targets are real.
LIKELIHOODS = {
    "gaussian": (
        lambda: Gaussian(np.array([0.3, 0.05])),
        lambda f: stats.norm(f, np.sqrt([[[0.3], [0.05]]])),
        [-4.0, 0.5, 5.0],
    ),
    "student-t": (
        lambda: StudentT(np.array([0.4, 0.7]), 3.0),
        lambda f: stats.t(3.0, f, np.array([[[0.4], [0.7]]])),
        [-4.0, 0.5, 5.0],
    ),
    "poisson": (lambda: Poisson(), lambda f: stats.poisson(np.exp(f)), [-1.0, 1.0, 2.5]),
    "bernoulli": (lambda: Bernoulli(), lambda f: stats.bernoulli(ndtr(f)), [-1.5, 0.3, 2.0]),
}
CONTINUOUS = ["gaussian", "student-t"]
DISCRETE = ["poisson", "bernoulli"]
LEVELS = np.array([1e-4, 0.025, 0.3, 0.5, 0.9, 1.0 - 1e-4])


def latent(name):
    """Means and variances `[3, 2, 2]` of the function values; no two entries are equal."""
    shift = np.linspace(-0.4, 0.4, 4).reshape(1, 2, 2)
    mean = np.array(LIKELIHOODS[name][2])[:, None, None] + shift
    return mean, np.array([0.3, 0.8, 0.1])[:, None, None] * (1.0 + shift)


def mixture(name, dtype="float64"):
    mean, variance = latent(name)
    with jax.enable_x64(dtype == "float64"):
        return Mixture(
            jnp.asarray(mean, dtype), jnp.asarray(variance, dtype), LIKELIHOODS[name][0]()
        )


@eqx.filter_jit
def ask(mix, method, *args):
    """Compiled once for each likelihood, precision and question."""
    return getattr(mix, method)(*args)


def brute(name, function):
    """`E_s E_f function(y | f)` by the trapezoidal rule on 401 nodes, 9 sd to either side."""
    mean, variance = latent(name)
    z = np.linspace(-9.0, 9.0, 401)
    weight = stats.norm.pdf(z) * (z[1] - z[0])
    total = 0.0
    for m, v in zip(mean, variance, strict=True):
        given = LIKELIHOODS[name][1](m[..., None] + np.sqrt(v)[..., None] * z)
        total = total + function(given) @ weight
    return total / len(mean)


def brute_cdf(name, y):
    return brute(name, lambda given: given.cdf(y[..., None]))


def targets(name, seed=0):
    """A few targets `[2, 2]` for each row, in the bulk and between the draws."""
    if name == "bernoulli":
        return [np.zeros((2, 2)), np.ones((2, 2)), np.array([[0.0, 1.0], [1.0, 0.0]])]
    if name == "poisson":
        return [1.0 * np.array([[0, 1], [2, 3]]), 1.0 * np.array([[7, 12], [30, 0]])]
    return list(4.0 * np.random.default_rng(seed).normal(size=(3, 2, 2)))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_moments_are_those_of_the_targets(name, x64):
    mean, variance = ask(mixture(name), "moments")
    first = brute(name, lambda given: given.mean())
    second = brute(name, lambda given: given.var() + given.mean() ** 2)
    np.testing.assert_allclose(mean, first, rtol=1e-10)
    np.testing.assert_allclose(variance, second - first**2, rtol=1e-9)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_densities_and_distribution_functions(name, x64):
    """Each column by itself, to the accuracy of the likelihoods' own integrals."""
    mix, density = mixture(name), "pdf" if name in CONTINUOUS else "pmf"
    for y in targets(name):
        want = np.log(brute(name, lambda given, y=y: getattr(given, density)(y[..., None])))
        for column in range(2):
            alone = jnp.zeros((2, 2)).at[:, column].set(1.0)
            got = ask(mix, "log_density", jnp.asarray(y), alone)
            np.testing.assert_allclose(got, want[:, column], atol=1e-6)
        np.testing.assert_allclose(ask(mix, "cdf", jnp.asarray(y)), brute_cdf(name, y), atol=1e-7)


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_densities_are_the_steps_of_the_distribution_function(name, x64):
    mix, before = mixture(name), np.zeros((2, 2))
    for value in range(20 if name == "poisson" else 2):
        y = jnp.full((2, 2), 1.0 * value)
        after = np.asarray(ask(mix, "cdf", y))
        got = ask(mix, "log_density", y, jnp.asarray([[1.0, 0.0], [1.0, 0.0]]))
        np.testing.assert_allclose(np.exp(got), (after - before)[:, 0], atol=1e-7)
        # Flat up to the next one.
        np.testing.assert_allclose(ask(mix, "cdf", y + 0.5), after, atol=1e-12)
        before = after
    assert np.all(np.asarray(ask(mix, "cdf", jnp.full((2, 2), -0.5))) == 0.0)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_quantiles_invert_the_distribution_function(name, x64):
    """Also one in ten thousand, on either side."""
    found = np.asarray(ask(mixture(name), "quantile", jnp.asarray(LEVELS)))
    assert found.shape == (2, 2, 6) and np.all(np.diff(found, axis=2) > 0.0)
    for column, level in enumerate(LEVELS):
        reached = brute_cdf(name, found[:, :, column])
        tail = min(level, 1.0 - level)
        np.testing.assert_allclose(reached, level, atol=1e-9 + 1e-4 * tail, rtol=0.0)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_quantile_and_cdf_undo_each_other(name, x64):
    mix, y = mixture(name), np.linspace(-7.0, 7.0, 6)
    cdf = np.stack([np.asarray(ask(mix, "cdf", jnp.full((2, 2), value))) for value in y])
    for row in range(2):
        for column in range(2):
            back = ask(mix, "quantile", jnp.asarray(cdf[:, row, column]))[row, column]
            np.testing.assert_allclose(back, y, atol=1e-6)  # the density between modes is small


@pytest.mark.parametrize("name", DISCRETE)
def test_quantiles_of_counts_are_the_smallest_that_suffice(name, x64):
    """`P(Y ≤ k - 1) < q ≤ P(Y ≤ k)`, also for levels next to the first steps."""
    mix, counts = mixture(name), [0.0, 1.0, 2.0] if name == "poisson" else [0.0]
    steps = np.array([brute_cdf(name, np.full((2, 2), count))[0, 0] for count in counts])
    near = np.full(6, 0.5)
    near[: 2 * len(steps)] = np.ravel(np.stack([steps - 1e-6, steps + 1e-6], axis=1))
    for levels in (LEVELS, near):
        found = np.asarray(ask(mix, "quantile", jnp.asarray(levels)))
        np.testing.assert_array_equal(found, np.round(found).clip(0.0))
        for column, level in enumerate(levels):
            k = found[:, :, column]
            assert np.all(brute_cdf(name, k) >= level)
            assert np.all(brute_cdf(name, k - 1.0) < level)
    stairs = [0.0, 1.0, 1.0, 2.0, 2.0, 3.0][: 2 * len(steps)]
    np.testing.assert_array_equal(found[0, 0, : len(stairs)], stairs)


@pytest.mark.parametrize(("dtype", "variance"), [("float32", 36.0), ("float64", 60.0)])
def test_quantiles_survive_a_rate_known_to_many_powers_of_ten(dtype, variance):
    """The variance of the targets, 1e34 and 1e54, says nothing about where their quantiles are."""
    with jax.enable_x64(dtype == "float64"):
        mix = Mixture(
            jnp.full((1, 1, 1), 3.0, dtype), jnp.full((1, 1, 1), variance, dtype), Poisson()
        )
        levels = np.array([0.05, 0.3, 0.5, 0.6, 0.7, 0.9])
        found = np.asarray(ask(mix, "quantile", jnp.asarray(levels, dtype)))[0, 0]
    f = np.linspace(-20.0, 20.0, 20_001)
    weight = stats.norm.pdf(f, 3.0, variance**0.5) * (f[1] - f[0])
    below = stats.norm.cdf(-20.0, 3.0, variance**0.5)  # where the count is 0

    def cdf(k):
        return below + stats.poisson.cdf(k, np.exp(f)) @ weight

    assert np.all(np.diff(found) >= 0.0)
    for k, level in zip(found, levels, strict=True):
        slack = 1e-6 if dtype == "float64" else 1e-4
        assert cdf(k) >= level - slack and cdf(k - 1.0) < level + slack


def two_modes(dtype="float64"):
    """Half N(-3, ¼), half N(3, ¼)."""
    mean = jnp.asarray([[[-3.0]], [[3.0]]], dtype)
    return Mixture(mean, jnp.full((2, 1, 1), 0.15, dtype), Gaussian(0.1))


def test_quantiles_are_not_those_of_a_matched_gaussian(x64):
    """Below the gap the mixture is its left half: `P(Y ≤ y) = ½ Φ((y + 3) / ½)`."""
    levels = np.array([0.05, 0.25, 0.45, 0.75, 0.95])
    found = np.asarray(ask(two_modes(), "quantile", jnp.asarray(levels)))[0, 0]
    left = -3.0 + 0.5 * stats.norm.ppf(2.0 * levels[:3])
    right = 3.0 + 0.5 * stats.norm.ppf(2.0 * levels[3:] - 1.0)
    np.testing.assert_allclose(found, np.concatenate([left, right]), atol=1e-6)
    mean, variance = two_modes().moments()
    np.testing.assert_allclose([mean.item(), variance.item()], [0.0, 9.25], atol=1e-12)
    matched = stats.norm.ppf(levels, 0.0, 9.25**0.5)
    assert np.all(np.abs(found - matched) > 0.9)
    assert found[0] > matched[0] and found[-1] < matched[-1]  # the matched tails are too long


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-3), ("float64", 1e-9)])
def test_far_quantiles_of_one_gaussian(dtype, tolerance):
    """In single precision 1 - 10⁻⁴ has three digits left: 6e-8 / 1e-4 of a level, /4 of an sd."""
    with jax.enable_x64(dtype == "float64"):
        mix = Mixture(
            jnp.full((3, 1, 1), 100.0, dtype), jnp.full((3, 1, 1), 3.9, dtype), Gaussian(0.1)
        )
        levels = np.array([1e-6, 1e-4, 1.0 - 1e-4])
        found = np.asarray(ask(mix, "quantile", jnp.asarray(levels, dtype)))[0, 0]
    assert found.dtype == dtype
    np.testing.assert_allclose((found - 100.0) / 2.0, stats.norm.ppf(levels), atol=tolerance)


def two_rows():
    """Two rows of two targets, all near -3 in the first draw and all near 3 in the second."""
    mean = jnp.asarray([-3.0, 3.0])[:, None, None] * jnp.ones((1, 2, 2))
    return Mixture(mean, jnp.full((2, 2, 2), 0.15), Gaussian(0.1))


def test_two_targets_are_joint_within_a_draw(x64):
    """Both targets come from one draw: agreeing is likely, disagreeing is not."""
    both, peak = jnp.ones((2, 2)), stats.norm.logpdf(0.0, 0.0, 0.5)
    far = stats.norm.logpdf(6.0, 0.0, 0.5)

    def at(*y, weight=both):
        return np.asarray(ask(two_rows(), "log_density", jnp.asarray(y), weight))

    agree, disagree = at((-3.0, -3.0), (3.0, -3.0))
    np.testing.assert_allclose(agree, 2.0 * peak - np.log(2.0), rtol=1e-6)
    np.testing.assert_allclose(disagree, peak + far, rtol=1e-6)
    # The sum of two mixtures would be 2 (peak - log 2) in both rows.
    one = jnp.asarray([[1.0, 0.0], [0.0, 1.0]])
    for missing in (-3.0, 3.0, 1e6, jnp.nan):
        alone = at((3.0, missing), (missing, -3.0), weight=one)
        np.testing.assert_allclose(alone, peak - np.log(2.0), rtol=1e-6)
    none = at((1.0, 2.0), (3.0, 4.0), weight=jnp.zeros((2, 2)))
    np.testing.assert_allclose(none, 0.0, atol=1e-12)
    # A weight chooses, it does not scale.
    y = ((1.0, 2.0), (3.0, 4.0))
    np.testing.assert_array_equal(at(*y, weight=2.5 * both), at(*y))


def test_samples_share_a_draw_within_a_row_and_not_across_rows(x64):
    """Signs of different rows agree half of the time, and are fair: 5 standard errors."""
    signs = np.sign(np.asarray(ask(two_rows(), "sample", jr.key(0), 10_000)))
    np.testing.assert_array_equal(signs[:, :, 0], signs[:, :, 1])
    assert abs(np.mean(signs[:, 0, 0] * signs[:, 1, 0])) < 5.0 / 10_000**0.5
    assert np.all(np.abs(signs.mean(axis=0)) < 5.0 / 10_000**0.5)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_samples_follow_the_distribution_function(name):
    """20,000 draws: `sup |F_n - F|` beyond 2.5/√n has probability 2 exp(-2 · 2.5²) < 1e-5."""
    num = 20_000
    draws = np.asarray(ask(mixture(name, "float32"), "sample", jr.key(0), num))
    assert draws.shape == (num, 2, 2) and draws.dtype == "float32"
    for grid in np.quantile(draws, np.linspace(0.02, 0.98, 25), axis=0):
        share = np.mean(draws <= grid, axis=0)
        assert np.all(np.abs(share - brute_cdf(name, grid)) < 2.5 / num**0.5)


@pytest.mark.parametrize("make", [RobustMax, Softmax])
def test_classes(make, x64):
    """Probabilities of three classes: whole, scored as such, and met that often when sampled."""
    random = np.random.default_rng(0)
    mean = jnp.asarray(1.5 * random.normal(size=(4, 5, 3)))
    mix = Mixture(mean, jnp.asarray(random.uniform(0.2, 2.0, size=(4, 5, 3))), make(3))
    p, variance = map(np.asarray, ask(mix, "moments"))
    assert p.shape == (5, 3) and np.all(p > 0.0)
    np.testing.assert_allclose(np.sum(p, axis=1), 1.0, atol=1e-12)
    np.testing.assert_allclose(variance, p * (1.0 - p), atol=1e-12)
    for label in range(3):
        score = ask(mix, "log_density", jnp.full((5, 1), 1.0 * label), jnp.ones((5, 1)))
        np.testing.assert_allclose(np.exp(score), p[:, label], atol=1e-6)
    draws = np.asarray(ask(mix, "sample", jr.key(0), 20_000))
    share = np.mean(draws == np.arange(3.0), axis=0)  # [20,000, 5, 1] against [3]
    assert np.all(np.abs(share - p) < 5.0 * np.sqrt(variance / 20_000))
    # The functions drawn by hand and pushed through the link: no code of the package.
    f = random.normal(size=(20_000, 4, 5, 3)) * np.sqrt(np.asarray(mix.variance)) + np.asarray(mean)
    if make is Softmax:
        given = np.exp(f) / np.sum(np.exp(f), axis=3, keepdims=True)
    else:
        given = np.where(f == f.max(axis=3, keepdims=True), 1.0 - 1e-3, 1e-3 / 2.0)
    error = np.sqrt(np.sum(given.var(axis=0), axis=0)) / 4.0 / 20_000**0.5
    assert np.all(np.abs(given.mean(axis=(0, 1)) - p) < 5.0 * error)


@pytest.mark.parametrize("make", [RobustMax, Softmax])
def test_classes_have_no_order(make):
    mix = Mixture(jnp.zeros((2, 4, 3)), jnp.ones((2, 4, 3)), make(3))
    with pytest.raises(InputError, match="no cdf or quantile"):
        ask(mix, "quantile", jnp.asarray([0.5]))
    with pytest.raises(InputError, match="no cdf or quantile"):
        mix.cdf(jnp.zeros((4, 1)))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_single_precision_is_kept_and_close(name):
    """Everything the mixture answers, against double precision; 1e-4 is a thousand roundings."""
    y = targets(name)[0]

    def answers(dtype):
        with jax.enable_x64(dtype == "float64"):
            mix, ys = mixture(name, dtype), jnp.asarray(y, dtype)
            levels = jnp.asarray([0.025, 0.3, 0.9, 0.95, 0.05, 0.5], dtype)
            return (
                *ask(mix, "moments"),
                ask(mix, "log_density", ys, jnp.ones_like(ys)),
                ask(mix, "cdf", ys),
                ask(mix, "quantile", levels),
            )

    for narrow, wide in zip(answers("float32"), answers("float64"), strict=True):
        assert narrow.dtype == "float32" and wide.dtype == "float64"
        np.testing.assert_allclose(narrow, wide, rtol=1e-4, atol=1e-4)


# ---- several models -----------------------------------------------------------------------------


@pytest.mark.parametrize("deal", [(0, 1), (0, 0, 0, 1)])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_blend_of_parts_is_the_whole(name, deal, x64):
    """Draws dealt out to two members of one likelihood: nothing about the whole may change."""
    mean, variance = (np.concatenate([part, part[:1]]) for part in latent(name))
    make = LIKELIHOODS[name][0]

    def of(draws):
        draws = list(draws)
        return Mixture(jnp.asarray(mean[draws]), jnp.asarray(variance[draws]), make())

    num = 4 * deal.count(0) // len(deal)
    whole, blend = of([0, 1, 2, 3]), Blend((of(range(num)), of(range(num, 4))), deal)
    y = jnp.round(jnp.abs(jnp.asarray(mean[1])))
    for got, want in zip(blend.moments(), whole.moments(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10)
    for got, want in zip(blend.components(), whole.components(), strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(blend.cdf(y), whole.cdf(y), rtol=1e-10)
    weight = jnp.ones_like(y)
    np.testing.assert_allclose(blend.log_density(y, weight), whole.log_density(y, weight))
    level = jnp.asarray([0.1, 0.8])
    np.testing.assert_allclose(blend.quantile(level), whole.quantile(level), rtol=1e-7)
    assert blend.is_discrete == whole.is_discrete


def test_members_of_a_blend_keep_their_noise(x64):
    """Two models that agree on the mean and not on the noise: a quarter and three."""
    zero, tiny = jnp.zeros((1, 1, 1)), jnp.full((1, 1, 1), 1e-12)
    narrow, wide = (Mixture(zero, tiny, Gaussian([noise])) for noise in (0.01, 4.0))
    blend = Blend((narrow, wide), (0, 1, 1, 1))
    y = jnp.asarray([[1.5]])
    want = 0.25 * stats.norm.pdf(1.5, 0.0, 0.1) + 0.75 * stats.norm.pdf(1.5, 0.0, 2.0)
    np.testing.assert_allclose(blend.log_density(y, jnp.ones_like(y)), np.log([want]), rtol=1e-6)
    np.testing.assert_allclose(blend.moments()[1], [[0.0025 + 3.0]], rtol=1e-6)
    drawn = np.asarray(blend.sample(jr.key(0), 4_000))[:, 0, 0]
    near = 0.25 * 0.9973 + 0.75 * 0.1192
    np.testing.assert_allclose(np.mean(np.abs(drawn) < 0.3), near, atol=0.03)
