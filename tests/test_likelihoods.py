"""Every average of every likelihood against brute force written in NumPy and SciPy.

The references know nothing of the package: they put Gauss-Legendre panels (or a dense tensor grid
for three classes) over the plain definition of each integral.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import integrate, special, stats

from nashgp.errors import InputError
from nashgp.likelihoods import (
    Bernoulli,
    Gaussian,
    Poisson,
    RobustMax,
    Softmax,
    StudentT,
    masked_sum,
)
from nashgp.precision import cast

POWERS = (0.0, 1e-3, 0.1, 0.5, 0.9, 1.0)


pytestmark = pytest.mark.usefixtures("x64")


# ---------------------------------------------------------------------------------- references

LEGENDRE = np.polynomial.legendre.leggauss(16)


def panels(breaks):
    """Gauss-Legendre nodes and weights on every interval between sorted breaks."""
    breaks = np.unique(breaks)
    half = 0.5 * np.diff(breaks)[:, None]
    x = 0.5 * (breaks[1:] + breaks[:-1])[:, None] + half * LEGENDRE[0]
    return x.ravel(), (half * LEGENDRE[1]).ravel()


def normal_nodes(mean, var, spots=(), reach=60):
    """Nodes and log weights of N(mean, var); each spot is a place and a width to resolve.

    Sixty standard deviations: with a large count the integrand peaks forty away from the mean.
    """
    sd = np.sqrt(var)
    breaks = [mean + sd * np.linspace(-reach, reach, 3 * reach + 1)]
    for place, width in spots:
        around = place + width * np.sinh(np.linspace(-10.0, 10.0, 81))
        breaks.append(around[np.abs(around - mean) < reach * sd])
    x, w = panels(np.concatenate(breaks))
    return x, np.log(w) + log_normal(x, mean, sd)


def log_normal(x, mean, sd):  # SciPy's versions of these two take most of a run
    return -0.5 * ((x - mean) / sd) ** 2 - np.log(sd * np.sqrt(2.0 * np.pi))


def log_student(x, df, scale):
    peak = special.gammaln((df + 1) / 2) - special.gammaln(df / 2) - np.log(np.pi * df) / 2
    return peak - np.log(scale) - (df + 1) / 2 * np.log1p((x / scale) ** 2 / df)


def power_mean(log_p, log_w, power):
    """`(1/a) log Σ w p^a`, by definition."""
    if power == 0.0:
        return np.sum(np.exp(log_w) * log_p)
    return special.logsumexp(log_w + power * log_p) / power


# Log densities by SciPy, and the spots of their averages.
SCALE, DF, NOISE = 0.05, 4.0, 0.3
SCALAR = {
    "gaussian": (
        lambda: Gaussian(NOISE),
        lambda f, y: log_normal(y, f, np.sqrt(NOISE)),
        lambda y: [(y, np.sqrt(NOISE))],
        (-2.0, 0.1, 3.0),
    ),
    "student-narrow": (
        lambda: StudentT(SCALE, DF),
        lambda f, y: log_student(y - f, DF, SCALE),
        lambda y: [(y, SCALE)],
        (-2.0, 0.1, 12.0),
    ),
    "student-low-df": (
        lambda: StudentT(1.0, 2.1),
        lambda f, y: log_student(y - f, 2.1, 1.0),
        lambda y: [(y, 1.0)],
        (-2.0, 0.1, 30.0),
    ),
    "student-high-df": (
        lambda: StudentT(0.2, 60.0),
        lambda f, y: log_student(y - f, 60.0, 0.2),
        lambda y: [(y, 0.2)],
        (-2.0, 0.1, 6.0),
    ),
    "bernoulli": (
        lambda: Bernoulli(),
        lambda f, y: special.log_ndtr(np.where(y > 0.5, f, -f)),
        lambda y: [(0.0, 1.0)],
        (0.0, 1.0),
    ),
    "poisson": (
        lambda: Poisson(),
        lambda f, y: y * f - np.exp(f) - special.gammaln(y + 1.0),
        lambda y: [(np.log(y + 0.5), 1.0 / np.sqrt(y + 1.0))],
        (0.0, 1.0, 7.0, 1000.0),
    ),
}
TOLERANCE = {"gaussian": 1e-9, "student-high-df": 5e-7}  # others 3e-7, measured below 2e-7
MEANS = (-3.0, -0.4, 0.0, 1.0, 4.0)
VARIANCES = (1e-4, 0.05, 1.0, 9.0)


@functools.cache
def scalar_cases(name):
    """All combinations of mean, variance and target as columns."""
    targets = SCALAR[name][3]
    grid = np.meshgrid(MEANS, VARIANCES, targets, indexing="ij")
    return tuple(axis.reshape(-1, 1) for axis in grid)


@functools.cache
def scalar_reference(name, power):
    _, log_p, spots, _ = SCALAR[name]
    return np.array(
        [
            power_mean(log_p(x, y), log_w, power)
            for m, v, y in zip(*(c[:, 0] for c in scalar_cases(name)), strict=True)
            for x, log_w in [normal_nodes(m, v, spots(y))]
        ]
    )[:, None]


def power_of(likelihood):
    """`power_term` compiled once for every power."""
    return eqx.filter_jit(lambda m, v, y, a: likelihood.power_term(m, v, y, a))


@functools.cache
def scalar_power(name):
    """`power_term` at all cases of one likelihood, compiled once for all tests."""
    likelihood = SCALAR[name][0]()
    mean, var, y = map(jnp.asarray, scalar_cases(name))
    return jax.jit(lambda a: likelihood.power_term(mean, var, y, a))


def excess(got, want):
    """The largest error, absolute below one and relative above."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape and np.all(np.isfinite(got))
    return float(np.max(np.abs(got - want) / np.maximum(1.0, np.abs(want))))


