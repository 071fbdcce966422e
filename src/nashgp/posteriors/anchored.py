"""The anchored posterior: a Gaussian frame, mixed by a generator whose KL has an upper bound.

    ε ~ N(0, I)                                   one noise for all layers and inducing inputs
    h_m = a(ε ⊕ z_m) + b(ε ⊕ z_m) η_m             η ~ N(0, I), networks shared over m (or not)
    v = μ + R (h + C h)                           C moves later layers and outputs by earlier ones

Given ε all is Gaussian; the mixture over ε may have any shape. With a = 0, b = 1 and C = 0 it is
the posterior of DSVI, a product over layers and outputs; with C alone it is one Gaussian of all of
them. What cannot be computed is the information `I(v; ε)` alone, and Player 1 bounds
it from below: a `Recogniser` that guesses ε (Sobolev and Vetrov, "Importance weighted hierarchical
variational inference", 2019), or a `Critic` that tells a draw's own ε from others (Nguyen,
Wainwright and Jordan, "Estimating divergence functionals and the likelihood ratio by convex risk
minimization", 2010).
"""

import abc
import itertools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PyTree

from nashgp.errors import InputError
from nashgp.model import DeepGP
from nashgp.networks import Network, network
from nashgp.noise import normal
from nashgp.posteriors.base import AbstractVariational
from nashgp.posteriors.gaussian import GaussianPosterior, times
from nashgp.priors import GPPrior, Values
from nashgp.shapes import Key, Number
from nashgp.transforms import Frozen

NOISE_DIM, WIDTH, NUM_IMPORTANCE = 8, 32, 10
RANK = 16  # of what a column of inducing values can learn of those before it
LOUDEST, WIDEST = 10.0, 5.0  # how far a logarithm may go: beyond it one draw outweighs all others
FIRST_MIX = 0.05  # standard deviation of a(ε, z) at the start: small, and not zero


class Mix(NamedTuple):
    """Shift `a` and log scale `log b` of one layer's frame coordinates, for each noise."""

    shift: Float[Array, "*S M P"]
    log_scale: Float[Array, "*S M P"]

    def log_density(self, h: Float[Array, "*S M P"]) -> Float[Array, "*S"]:
        """`log N(h | a, b²)`, summed over inducing inputs and outputs."""
        apart = (h - self.shift) * jnp.exp(-self.log_scale)
        terms = -0.5 * (apart**2 + jnp.log(2.0 * jnp.pi)) - self.log_scale
        return jnp.sum(terms, axis=(-2, -1))


def _mix(out: Float[Array, "*S M O"]) -> Mix:
    """Both halves of a network's outputs; the scale never leaves `exp(± WIDEST)`."""
    shift, log_scale = jnp.split(out, 2, axis=-1)
    return Mix(shift, WIDEST * jnp.tanh(log_scale / WIDEST))


class Coupling(eqx.Module):
    """`C`: each column of inducing values is moved by those before it.

        (C h)_c = A_c Σ_{b<c} B_bᵀ h_b,      columns in order of layers, then of outputs

    `I + C` is triangular with ones, so densities need no determinant of it. `A` starts at zero.
    """

    receive: tuple[Float[Array, "_M _P R"], ...]
    send: tuple[Float[Array, "_M _P R"], ...]

    def __call__(self, h: Values) -> Values:
        """`C h`."""
        sent = [jnp.einsum("smp,mpr->spr", v, b) for v, b in zip(h, self.send, strict=True)]
        heard = jnp.cumsum(jnp.concatenate(sent, axis=1), axis=1)
        heard = jnp.pad(heard[:, :-1], ((0, 0), (1, 0), (0, 0)))
        ends = list(itertools.accumulate(v.shape[2] for v in h))[:-1]
        parts = zip(jnp.split(heard, ends, axis=1), self.receive, strict=True)
        return tuple(jnp.einsum("spr,mpr->smp", said, a) for said, a in parts)

    def solve(self, u: Values) -> Values:
        """`(I + C)⁻¹ u`, column after column."""
        found, heard = [], jnp.zeros((len(u[0]), self.send[0].shape[2]), u[0].dtype)
        for value, a, b in zip(u, self.receive, self.send, strict=True):

            def column(heard: Array, part: tuple[Array, Array, Array]) -> tuple[Array, Array]:
                mine, a, b = part
                h = mine - heard @ a.T
                return heard + h @ b, h

            columns = (jnp.moveaxis(value, 2, 0), jnp.moveaxis(a, 1, 0), jnp.moveaxis(b, 1, 0))
            heard, h = jax.lax.scan(column, heard, columns)
            found.append(jnp.moveaxis(h, 0, 2))
        return tuple(found)

    def total_correlation(self) -> Float[Array, ""]:
        """What the layers of `h + C h` tell of one another, in nats, if `h ~ N(0, I)`.

        With `T = I + C` within a layer and `G = Σ_b B_bᵀ B_b` over the layers below it, a layer's
        covariance is `T Tᵀ + A G Aᵀ` while that of all layers has determinant one, so the sum over
        layers of `½ log det(I + G Wᵀ W)` with `W = T⁻¹ A` is the answer.
        """
        total = jnp.zeros((), self.send[0].dtype)
        below = jnp.zeros((self.send[0].shape[2],) * 2, total.dtype)
        for a, b in zip(self.receive, self.send, strict=True):
            (solved,) = Coupling((a,), (b,)).solve((jnp.moveaxis(a, 2, 0),))
            w = solved.reshape(len(solved), -1)
            inside = jnp.eye(len(below), dtype=total.dtype) + below @ (w @ w.T)
            total = total + 0.5 * jnp.linalg.slogdet(inside)[1]
            below = below + jnp.einsum("mpr,mps->rs", b, b)
        return total


