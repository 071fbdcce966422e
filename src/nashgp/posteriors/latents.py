"""Latent inputs: a posterior over the unseen point behind each row, beside that over functions.

Rows are known by their numbers, since a step may look at some of them only. The prior of every
latent is N(0, I).
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int

from nashgp.layers import Inducing, Moments
from nashgp.model import DeepGP
from nashgp.networks import Network, network
from nashgp.posteriors.anchored import (
    FIRST_MIX,
    NUM_IMPORTANCE,
    WIDEST,
    WIDTH,
    log_mean_exp,
    scaled,
)
from nashgp.posteriors.base import AbstractPosterior, AbstractVariational
from nashgp.priors import Values
from nashgp.shapes import Key
from nashgp.transforms import Frozen

NOISE_DIM = 4  # a latent has few dimensions itself

Rows = Int[Array, " N"]


class AbstractLatents(eqx.Module):
    """`q(X) = Π_n q(x_n)`: what is known of the latents of all rows."""

    @abc.abstractmethod
    def sample_and_kl(
        self, key: Key, rows: Rows, num: int
    ) -> tuple[Float[Array, "S N D"], Float[Array, " N"]]:
        """`num` draws for some rows, and `KL(q(x_n) ‖ N(0, I))` of each: exact, or a bound."""

    @property
    @abc.abstractmethod
    def centres(self) -> Float[Array, "N D"]:
        """A point in the middle of each row's posterior."""

    def sample(self, key: Key, rows: Rows, num: int) -> Float[Array, "S N D"]:
        return self.sample_and_kl(key, rows, num)[0]


class GaussianLatents(AbstractLatents):
    """`q(x_n) = N(μ_n, R_n R_nᵀ)`, with R lower triangular."""

    mean: Float[Array, "N D"]
    root: Float[Array, "N D D"]

    @property
    def centres(self) -> Float[Array, "N D"]:
        return self.mean

    def sample_and_kl(
        self, key: Key, rows: Rows, num: int
    ) -> tuple[Float[Array, "S N D"], Float[Array, " N"]]:
        """The KL is exact."""
        mean = self.mean[rows]
        drawn = self.place(rows, jr.normal(key, (num, *mean.shape), mean.dtype))
        zero = jnp.zeros((1, *mean.shape), mean.dtype)
        return drawn, self.kl(rows, zero, zero)[0]

    def place(self, rows: Rows, h: Float[Array, "*S N D"]) -> Float[Array, "*S N D"]:
        """`x = μ + R h`."""
        mean = self.mean[rows]
        moved = jnp.einsum("ndk,...nk->...nd", jnp.tril(self.root)[rows], h)
        return moved + jnp.broadcast_to(mean, moved.shape)

    def kl(
        self, rows: Rows, shift: Float[Array, "S N D"], log_scale: Float[Array, "S N D"]
    ) -> Float[Array, "S N"]:
        """`KL(N(μ + R a, R b² Rᵀ) ‖ N(0, I))` for shifts a and scales b in the frame."""
        root = jnp.tril(self.root)[rows]
        squares = jnp.sum(root**2, axis=1)[None] * jnp.exp(2.0 * log_scale)
        terms = 0.5 * (self.place(rows, shift) ** 2 + squares - 1.0) - log_scale
        log_det = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(root, axis1=1, axis2=2))), axis=1)
        return jnp.sum(terms, axis=2) - log_det[None]