# ------------------------------------------------------------------- one function per target


@pytest.mark.parametrize("name", SCALAR)
def test_scalar_averages(name):
    likelihood = SCALAR[name][0]()
    mean, var, y = map(jnp.asarray, scalar_cases(name))
    tolerance = TOLERANCE.get(name, 5e-7)
    values = {a: np.asarray(scalar_power(name)(jnp.asarray(a))) for a in POWERS}
    for a in POWERS:
        # Counts: at a = 1e-3 and variance 9 the term reaches -2e4 and keeps five digits.
        allowed = 1e-5 if name == "poisson" and a == 1e-3 else tolerance
        assert excess(values[a], scalar_reference(name, a)) < allowed, a
    expected = eqx.filter_jit(likelihood.expected_log_prob)(mean, var, y)
    predictive = eqx.filter_jit(likelihood.log_predictive)(mean, var, y)
    assert excess(expected, scalar_reference(name, 0.0)) < tolerance
    assert excess(predictive, scalar_reference(name, 1.0)) < tolerance
    ordered = np.stack([values[a] for a in POWERS])
    slack = 1e-5 * np.maximum(1.0, np.abs(ordered[1:]))
    assert np.all(np.diff(ordered, axis=0) > -slack)  # Jensen
    log_p = SCALAR[name][1](np.asarray(mean), np.asarray(y))
    assert excess(likelihood.log_prob(mean, y), log_p) < 1e-12


@pytest.mark.parametrize("name", SCALAR)
def test_powers_join_smoothly(name):
    """Tiny powers add half the variance of log p times the power; there is no seam further up."""
    _, log_p, spots, _ = SCALAR[name]
    row = next(i for i, v in enumerate(scalar_cases(name)[1][:, 0]) if v == 0.05)
    m, v, y = (column[row, 0] for column in scalar_cases(name))
    x, log_w = normal_nodes(m, v, spots(y))
    values = log_p(x, y)
    mean = np.sum(np.exp(log_w) * values)
    slope = 0.5 * np.sum(np.exp(log_w) * (values - mean) ** 2)

    def at(a):
        return float(scalar_power(name)(jnp.asarray(a))[row, 0])

    for a in (0.0, 1e-14, 1e-9, 1e-5):
        assert abs(at(a) - (mean + a * slope)) < 1e-6 * max(1.0, abs(mean)), a
    path = [at(a) for a in np.linspace(0.05, 1.0, 96)]  # crosses b = 1 of every Student-t
    assert np.max(np.abs(np.diff(path, 4))) < 1e-4 * max(1.0, slope)


def central(function, x, step):
    return (np.asarray(function(x + step)) - np.asarray(function(x - step))) / (2.0 * step)


@pytest.mark.parametrize("name", [name for name in SCALAR if name != "student-low-df"])
def test_scalar_gradients(name):
    likelihood, log_p = SCALAR[name][0](), SCALAR[name][1]
    mean, var, y = map(jnp.asarray, scalar_cases(name))
    parameters, static = eqx.partition(likelihood, eqx.is_inexact_array)
    leaves, tree = jax.tree.flatten(parameters)

    def value(leaves, mean, var, a):
        return eqx.combine(jax.tree.unflatten(tree, leaves), static).power_term(mean, var, y, a)

    @jax.jit
    def both(*args):
        term, pull = jax.vjp(value, *args)
        return term, pull(jnp.ones_like(term))[:3]

    for a in map(jnp.asarray, (0.0, 0.5, 1.0)):
        _, (by_leaf, by_mean, by_var) = both(leaves, mean, var, a)
        step = 1e-3 * np.sqrt(np.asarray(var))  # rows are independent, so all move at once
        want = central(lambda m, a=a: both(leaves, m, var, a)[0], mean, step)
        assert excess(by_mean, want) < 2e-5, a
        want = central(lambda v, a=a: both(leaves, mean, v, a)[0], var, 1e-3 * np.asarray(var))
        assert excess(by_var, want) < 2e-5, a
        for i, leaf in enumerate(leaves):

            def moved(x, i=i, a=a):
                return both([*leaves[:i], x, *leaves[i + 1 :]], mean, var, a)[0].sum()

            assert excess(by_leaf[i], central(moved, leaf, 1e-5)) < 1e-6, (a, i)
        # Without variance the values and slopes are those of log p itself.
        term, (_, by_mean, by_var) = both(leaves, mean, jnp.zeros_like(var), a)
        assert excess(term, log_p(np.asarray(mean), np.asarray(y))) < 1e-6
        want = central(lambda m: log_p(m, np.asarray(y)), np.asarray(mean), 1e-6)
        assert excess(by_mean, want) < 1e-5
        assert np.all(np.isfinite(by_var))