def _coupling(key: Key, frame: GaussianPosterior, rank: int) -> Coupling:
    """At rest; what is sent has variance one or less."""
    shapes = [(*mean.shape, rank) for mean in frame.means]
    total = sum(m * p for m, p, _ in shapes)
    send = [
        total**-0.5 * jr.normal(jr.fold_in(key, number), shape, frame.means[0].dtype)
        for number, shape in enumerate(shapes)
    ]
    return Coupling(tuple(map(jnp.zeros_like, send)), tuple(send))


class Pool(eqx.Module):
    """What a player sees of a draw: pooled over inducing inputs with shared weights, by layer."""

    looks: tuple[Network, ...]

    def __call__(self, h: Values, places: tuple[Frozen, ...]) -> Float[Array, "S W"]:
        pooled = []
        for look, value, place in zip(self.looks, h, places, strict=True):
            seen = jax.nn.leaky_relu(look(beside(value, place.value)), 0.2)
            pooled.append(jnp.sum(seen, axis=1) / value.shape[1] ** 0.5)
        return jnp.concatenate(pooled, axis=1)


class AbstractPlayer1(eqx.Module):
    """Whoever bounds the information that draws hold about their noise."""

    pool: Pool
    read: Network

    @abc.abstractmethod
    def information(
        self,
        key: Key,
        posterior: "AnchoredPosterior",
        eps: Float[Array, "S E"],
        h: Values,
        num: int,
    ) -> Float[Array, " S"]:
        """An estimate of `log q(h | ε) - log q(h)` for each draw, too small on average."""


class Recogniser(AbstractPlayer1):
    """`r(ε | h) = N(mean(h), scale(h)²)`; `read` ends in zeros at the start, where r is the prior.

        log q(h) ≤ E log 1/(J+1) Σ_j q(h | ε_j) N(ε_j) / r(ε_j | h),     ε_1..J ~ r,  ε_0 = ε

    for any r and J; the better Player 1 or the larger J, the tighter.
    """

    def __call__(
        self, h: Values, places: tuple[Frozen, ...]
    ) -> tuple[Float[Array, "S E"], Float[Array, "S E"]]:
        """Mean and log scale of the noise behind each draw of frame coordinates."""
        out = self.read(self.pool(h, places)[:, None])[:, 0]
        mean, log_scale = jnp.split(out, 2, axis=1)
        return mean, WIDEST * jnp.tanh(log_scale / WIDEST)

    def guess(
        self, key: Key, h: Values, places: tuple[Frozen, ...], num: int
    ) -> Float[Array, "S J E"]:
        """`num` draws of `r(ε | h)` for each draw of frame coordinates."""
        mean, log_scale = self(h, places)
        drawn = jr.normal(key, (len(mean), num, mean.shape[1]), mean.dtype)
        return mean[:, None] + jnp.exp(log_scale)[:, None] * drawn

    def information(
        self,
        key: Key,
        posterior: "AnchoredPosterior",
        eps: Float[Array, "S E"],
        h: Values,
        num: int,
    ) -> Float[Array, " S"]:
        given, joint = self.log_weights(key, posterior, eps, h, num)
        return given[:, 0] - log_mean_exp(given + joint)

    def log_weights(
        self,
        key: Key,
        posterior: "AnchoredPosterior",
        eps: Float[Array, "S E"],
        h: Values,
        num: int,
    ) -> tuple[Float[Array, "S J"], Float[Array, "S J"]]:
        """`log q(h | ε_j)`, and `log N(ε_j) - log r(ε_j | h)`; the first of them is `eps`."""
        mean, log_scale = self(h, posterior.places)
        guesses = self.guess(key, h, posterior.places, num)
        every = jnp.concatenate([eps[:, None], guesses], axis=1)
        apart = (every - mean[:, None]) * jnp.exp(-log_scale)[:, None]
        log_r = -0.5 * jnp.sum(apart**2, axis=2) - jnp.sum(log_scale, axis=1)[:, None]
        given = jnp.sum(posterior.log_given(h, every), axis=0)
        return given, -0.5 * jnp.sum(every**2, axis=2) - log_r


