"""Where new rows lie: the posterior of their latents, by several modes and importance weights.

    p(x | y_O) ∝ N(x | 0, I) 1/S Σ_s Π_{q ∈ O} N(y_q | m_sq(x), v_sq(x) + σ²)

over the draws of the functions. Newton climbs from several starts; a Gaussian around each summit
makes a proposal, and weights correct what the Gaussians get wrong.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from nashgp import predict
from nashgp.mixtures import AbstractMixture, Mixture
from nashgp.posteriors import Fitted, LatentPosterior
from nashgp.precision import dtype_of, scoped
from nashgp.shapes import Key

NUM_STARTS, NUM_STEPS = 8, 30
WIDER = 1.3  # how much wider than the curvature says a proposal is: weights need its tails
FLATTEST = 0.25  # least precision of a proposal; the prior alone has 1

Table = Float[np.ndarray, "N Q"]


class Placed(NamedTuple):
    """Weighted draws of each row's latent, and the log density of its observed entries."""

    x: Float[np.ndarray, "N J D"]
    weight: Float[np.ndarray, "N J"]
    log_evidence: Float[np.ndarray, " N"]

    @property
    def mean(self) -> Float[np.ndarray, "N D"]:
        return np.einsum("nj,njd->nd", self.weight, self.x)

    @property
    def num_effective(self) -> Float[np.ndarray, " N"]:
        """`1 / Σ w²`: how many draws of the posterior itself they are worth."""
        return 1.0 / np.sum(self.weight**2, axis=1)

    def sample(self, random: np.random.Generator, num: int) -> Float[np.ndarray, "{num} N D"]:
        """Draws in proportion to their weights, spread as evenly as can be."""
        levels = (np.arange(num)[:, None] + random.uniform(size=(1, len(self.x)))) / num
        edges = np.cumsum(self.weight, axis=1)
        pick = np.sum(levels[:, :, None] > edges[None, :, :-1], axis=2)
        return self.x[np.arange(len(self.x))[None], random.permuted(pick, axis=0)]


class Summits(NamedTuple):
    """Modes of each row's latent, with a root of the covariance around each and its share."""

    place: Float[Array, "N C D"]
    root: Float[Array, "N C D D"]
    log_share: Float[Array, "N C"]


def log_joint(
    key: Key,
    fitted: Fitted,
    x: Float[Array, "N D"],
    y: Float[Array, "N Q"],
    seen: Float[Array, "N Q"],
    num_samples: int,
) -> Float[Array, " N"]:
    """`log p(x_n, y_nO)` of each row at a latent of its own."""
    moments = fitted.posterior.marginals(key, fitted.model, x, num_samples)
    mixture = Mixture(moments.mean, moments.variance, fitted.model.likelihood)
    prior = -0.5 * jnp.sum(x**2 + jnp.log(2.0 * jnp.pi), axis=1)
    return mixture.log_density(y, seen) + prior


@scoped
def log_posterior(
    key: Key,
    fitted: Fitted,
    points: Float[np.ndarray, "K D"],
    y: Table,
    *,
    num_samples: int = 100,
) -> Float[np.ndarray, "N K"]:
    """`log p(x, y_O)` of every row at each of K latents; NaN is a missing entry.

    On a grid this is the posterior itself.
    """
    dtype = dtype_of(fitted)
    known = (jnp.asarray(part, dtype) for part in _observed(y))
    summary = eqx.Partial(_log_densities, *known)
    density = predict.summarise(summary, key, fitted, points, num_samples=num_samples)
    prior = -0.5 * np.sum(points**2 + np.log(2.0 * np.pi), axis=1)
    return prior[None] + np.asarray(density, np.float64).T


def _log_densities(
    y: Float[Array, "N Q"], seen: Float[Array, "N Q"], mixture: AbstractMixture
) -> Float[Array, "K N"]:
    """Log density of every row at every latent: the square is opened, so that no pair is made."""

    def one(
        carry: None, draw: tuple[Float[Array, "K Q"], Float[Array, "K Q"]]
    ) -> tuple[None, Float[Array, "K N"]]:
        mean, variance = draw
        precision = 1.0 / variance
        alone = mean**2 * precision + jnp.log(2.0 * jnp.pi * variance)
        square = precision @ (y**2).T - 2.0 * (mean * precision) @ y.T + alone @ seen.T
        return carry, -0.5 * square

    each = jax.lax.scan(one, None, mixture.components())[1]
    return logsumexp(each, axis=0) - jnp.log(1.0 * len(each)).astype(y.dtype)


