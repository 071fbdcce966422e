"""Predictions: constant memory, rows that do not see each other, the same answer every time."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nashgp import predict
from tests.cases import LIKELIHOODS, rows, tiny_data, tiny_fitted


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_chunks_and_company_change_nothing(name):
    """One call, many chunks, a shuffled subset: the same rows get the same numbers."""
    fitted, x = tiny_fitted(name), rows(37, 2, seed=4)
    whole = predict.summarise(predict.moments, jr.key(0), fitted, x, num_samples=7)
    pieces = predict.summarise(predict.moments, jr.key(0), fitted, x, num_samples=7, chunk_size=8)
    some = np.random.default_rng(0).permutation(37)[:11]
    subset = predict.summarise(predict.moments, jr.key(0), fitted, x[some], num_samples=7)
    for a, b, c in zip(whole, pieces, subset, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(a[some], c, rtol=1e-10, atol=1e-12)


def test_summaries_are_those_of_the_mixture():
    fitted, data = tiny_fitted(), tiny_data()
    x, y = np.asarray(data.x), np.asarray(data.y)

    def of(summary, *others):
        return predict.summarise(summary, jr.key(3), fitted, x, *others, num_samples=9)

    mean, variance = of(predict.components)
    assert mean.shape == (12, 9, 2)
    z = (y[:, None] - mean) / np.sqrt(variance)
    joint = np.sum(-0.5 * z**2 - 0.5 * np.log(2 * np.pi * variance), axis=2)
    np.testing.assert_allclose(of(predict.log_density, y), np.log(np.mean(np.exp(joint), axis=1)))
    got_mean, got_variance = of(predict.moments)
    np.testing.assert_allclose(got_mean, mean.mean(axis=1))
    np.testing.assert_allclose(got_variance, variance.mean(axis=1) + mean.var(axis=1))
    levels = of(predict.quantiles([0.1, 0.5, 0.9], np.float64))
    for column, level in enumerate([0.1, 0.5, 0.9]):
        np.testing.assert_allclose(of(predict.cdf, levels[:, :, column]), level, atol=1e-9)


def test_missing_targets_are_left_out_of_the_density():
    fitted, data = tiny_fitted(), tiny_data()
    weight = np.ones((12, 2))
    weight[4] = 0.0
    density = predict.summarise(
        predict.log_density, jr.key(3), fitted, data.x, data.y, weight, num_samples=9
    )
    np.testing.assert_allclose(density[4], 0.0, atol=1e-12)
    assert np.all(density[:4] != 0.0)


def test_shared_hidden_noise_leaves_every_marginal_right(x64):
    """The law of one row is the same with noise of its own; 5 standard errors of 20,000 draws."""
    fitted = tiny_fitted(num_layers=3)
    x = jnp.asarray(rows(3, 2, seed=4))
    propagate = eqx.filter_jit(fitted.model.propagate)
    totals = []
    for num_rows in (1, 3):
        noise = fitted.model.noise(jr.key(num_rows), 20_000, num_rows)
        moments = propagate(x, fitted.posterior.gaussians(), noise)
        mean, variance = np.asarray(moments.mean), np.asarray(moments.variance)
        totals.append((mean.mean(axis=0), variance.mean(axis=0) + mean.var(axis=0)))
    sd = np.sqrt(totals[0][1])
    assert np.all(np.abs(totals[0][0] - totals[1][0]) < 5 * sd * (2 / 20_000) ** 0.5)
    np.testing.assert_allclose(totals[0][1], totals[1][1], rtol=0.06)


def test_drawn_middle_layers_leave_every_marginal_right(x64):
    """Mean and variance of three layers, the middle one drawn or integrated out."""
    fitted = tiny_fitted(num_layers=3)
    x = jnp.asarray(rows(3, 2, seed=4))
    drawn = fitted.posterior.inducing(jr.key(5), fitted.model, 20_000)
    assert [values.root is None for values in drawn] == [False, True, False]
    totals = []
    for inducing in (drawn, fitted.posterior.gaussians()):
        noise = fitted.model.noise(jr.key(len(totals)), 20_000, 1)
        moments = eqx.filter_jit(fitted.model.propagate)(x, inducing, noise)
        mean, variance = np.asarray(moments.mean), np.asarray(moments.variance)
        totals.append((mean.mean(axis=0), variance.mean(axis=0) + mean.var(axis=0)))
    sd = np.sqrt(totals[0][1])
    assert np.all(np.abs(totals[0][0] - totals[1][0]) < 5 * sd * (2 / 20_000) ** 0.5)
    np.testing.assert_allclose(totals[0][1], totals[1][1], rtol=0.06)


def test_row_counts_meet_two_shapes_and_waste_little():
    """Chunks of 64, the rest in eighths: every row once, in order, at most 7 in vain."""
    shapes = []

    def double(x):
        shapes.append(len(x))
        return 2.0 * x

    for total in (1, 7, 8, 63, 64, 65, 200):
        x = 1.0 * np.arange(total)
        np.testing.assert_array_equal(predict.over_rows(double, (x,), np.float32, 64), 2.0 * x)
        assert sum(shapes) < total + 8
        assert set(shapes) <= {8, 64}
        shapes.clear()


def test_changing_row_counts_compile_at_most_twice():
    fitted = tiny_fitted()
    programs = (predict._of_one, predict._apply)
    before = [program._cached._cache_size() for program in programs]
    for num in (17, 20, 25, 31, 33):
        predict.summarise(predict.moments, jr.key(0), fitted, rows(num, 2), num_samples=11)
    for program, calls in zip(programs, before, strict=True):
        assert 0 < program._cached._cache_size() - calls <= 2


def test_all_summaries_share_the_way_through_the_layers():
    """Only what is asked of the mixture is compiled anew."""
    fitted, x = tiny_fitted(), rows(5, 2)
    predict.summarise(predict.moments, jr.key(0), fitted, x, num_samples=13)
    before = predict._of_one._cached._cache_size()
    predict.summarise(predict.log_density, jr.key(0), fitted, x, np.zeros((5, 2)), num_samples=13)
    predict.summarise(predict.components, jr.key(0), fitted, x, num_samples=13)
    assert predict._of_one._cached._cache_size() == before


def test_memory_does_not_grow_with_the_rows():
    """The compiled program of one chunk is all there is; its size does not depend on N."""
    fitted = tiny_fitted()
    out = predict.summarise(
        predict.moments, jr.key(0), fitted, np.zeros((20_001, 2)), num_samples=3, chunk_size=512
    )
    assert out[0].shape == (20_001, 2)
    np.testing.assert_allclose(out[0], np.broadcast_to(out[0][0], out[0].shape), rtol=1e-12)


def test_float32_stays_float32():
    fitted = tiny_fitted(dtype="float32")
    mean, variance = predict.summarise(predict.moments, jr.key(0), fitted, rows(5, 2))
    assert mean.dtype == variance.dtype == np.float32