OUTER = [(0.3, 0.5, 0.2), (-1.0, 0.05, 1.0), (0.3, 0.01, 1.0)]  # mean, conditional, spread
# With scale 0.05 next to a spread of 1 the inner logarithm bends sharply under the outer integral.
OUTER_TOLERANCE = {("student-narrow", 0.5): 5e-5, ("student-narrow", 1.0): 5e-3}


def outer_reference(name, y, powers):
    """`E (1/a) log E p^a`, both averages by brute force: powers by rows."""
    _, log_p, spots, _ = SCALAR[name]
    table = np.zeros((len(powers), len(OUTER)))
    for row, (m, q, s) in enumerate(OUTER):
        bend = [(place, np.hypot(width, np.sqrt(q))) for place, width in spots(y)]
        centres, log_w = normal_nodes(m, s, bend, reach=7)
        for centre, w in zip(centres[log_w > -25.0], np.exp(log_w[log_w > -25.0]), strict=True):
            f, inner_log_w = normal_nodes(centre, q, spots(y), reach=12)
            values = log_p(f, y)
            table[:, row] += [w * power_mean(values, inner_log_w, a) for a in powers]
    return table


@pytest.mark.parametrize("name", ["gaussian", "student-narrow", "bernoulli", "poisson"])
def test_scalar_data_term(name):
    likelihood, y, powers = SCALAR[name][0](), SCALAR[name][3][1], (0.0, 0.5, 1.0)
    columns = [jnp.asarray(column)[:, None] for column in zip(*OUTER, strict=True)]
    targets = jnp.full(columns[0].shape, y)

    def value(mean, conditional, spread, a):
        return likelihood.data_term(jr.key(0), mean, conditional, spread, targets, a)

    @jax.jit
    def both(*args):
        term, pull = jax.vjp(value, *args)
        return term, pull(jnp.ones_like(term))[:3]

    for a, want in zip(powers, outer_reference(name, y, powers), strict=True):
        term, gradients = both(*columns, jnp.asarray(a))
        tolerance = OUTER_TOLERANCE.get((name, a), 3e-7)
        assert excess(term[:, 0], want) < tolerance, a
        for i, gradient in enumerate(gradients):

            def moved(x, i=i, a=a):
                return both(*columns[:i], x, *columns[i + 1 :], jnp.asarray(a))[0]

            assert excess(gradient, central(moved, columns[i], 1e-5)) < 20 * tolerance, i
    mean, conditional, spread = columns
    drawn = jax.jit(lambda a: value(mean, conditional, None, a))(jnp.asarray(0.5))
    run = jax.jit(lambda a: likelihood.power_term(mean, conditional, targets, a))
    np.testing.assert_allclose(drawn, run(jnp.asarray(0.5)), rtol=1e-12)
    known = eqx.filter_jit(likelihood.expected_log_prob)(mean, conditional + spread, targets)
    np.testing.assert_allclose(value(mean, conditional, spread, 0.0), known, rtol=1e-12)


def test_gaussian_data_term_keeps_the_spread_out_of_the_logarithm():
    """`log N(y | m, D) - s / 2D - (1-a)/2a log(1 + a q / σ²)` with `D = a q + σ²`, per column."""
    noise = np.array([0.2, 0.7])
    likelihood = Gaussian(noise)
    r = np.random.default_rng(0)
    mean, y = r.normal(size=(2, 5, 2))
    q, s = r.uniform(0.1, 2.0, size=(2, 5, 2))
    for a in (0.01, 0.5, 1.0):
        d = a * q + noise
        want = stats.norm.logpdf(y, mean, np.sqrt(d)) - s / (2 * d)
        want -= (1 - a) / (2 * a) * np.log1p(a * q / noise)
        got = likelihood.data_term(jr.key(0), *map(jnp.asarray, (mean, q, s, y)), a)
        assert excess(got, want) < 1e-12
    zero = likelihood.data_term(jr.key(0), *map(jnp.asarray, (mean, q, s, y)), 0)
    want = stats.norm.logpdf(y, mean, np.sqrt(noise)) - (q + s) / (2 * noise)
    assert excess(zero, want) < 1e-12