@scoped
def place(key: Key, fitted: Fitted, y: Table, *, num: int = 200, num_samples: int = 20) -> Placed:
    """Weighted draws of the latent of every row; NaN is a missing entry."""
    functions, draw = jr.split(key)
    dtype, (target, seen) = dtype_of(fitted), _observed(y)
    points = _candidates(fitted)
    log_p = log_posterior(functions, fitted, points, y, num_samples=num_samples)
    starts = points[_spread_starts(points, log_p, NUM_STARTS)]

    def climb(x: Array, y: Array, seen: Array) -> Summits:
        return _climb(functions, fitted, x, y, seen, num_samples)

    size = predict.rows_at_once(num_samples * y.shape[1] * NUM_STARTS)
    summits = Summits(*predict.over_rows(climb, (starts, target, seen), dtype, size))
    x, log_q = _propose(draw, jax.tree.map(jnp.asarray, summits), num)

    def joint(x: Array, y: Array, seen: Array) -> Array:
        return _joint(functions, fitted, x, y, seen, num_samples)

    size = predict.rows_at_once(num_samples * y.shape[1] * num)
    log_p = predict.over_rows(joint, (np.asarray(x), target, seen), dtype, size)
    log_w = np.asarray(log_p, np.float64) - np.asarray(log_q, np.float64)
    largest = np.max(log_w, axis=1, keepdims=True)
    weight = np.exp(log_w - largest)
    total = np.sum(weight, axis=1, keepdims=True)
    evidence = largest[:, 0] + np.log(total[:, 0] / num)
    return Placed(np.asarray(x, np.float64), weight / total, evidence)


def _observed(y: Table) -> tuple[Table, Table]:
    """Entries with 0 for the missing ones, and which of them are there."""
    seen = np.isfinite(y)
    return np.where(seen, y, 0.0), 1.0 * seen


def _candidates(fitted: Fitted) -> Float[np.ndarray, "K D"]:
    """Where to look for starts: where the rows of the fit are, and the middle."""
    assert isinstance(fitted.posterior, LatentPosterior)
    centres = np.asarray(fitted.posterior.below.latents.centres, np.float64)
    return np.concatenate([centres, np.zeros((1, centres.shape[1]))])


def _spread_starts(
    points: Float[np.ndarray, "K D"], log_p: Float[np.ndarray, "N K"], num: int
) -> np.ndarray:
    """For each row the best point, then again and again the best of those far from all chosen."""
    apart = np.sqrt(np.sum((points[:, None] - points[None]) ** 2, axis=2))
    log_p, chosen = log_p.copy(), []
    for _ in range(num):
        best = np.argmax(log_p, axis=1)
        chosen.append(best)
        near = apart[best] < 0.3
        log_p = np.where(near, log_p - 1e6, log_p)  # the second best of a place comes last
    return np.stack(chosen, axis=1)


@eqx.filter_jit
def _joint(
    key: Key,
    fitted: Fitted,
    x: Float[Array, "N J D"],
    y: Float[Array, "N Q"],
    seen: Float[Array, "N Q"],
    num_samples: int,
) -> Float[Array, "N J"]:
    """`log p(x, y_O)` of several latents for each row."""
    num = x.shape[1]
    flat = x.reshape(-1, x.shape[2])
    y, seen = (jnp.repeat(part, num, axis=0) for part in (y, seen))
    return log_joint(key, fitted, flat, y, seen, num_samples).reshape(-1, num)


