"""How far posterior draws are from a reference, and whether an engine is calibrated.

Distances between sets of draws are never zero, not even between two sets from one distribution.
So each comes with its floor: the same distance between two parts of the reference.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy import stats
from scipy.spatial.distance import cdist

from nashgp.errors import InputError

Draws = Float[np.ndarray, "S D"]
Reference = Float[np.ndarray, "R D"]
Measure = Callable[[Draws, Reference], float]

NUM_DIRECTIONS = 200
MOST_IN_MMD = 1_000  # draws of a set that the pairwise distances are taken from


@dataclasses.dataclass(frozen=True)
class Distance:
    """A distance averaged over random halves, its floor, and the standard errors of both."""

    value: float
    error: float
    floor: float
    floor_error: float

    @property
    def excess(self) -> float:
        """What is left above the floor."""
        return self.value - self.floor

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.error:.4f} (floor {self.floor:.4f})"


def flat(values: tuple[Any, ...]) -> Draws:
    """Stacked inducing values of all layers as one row per draw."""
    return np.concatenate(
        [np.asarray(value, np.float64).reshape(len(value), -1) for value in values], axis=1
    )


def mean_error(draws: Draws, reference: Reference) -> float:
    """Largest error of a mean, in standard deviations of the reference."""
    apart = np.mean(draws, axis=0) - np.mean(reference, axis=0)
    return float(np.max(np.abs(apart) / np.std(reference, axis=0)))


def covariance_error(draws: Draws, reference: Reference) -> float:
    """`‖C - C_ref‖ / ‖C_ref‖` in the Frobenius norm, after scaling to the reference's spreads."""
    spread = np.std(reference, axis=0)
    ours, theirs = (np.atleast_2d(np.cov((part / spread).T)) for part in (draws, reference))
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def sliced_wasserstein(draws: Draws, reference: Reference, *, seed: int = 0) -> float:
    """`E_θ W_1(θ·x, θ·y)` over random directions, in units of the reference's spreads.

    In one dimension the Wasserstein distance is the area between the quantile functions.
    """
    random = np.random.default_rng(seed)
    direction = random.normal(size=(NUM_DIRECTIONS, draws.shape[1]))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    spread = np.std(reference, axis=0)
    ours, theirs = ((part / spread) @ direction.T for part in (draws, reference))
    level = (np.arange(min(len(ours), len(theirs))) + 0.5) / min(len(ours), len(theirs))

    def quantiles(values: np.ndarray) -> np.ndarray:
        return np.sort(values, axis=0)[(level * len(values)).astype(int)]

    return float(np.mean(np.abs(quantiles(ours) - quantiles(theirs))))


def mmd(draws: Draws, reference: Reference, *, seed: int = 0) -> float:
    """Maximum mean discrepancy under a Gaussian kernel as wide as the reference's median distance.

        MMD² = E k(x, x') + E k(y, y') - 2 E k(x, y)

    estimated without bias, and its root taken with its sign: an estimate may be below zero.
    """
    random = np.random.default_rng(seed)
    x, y = (_some(random, part) for part in (draws, reference))
    width = np.median(cdist(y, y)[np.triu_indices(len(y), 1)])

    def kernel(a: Draws, b: Reference) -> Float[np.ndarray, "S R"]:
        return np.exp(-0.5 * cdist(a, b, "sqeuclidean") / width**2)

    def within(a: Draws) -> float:
        n = len(a)
        return float((np.sum(kernel(a, a)) - n) / (n * (n - 1)))

    square = within(x) + within(y) - 2.0 * float(np.mean(kernel(x, y)))
    return float(np.sign(square) * np.sqrt(np.abs(square)))


def _some(random: np.random.Generator, draws: Draws) -> Float[np.ndarray, "T D"]:
    if len(draws) <= MOST_IN_MMD:
        return draws
    return draws[random.choice(len(draws), MOST_IN_MMD, replace=False)]


DISTANCES: dict[str, Measure] = {
    "mean": mean_error,
    "covariance": covariance_error,
    "sliced Wasserstein": sliced_wasserstein,
    "MMD": mmd,
}


def compare(
    draws: Float[np.ndarray, "..."],
    reference: Float[np.ndarray, "..."],
    *,
    distances: Mapping[str, Measure] = DISTANCES,
    num_splits: int = 10,
    seed: int = 0,
) -> dict[str, Distance]:
    """Distances of draws from a reference, each with its reference-against-reference floor.

    The reference is halved at random, again and again. One half is what is measured against; the
    other half gives the floor, and as many of the draws give the value.
    """
    if draws.ndim != 2 or reference.ndim != 2 or draws.shape[1] != reference.shape[1]:
        raise InputError(
            "draws and reference must be tables with the same columns; got "
            f"{draws.shape} and {reference.shape}."
        )
    half = min(len(reference) // 2, len(draws))
    if half < 10:
        raise InputError("draws needs at least 10 rows and reference at least 20; draw more.")
    random = np.random.default_rng(seed)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in distances}
    for _ in range(num_splits):
        against, again = np.split(random.permutation(len(reference))[: 2 * half], 2)
        ours = random.permutation(len(draws))[:half]
        for name, distance in distances.items():
            value = distance(draws[ours], reference[against])
            found[name].append((value, distance(reference[again], reference[against])))
    return {
        name: Distance(*_mean_and_error(values), *_mean_and_error(floors))
        for name, (values, floors) in ((n, zip(*pairs, strict=True)) for n, pairs in found.items())
    }


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values) / len(values) ** 0.5)