@pytest.mark.parametrize("name", SCALAR)
def test_scalar_moments_and_cdf(name):
    likelihood, (_, _, spots, targets) = SCALAR[name][0](), SCALAR[name]
    base = name.split("-")[0]
    scale, df = {"student-narrow": (SCALE, DF), "student-low-df": (1.0, 2.1)}.get(name, (0.2, 60.0))
    inside = {  # mean, variance and cdf given f
        "gaussian": lambda f, y: (f, NOISE + 0 * f, stats.norm.cdf(y, f, np.sqrt(NOISE))),
        "student": lambda f, y: (f, stats.t.var(df, f, scale), stats.t.cdf(y, df, f, scale)),
        "bernoulli": lambda f, y: (
            special.ndtr(f),
            special.ndtr(f) * special.ndtr(-f),
            stats.bernoulli.cdf(y, special.ndtr(f)),
        ),
        "poisson": lambda f, y: (np.exp(f), np.exp(f), stats.poisson.cdf(y, np.exp(f))),
    }[base]
    means, variances = np.meshgrid(MEANS, VARIANCES)
    mean, var = (jnp.asarray(axis.reshape(-1, 1)) for axis in (means, variances))
    got = eqx.filter_jit(likelihood.moments)(mean, var)
    cdf = eqx.filter_jit(likelihood.cdf)
    for y in (*targets, 0.5, -1.0):
        column = jnp.full(mean.shape, y)
        want = []
        for m, v in zip(means.ravel(), variances.ravel(), strict=True):
            x, log_w = normal_nodes(m, v, spots(max(y, 0.0)))
            w = np.exp(log_w)
            inner, noise, below = inside(x, y)
            first = np.sum(w * inner)
            want.append((first, np.sum(w * noise) + np.sum(w * (inner - first) ** 2), w @ below))
        want = np.array(want)
        assert excess(got[0][:, 0], want[:, 0]) < 1e-8
        assert excess(got[1][:, 0], want[:, 1]) < 1e-8
        assert np.max(np.abs(cdf(mean, var, column)[:, 0] - want[:, 2])) < 3e-7


# -------------------------------------------------------------------------------- class labels

CLASS_MEANS = ([0.0, 0.0, 0.0], [2.0, -1.0, 0.5], [-4.0, 3.0, 1.0], [8.0, 0.0, -3.0])
CLASS_VARIANCES = (
    [1e-4, 1e-4, 1e-4],
    [0.3, 0.3, 0.3],
    [9.0, 9.0, 9.0],
    [9.0, 1e-4, 1.0],
    [1e-4, 4.0, 0.1],
)
CLASSES = {"robust-max": lambda: RobustMax(3), "softmax": lambda: Softmax(3)}


@functools.cache
def class_cases():
    rows = [(m, v, y) for m in CLASS_MEANS for v in CLASS_VARIANCES for y in (0.0, 1.0)]
    means, variances, labels = zip(*rows, strict=True)
    return np.array(means), np.array(variances), np.array(labels)[:, None]


def win_probability(mean, var, label):
    """P(f_label is largest): both differences to it are below zero."""
    others = [k for k in range(3) if k != label]
    cov = np.diag(var[others]) + var[label]
    joint = stats.multivariate_normal(mean[others] - mean[label], cov, allow_singular=True)
    return joint.cdf(np.zeros(2))


@functools.cache
def class_reference(name):
    """power -> column of `(1/a) log E p^a`."""
    table = {a: [] for a in POWERS}
    z = np.linspace(-8.0, 8.0, 44)
    log_w = -0.5 * (z[:, None, None] ** 2 + z[:, None] ** 2 + z**2)
    log_w -= special.logsumexp(log_w)
    for m, v, y in zip(*class_cases(), strict=True):
        y = int(y[0])
        if name == "robust-max":
            win = win_probability(m, v, y)
            log_p = np.log([1 - 1e-3, 1e-3 / 2])
            weights = np.log(np.maximum([win, 1 - win], 1e-300))
        else:
            f = np.meshgrid(*(m[:, None] + np.sqrt(v)[:, None] * z), indexing="ij")
            log_p, weights = f[y] - np.log(sum(map(np.exp, f))), log_w
        for a in POWERS:
            table[a].append(power_mean(log_p, weights, a))
    return {a: np.array(column)[:, None] for a, column in table.items()}


@pytest.mark.parametrize("name", CLASSES)
def test_class_averages(name):
    likelihood, want = CLASSES[name](), class_reference(name)
    mean, var, y = map(jnp.asarray, class_cases())
    run = power_of(likelihood)
    values = [np.asarray(run(mean, var, y, jnp.asarray(a))) for a in POWERS]
    for a, value in zip(POWERS, values, strict=True):
        assert excess(value, want[a]) < 5e-7, a
    assert np.all(np.diff(np.stack(values), axis=0) > -1e-7)
    assert excess(eqx.filter_jit(likelihood.expected_log_prob)(mean, var, y), want[0.0]) < 5e-7
    predictive = eqx.filter_jit(likelihood.log_predictive)(mean, var, y)
    assert excess(predictive, want[1.0]) < 5e-7
    p, variance = eqx.filter_jit(likelihood.moments)(mean, var)
    assert np.max(np.abs(np.sum(p, axis=1) - 1.0)) < 1e-12
    labels = np.asarray(y, int)
    np.testing.assert_allclose(np.take_along_axis(np.asarray(p), labels, 1), np.exp(want[1.0]),
                               atol=2e-7)  # fmt: skip
    np.testing.assert_allclose(variance, p * (1.0 - p), atol=1e-15)