@eqx.filter_jit
def _climb(
    key: Key,
    fitted: Fitted,
    x: Float[Array, "N C D"],
    y: Float[Array, "N Q"],
    seen: Float[Array, "N Q"],
    num_samples: int,
) -> Summits:
    """Newton with damping: eigenvalues of the curvature by their size, so every step is uphill."""

    def value(x: Float[Array, "N C D"]) -> Float[Array, "N C"]:
        return _joint(key, fitted, x, y, seen, num_samples)

    slope = jax.grad(lambda x: jnp.sum(value(x)))

    def bend(x: Float[Array, "N C D"]) -> tuple[Array, Array, Array]:
        """Slope, and eigenvalues and vectors of minus the curvature; rows do not see each other."""
        axes = jnp.eye(x.shape[2], dtype=x.dtype)
        along = [jax.jvp(slope, (x,), (jnp.broadcast_to(axis, x.shape),))[1] for axis in axes]
        curvature = jnp.stack(along, axis=-1)
        size, vectors = jnp.linalg.eigh(-0.5 * (curvature + jnp.swapaxes(curvature, 2, 3)))
        return slope(x), size, vectors

    def step(_: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, height, damping = carry
        uphill, size, vectors = bend(x)
        along = jnp.einsum("ncdk,ncd->nck", vectors, uphill) / (jnp.abs(size) + damping)
        trial = x + jnp.einsum("ncdk,nck->ncd", vectors, along)
        reached = value(trial)
        better = reached > height
        x = jnp.where(better[..., None], trial, x)
        damping = jnp.where(better[..., None], damping / 3.0, 4.0 * damping)
        return x, jnp.where(better, reached, height), damping

    start = x, value(x), jnp.ones((*x.shape[:2], 1), x.dtype)
    x, height, _ = jax.lax.fori_loop(0, NUM_STEPS, step, start)
    _, size, vectors = bend(x)
    size = jnp.maximum(size, FLATTEST)
    share = height - 0.5 * jnp.sum(jnp.log(size), axis=2)
    return Summits(x, vectors / jnp.sqrt(size)[:, :, None], _once(x, size, vectors, share))


def _once(
    x: Float[Array, "N C D"],
    size: Float[Array, "N C D"],
    vectors: Float[Array, "N C D D"],
    share: Float[Array, "N C"],
) -> Float[Array, "N C"]:
    """Log shares that add up to one, a summit that several starts have found counted once."""
    gap = x[:, :, None] - x[:, None]  # from each to each
    along = jnp.einsum("nbdk,nabd->nabk", vectors, gap)
    near = jnp.sum(along**2 * size[:, None], axis=3) < 1.0
    earlier = jnp.tril(jnp.ones(near.shape[1:], bool), -1)[None]
    share = jnp.where(jnp.any(near & earlier, axis=2), -jnp.inf, share)
    return share - logsumexp(share, axis=1, keepdims=True)


@eqx.filter_jit
def _propose(
    key: Key, summits: Summits, num: int
) -> tuple[Float[Array, "N J D"], Float[Array, "N J"]]:
    """Draws of the mixture of Gaussians around the summits, and their log density.

    All rows share the noise, so that no row depends on its neighbours; summits have their shares
    of the draws as evenly as can be.
    """
    pick, rest = jr.split(key)
    n, _, d = summits.place.shape
    root, dtype = WIDER * summits.root, summits.root.dtype
    level = (jnp.arange(num).astype(dtype) + jr.uniform(pick, (), dtype)) / num
    edges = jnp.cumsum(jnp.exp(summits.log_share), axis=1)
    which = jnp.sum(level[None, :, None] > edges[:, None, :-1], axis=2)
    eta = jr.normal(rest, (num, d), dtype)
    rows = jnp.arange(n)[:, None]
    x = summits.place[rows, which] + jnp.einsum("njdk,jk->njd", root[rows, which], eta)
    gap = x[:, :, None] - summits.place[:, None]
    # The columns of a root are orthogonal: its inverse is its transpose over their squares.
    squares = jnp.sum(root**2, axis=2)
    white = jnp.einsum("ncdk,njcd->njck", root, gap) / squares[:, None]
    log_det = 0.5 * jnp.sum(jnp.log(squares), axis=2)
    terms = -0.5 * jnp.sum(white**2 + jnp.log(2.0 * jnp.pi), axis=3) - log_det[:, None]
    return x, logsumexp(terms + summits.log_share[:, None], axis=2)
