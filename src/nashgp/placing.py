"""Where new rows lie: the posterior of their latents, by several modes and importance weights.

    p(x | y_O) ∝ N(x | 0, I) 1/S Σ_s Π_{q ∈ O} N(y_q | m_sq(x), v_sq(x) + σ²)

over the draws of the functions. With a finite `tail` ν all deviations of a row are multiplied by
one number s of its own, `1/s² ~ Gamma(ν/2, ν/2)`, and the product becomes a multivariate Student-t:
what is seen of a row tells how far the rest can be believed. Newton climbs from several starts; a
Gaussian around each summit makes a proposal, and weights correct what the Gaussians get wrong.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import gammaln, logsumexp
from jaxtyping import Array, Float, Int

from nashgp import predict
from nashgp.mixtures import AbstractMixture, Mixture
from nashgp.posteriors import Fitted, LatentPosterior
from nashgp.precision import dtype_of, scoped
from nashgp.shapes import Key

NUM_STARTS, NUM_STEPS = 6, 20  # weights make up for a climb that ends early
MOST_CANDIDATES = 1_000  # latents of the fit that are looked at for a start
NUM_AROUND, WIDE = 500, 1.7  # and places around them, by the spread of the prior
WIDER = 1.3  # how much wider than the curvature says a proposal is: weights need its tails
ENOUGH = 1e-3  # nats: a climb ends when no step promises more
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


class Climb(NamedTuple):
    """Where all climbers are, how high, how careful, and what their last steps promised."""

    x: Float[Array, "N C D"]
    height: Float[Array, "N C"]
    damping: Float[Array, "N C 1"]
    promise: Float[Array, "N C"]
    taken: Int[Array, ""]


class Summits(NamedTuple):
    """Modes of each row's latent, with a root of the covariance around each and its share."""

    place: Float[Array, "N C D"]
    root: Float[Array, "N C D D"]
    log_share: Float[Array, "N C"]


@scoped
def log_posterior(
    key: Key,
    fitted: Fitted,
    points: Float[np.ndarray, "K D"],
    y: Table,
    *,
    num_samples: int = 20,
    tail: float = np.inf,
) -> Float[np.ndarray, "N K"]:
    """`log p(x, y_O)` of every row at each of K latents; NaN is a missing entry.

    On a grid this is the posterior itself, of the functions that `place` draws with this key.
    """
    dtype = dtype_of(fitted)
    known = (jnp.asarray(part, dtype) for part in _observed(y))
    summary, (functions, _) = eqx.Partial(_log_densities, *known, tail), jr.split(key)
    density = predict.summarise(summary, functions, fitted, points, num_samples=num_samples)
    prior = -0.5 * np.sum(points**2 + np.log(2.0 * np.pi), axis=1)
    return prior[None] + np.asarray(density, np.float64).T


def _log_law(
    square: Float[Array, "*S"], log_det: Float[Array, "*S"], num: Float[Array, "*#S"], tail: float
) -> Float[Array, "*S"]:
    """`log N` or the log density of a Student-t, from `Σ (y - m)²/v`, `Σ log v` and the entries."""
    if np.isinf(tail):
        return -0.5 * (square + log_det + num * jnp.log(2.0 * jnp.pi).astype(square.dtype))
    ends = (
        gammaln(0.5 * (tail + num)) - math.lgamma(0.5 * tail) - 0.5 * num * math.log(tail * math.pi)
    )
    return ends - 0.5 * log_det - 0.5 * (tail + num) * jnp.log1p(square / tail)


def _log_densities(
    y: Float[Array, "N Q"], seen: Float[Array, "N Q"], tail: float, mixture: AbstractMixture
) -> Float[Array, "K N"]:
    """Log density of every row at every latent: the square is opened, so that no pair is made."""

    def one(
        carry: None, draw: tuple[Float[Array, "K Q"], Float[Array, "K Q"]]
    ) -> tuple[None, Float[Array, "K N"]]:
        mean, variance = draw
        precision = 1.0 / variance
        square = precision @ (y**2).T - 2.0 * (mean * precision) @ y.T
        square = jnp.maximum(square + (mean**2 * precision) @ seen.T, 0.0)  # rounding
        log_det = jnp.log(variance) @ seen.T
        return carry, _log_law(square, log_det, jnp.sum(seen, axis=1)[None], tail)

    each = jax.lax.scan(one, None, mixture.components())[1]
    return logsumexp(each, axis=0) - jnp.log(1.0 * len(each)).astype(y.dtype)