class Critic(AbstractPlayer1):
    """`T(h, ε)`, which may be anything: `I ≥ E T(h, ε) - E exp(T(h, ε') - 1)`, ε' of another draw.

    The expectation over ε' is the mean over J draws. At the start T = 1, and the bound is zero. T
    never leaves `1 ± LOUDEST`, lest the exponential of one draw drown all others.
    """

    def __call__(
        self, h: Values, places: tuple[Frozen, ...], eps: Float[Array, "S J E"]
    ) -> Float[Array, "S J"]:
        seen = self.pool(h, places)[:, None]
        seen = jnp.broadcast_to(seen, (*eps.shape[:2], seen.shape[2]))
        said = self.read(jnp.concatenate([seen, eps], axis=2))[:, :, 0]
        return 1.0 + LOUDEST * jnp.tanh(said / LOUDEST)

    def information(
        self,
        key: Key,
        posterior: "AnchoredPosterior",
        eps: Float[Array, "S E"],
        h: Values,
        num: int,
    ) -> Float[Array, " S"]:
        others = jr.normal(key, (len(eps), max(1, num), posterior.noise_dim), eps.dtype)
        every = jnp.concatenate([eps[:, None], others], axis=1)
        t = self(h, posterior.places, every)
        return t[:, 0] - jnp.mean(jnp.exp(t[:, 1:] - 1.0), axis=1)


