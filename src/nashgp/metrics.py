"""Scores of predictions, on host arrays in double precision. Higher log density is better.

Per-row log densities, means and quantiles come from `nashgp.predict`; these functions never see
a model.
"""

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtr

Vector = Float[np.ndarray, " N"]


def rmse(mean: Vector, y: Vector) -> float:
    """Root mean squared error."""
    return float(np.sqrt(np.mean((y - mean) ** 2)))


def moment_matched_log_density(mean: Vector, variance: Vector, y: Vector) -> Vector:
    """Log density of a Gaussian with the mixture's moments: the score the paper reports."""
    return -0.5 * (np.log(2.0 * np.pi * variance) + (y - mean) ** 2 / variance)


def crps_gaussian_mixture(
    means: Float[np.ndarray, "S N"], variances: Float[np.ndarray, "S N"], y: Vector
) -> Vector:
    """`E|X - y| - ½ E|X - X'|` of an equal-weight Gaussian mixture, in closed form.

    With `A(μ, σ²) = E|N(μ, σ²)| = 2 σ φ(μ/σ) + μ (2 Φ(μ/σ) - 1)`, both terms are means of A.
    """
    to_target = np.mean(_mean_abs(y - means, variances), axis=0)
    between = np.zeros_like(to_target)
    for mean, variance in zip(means, variances, strict=True):  # S passes keep memory at S x N
        between += np.mean(_mean_abs(means - mean, variances + variance), axis=0)
    return to_target - 0.5 * between / len(means)


def _mean_abs(
    mean: Float[np.ndarray, "S N"], variance: Float[np.ndarray, "S N"]
) -> Float[np.ndarray, "S N"]:
    sd = np.sqrt(variance)
    ratio = mean / sd
    density = np.exp(-0.5 * ratio**2) / np.sqrt(2.0 * np.pi)
    return 2.0 * sd * density + mean * (2.0 * ndtr(ratio) - 1.0)


def crps_samples(samples: Float[np.ndarray, "T N"], y: Vector) -> Vector:
    """The same score from draws, without bias: pairs of distinct draws only."""
    num = len(samples)
    ordered = np.sort(samples, axis=0)
    weight = (2.0 * np.arange(1, num + 1) - num - 1.0)[:, None]
    between = 2.0 * np.sum(weight * ordered, axis=0) / (num * (num - 1))
    return np.mean(np.abs(samples - y), axis=0) - 0.5 * between


def coverage(lower: Vector, upper: Vector, y: Vector) -> float:
    """Share of targets inside their interval."""
    return float(np.mean((lower <= y) & (y <= upper)))


def calibration_error(cdf: Vector, num_levels: int = 99) -> float:
    """Mean over levels p of `|share of targets with P(Y ≤ y) ≤ p, minus p|`; 0 is calibrated."""
    levels = np.arange(1, num_levels + 1) / (num_levels + 1)
    observed = np.mean(cdf[None, :] <= levels[:, None], axis=1)
    return float(np.mean(np.abs(observed - levels)))


def accuracy(probability: Float[np.ndarray, "N C"], label: Int[np.ndarray, " N"]) -> float:
    """Share of rows whose most probable class is the label."""
    return float(np.mean(np.argmax(probability, axis=1) == label))


def brier(probability: Float[np.ndarray, "N C"], label: Int[np.ndarray, " N"]) -> float:
    """Mean squared distance of the class probabilities from the one-hot label."""
    onehot = np.eye(probability.shape[1])[label]
    return float(np.mean(np.sum((probability - onehot) ** 2, axis=1)))


def expected_calibration_error(
    probability: Float[np.ndarray, "N C"], label: Int[np.ndarray, " N"], num_bins: int = 15
) -> float:
    """`Σ_b n_b / N |accuracy - confidence|` over equal-width bins of the top probability."""
    confidence = np.max(probability, axis=1)
    correct = np.argmax(probability, axis=1) == label
    bins = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
    gaps = np.bincount(bins, correct - confidence, minlength=num_bins)
    return float(np.sum(np.abs(gaps)) / len(label))
