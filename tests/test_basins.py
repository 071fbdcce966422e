"""Modes on a grid: known mixtures, ripples, and draws that miss one."""

import numpy as np
import pytest

from nashgp.experiments.basins import find_basins

SIDE = np.linspace(-4.0, 4.0, 81)


def mixture(*parts):
    """Log density of a mixture of round Gaussians `(weight, x, y, spread)` on the grid."""
    x, y = np.meshgrid(SIDE, SIDE, indexing="ij")
    return np.log(
        sum(w / s**2 * np.exp(-0.5 * ((x - a) ** 2 + (y - b) ** 2) / s**2) for w, a, b, s in parts)
    )


def test_the_masses_of_modes_are_their_weights():
    found = find_basins(mixture((0.2, -2.0, 1.0, 0.4), (0.5, 2.0, 0.0, 0.5), (0.3, 0.0, -2.5, 0.4)))
    np.testing.assert_allclose(found.mass[:3], [0.5, 0.3, 0.2], atol=2e-3)
    assert found.num_modes == 3 and found.doubt == pytest.approx(0.3, abs=2e-3)
    assert [found.label[60, 40], found.label[40, 15], found.label[20, 50]] == [0, 1, 2]


@pytest.mark.parametrize(("apart", "modes"), [(0.8, 1), (1.6, 1), (1.75, 2)])
def test_two_summits_are_two_modes_when_the_pass_is_low(apart, modes):
    """Summits near ± a of spread 1 over their pass are `exp(a²/2) / 2`: 1.8 at 1.6, 2.3 at 1.75."""
    found = find_basins(mixture((0.5, -apart, 0.0, 1.0), (0.5, apart, 0.0, 1.0)))
    assert found.num_modes == modes


def test_a_ripple_belongs_to_the_mode_it_leaks_to():
    parts = ((0.5, -2.0, 0.0, 0.5), (0.46, 2.0, 0.0, 0.5), (0.04, 3.0, 0.9, 0.4))
    found = find_basins(mixture(*parts))
    np.testing.assert_allclose(found.mass[:2], [0.5, 0.5], atol=0.01)
    assert found.label[70, 49] == found.label[60, 40] != found.label[20, 40]


def test_noise_makes_no_modes():
    log_p = mixture((1.0, 0.0, 0.0, 1.0))
    log_p += 0.1 * np.random.default_rng(0).normal(size=log_p.shape)
    assert find_basins(log_p).num_modes == 1


def test_draws_find_both_modes_or_not():
    found = find_basins(mixture((0.7, -2.0, 0.0, 0.4), (0.3, 2.0, 0.0, 0.4)))
    left, right = np.array([[20, 40]]), np.array([[60, 40]])
    assert found.found(np.concatenate([np.repeat(left, 90, 0), np.repeat(right, 10, 0)]))
    assert not found.found(np.concatenate([np.repeat(left, 95, 0), np.repeat(right, 5, 0)]))
    assert not found.found(np.repeat(right, 100, 0))
