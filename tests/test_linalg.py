"""The jitter ladder, its derivative, and the Gaussian KL."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nashgp.errors import NotPositiveDefiniteError, NumericalError
from nashgp.kernels import RBF
from nashgp.linalg import (
    JITTER,
    NUM_TRIES,
    check_factor,
    factorise,
    gaussian_kl,
    invert_lower,
    safe_sqrt,
)
from tests.cases import rows
from tests.numeric import directional_error


def covariance(num=6, seed=0):
    root = rows(num, num, seed)
    return jnp.asarray(root @ root.T + 0.5 * np.eye(num))


def test_a_good_matrix_is_factorised_at_the_first_try(x64):
    a = covariance()
    factor = factorise(a)
    assert factor.tries == 1
    np.testing.assert_allclose(factor.chol @ factor.chol.T, a, rtol=1e-6)
    np.testing.assert_allclose(factor.inverse @ factor.chol, np.eye(6), atol=1e-12)
    np.testing.assert_array_equal(factor.chol, jnp.tril(factor.chol))


@pytest.mark.parametrize("needed", [1, 2, 3])
def test_the_ladder_adds_just_enough_jitter(needed, x64):
    """Smallest eigenvalue -0.5 · 10^(needed-1) times the first jitter: `needed` tries repair it."""
    first = JITTER[8]
    target = -0.5 * first * 10.0 ** (needed - 1) if needed > 1 else 0.5 * first
    vectors = np.linalg.qr(rows(6, 6))[0]
    values = np.array([target, 1, 1, 1, 1, 1.0])
    a = jnp.asarray(vectors @ np.diag(values) @ vectors.T)
    factor = jax.jit(factorise)(a)
    assert factor.tries == needed
    extra = np.asarray(factor.chol @ factor.chol.T - a)
    amount = first * np.trace(a) / 6 * 10.0 ** (needed - 1)
    np.testing.assert_allclose(extra, amount * np.eye(6), atol=0.02 * amount + 1e-15)


def test_after_the_last_try_the_result_is_nan_and_the_error_is_typed(x64):
    factor = jax.jit(factorise)(-jnp.eye(4))
    assert factor.tries == NUM_TRIES and np.all(np.isnan(np.diag(factor.chol)))
    with pytest.raises(NotPositiveDefiniteError, match=r"layer 2 .* even after 3 tries"):
        check_factor(factor, "the covariance of layer 2")
    assert issubclass(NotPositiveDefiniteError, NumericalError)
    good = factorise(jnp.eye(4))
    assert check_factor(good, "x") is good


def test_under_vmap_only_the_failing_member_is_changed(x64):
    good, bad = covariance(), covariance().at[:, 0].set(0.0).at[0, :].set(0.0)
    bad = bad.at[0, 0].set(-3 * JITTER[8] * jnp.trace(bad) / 6)
    both = jax.vmap(factorise)(jnp.stack([good, bad]))
    np.testing.assert_array_equal(both.tries, [1, 2])
    np.testing.assert_allclose(both.chol[0], factorise(good).chol, rtol=1e-13)
    assert np.all(np.isfinite(both.chol))


@pytest.mark.parametrize("repair", [False, True])
def test_reverse_mode_matches_finite_differences(repair, x64):
    """Also through a retry, and through jitter large enough for its own derivative to count."""
    weight = jnp.asarray(rows(6, 6, seed=4))
    base = covariance()
    if repair:  # the first try adds 0.03, the second 0.3
        vectors = np.linalg.qr(rows(6, 6))[0]
        values = np.array([-0.1, 1, 1, 1, 1, 1.0])
        base = jnp.asarray(vectors @ np.diag(values) @ vectors.T)
    assert factorise(base, 0.04 if repair else None).tries == 1 + repair

    def value(a):
        factor = factorise(0.5 * (a + a.T), 0.04 if repair else None)
        return jnp.sum(weight * factor.chol) + jnp.sum(weight.T * jnp.sin(factor.inverse))

    assert directional_error(value, base) < 1e-7


def test_the_derivative_of_the_inverse_is_that_of_a_plain_cholesky(x64):
    weight, base = jnp.asarray(rows(6, 6, seed=4)), covariance()

    def plain(a):
        chol = jnp.linalg.cholesky(0.5 * (a + a.T))
        return jnp.sum(weight * jnp.linalg.inv(chol)) + jnp.sum(chol**3)

    def ours(a):
        factor = factorise(0.5 * (a + a.T), jitter=1e-15)
        return jnp.sum(weight * factor.inverse) + jnp.sum(factor.chol**3)

    np.testing.assert_allclose(jax.grad(ours)(base), jax.grad(plain)(base), rtol=1e-9)
    batch = jnp.stack([base, 2.0 * base])
    np.testing.assert_allclose(
        jax.vmap(jax.grad(ours))(batch), jax.vmap(jax.grad(plain))(batch), rtol=1e-9
    )


@pytest.mark.parametrize("num", [1, 7, 8, 9, 40, 128])  # around a block, and odd numbers of blocks
def test_a_triangular_matrix_of_any_size_is_inverted(num, x64):
    chol = np.linalg.cholesky(covariance(num))
    inverse = jax.jit(invert_lower)(jnp.asarray(chol))
    np.testing.assert_allclose(inverse, np.linalg.inv(chol), atol=1e-12, rtol=1e-9)
    np.testing.assert_array_equal(inverse, jnp.tril(inverse))
    both = jax.vmap(invert_lower)(jnp.stack([chol, 2.0 * chol]))
    np.testing.assert_allclose(both, jnp.stack([inverse, 0.5 * inverse]), atol=1e-13)


def test_inverting_loses_no_more_digits_than_lapack():
    """A nearly singular covariance in single precision, where a careless inverse breaks."""
    x = jnp.asarray(np.linspace(-1.0, 1.0, 128)[:, None], "float32")
    chol = factorise(RBF(0.5).gram(x)).chol
    eye = np.eye(128)

    def error(inverse):
        return np.max(np.abs(np.asarray(inverse, "float64") @ np.asarray(chol, "float64") - eye))

    lapack = jax.scipy.linalg.solve_triangular(chol, jnp.eye(128, dtype="float32"), lower=True)
    assert error(invert_lower(chol)) < 4.0 * error(lapack)


def test_the_slope_of_the_kl_is_that_of_the_textbook_formula(x64):
    """`R - R⁻ᵀ` within the lower triangle: of the second term only the diagonal is there."""
    mean = jnp.asarray(rows(4, 2))
    root = jnp.asarray(np.tril(rows(8, 4, seed=5).reshape(2, 4, 4)) + 1.5 * np.eye(4))
    expected = root - jnp.tril(jnp.swapaxes(jnp.linalg.inv(root), 1, 2))
    slopes = jax.jit(jax.grad(gaussian_kl, argnums=(0, 1)))(mean, root)
    np.testing.assert_allclose(slopes[0], mean, rtol=1e-12)
    np.testing.assert_allclose(slopes[1], expected, atol=1e-12)


def test_gaussian_kl_matches_the_textbook_formula(x64):
    mean = rows(4, 2)
    root = np.tril(rows(8, 4, seed=5).reshape(2, 4, 4)) + 1.5 * np.eye(4)
    root[1, 2, 2] *= -1.0  # the sign of the diagonal is free
    expected = 0.0
    for p in range(2):
        s = root[p] @ root[p].T
        expected += 0.5 * (np.trace(s) + mean[:, p] @ mean[:, p] - 4 - np.linalg.slogdet(s)[1])
    noise = np.triu(np.ones((4, 4)), 1)[None]  # what is above the diagonal must not count
    actual = gaussian_kl(jnp.asarray(mean), jnp.asarray(root + noise))
    np.testing.assert_allclose(actual, expected, rtol=1e-12)
    zero = gaussian_kl(jnp.zeros((3, 1)), jnp.eye(3)[None])
    np.testing.assert_allclose(zero, 0.0, atol=1e-15)


def test_safe_sqrt_has_value_and_slope_zero_at_zero(x64):
    x = jnp.asarray([0.0, 4.0])
    np.testing.assert_allclose(safe_sqrt(x), [0.0, 2.0])
    np.testing.assert_allclose(jax.grad(lambda x: jnp.sum(safe_sqrt(x)))(x), [0.0, 0.25])
