"""Noise of training: as normal and as independent as a million draws can tell."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

from nashgp.noise import normal, words

NUM = 2**20
SURPRISE = 4.5  # standard deviations; some fifty numbers are looked at


@pytest.fixture(scope="module", params=[0, 1])
def draws(request):
    return np.asarray(normal(jr.key(request.param), (NUM,), "float32"), float)


def test_draws_are_standard_normal(draws):
    assert stats.kstest(draws, "norm").pvalue > 1e-4
    moments = np.mean(draws), np.var(draws) - 1.0, stats.skew(draws), stats.kurtosis(draws)
    unusual = np.abs(moments) / np.sqrt(np.array([1.0, 2.0, 6.0, 24.0]) / NUM)
    assert np.max(unusual) < SURPRISE
    beyond = np.mean(np.abs(draws) > 4.0)
    assert beyond == pytest.approx(2.0 * stats.norm.sf(4.0), rel=0.5)


@pytest.mark.parametrize("lag", [1, 2, 64, NUM // 4, NUM // 2, 3 * NUM // 4])
def test_neighbours_and_words_of_one_number_tell_nothing_of_each_other(draws, lag):
    """The four quarters of a call come from the four words of the same numbers."""
    left, right = draws[:-lag], draws[lag:]
    for function, spread in ((lambda z: z, 1.0), (lambda z: z**2 - 1.0, 2.0), (np.abs, None)):
        a, b = function(left), function(right)
        spread = spread or np.var(np.abs(draws))
        apart = np.mean(a * b) - np.mean(a) * np.mean(b)
        assert abs(apart) < SURPRISE * spread / len(a) ** 0.5


def test_keys_tell_nothing_of_each_other():
    """Keys of a split, and keys whose words differ by one."""
    count = jnp.arange(500, dtype=jnp.uint32)
    raw = jax.vmap(lambda i: jr.wrap_key_data(jnp.stack([jnp.uint32(3), i])))(count)
    for keys in (jr.split(jr.key(0), 500), raw):
        z = np.asarray(jax.vmap(lambda key: normal(key, (1_000,), "float32"))(keys), float)
        assert abs(np.mean(z[1:] * z[:-1])) < SURPRISE / z[1:].size ** 0.5
        assert stats.kstest(np.mean(z, axis=0) * 500**0.5, "norm").pvalue > 1e-4


def test_the_bits_that_are_used_are_even():
    found = np.concatenate([np.asarray(word) for word in words(jr.key(5), NUM // 4)])
    for shift in range(8, 32):
        ones = np.mean((found >> shift) & 1)
        assert abs(ones - 0.5) < SURPRISE * 0.5 / NUM**0.5
    counts = np.bincount(found >> 20, minlength=2**12)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_key_and_shape_decide_under_vmap_too():
    keys = jr.split(jr.key(1), 3)
    batch = jax.jit(jax.vmap(lambda key: normal(key, (5, 3), "float32")))(keys)
    for key, found in zip(keys, batch, strict=True):
        np.testing.assert_allclose(found, normal(key, (5, 3), "float32"), rtol=1e-5)
    assert not np.any(batch[0] == batch[1])


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0, 4)])
def test_any_shape_is_answered(shape):
    drawn = normal(jr.key(2), shape, "float32")
    assert drawn.shape == shape and drawn.dtype == "float32"
    assert np.all(np.isfinite(drawn))


def test_double_precision_has_numbers_of_its_own(x64):
    drawn = normal(jr.key(0), (4,), "float64")
    np.testing.assert_array_equal(drawn, jr.normal(jr.key(0), (4,), "float64"))