# ---- simulation-based calibration ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Ranks of true values among posterior draws, uniform if the posterior is right.

    A posterior that is too narrow piles ranks up at both ends, one that is too wide in the middle.
    """

    ranks: Int[np.ndarray, "R D"]
    num_draws: int

    @property
    def p_values(self) -> Float[np.ndarray, " D"]:
        """Chance of ranks at least as uneven, of each quantity, by a chi-squared test."""
        bins = max(2, min(10, len(self.ranks) // 5, self.num_draws + 1))
        places = self.ranks * bins // (self.num_draws + 1)
        sizes = np.bincount(np.arange(self.num_draws + 1) * bins // (self.num_draws + 1))
        expected = len(self.ranks) * sizes / np.sum(sizes)
        counts = [np.bincount(column, minlength=bins) for column in places.T]
        return np.array([stats.chisquare(count, expected).pvalue for count in counts])

    @property
    def spread(self) -> Float[np.ndarray, " D"]:
        """Variance of the ranks over that of uniform ones: above 1 the posterior is too narrow."""
        uniform = ((self.num_draws + 1) ** 2 - 1) / 12.0
        centre = 0.5 * self.num_draws
        return np.mean((self.ranks - centre) ** 2, axis=0) / uniform


def simulation_based_calibration(
    simulate: Callable[[np.random.Generator], tuple[Float[np.ndarray, " D"], Any]],
    infer: Callable[[Any, int], Draws],
    *,
    num_simulations: int,
    seed: int = 0,
) -> Calibration:
    """Ranks of values drawn from the prior among draws of their posterior (Talts et al. 2018).

    `simulate` draws quantities and data from the model; `infer` makes as many independent draws of
    the quantities given such data each time, from a seed.
    """
    random = np.random.default_rng(seed)
    ranks, num = [], 0
    for number in range(num_simulations):
        truth, data = simulate(random)
        draws = infer(data, number)
        num = len(draws)
        ranks.append(np.sum(draws < truth, axis=0))
    return Calibration(np.array(ranks, dtype=int), num)


# ---- chains of a sampler ------------------------------------------------------------------------

Chains = Float[np.ndarray, "K T *rest"]


def split_rhat(draws: Chains) -> Float[np.ndarray, "*rest"]:
    """Potential scale reduction over halves of chains: near 1 where they agree.

        R² = ((n - 1)/n W + B/n) / W        W within, B between the 2K halves of n draws

    (Gelman et al. 2013.) A quantity that does not vary at all counts as settled.
    """
    halves = _halves(draws)
    n = halves.shape[1]
    within = np.mean(np.var(halves, axis=1, ddof=1), axis=0)
    between = np.var(np.mean(halves, axis=1), axis=0, ddof=1)  # B / n
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt((n - 1) / n + between / within)
    return np.where((within == 0.0) & (between == 0.0), 1.0, ratio)


def effective_draws(draws: Chains) -> Float[np.ndarray, "*rest"]:
    """How many independent draws tell as much about a mean: `2 K n / (1 + 2 Σ_t ρ_t)`.

    Correlations come from all halves of chains together and are summed in pairs, which are made
    to fall, until the first that is below zero (Geyer 1992).
    """
    halves = _halves(draws)
    num, n, *rest = halves.shape
    flat = halves.reshape(num, n, -1)
    return np.array([_effective(flat[:, :, j]) for j in range(flat.shape[2])]).reshape(rest)


def _halves(draws: Chains) -> Float[np.ndarray, "H n *rest"]:
    half = draws.shape[1] // 2
    if half < 2:
        raise InputError("diagnostics of chains need at least 4 draws of each; keep more.")
    return np.concatenate([draws[:, :half], draws[:, -half:]]).astype(np.float64)


def _effective(chains: Float[np.ndarray, "H n"]) -> float:
    num, n = chains.shape
    centred = chains - np.mean(chains, axis=1, keepdims=True)
    spectrum = np.abs(np.fft.rfft(centred, 2 * n, axis=1)) ** 2
    covariance = np.mean(np.fft.irfft(spectrum, axis=1)[:, :n] / n, axis=0)
    within = covariance[0] * n / (n - 1)
    total = covariance[0] + np.var(np.mean(chains, axis=1), ddof=1)
    if total == 0.0:
        return float(num * n)
    rho = 1.0 - (within - covariance) / total
    rho[0] = 1.0
    pairs = rho[: n - n % 2].reshape(-1, 2).sum(axis=1)
    positive = pairs[: np.argmax(pairs < 0.0)] if np.any(pairs < 0.0) else pairs
    falling = np.minimum.accumulate(positive)
    # Negative correlation makes draws worth more than as many independent ones, within reason.
    time = max(-1.0 + 2.0 * float(np.sum(falling)), 1.0 / np.log10(num * n))
    return num * n / time
