"""Each rule against an integral with a known value, and each safe quotient at its seam."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import log_ndtr
from scipy import special

from nashgp import quadrature

pytestmark = pytest.mark.usefixtures("x64")


def test_normal_rules_know_the_moments_of_a_normal():
    rules = [
        quadrature.even_rule(32, jnp.float64),
        quadrature.wide_rule(32, jnp.float64),
    ]
    for z, w in rules:
        for degree, moment in [(0, 1.0), (1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0), (6, 15.0)]:
            assert abs(float(w @ z**degree) - moment) < 1e-5
    z, w = quadrature.wide_rule(32, jnp.float32)
    assert z.dtype == w.dtype == jnp.float32 and np.all(np.asarray(w) > 0.0)
    # E exp(z²/4) = √2: most of it comes from where the normal itself has nearly vanished.
    z, w = quadrature.wide_rule(48, jnp.float64)
    assert abs(float(w @ jnp.exp(0.25 * z**2)) - 2**0.5) < 1e-6


def test_focused_rule_sees_a_narrow_bump_and_the_whole_normal():
    grid = np.meshgrid([-9.0, -1.0, 0.0, 2.0, 9.0], [0.01, 0.3, 30.0])
    centre, width = map(jnp.asarray, grid)
    z, w = quadrature.focused_rule(centre, width, 64)
    assert z.shape == w.shape == (64, *centre.shape)
    for degree, moment in [(0, 1.0), (1, 0.0), (2, 1.0), (4, 3.0)]:
        # Far from a narrow bump the nodes are one standard deviation apart: still three digits.
        assert np.max(np.abs(jnp.sum(w * z**degree, axis=0) - moment)) < 1e-3
    # E exp(-(z - c)² / 2w²) is a ratio of normal densities.
    want = width / np.hypot(1.0, width) * np.exp(-0.5 * centre**2 / (1.0 + width**2))
    got = jnp.sum(w * jnp.exp(-0.5 * ((z - centre[None]) / width[None]) ** 2), axis=0)
    assert np.max(np.abs(got - want)) < 1e-6


def test_expect_averages_over_each_entry():
    mean, var = jnp.asarray([[0.3, -1.0]]), jnp.asarray([[0.5, 4.0]])
    got = quadrature.expect(jnp.sin, mean, var, 48)
    np.testing.assert_allclose(got, jnp.sin(mean) * jnp.exp(-0.5 * var), atol=1e-9)


@pytest.mark.parametrize("name", ["log1p", "expm1"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ratios_are_smooth_through_zero(name, dtype):
    seam = float(np.finfo(dtype).eps) ** 0.25
    x = np.array([-0.5, -1.1 * seam, -0.9 * seam, -1e-20, 0.0, 1e-9, 0.99 * seam, 1.01 * seam, 3.0])
    ratio = {"log1p": quadrature.log1p_ratio, "expm1": quadrature.expm1_ratio}[name]
    rounded = np.asarray(x, dtype).astype(float)
    safe = np.where(np.abs(rounded) < 1e-12, 1.0, rounded)
    base = {"log1p": np.log1p(safe), "expm1": np.expm1(safe)}[name]
    slope = {"log1p": 1.0 / (1.0 + safe), "expm1": np.exp(safe)}[name]
    value, gradient = jax.vmap(jax.value_and_grad(ratio))(jnp.asarray(x, dtype))
    eps = np.finfo(dtype).eps
    assert value.dtype == gradient.dtype == dtype
    np.testing.assert_allclose(value, np.where(safe == 1.0, 1.0, base / safe), rtol=8 * eps)
    at_zero = {"log1p": -0.5, "expm1": 0.5}[name]
    want = np.where(safe == 1.0, at_zero, (slope - base / safe) / safe)
    np.testing.assert_allclose(gradient, want, atol=20 * eps**0.75)


def test_log_mean_power_reaches_the_mean_and_the_log_mean_exp():
    values, weights = jnp.asarray([[0.3, -2.0, 1.1]]), jnp.asarray([[0.2, 0.5, 0.3]])
    mean = float(jnp.sum(weights * values))
    spread = float(jnp.sum(weights * values**2)) - mean**2
    run = jax.jit(lambda a: quadrature.log_mean_power(values, weights, a)[0])
    assert abs(float(run(jnp.asarray(0.0))) - mean) < 1e-15
    assert abs(float(run(jnp.asarray(1e-9))) - mean) < 1e-8
    assert abs(float(jax.grad(run)(jnp.asarray(0.0))) - 0.5 * spread) < 1e-12
    for a in (1e-3, 0.5, 1.0):
        want = np.log(np.sum(np.asarray(weights) * np.exp(a * np.asarray(values)))) / a
        assert abs(float(run(jnp.asarray(a))) - want) < 1e-12


def test_tilted_is_exact_for_quadratics_from_any_start():
    """`l = -c (f - b)² / 2` leaves a constant integrand, so even 8 nodes give the closed form."""
    m, v, b, c = 0.7, 2.0, -1.5, 3.0
    full = jnp.ones((1, 1))

    def log_p(f):
        return -0.5 * c * (f - b) ** 2

    for a in (1e-3, 0.5, 1.0):
        total = 1.0 + a * c * v
        want = -0.5 * np.log(total) / a - 0.5 * c * (m - b) ** 2 / total
        for start in (m, 9.0):
            got = quadrature.tilted(log_p, m * full, v * full, jnp.asarray(a), start * full, 8)
            assert abs(float(got[0, 0]) - want) < 1e-9
    got = quadrature.tilted(log_p, m * full, v * full, jnp.asarray(0.0), m * full, 48)
    assert abs(float(got[0, 0]) + 0.5 * c * ((m - b) ** 2 + v)) < 1e-9


def test_tilted_keeps_its_digits_far_in_the_tail():
    mean, var = jnp.asarray([[-30.0, -300.0]]), jnp.asarray([[9.0, 0.5]])
    got = jax.jit(lambda m: quadrature.tilted(log_ndtr, m, var, jnp.ones(()), m, 32))(mean)
    np.testing.assert_allclose(got, log_ndtr(mean / jnp.sqrt(1.0 + var)), rtol=1e-9)


@pytest.mark.parametrize("shape", [1.0, 7.5, 1000.0])
def test_gamma_rule_knows_log_gamma_moments(shape):
    u, w = quadrature.gamma_rule(jnp.full((1, 1), shape), 96)
    mean = special.digamma(shape) - np.log(shape)
    assert abs(float(jnp.sum(w * u)) - mean) < 1e-6
    assert abs(float(jnp.sum(w * (u - mean) ** 2)) - special.polygamma(1, shape)) < 1e-6
    assert abs(float(jnp.sum(w * jnp.exp(u))) - 1.0) < 1e-8

    def tail(b):
        u, w = quadrature.gamma_rule(jnp.full((1, 1), b), 96)
        return jnp.sum(w * jnp.exp(-u))

    if shape > 1.0:  # E b/λ = b / (b - 1), differentiated in b
        np.testing.assert_allclose(jax.grad(tail)(shape), -1.0 / (shape - 1.0) ** 2, rtol=1e-6)


def test_inverse_power_of_a_gamma_variable():
    """X ~ Gamma(k, k): L(λ) = (1 + λ/k)^-k and E X^-b = k^b Γ(k - b) / Γ(k)."""
    k = 3.0
    t = jnp.linspace(-18.0, 30.0, 128)[None, :]
    step = jnp.full((1, 1), 48.0 / 127)
    laplace = jnp.exp(-k * jnp.log1p(jnp.exp(t) / k))
    for b in (0.0, 1e-3, 0.5, 1.0):
        got = quadrature.inverse_power(t, step, laplace, jnp.full((1, 1), b))
        if b == 0.0:
            want = np.log(k) - special.digamma(k)
        else:
            want = np.log(k) + (special.gammaln(k - b) - special.gammaln(k)) / b
        assert abs(float(got[0]) - want) < 1e-8


def test_root_is_safe_at_zero():
    value, slope = jax.value_and_grad(lambda v: quadrature.root(v))(jnp.asarray(0.0))
    assert 0.0 < float(value) < 1e-7 and np.isfinite(slope)
    assert abs(float(quadrature.root(jnp.asarray(4.0))) - 2.0) < 1e-12