class AnchoredLatents(AbstractLatents):
    """`q(x_n) = ∫ N(ε | 0, I) N(x_n | μ_n + R_n a_n(ε), R_n b_n(ε)² R_nᵀ) dε`, of any shape.

    Every row has noise of its own; the networks are shared and know a row by where it started
    (`places`). With a = 0 and b = 1 it is the Gaussian frame.
    """

    frame: GaussianLatents
    mixer: Network
    recogniser: Network
    places: Frozen
    noise_dim: int = eqx.field(static=True)
    num_importance: int = eqx.field(static=True, default=NUM_IMPORTANCE)

    @property
    def centres(self) -> Float[Array, "N D"]:
        return self.frame.mean

    def sample_and_kl(
        self, key: Key, rows: Rows, num: int
    ) -> tuple[Float[Array, "S N D"], Float[Array, " N"]]:
        """The KL is an unbiased estimate of an upper bound.

        KL(q ‖ p) = E_ε KL(q(x | ε) ‖ p) - I(x; ε),    the first term exact given ε
        """
        noise, rest, guess = jr.split(key, 3)
        dtype = self.frame.mean.dtype
        eps = jr.normal(noise, (num, len(rows), self.noise_dim), dtype)
        shift, log_scale = self.mix(rows, eps)
        h = shift + jnp.exp(log_scale) * jr.normal(rest, shift.shape, dtype)
        kl = self.frame.kl(rows, shift, log_scale) - self.information(guess, rows, eps, h)
        return self.frame.place(rows, h), jnp.mean(kl, axis=0)

    def mix(
        self, rows: Rows, eps: Float[Array, "*S N E"]
    ) -> tuple[Float[Array, "*S N D"], Float[Array, "*S N D"]]:
        """Shift and log scale that a noise makes in the frame of each row."""
        return _halves(self.mixer(self._beside(rows, eps)))

    def information(
        self, key: Key, rows: Rows, eps: Float[Array, "S N E"], h: Float[Array, "S N D"]
    ) -> Float[Array, "S N"]:
        """An estimate of `log q(h | ε) - log q(h)`, too small on average.

        log q(h) ≤ E log 1/(J+1) Σ_j q(h | ε_j) N(ε_j) / r(ε_j | h),    ε_1..J ~ r,  ε_0 = ε
        """
        mean, log_scale = _halves(self.recogniser(self._beside(rows, h)))
        others = jr.normal(key, (self.num_importance, *eps.shape), eps.dtype)
        guesses = mean[None] + jnp.exp(log_scale)[None] * others
        every = jnp.concatenate([eps[None], guesses])
        given = _log_normal(h[None], *self.mix(rows, every))
        zero = jnp.zeros_like(every)
        ratio = _log_normal(every, zero, zero) - _log_normal(every, mean[None], log_scale[None])
        return given[0] - log_mean_exp(jnp.moveaxis(given + ratio, 0, -1))

    def _beside(self, rows: Rows, value: Float[Array, "*S N I"]) -> Float[Array, "*S N J"]:
        """`value ⊕ c_n` for every row."""
        place = self.places.value[rows]
        wide = jnp.broadcast_to(place, (*value.shape[:-1], place.shape[1]))
        return jnp.concatenate([value, wide], axis=-1)


def anchored_latents(
    key: Key,
    frame: GaussianLatents,
    *,
    noise_dim: int = NOISE_DIM,
    width: int = WIDTH,
    num_importance: int = NUM_IMPORTANCE,
    first_mix: float = FIRST_MIX,
) -> AnchoredLatents:
    """All but the Gaussian `frame`, and a recogniser that is the prior of the noise."""
    make, look = jr.split(key)
    d, dtype = frame.mean.shape[1], frame.mean.dtype
    mixer = network(make, [noise_dim + d, width, 2 * d], dtype=dtype)
    ends = jnp.concatenate([jnp.full(d, first_mix, dtype), jnp.zeros(d, dtype)])
    recogniser = network(look, [2 * d, width, 2 * noise_dim], dtype=dtype)
    return AnchoredLatents(
        frame,
        scaled(mixer, ends),
        scaled(recogniser, jnp.zeros(2 * noise_dim, dtype)),
        Frozen(frame.mean),
        noise_dim,
        num_importance,
    )


class Columns(eqx.Module):
    """Columns of targets in groups with one covariance each; `group` says which is whose.

    `exact` groups hold columns that miss the same rows, so nothing is lost by the sharing.
    """

    group: Int[Array, " P"]
    num_groups: int = eqx.field(static=True)
    exact: bool = eqx.field(static=True)

    def average(self, table: Float[Array, "N P"]) -> Float[Array, "N G"]:
        """The mean over the columns of each group."""
        member = self._member(table)
        return table @ member.T / jnp.sum(member, axis=1)[None]

    def spread_out(self, table: Float[Array, "*S G"]) -> Float[Array, "*S P"]:
        """What belongs to each column, from what belongs to each group."""
        return jnp.take(table, self.group, axis=-1)

    def times(
        self, matrix: Float[Array, "*S G M M"], right: Float[Array, "*S M P"]
    ) -> Float[Array, "*S M P"]:
        """The matrix of its group times each column."""
        every = jnp.einsum("...gmk,...kp->...gmp", matrix, right)
        member = jnp.broadcast_to(self._member(right)[:, None], every.shape)
        return jnp.sum(every * member, axis=-3)

    def _member(self, like: Array) -> Float[Array, "G P"]:
        return jax.nn.one_hot(self.group, self.num_groups, dtype=like.dtype, axis=0)