class AnchoredPosterior(AbstractVariational):
    """`q(v) = ∫ N(ε | 0, I) N(v | μ + Q a(ε), Q b(ε)² Qᵀ) dε`, with `Q = R (I + C)`.

    The networks know an inducing input by where it was when they were made (`places`), so the KL
    does not depend on where training moves it.
    """

    frame: GaussianPosterior
    mixers: tuple[Network, ...]
    player1: AbstractPlayer1
    places: tuple[Frozen, ...]
    noise_dim: int = eqx.field(static=True)
    num_importance: int = eqx.field(static=True, default=NUM_IMPORTANCE)
    coupling: Coupling | None = None

    def sample_and_kl(self, key: Key, model: DeepGP, num: int) -> tuple[Values, Float[Array, ""]]:
        """Joint draws, and an unbiased estimate of an upper bound of the KL.

            KL(q ‖ p) = E_ε KL(q(v | ε) ‖ p) - I(v; ε)

        The first term is exact given ε for the GP prior.
        """
        others = jr.fold_in(key, len(self.mixers) + 1)
        eps, mixes, h = self.draw(key, num)
        values = self.values(h)
        kl = self._kl_given_noise(model, mixes, h, values)
        return values, jnp.mean(kl - self.information(others, eps, h, self.num_importance))

    def draw(self, key: Key, num: int) -> tuple[Float[Array, "S E"], tuple[Mix, ...], Values]:
        """Noise, what it does, and frame coordinates that it makes.

        The η of a key are the noise of the frame's own draws with that key, so a comparison of
        the two sees what mixing does and no luck.
        """
        eps = jr.normal(jr.fold_in(key, len(self.mixers)), (num, self.noise_dim), self._dtype)
        mixes = self.mix(eps)
        h = tuple(
            mix.shift + jnp.exp(mix.log_scale) * normal(k, mix.shift.shape, self._dtype)
            for k, mix in zip(jr.split(key, len(mixes)), mixes, strict=True)
        )
        return eps, mixes, h

    def mix(self, eps: Float[Array, "*S E"]) -> tuple[Mix, ...]:
        """What a noise does to the frame of every layer."""
        return tuple(
            _mix(net.of_pairs(eps, place.value))
            for net, place in zip(self.mixers, self.places, strict=True)
        )

    def information(
        self, key: Key, eps: Float[Array, "S E"], h: Values, num: int
    ) -> Float[Array, " S"]:
        """What Player 1 makes of draws: `log q(h | ε) - log q(h)`, too small on average."""
        return self.player1.information(key, self, eps, h, num)

    def log_given(self, h: Values, eps: Float[Array, "S J E"]) -> Float[Array, "L S J"]:
        """`log q(h_l | ε)` of every layer, for several noises per draw."""
        return jnp.stack(
            [
                mix.log_density(jnp.broadcast_to(value[:, None], mix.shift.shape))
                for mix, value in zip(self.mix(eps), h, strict=True)
            ]
        )

    def values(self, h: Values, own: Values | None = None) -> Values:
        """`v = μ + R (h + C h)`; with `own`, `v = μ + R (own + C h)`."""
        moved = h if own is None else own
        if self.coupling is not None:
            moved = jax.tree.map(jnp.add, moved, self.coupling(h))
        frame = zip(*self.frame.parts(), moved, strict=True)
        return tuple(mean[None] + times(root, value) for mean, root, value in frame)

    def coordinates(self, values: Values) -> Values:
        """`h = (I + C)⁻¹ R⁻¹ (v - μ)`."""
        found = []
        for mean, root, value in zip(*self.frame.unshared().parts(), values, strict=True):
            apart = jnp.moveaxis(value - mean[None], 0, 1)  # inducing inputs first
            each = jax.vmap(lambda r, a: solve_triangular(r, a, lower=True), (0, 2), 2)
            found.append(jnp.moveaxis(each(root, apart), 1, 0))
        return tuple(found) if self.coupling is None else self.coupling.solve(tuple(found))

    @property
    def log_det(self) -> Float[Array, ""]:
        """`log |det R (I + C)|`, over all layers and outputs."""
        total = jnp.zeros((), self._dtype)
        for mean, root in zip(*self.frame.parts(), strict=True):
            each = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(root, axis1=1, axis2=2))))
            total = total + each * (mean.shape[1] / len(root))  # several outputs may share one
        return total

    def _kl_given_noise(
        self, model: DeepGP, mixes: tuple[Mix, ...], h: Values, values: Values
    ) -> Float[Array, " S"]:
        """`KL(q(v | ε) ‖ p)` of each draw; from the draw itself if the prior is not the GP's.

        Each column is averaged given those before it: its own noise is integrated out.
        """
        if type(model.prior) is not GPPrior:
            log_q = sum(mix.log_density(value) for mix, value in zip(mixes, h, strict=True))
            log_p = jax.vmap(lambda v: model.prior.log_density(model.layers, v))(values)
            return log_q - self.log_det - log_p
        total = jnp.zeros(len(h[0]), self._dtype) - self.log_det
        centres = self.values(h, tuple(mix.shift for mix in mixes))
        for mix, centre, root in zip(mixes, centres, self.frame.parts()[1], strict=True):
            squares = jnp.sum(root**2, axis=1).T  # Σ_m R_pmk², one for each column k of R
            variance = jnp.broadcast_to(squares, centre.shape) * jnp.exp(2.0 * mix.log_scale)
            terms = 0.5 * (centre**2 + variance - 1.0) - mix.log_scale
            total = total + jnp.sum(terms, axis=(1, 2))
        return total

    @property
    def _dtype(self):
        return self.frame.means[0].dtype