@scoped
def find_summits(
    key: Key, fitted: Fitted, y: Table, *, num_samples: int = 20, tail: float = np.inf
) -> Summits:
    """Modes of the posterior of every row's latent; NaN is a missing entry."""
    functions, _ = jr.split(key)
    points = _candidates(fitted)
    log_p = log_posterior(key, fitted, points, y, num_samples=num_samples, tail=tail)
    starts = points[_spread_starts(points, log_p, NUM_STARTS)]

    def climb(x: Array, y: Array, seen: Array) -> Summits:
        return _climb(functions, fitted, x, y, seen, num_samples, tail)

    # Curvatures keep about eight arrays of that size.
    size = predict.rows_at_once(8 * num_samples * _widest(fitted) * NUM_STARTS)
    found = predict.over_rows(climb, (starts, *_observed(y)), dtype_of(fitted), size)
    return jax.tree.map(jnp.asarray, found)


@scoped
def log_joint(
    key: Key,
    fitted: Fitted,
    x: Float[np.ndarray, "N J D"],
    y: Table,
    *,
    num_samples: int = 20,
    tail: float = np.inf,
) -> Float[np.ndarray, "N J"]:
    """`log p(x, y_O)` of every row at latents of its own; NaN is a missing entry."""
    functions, _ = jr.split(key)

    def joint(x: Array, y: Array, seen: Array) -> Array:
        return _joint(functions, fitted, x, y, seen, num_samples, tail)

    size = predict.rows_at_once(num_samples * _widest(fitted) * x.shape[1])
    found = predict.over_rows(joint, (x, *_observed(y)), dtype_of(fitted), size)
    return np.asarray(found, np.float64)


@scoped
def place(
    key: Key,
    fitted: Fitted,
    y: Table,
    *,
    num: int = 200,
    num_samples: int = 20,
    tail: float = np.inf,
) -> Placed:
    """Weighted draws of the latent of every row; NaN is a missing entry."""
    _, draw = jr.split(key)
    summits = find_summits(key, fitted, y, num_samples=num_samples, tail=tail)
    x, log_q = _propose(draw, summits, num)
    log_p = log_joint(key, fitted, np.asarray(x), y, num_samples=num_samples, tail=tail)
    log_w = log_p - np.asarray(log_q, np.float64)
    largest = np.max(log_w, axis=1, keepdims=True)
    weight = np.exp(log_w - largest)
    total = np.sum(weight, axis=1, keepdims=True)
    evidence = largest[:, 0] + np.log(total[:, 0] / num)
    return Placed(np.asarray(x, np.float64), weight / total, evidence)


@scoped
def complete(
    key: Key,
    fitted: Fitted,
    x: Float[np.ndarray, "N D"],
    y: Table,
    *,
    random: np.random.Generator,
    num_samples: int = 20,
    tail: float = np.inf,
) -> Table:
    """A draw of all entries of each row at its latent, given those that are not NaN.

    The function is drawn in proportion to what it says of them, of those that `place` draws with
    this key.
    """
    level, noise = random.uniform(size=(len(y), 1)), random.normal(size=y.shape)
    functions, _ = jr.split(key)
    known, seen = _observed(y)
    if np.isfinite(tail):  # the row's own scale, but for what its entries say of it
        freedom = tail + np.sum(seen, axis=1, keepdims=True)
        noise *= np.sqrt(freedom / random.chisquare(freedom))
    others, law = (known, seen, level, noise), eqx.Partial(_complete, tail)
    return predict.summarise(law, functions, fitted, x, *others, num_samples=num_samples)


def _complete(
    tail: float,
    mixture: AbstractMixture,
    y: Float[Array, "N Q"],
    seen: Float[Array, "N Q"],
    level: Float[Array, "N 1"],
    noise: Float[Array, "N Q"],
) -> Float[Array, "N Q"]:
    (mean, variance), (each, square) = mixture.components(), _log_each(mixture, y, seen, tail)
    share = jax.nn.softmax(each, axis=0)
    pick = jnp.sum(level[:, 0][None] > jnp.cumsum(share[:-1], axis=0), axis=0)
    rows = jnp.arange(len(y))
    spread = jnp.sqrt(variance[pick, rows])
    if np.isfinite(tail):  # (ν + Σ (y - m)²/v) / (ν + |O|): how much wider what is seen was
        told = (tail + square[pick, rows]) / (tail + jnp.sum(seen, axis=1))
        spread *= jnp.sqrt(told)[:, None]
    return mean[pick, rows] + spread * noise


def _observed(y: Table) -> tuple[Table, Table]:
    """Entries with 0 for the missing ones, and which of them are there."""
    seen = np.isfinite(y)
    return np.where(seen, y, 0.0), 1.0 * seen


def _widest(fitted: Fitted) -> int:
    """The largest of what there is for each latent and draw: inducing inputs, or columns."""
    layers = fitted.model.layers
    return max(layers[-1].num_outputs, *(layer.num_inducing for layer in layers))