@pytest.mark.parametrize("name", CLASSES)
def test_class_averages_match_monte_carlo(name):
    """Ten classes, where no grid reaches: a million draws."""
    likelihood = {"robust-max": RobustMax, "softmax": Softmax}[name](10)
    r = np.random.default_rng(0)
    mean, var = r.normal(size=(1, 10)), r.uniform(0.01, 4.0, size=(1, 10))
    y = np.array([[float(np.argmax(mean))]])
    f = mean + np.sqrt(var) * r.normal(size=(1_000_000, 10))
    if name == "softmax":
        log_p = f[:, int(y[0, 0])] - special.logsumexp(f, axis=1)
    else:
        log_p = np.where(np.argmax(f, axis=1) == y[0, 0], np.log(1 - 1e-3), np.log(1e-3 / 9))
    run = power_of(likelihood)
    for a in (0.0, 0.5, 1.0):
        got = float(run(*map(jnp.asarray, (mean, var, y, a)))[0, 0])
        sample = log_p if a == 0.0 else np.exp(a * log_p)
        centre, error = sample.mean(), sample.std() / 1e3
        assert abs((got if a == 0.0 else np.exp(a * got)) - centre) < 5.0 * error


@pytest.mark.parametrize("name", CLASSES)
def test_class_log_prob(name):
    f = np.array([[1.0, -2.0, 0.5], [0.0, 4.0, 4.5]])
    for label in (0.0, 1.0, 2.0):
        y = np.full((2, 1), label)
        right = np.argmax(f, axis=1)[:, None] == y
        want = {
            "robust-max": np.where(right, np.log(0.999), np.log(0.0005)),
            "softmax": f[:, [int(label)]] - special.logsumexp(f, axis=1, keepdims=True),
        }[name]
        assert excess(CLASSES[name]().log_prob(jnp.asarray(f), jnp.asarray(y)), want) < 1e-12


@pytest.mark.parametrize("name", CLASSES)
def test_class_gradients(name):
    likelihood = CLASSES[name]()
    mean, var, y = map(jnp.asarray, class_cases())

    @jax.jit
    def value(mean, var, a):
        return likelihood.power_term(mean, var, y, a)

    # Widths 300 to 1 cost the largest of three most of its spare digits.
    tolerance = 2e-4 if name == "robust-max" else 5e-5
    total = jax.jit(jax.grad(lambda *args: jnp.sum(value(*args)), argnums=(0, 1)))
    for a in map(jnp.asarray, (0.0, 0.5, 1.0)):
        by_mean, by_var = total(mean, var, a)
        for k in range(3):
            unit = jnp.asarray(np.eye(3)[k : k + 1])
            step = 1e-3 * np.sqrt(np.asarray(var[:, k : k + 1]))
            want = central(lambda d, a=a, u=unit: value(mean + d * u, var, a), 0 * step, step)
            assert excess(by_mean[:, k : k + 1], want) < tolerance, (a, k)
            step = 1e-3 * np.asarray(var[:, k : k + 1])
            want = central(lambda d, a=a, u=unit: value(mean, var + d * u, a), 0 * step, step)
            scale = np.asarray(var[:, k : k + 1])  # a slope per unit of variance can be huge
            assert excess(by_var[:, k : k + 1] * scale, want * scale) < tolerance, (a, k)


@pytest.mark.parametrize("name", CLASSES)
def test_class_data_term_is_unbiased(name):
    """Over many keys it is the average of `power_term` over draws of the mean made here."""
    likelihood, num = CLASSES[name](), 600
    mean = jnp.asarray([[0.5, -0.2, 0.1], [1.5, 0.0, -1.0]])
    q, s = jnp.full((2, 3), 0.4), jnp.asarray([[0.5, 0.2, 1.0], [2.0, 1.0, 0.1]])
    y = jnp.asarray([[0.0], [2.0]])
    noise = np.random.default_rng(1).normal(size=(num, 2, 3))
    centres = jnp.asarray(np.asarray(mean) + np.sqrt(s) * noise)
    run = jax.jit(jax.vmap(lambda m, a: likelihood.power_term(m, q, y, a), (0, None)))

    @jax.jit
    @jax.vmap
    def term(key):
        at = functools.partial(likelihood.data_term, key, mean, q)
        return at(s, y, 0.0), at(s, y, 0.5), at(None, y, 0.5)

    zero, half, alone = map(np.asarray, term(jr.split(jr.key(0), num)))
    for a, drawn in ((0.0, zero), (0.5, half)):
        want = np.asarray(run(centres, jnp.asarray(a)))
        error = np.sqrt((drawn.var(axis=0) + want.var(axis=0)) / num)
        assert np.all(np.abs(drawn.mean(axis=0) - want.mean(axis=0)) < 5.0 * error), a
    if name == "robust-max":
        assert np.ptp(zero, axis=0).max() == 0.0  # nothing is left to chance
    expected = eqx.filter_jit(likelihood.expected_log_prob)(mean, q + s, y)
    error = np.std(zero, axis=0) / np.sqrt(num)
    assert np.all(np.abs(np.mean(zero, axis=0) - expected) < 5.0 * error + 1e-12)
    repeated = jnp.broadcast_to(mean[None], centres.shape)
    np.testing.assert_allclose(alone, run(repeated, jnp.asarray(0.5)), rtol=1e-12)


def test_classes_have_no_order():
    mean = jnp.zeros((2, 3))
    with pytest.raises(InputError, match="no order"):
        Softmax(3).cdf(mean, mean, jnp.zeros((2, 1)))


# ----------------------------------------------------------------------- all of them together

ALL = {
    "gaussian": lambda: Gaussian([0.1, 0.4]),
    "student-t": lambda: StudentT([0.3, 0.1], [4.0, 7.0]),
    "bernoulli": lambda: Bernoulli(),
    "poisson": lambda: Poisson(),
    "robust-max": lambda: RobustMax(3),
    "softmax": lambda: Softmax(3),
}


