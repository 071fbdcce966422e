"""Distances of draws and simulation-based calibration, on distributions that are known."""

import numpy as np
import pytest

from nashgp import diagnostics
from nashgp.errors import InputError


def normal(num, seed, mean=0.0, scale=1.0, width=3):
    return mean + scale * np.random.default_rng(seed).normal(size=(num, width))


def test_a_shift_in_one_dimension_is_its_own_wasserstein_distance():
    reference = normal(20_000, 0, width=1, scale=2.0)
    got = diagnostics.sliced_wasserstein(reference + 1.0, reference)
    np.testing.assert_allclose(got, 1.0 / np.std(reference), rtol=1e-6)


def test_sliced_wasserstein_of_a_shift_averages_over_directions():
    """`E |θ·δ|` with a unit θ in three dimensions is `|δ| / 2`."""
    reference = normal(20_000, 0)
    got = diagnostics.sliced_wasserstein(reference + np.array([3.0, 0.0, 0.0]), reference)
    assert abs(got - 1.5) < 0.1


def test_mmd_is_that_of_the_formula():
    """`E k = √(w²/(w²+2)) exp(-δ²/2(w²+2))` for unit Gaussians δ apart, kernel of width w."""
    x, y = normal(4_000, 0, mean=1.0, width=1), normal(4_000, 1, width=1)
    w2 = 2.0 * 0.6745**2  # the median of |y - y'| is 0.6745 √2
    same = (w2 / (w2 + 2.0)) ** 0.5
    want = (2.0 * same * (1.0 - np.exp(-0.5 / (w2 + 2.0)))) ** 0.5
    assert abs(diagnostics.mmd(x, y) - want) < 0.04


@pytest.mark.parametrize("name", list(diagnostics.DISTANCES))
def test_exact_draws_are_at_the_floor_and_others_above_it(name):
    reference, only = normal(4_000, 0), {name: diagnostics.DISTANCES[name]}
    wrong = normal(4_000, 2, mean=0.3, scale=1.3)
    exact = diagnostics.compare(normal(4_000, 1), reference, distances=only)[name]
    bad = diagnostics.compare(wrong, reference, distances=only)[name]
    assert abs(exact.excess) < 0.05 and bad.excess > max(0.1, 3.0 * abs(exact.excess))


def test_a_distance_says_its_floor():
    assert str(diagnostics.Distance(0.5, 0.01, 0.1, 0.02)) == "0.5000 ± 0.0100 (floor 0.1000)"


@pytest.mark.parametrize(
    ("draws", "reference"),
    [((50, 2), (50, 3)), ((5, 2), (50, 2)), ((50,), (50, 2))],
)
def test_sets_that_cannot_be_compared(draws, reference):
    with pytest.raises(InputError, match="draws"):
        diagnostics.compare(np.zeros(draws), np.zeros(reference))


def test_layers_are_laid_side_by_side():
    values = (np.arange(12.0).reshape(2, 3, 2), np.arange(2.0).reshape(2, 1, 1))
    got = diagnostics.flat(values)
    np.testing.assert_array_equal(got[1], [6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 1.0])


def calibrate(scale=1.0, shift=0.0, num=300):
    """A mean with a N(0, 1) prior and five observations of unit noise, and its exact posterior."""

    def simulate(random):
        mean = random.normal(size=2)
        return mean, mean + random.normal(size=(5, 2))

    def infer(rows, seed):
        centre, spread = np.sum(rows, axis=0) / 6.0, 6.0**-0.5
        random = np.random.default_rng(1_000 + seed)
        return centre + spread * (shift + scale * random.normal(size=(99, 2)))

    return diagnostics.simulation_based_calibration(simulate, infer, num_simulations=num)


def test_the_exact_posterior_is_calibrated():
    found = calibrate()
    assert np.all(found.p_values > 0.01) and np.all(np.abs(found.spread - 1.0) < 0.2)


@pytest.mark.parametrize(("scale", "shift"), [(0.6, 0.0), (1.7, 0.0), (1.0, 0.7)])
def test_a_wrong_posterior_is_found_out(scale, shift):
    found = calibrate(scale, shift)
    assert np.all(found.p_values < 1e-3)
    if not shift:
        assert np.all((found.spread > 1.2) == (scale < 1.0))