def _candidates(fitted: Fitted) -> Float[np.ndarray, "K D"]:
    """Where to look for starts: where rows of the fit are, the middle, and all around.

    A row unlike those of the fit may lie far from all of them.
    """
    assert isinstance(fitted.posterior, LatentPosterior)
    centres = np.asarray(fitted.posterior.below.latents.centres, np.float64)
    some = centres[:: -(-len(centres) // MOST_CANDIDATES)]
    around = np.random.default_rng(0).normal(0.0, WIDE, (NUM_AROUND, centres.shape[1]))
    return np.concatenate([some, np.zeros((1, centres.shape[1])), around])


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
    tail: float,
) -> Float[Array, "N J"]:
    """`log p(x, y_O)` of several latents for each row."""
    num = x.shape[1]
    flat = x.reshape(-1, x.shape[2])
    y, seen = (jnp.repeat(part, num, axis=0) for part in (y, seen))
    moments = fitted.posterior.marginals(key, fitted.model, flat, num_samples)
    mixture = Mixture(moments.mean, moments.variance, fitted.model.likelihood)
    each = _log_each(mixture, y, seen, tail)[0]
    density = logsumexp(each, axis=0) - jnp.log(1.0 * num_samples).astype(each.dtype)
    prior = -0.5 * jnp.sum(flat**2 + jnp.log(2.0 * jnp.pi), axis=1)
    return (density + prior).reshape(-1, num)


def _log_each(
    mixture: AbstractMixture, y: Float[Array, "N Q"], seen: Float[Array, "N Q"], tail: float
) -> tuple[Float[Array, "S N"], Float[Array, "S N"]]:
    """Log density of the observed entries of each row under each draw, and their squares."""
    mean, variance = mixture.components()
    square = jnp.sum(seen[None] * (y[None] - mean) ** 2 / variance, axis=2)
    log_det = jnp.sum(seen[None] * jnp.log(variance), axis=2)
    return _log_law(square, log_det, jnp.sum(seen, axis=1)[None], tail), square


@eqx.filter_jit
def _climb(
    key: Key,
    fitted: Fitted,
    x: Float[Array, "N C D"],
    y: Float[Array, "N Q"],
    seen: Float[Array, "N Q"],
    num_samples: int,
    tail: float,
) -> Summits:
    """Newton with damping: eigenvalues of the curvature by their size, so every step is uphill."""

    def value(x: Float[Array, "N C D"]) -> Float[Array, "N C"]:
        return _joint(key, fitted, x, y, seen, num_samples, tail)

    slope = jax.grad(lambda x: jnp.sum(value(x)))

    def bend(x: Float[Array, "N C D"]) -> tuple[Array, Array, Array]:
        """Slope, and eigenvalues and vectors of minus the curvature; rows do not see each other."""
        uphill, along = jax.linearize(slope, x)
        axes = jnp.eye(x.shape[2], dtype=x.dtype)
        curvature = jnp.stack([along(jnp.broadcast_to(a, x.shape)) for a in axes], axis=-1)
        size, vectors = jnp.linalg.eigh(-0.5 * (curvature + jnp.swapaxes(curvature, 2, 3)))
        return uphill, size, vectors

    def step(carry: Climb) -> Climb:
        x, height, damping, promise, taken = carry
        moving = promise > ENOUGH  # one that has arrived does not wait for others
        uphill, size, vectors = bend(x)
        slopes = jnp.einsum("ncdk,ncd->nck", vectors, uphill)
        along = slopes / (jnp.abs(size) + damping)
        trial = x + jnp.einsum("ncdk,nck->ncd", vectors, along)
        reached = value(trial)
        better = (reached > height) & moving
        x = jnp.where(better[..., None], trial, x)
        damping = jnp.where(better[..., None], damping / 3.0, 4.0 * damping)
        promise = jnp.where(moving, 0.5 * jnp.sum(along * slopes, axis=2), 0.0)
        return Climb(x, jnp.where(better, reached, height), damping, promise, taken + 1)

    def is_open(now: Climb) -> Array:
        return jnp.any(now.promise > ENOUGH) & (now.taken < NUM_STEPS)

    ones = jnp.ones(x.shape[:2], x.dtype)
    start = Climb(x, value(x), ones[..., None], jnp.inf * ones, jnp.asarray(0))
    x, height, *_ = jax.lax.while_loop(is_open, step, start)
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
    half = jr.normal(rest, (-(-num // 2), d), dtype)
    eta = jnp.stack([half, -half], axis=1).reshape(-1, d)[:num]  # no error of a Gaussian's mean
    rows = jnp.arange(n)[:, None]
    x = summits.place[rows, which] + jnp.einsum("njdk,jk->njd", root[rows, which], eta)
    gap = x[:, :, None] - summits.place[:, None]
    # The columns of a root are orthogonal: its inverse is its transpose over their squares.
    squares = jnp.sum(root**2, axis=2)
    white = jnp.einsum("ncdk,njcd->njck", root, gap) / squares[:, None]
    log_det = 0.5 * jnp.sum(jnp.log(squares), axis=2)
    terms = -0.5 * jnp.sum(white**2 + jnp.log(2.0 * jnp.pi), axis=3) - log_det[:, None]
    return x, logsumexp(terms + summits.log_share[:, None], axis=2)
