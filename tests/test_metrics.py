"""Every score against numbers worked out by hand or by somebody else's code."""

import numpy as np
import pytest
import scoringrules
from scipy import stats
from scipy.special import logsumexp

from nashgp import metrics


def mixture(num_parts=4, num=6, seed=0):
    """Means, variances and targets of a few mixtures, wide and narrow."""
    random = np.random.default_rng(seed)
    means = 2.0 * random.normal(size=(num_parts, num))
    return means, random.uniform(0.05, 3.0, size=means.shape), 2.0 * random.normal(size=num)


def test_rmse_by_hand():
    assert metrics.rmse(np.array([1.0, 2.0]), np.array([4.0, -2.0])) == pytest.approx(12.5**0.5)


def test_moment_matched_log_density_is_that_of_a_gaussian():
    mean, y = np.array([0.0, 1.0, -2.0]), np.array([0.3, -1.0, -2.0])
    variance = np.array([1.0, 0.2, 7.0])
    np.testing.assert_allclose(
        metrics.moment_matched_log_density(mean, variance, y),
        stats.norm.logpdf(y, mean, np.sqrt(variance)),
        rtol=1e-13,
    )


def test_matching_moments_misjudges_two_separate_modes():
    """Half N(-3, ¼), half N(3, ¼): the matched Gaussian is too low at a mode, too high between."""
    means, variances = np.array([[-3.0], [3.0]]), np.full((2, 1), 0.25)
    mean, variance = means.mean(axis=0), (variances + means**2).mean(axis=0)
    np.testing.assert_allclose(variance, 9.25)

    def gap(y):
        parts = stats.norm.logpdf(y, means, np.sqrt(variances))
        exact = logsumexp(parts, axis=0) - np.log(2.0)
        return (metrics.moment_matched_log_density(mean, variance, np.array([y])) - exact).item()

    # log N(3 | 0, 9.25) + log 2 - log N(0 | 0, ¼) = ½ log(0.25 / 9.25) - 9 / 18.5 + log 2
    assert gap(3.0) == pytest.approx(0.5 * np.log(0.25 / 9.25) - 9.0 / 18.5 + np.log(2.0))
    assert gap(3.0) < -1.5 and gap(-3.0) < -1.5
    assert gap(0.0) == pytest.approx(0.5 * np.log(0.25 / 9.25) + 18.0)
    assert gap(0.0) > 16.0


@pytest.mark.parametrize("num_parts", [1, 2, 7])
def test_mixture_crps_matches_scoringrules(num_parts):
    means, variances, y = mixture(num_parts)
    want = scoringrules.crps_mixnorm(y, means, np.sqrt(variances), m_axis=0, backend="numpy")
    got = metrics.crps_gaussian_mixture(means, variances, y)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    if num_parts == 1:
        want = scoringrules.crps_normal(y, means[0], np.sqrt(variances[0]), backend="numpy")
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_mixture_crps_is_the_area_between_the_distribution_functions():
    """`∫ (F(z) - 1{z ≥ y})² dz` by Simpson's rule on either side of the jump."""
    means, variances, y = mixture(3)
    got = metrics.crps_gaussian_mixture(means, variances, y)
    nodes, steps = np.linspace(0.0, 1.0, 4001), np.array([1.0] + [4.0, 2.0] * 1999 + [4.0, 1.0])
    for n in range(len(y)):

        def area(start, stop, jump, n=n):
            z = start + (stop - start) * nodes
            f = stats.norm.cdf(z[:, None], means[:, n], np.sqrt(variances[:, n])).mean(axis=1)
            return (stop - start) * np.sum(steps * (f - jump) ** 2) / 3.0 / 4000

        want = area(y[n] - 40.0, y[n], 0.0) + area(y[n], y[n] + 40.0, 1.0)
        np.testing.assert_allclose(got[n], want, rtol=1e-8)