def example(name, num=4, dtype="float64"):
    """A likelihood with means, variances and targets of the right shapes."""
    r = np.random.default_rng(7)
    classes = name in CLASSES
    mean = r.normal(size=(num, 3 if classes else 2))
    var = r.uniform(0.05, 1.5, size=mean.shape)
    shape = (num, 1 if classes else 2)
    y = {
        "gaussian": r.normal(size=shape),
        "student-t": r.normal(size=shape),
        "bernoulli": r.integers(0, 2, shape),
        "poisson": r.poisson(2.0, shape),
    }.get(name, r.integers(0, 3, shape))
    arrays = (jnp.asarray(np.asarray(x, float), dtype) for x in (mean, var, y))
    return cast(ALL[name](), dtype), *arrays


@pytest.mark.parametrize("name", ALL)
def test_float32_stays_float32_and_close(name):
    results = {}
    for dtype in ("float32", "float64"):
        likelihood, mean, var, y = example(name, dtype=dtype)

        @jax.jit
        def run(mean, var, y, a, likelihood=likelihood):
            term, pull = jax.vjp(lambda m: likelihood.power_term(m, var, y, a), mean)
            return term, pull(jnp.ones_like(term))

        results[dtype] = [run(mean, var, y, jnp.asarray(a, dtype)) for a in (0.0, 1e-4, 0.5, 1.0)]
        assert {leaf.dtype for leaf in jax.tree.leaves(results[dtype])} == {jnp.dtype(dtype)}
    for low, high in zip(*map(jax.tree.leaves, results.values()), strict=True):
        np.testing.assert_allclose(low, high, rtol=1e-4, atol=1e-4)
    likelihood, mean, var, y = example(name, dtype="float32")
    outputs = [  # traced but not compiled: shapes and dtypes are all that is asked
        jax.eval_shape(likelihood.log_prob, mean, y),
        jax.eval_shape(likelihood.expected_log_prob, mean, var, y),
        jax.eval_shape(likelihood.log_predictive, mean, var, y),
        jax.eval_shape(likelihood.sample, jr.key(0), mean),
    ]
    for power in (0, 0.5):
        term = functools.partial(likelihood.data_term, power=power)
        outputs.append(jax.eval_shape(term, jr.key(0), mean, var, var, y))
        outputs.append(jax.eval_shape(term, jr.key(0), mean, var, None, y))
    if name not in CLASSES:
        outputs.append(jax.eval_shape(likelihood.cdf, mean, var, y))
    assert {(out.shape, out.dtype) for out in outputs} == {(y.shape, jnp.dtype(jnp.float32))}
    for moment in jax.eval_shape(likelihood.moments, mean, var):
        assert moment.shape == mean.shape and moment.dtype == jnp.float32


@pytest.mark.parametrize("name", ["gaussian", "poisson", "robust-max", "softmax"])
def test_compiled_stacked_and_eager_agree(name):
    """Compiling takes the time here; the contract tests go through all six."""
    likelihood, mean, var, y = example(name, num=2)
    run = jax.jit(lambda m, a: likelihood.power_term(m, var, y, a))
    means, powers = jnp.stack([mean, mean + 0.5]), jnp.asarray([0.5, 0.25])
    for i, row in enumerate(jax.jit(jax.vmap(run))(means, powers)):
        np.testing.assert_allclose(row, run(means[i], powers[i]), rtol=1e-10)
    if name in ("gaussian", "robust-max"):  # slow, and nothing new in the others
        eager = likelihood.power_term(mean, var, y, 0.5)
        np.testing.assert_allclose(run(mean, powers[0]), eager, rtol=1e-10)


def test_whole_numbers_are_powers():
    likelihood, mean, var, y = example("gaussian")
    want = likelihood.power_term(mean, var, y, 1.0)
    np.testing.assert_array_equal(likelihood.power_term(mean, var, y, 1), want)
    np.testing.assert_array_equal(likelihood.log_predictive(mean, var, y), want)


@pytest.mark.parametrize("name", ALL)
def test_samples_have_the_predicted_moments(name):
    """100,000 draws of f and then y; five standard errors."""
    likelihood, mean, var, _ = example(name, num=1)
    var = 0.3 * var
    num = 100_000
    f = mean + jnp.sqrt(var) * jr.normal(jr.key(0), (num, mean.shape[1]))
    y = np.asarray(eqx.filter_jit(likelihood.sample)(jr.key(1), f))
    want, variance = (np.asarray(part)[0] for part in eqx.filter_jit(likelihood.moments)(mean, var))
    if name in CLASSES:
        y = 1.0 * (y == np.arange(3)[None])
    assert np.all(np.abs(y.mean(axis=0) - want) < 5.0 * np.sqrt(variance / num))
    if name != "student-t":  # its fourth moment is infinite or nearly so
        error = np.std((y - want) ** 2, axis=0) / np.sqrt(num)
        assert np.all(np.abs(((y - want) ** 2).mean(axis=0) - variance) < 5.0 * error)
    else:
        inner = np.quantile(y, [0.05, 0.3, 0.9], axis=0)
        cdf = jax.jit(lambda y: likelihood.cdf(mean, var, y))
        levels = [cdf(jnp.asarray(q[None])) for q in inner]
        assert np.max(np.abs(np.stack(levels)[:, 0] - [[0.05], [0.3], [0.9]])) < 8e-3