def anchored_posterior(
    key: Key,
    frame: GaussianPosterior,
    model: DeepGP,
    *,
    noise_dim: int = NOISE_DIM,
    width: int = WIDTH,
    depth: int = 1,
    num_importance: int = NUM_IMPORTANCE,
    first_mix: Number = FIRST_MIX,
    player1: str = "recogniser",
    rank: int = RANK,
    tied: bool = True,
) -> AnchoredPosterior:
    """Both players where the game begins: all but the Gaussian `frame`, and no information.

    The frame may cover the first layers alone. `a` starts small and not zero: at zero nothing is to
    be recognised, and r the prior is the best response. `player1` is "recogniser" or "critic". With
    `rank=0` there is no coupling; unless `tied`, each inducing input has networks a and b of its
    own, the paper's naive design.
    """
    mixers, looks, places = [], [], []
    for number, (mean, layer) in enumerate(zip(frame.means, model.layers, strict=False)):
        make, look = jr.split(jr.fold_in(key, number))
        d, p, dtype = layer.z.shape[1], mean.shape[1], mean.dtype
        told, copies = (d, None) if tied else (0, len(layer.z))
        widths = [noise_dim + told, *[width] * depth, 2 * p]
        net = network(make, widths, copies=copies, dtype=dtype)
        ends = jnp.concatenate([jnp.full(p, first_mix, dtype), jnp.zeros(p, dtype)])
        mixers.append(scaled(net, ends))
        looks.append(network(look, [p + d, width, width], dtype=dtype))
        places.append(Frozen(layer.z))
    if player1 not in ("recogniser", "critic"):
        raise InputError(f"player1 must be one of recogniser, critic; got {player1!r}.")
    is_critic, seen, dtype = player1 == "critic", len(mixers) * width, frame.means[0].dtype
    widths = [seen + noise_dim, width, 1] if is_critic else [seen, width, 2 * noise_dim]
    read = network(jr.fold_in(key, len(mixers)), widths, dtype=dtype)
    read = scaled(read, jnp.zeros(widths[-1], dtype))
    judge = (Critic if is_critic else Recogniser)(Pool(tuple(looks)), read)
    coupling = _coupling(jr.fold_in(key, len(mixers) + 1), frame, rank) if rank else None
    return AnchoredPosterior(
        frame, tuple(mixers), judge, tuple(places), noise_dim, num_importance, coupling
    )


class Information(NamedTuple):
    """What draws tell of their noise, in nats: how far the posterior is from one Gaussian.

    `total` is `I(v; ε)` by many importance draws, and `gap` what a training step's few miss of it.
    `layers` are `I(h_l; ε)`, and `across = Σ_l I(h_l; ε) - I(h; ε)` is the total correlation of
    layers that comes from their noise; `coupled` is that which `C` adds to layers without noise.
    Both are zero for every posterior that is a product over layers.
    """

    total: Float[Array, ""]
    gap: Float[Array, ""]
    layers: Float[Array, " L"]
    across: Float[Array, ""]
    coupled: Float[Array, ""]


@eqx.filter_jit
def measure_information(
    key: Key, posterior: AnchoredPosterior, num_draws: int = 100, many: int = 1_000
) -> Information:
    """Means over draws; a single layer's part is taken with noises from their prior."""

    def one(key: Key) -> tuple[Array, Array, Array]:
        draw, few, more, rest = jr.split(key, 4)
        eps, _, h = posterior.draw(draw, 1)
        short = posterior.information(few, eps, h, posterior.num_importance)[0]
        whole = posterior.information(more, eps, h, many)[0]
        others = jr.normal(rest, (1, many, posterior.noise_dim), eps.dtype)
        every = jnp.concatenate([eps[:, None], others], axis=1)
        given = posterior.log_given(h, every)[:, 0]
        return short, whole, given[:, 0] - log_mean_exp(given)

    short, whole, layers = jax.lax.map(one, jr.split(key, num_draws))  # one at a time, for memory
    total, by_layer = jnp.mean(whole), jnp.mean(layers, axis=0)
    coupled = posterior.coupling.total_correlation() if posterior.coupling else 0.0 * total
    gap, across = total - jnp.mean(short), jnp.sum(by_layer) - total
    return Information(total, gap, by_layer, across, coupled)


def find_anchored(tree: PyTree) -> AnchoredPosterior | None:
    """The anchored posterior somewhere in a pytree, if there is one."""
    for node in jax.tree.leaves(tree, is_leaf=is_anchored):
        if isinstance(node, AnchoredPosterior):
            return node
    return None


def is_anchored(node: object) -> bool:
    """Whether a node of a pytree is an anchored posterior."""
    return isinstance(node, AnchoredPosterior)


def scaled(net: Network, ends: Float[Array, " O"]) -> Network:
    """A network whose outputs are multiplied by numbers."""
    parts = net.weights[-1], net.biases[-1]
    last = tuple(part * jnp.broadcast_to(ends, part.shape) for part in parts)
    return eqx.tree_at(lambda n: (n.weights[-1], n.biases[-1]), net, last)


def beside(value: Float[Array, "*S M P"], place: Float[Array, "M D"]) -> Float[Array, "*S M J"]:
    """`value ⊕ place` for every inducing input."""
    wide = jnp.broadcast_to(place, (*value.shape[:-1], place.shape[1]))
    return jnp.concatenate([value, wide], axis=-1)


def log_mean_exp(x: Float[Array, "*S J"]) -> Float[Array, "*S"]:
    """`log 1/J Σ_j exp x_j` over the last axis."""
    return jax.nn.logsumexp(x, axis=-1) - jnp.log(x.shape[-1]).astype(x.dtype)