class Below(eqx.Module):
    """All that is random below the last layer: the latents, and the values of hidden layers.

    In a `dense` model the rows themselves are the inducing inputs of every layer, wherever a draw
    has them.
    """

    latents: AbstractLatents
    hidden: AbstractVariational
    dense: bool = eqx.field(static=True, default=False)


class LatentPosterior(AbstractPosterior):
    """`q(v) = 1/S Σ_s δ(v_1..L-1 - values_s) Π_p N(v_Lp | mean_sp, R_sg R_sgᵀ)`, g the group of p.

    Each Gaussian belongs to one draw of the latents and the hidden layers. As a posterior over
    functions it predicts at any latent; `below` is kept for the latents of the rows, and so that
    training can go on. In a dense model each draw has inducing inputs `z` of its own.
    """

    below: Below
    columns: Columns
    values: tuple[Float[Array, "S _M _P"], ...]
    mean: Float[Array, "S M P"]
    root: Float[Array, "S G M M"]
    z: tuple[Float[Array, "S _M _D"], ...] | None = None

    def sample(self, key: Key, model: DeepGP, num: int) -> Values:
        """The stored draws in turn; those of the last layer are new each time they come round."""
        turn = self._turn(num)
        eps = jr.normal(key, (num, *self.mean.shape[1:]), self.mean.dtype)
        last = self.mean[turn] + self.columns.times(self.root[turn], eps)
        return (*(value[turn] for value in self.values), last)

    def inducing(self, key: Key, model: DeepGP, num: int) -> tuple[Inducing, ...]:
        """The stored draws in turn, the last layer as a Gaussian if all columns share it."""
        if self.columns.num_groups > 1:
            return super().inducing(key, model, num)
        turn = self._turn(num)
        last = Inducing(self.mean[turn], self.root[turn])
        return (*(Inducing(value[turn]) for value in self.values), last)

    def marginals(self, key: Key, model: DeepGP, x: Float[Array, "N D"], num: int) -> Moments:
        if self.z is None:
            return super().marginals(key, model, x, num)
        draw, noise = jr.split(key)
        inducing, eps = self.inducing(draw, model, num), model.noise(noise, num, 1)

        def one(z: Values, inducing: tuple[Inducing, ...], eps: Values) -> Moments:
            """A draw with inducing inputs of its own is a model of its own."""
            placed = eqx.tree_at(lambda m: [layer.z for layer in m.layers], model, list(z))
            alone = jax.tree.map(lambda leaf: leaf[None], (inducing, eps))
            return jax.tree.map(lambda leaf: leaf[0], placed.propagate(x, *alone))

        return jax.vmap(one)(tuple(z[self._turn(num)] for z in self.z), inducing, eps)

    def _turn(self, num: int) -> Int[Array, " K"]:
        return jnp.arange(num) % len(self.mean)


def _halves(out: Float[Array, "*S N O"]) -> tuple[Float[Array, "*S N D"], Float[Array, "*S N D"]]:
    """A network's outputs as a location and a log scale that never leaves `± WIDEST`."""
    location, log_scale = jnp.split(out, 2, axis=-1)
    return location, WIDEST * jnp.tanh(log_scale / WIDEST)


def _log_normal(
    x: Float[Array, "*#S D"], mean: Float[Array, "*#S D"], log_scale: Float[Array, "*#S D"]
) -> Float[Array, "*S"]:
    """`log N(x | mean, exp(log_scale)²)`, summed over the last axis."""
    apart = (x - mean) * jnp.exp(-log_scale)
    terms = -0.5 * (apart**2 + jnp.log(2.0 * jnp.pi)) - jnp.broadcast_to(log_scale, apart.shape)
    return jnp.sum(terms, axis=-1)