def test_robust_max_samples_its_mistakes():
    f = jnp.tile(jnp.asarray([[0.0, 2.0, 1.0, -1.0]]), (100_000, 1))
    y = np.asarray(RobustMax(4, epsilon=0.3).sample(jr.key(0), f))[:, 0]
    share = np.array([np.mean(y == k) for k in range(4)])
    assert np.all(np.abs(share - [0.1, 0.7, 0.1, 0.1]) < 5.0 * np.sqrt(0.21 / 100_000))


def test_poisson_handles_a_thousand_and_tiny_variances():
    """Large counts far from the mean, where a careless mode search overflows."""
    rows = [(m, v, y) for m in (-20.0, 0.0, 6.9, 12.0) for v in (1e-4, 0.3, 10.0)
            for y in (0.0, 1000.0)]  # fmt: skip
    mean, var, y = (jnp.asarray(column)[:, None] for column in zip(*rows, strict=True))
    run = power_of(Poisson())
    for a in (0.5, 1.0):
        want = []
        for m, v, count in rows:
            spots = [(np.log(count + 0.5), 0.03), (0.0, 1.0)]
            x, log_w = normal_nodes(m, v, spots, reach=400 if v < 0.01 else 60)
            want.append(power_mean(SCALAR["poisson"][1](x, count), log_w, a))
        assert excess(run(mean, var, y, jnp.asarray(a)), np.array(want)[:, None]) < 1e-6


def test_student_t_survives_an_extreme_outlier():
    """Ten thousand scales away the log density is still its power law."""
    likelihood = StudentT(0.01, 3.0)
    mean, var, y = jnp.zeros((1, 1)), jnp.full((1, 1), 0.04), jnp.full((1, 1), 100.0)
    x, log_w = normal_nodes(0.0, 0.04)
    run = power_of(likelihood)
    for a in (0.0, 0.25, 0.5, 1.0):
        want = power_mean(log_student(100.0 - x, 3.0, 0.01), log_w, a)
        assert abs(float(run(mean, var, y, jnp.asarray(a))[0, 0]) - want) < 1e-5


def test_student_t_with_many_degrees_is_gaussian():
    likelihood, limit = StudentT(0.5, 2e5), Gaussian(0.25)
    mean, var, y = jnp.zeros((3, 1)), jnp.full((3, 1), 0.2), jnp.asarray([[0.0], [0.5], [1.5]])
    np.testing.assert_allclose(likelihood.log_prob(mean, y), limit.log_prob(mean, y), atol=1e-3)
    run = power_of(likelihood)
    for a in (0.0, 0.5):
        want = limit.power_term(mean, var, y, a)
        np.testing.assert_allclose(run(mean, var, y, jnp.asarray(a)), want, atol=1e-3)


@pytest.mark.parametrize("sd", [[3.0, 0.003, 0.3], [0.003, 3.0, 0.3], [0.3, 0.3, 3.0]])
def test_largest_of_unequal_widths(sd):
    """A thousandfold ratio of widths: any fixed rule over f_y would miss the narrow step."""
    r = np.random.default_rng(0)
    mean, var = r.normal(size=(20, 3)), np.tile(np.square(sd), (20, 1))
    p, _ = eqx.filter_jit(RobustMax(3).moments)(jnp.asarray(mean), jnp.asarray(var))
    want = [[win_probability(m, v, k) for k in range(3)] for m, v in zip(mean, var, strict=True)]
    want = 0.0005 + (0.999 - 0.0005) * np.array(want)
    assert np.max(np.abs(p - want)) < 5e-6


@pytest.mark.parametrize("gap", [1.0, 30.0, 1e4])
def test_robust_max_is_stable_in_single_precision(gap):
    """Ten classes, widths from 1e-3 to 3, far and near: values and gradients as in double."""
    r = np.random.default_rng(0)
    mean = gap * r.normal(size=(30, 10))
    var = 10.0 ** r.uniform(-6.0, 1.0, size=(30, 10))
    y = 1.0 * r.integers(0, 10, size=(30, 1))
    results = []
    for dtype in ("float32", "float64"):
        arrays = (jnp.asarray(array, dtype) for array in (mean, var, y))
        m, v, label = arrays

        @jax.jit
        def run(m, v, label):
            def total(m, v):
                return jnp.sum(RobustMax(10).power_term(m, v, label, 0.0))

            return RobustMax(10).moments(m, v)[0], *jax.grad(total, argnums=(0, 1))(m, v)

        p, by_mean, by_var = map(np.asarray, run(m, v, label))
        results.append((p, by_mean * np.sqrt(var), by_var * var))  # in units of the widths
    for low, high in zip(*results, strict=True):
        assert np.all(np.isfinite(low))
        np.testing.assert_allclose(low, high, atol=2e-3)