def test_sample_crps_is_a_double_loop_over_distinct_pairs():
    random = np.random.default_rng(0)
    draws, y = random.normal(size=(9, 4)), random.normal(size=4)
    draws[3] = draws[5]  # a tie must not matter
    for n in range(4):
        pairs = [abs(draws[i, n] - draws[j, n]) for i in range(9) for j in range(9) if i != j]
        want = np.mean(np.abs(draws[:, n] - y[n])) - 0.5 * np.mean(pairs)
        np.testing.assert_allclose(metrics.crps_samples(draws, y)[n], want, rtol=1e-12)


def test_sample_crps_has_no_bias():
    """3 draws, 40,000 times: 5 standard errors; pairs of a draw with itself add `E|X - X'| / 6`."""
    means, variances, y = mixture(1, num=5)
    noise = np.random.default_rng(1).normal(size=(3, 40_000, 5))
    draws = means + np.sqrt(variances) * noise
    scores = metrics.crps_samples(draws.reshape(3, -1), np.tile(y, 40_000)).reshape(40_000, 5)
    gap = scores.mean(axis=0) - metrics.crps_gaussian_mixture(means, variances, y)
    error = scores.std(axis=0) / 40_000**0.5
    assert np.all(np.abs(gap) < 5.0 * error)
    bias = 2.0 * np.sqrt(variances[0] / np.pi) / 6.0
    assert np.all(5.0 * error < bias)  # so it would be seen


def test_coverage_counts_both_ends():
    y = np.array([0.0, 1.0, 0.5, -0.1, 1.1])
    assert metrics.coverage(np.zeros(5), np.ones(5), y) == pytest.approx(3 / 5)
    assert metrics.coverage(np.ones(5), np.zeros(5), y) == 0.0


def test_calibration_error_of_uniform_and_constant_probabilities():
    """Uniform in the limit: N points are never more than 1/N from the line."""
    for num in (10, 1_000):
        uniform = (np.arange(num) + 0.5) / num
        assert metrics.calibration_error(uniform) <= 0.5 / num + 1e-12
    # All at ½: |1{½ ≤ p} - p| is p below and 1 - p from ½ on; (49·50/2 + 50·51/2) / 100 / 99.
    assert metrics.calibration_error(np.full(3, 0.5)) == pytest.approx(25.0 / 99.0)
    # All at 0 or all at 1 (every target below, or above, its prediction): the mean of 1 - p or p.
    assert metrics.calibration_error(np.zeros(3)) == pytest.approx(0.5)
    assert metrics.calibration_error(np.ones(3)) == pytest.approx(0.5)
    # One level: the median. 1 of 4 targets lies at or below it.
    four = np.array([0.2, 0.6, 0.7, 0.9])
    assert metrics.calibration_error(four, num_levels=1) == pytest.approx(0.25)


PROBABILITY = np.array([[0.7, 0.2, 0.1], [0.1, 0.5, 0.4], [0.3, 0.3, 0.4], [1.0, 0.0, 0.0]])
LABEL = np.array([0, 2, 2, 1])


def test_classification_scores_by_hand():
    assert metrics.accuracy(PROBABILITY, LABEL) == pytest.approx(2 / 4)
    rows = [0.09 + 0.04 + 0.01, 0.01 + 0.25 + 0.36, 0.09 + 0.09 + 0.36, 1.0 + 1.0]
    assert metrics.brier(PROBABILITY, LABEL) == pytest.approx(np.mean(rows))


def test_expected_calibration_error_by_hand():
    """Two bins: 0.4 is right; 0.5 wrong, 0.7 right and 1.0 wrong share the upper one."""
    want = (abs(1.0 - 0.4) + abs(1.0 - (0.5 + 0.7 + 1.0))) / 4.0
    got = metrics.expected_calibration_error(PROBABILITY, LABEL, num_bins=2)
    assert got == pytest.approx(want)
    # One bin each: nothing cancels any more.
    want = (abs(0.0 - 0.5) + abs(1.0 - 0.7) + abs(1.0 - 0.4) + abs(0.0 - 1.0)) / 4.0
    got = metrics.expected_calibration_error(PROBABILITY, LABEL, num_bins=100)
    assert got == pytest.approx(want)
    certain = np.eye(3)[LABEL]
    assert metrics.expected_calibration_error(certain, LABEL) == 0.0
