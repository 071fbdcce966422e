"""Standardised rows and the way back, measured on training rows alone."""

import numpy as np
import pytest
from scipy.stats import norm

from nashgp.errors import InputError
from nashgp.scaling import Scaling, is_constant


def test_scaling_standardises_training_rows():
    rng = np.random.default_rng(1)
    x = 3.0 + 5.0 * rng.normal(size=(50, 4))
    y = rng.normal(size=(50, 2)) * [0.1, 100.0] - 7.0
    scaled = Scaling.from_rows(x, y).forward(x, y)
    for rows in scaled:
        np.testing.assert_allclose(rows.mean(axis=0), 0.0, atol=1e-12)
        np.testing.assert_allclose(rows.std(axis=0), 1.0, rtol=1e-12)


def test_scaling_of_other_rows_uses_the_training_rows():
    scaling = Scaling.from_rows([[0.0], [4.0]], [[10.0], [30.0]])
    x, y = scaling.forward([[6.0]], [[0.0]])
    assert x.item() == 2.0
    assert y.item() == -2.0
    np.testing.assert_array_equal(scaling.inputs([[6.0]]), x)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e30])
def test_constant_columns_keep_their_unit(value):
    rows = np.full((7, 1), value)  # seven times 0.1 has a deviation of 1e-17, not 0
    scaling = Scaling.from_rows(rows, rows)
    assert scaling.x_scale.item() == scaling.y_scale.item() == 1.0
    assert scaling.log_scale == 0.0


def test_log_scale_converts_densities():
    """A standard normal in scaled units is `N(mean, scale²)` in the original ones."""
    rng = np.random.default_rng(2)
    y = rng.normal(size=(20, 2)) * [0.5, 20.0] + 3.0
    scaling = Scaling.from_rows(np.zeros((20, 1)), y)
    _, scaled = scaling.forward(np.zeros((20, 1)), y)
    in_scaled_units = norm.logpdf(scaled).sum(axis=1)
    direct = norm.logpdf(y, scaling.y_mean, scaling.y_scale).sum(axis=1)
    np.testing.assert_allclose(in_scaled_units - scaling.log_scale, direct, rtol=1e-12)


@pytest.mark.parametrize("rows", [np.zeros((0, 2)), np.zeros(3)])
def test_scaling_needs_a_table(rows):
    with pytest.raises(InputError, match="table"):
        Scaling.from_rows(rows, np.zeros((3, 1)))


def test_missing_targets_take_no_part():
    y = np.array([[1.0, 5.0], [np.nan, 7.0], [3.0, np.nan]])
    scaling = Scaling.from_rows(np.zeros((3, 1)), y)
    np.testing.assert_allclose(scaling.y_mean, [2.0, 6.0])
    np.testing.assert_allclose(scaling.y_scale, [1.0, 1.0])
    np.testing.assert_array_equal(np.isnan(scaling.targets(y)), np.isnan(y))


def test_counts_are_left_as_they_are():
    y = np.array([[1.0], [9.0]])
    scaling = Scaling.from_rows(y, y, scale_targets=False)
    np.testing.assert_array_equal(scaling.targets(y), y)
    assert scaling.log_scale == 0.0


def test_columns_that_cannot_be_measured_are_named():
    empty = np.stack([np.ones(3), np.full(3, np.nan)], axis=1)
    with pytest.raises(InputError, match="y has no value in column 1; leave that column out"):
        Scaling.from_rows(np.zeros((3, 1)), empty)
    with pytest.raises(InputError, match="X is too large to square in column 0; change its unit"):
        Scaling.from_rows(np.array([[1e300], [-1e300]]), np.zeros((2, 1)))


def test_constant_means_equal_in_every_row():
    rows = np.array([[0.1, 1.0, 1e16], [0.1, 1.0 + 1e-15, 1e16]])
    np.testing.assert_array_equal(is_constant(rows), [True, False, True])