def test_robust_max_knows_every_class_at_once():
    """Each column by itself is the integral over one class, done slowly."""
    r = np.random.default_rng(3)
    mean, var = r.normal(size=(4, 5)), r.uniform(0.01, 4.0, size=(4, 5))
    p = np.asarray(eqx.filter_jit(RobustMax(5).moments)(jnp.asarray(mean), jnp.asarray(var))[0])
    for n in range(4):
        for c in range(5):
            sd = np.sqrt(var[n])

            def density(x, n=n, c=c, sd=sd):
                others = np.delete(special.ndtr((x - mean[n]) / sd), c)
                return stats.norm.pdf(x, mean[n, c], sd[c]) * np.prod(others)

            ends = mean[n, c] - 9.0 * sd[c], mean[n, c] + 9.0 * sd[c]
            points = [mean[n, c] + k * sd[c] for k in (-3, -1, 0, 1, 3)]
            win = integrate.quad(density, *ends, points=points, limit=400, epsabs=1e-12)[0]
            level = 1e-3 / 4 + (1.0 - 1e-3 - 1e-3 / 4) * win
            np.testing.assert_allclose(p[n, c], level, atol=2e-7)


def test_masked_sum_ignores_what_is_missing():
    terms = jnp.asarray([[1.0, jnp.nan], [jnp.inf, -2.0]])
    weight = jnp.asarray([[2.0, 0.0], [0.0, 0.5]])
    value, (by_terms, by_weight) = jax.value_and_grad(masked_sum, (0, 1))(terms, weight)
    assert float(value) == 1.0
    np.testing.assert_array_equal(by_terms, weight)
    np.testing.assert_array_equal(by_weight, [[1.0, 0.0], [0.0, -2.0]])

    def objective(mean):
        terms = Gaussian(0.1).expected_log_prob(mean, jnp.ones_like(mean), jnp.zeros_like(mean))
        return masked_sum(terms, weight)

    gradient = np.asarray(jax.grad(objective)(jnp.asarray([[1.0, 1e200], [-1e200, 0.5]])))
    assert gradient[0, 1] == gradient[1, 0] == 0.0
    np.testing.assert_allclose([gradient[0, 0], gradient[1, 1]], [-20.0, -2.5])


def test_parameters_are_what_was_asked_for():
    gaussian, student = Gaussian([0.2, 3.0]), StudentT(0.05, 2.5)
    np.testing.assert_allclose(gaussian.noise, [0.2, 3.0], rtol=1e-12)
    np.testing.assert_allclose([student.scale, student.df], [0.05, 2.5], rtol=1e-12)
    frozen = eqx.tree_at(lambda s: s.raw_df, student, jnp.asarray(-1e3))
    assert float(frozen.df) > 2.0  # whatever an optimiser does
    assert Gaussian(0.1).num_latent(3) == StudentT().num_latent(3) == Poisson().num_latent(3) == 3
    assert RobustMax(5).num_latent(1) == Softmax(5).num_latent(1) == 5
    discrete = [name for name in ALL if ALL[name]().is_discrete]
    assert discrete == ["bernoulli", "poisson", "robust-max", "softmax"]


BAD = [
    (lambda: Gaussian(0.1), [[np.inf]], "y holds infinity; use NaN"),
    (lambda: Gaussian([0.1, 0.2]), [[1.0, 2.0, 3.0]], "y has 3 columns but noise"),
    (lambda: StudentT([0.1, 0.2], 4.0), [[1.0]], "y has 1 columns but scale"),
    (lambda: StudentT(0.1, [3.0, 4.0]), [[1.0]], "y has 1 columns but df"),
    (lambda: Bernoulli(), [[-1.0], [1.0]], "y must hold 0 and 1 only; recode"),
    (lambda: Bernoulli(), [[0.5]], "y must hold 0 and 1 only; recode"),
    (lambda: Poisson(), [[-1.0]], "y must hold counts .* use a Gaussian"),
    (lambda: Poisson(), [[1.5]], "y must hold counts .* use a Gaussian"),
    (lambda: RobustMax(3), [[3.0]], "y must hold labels 0 to 2; recode"),
    (lambda: Softmax(3), [[-1.0]], "y must hold labels 0 to 2; recode"),
    (lambda: Softmax(3), [[0.5]], "y must hold labels 0 to 2; recode"),
    (lambda: Softmax(3), [[0.0, 1.0]], "y must be one column of labels, got 2"),
]


@pytest.mark.parametrize(("make", "y", "message"), BAD)
def test_impossible_targets_are_named(make, y, message):
    with pytest.raises(InputError, match=message) as caught:
        make().check_targets(np.array(y))
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ALL)
def test_missing_targets_are_allowed(name):
    likelihood, _, _, y = example(name)
    y = np.array(y)
    likelihood.check_targets(y)
    y[0] = np.nan
    likelihood.check_targets(y)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(0.0), "positive"),
        (lambda: StudentT(-1.0, 4.0), "positive"),
        (lambda: StudentT(1.0, 2.0), "df must exceed 2"),
        (lambda: RobustMax(1), "num_classes must be at least 2"),
        (lambda: Softmax(1), "num_classes must be at least 2"),
        (lambda: RobustMax(3, epsilon=0.0), "epsilon must lie between 0 and 1"),
    ],
)
def test_impossible_parameters_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
