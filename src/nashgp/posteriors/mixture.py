"""Several anchored posteriors of one model as one: for modes that no single game connects."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int

from nashgp.errors import InputError
from nashgp.model import DeepGP
from nashgp.posteriors.anchored import AnchoredPosterior, Recogniser, log_mean_exp
from nashgp.posteriors.base import AbstractPosterior
from nashgp.priors import Values
from nashgp.shapes import Key


class MixturePosterior(AbstractPosterior):
    """`q(v) = Σ_c w_c q_c(v)`; the arrays of `parts` are stacked along a first axis."""

    parts: AnchoredPosterior
    weight: Float[Array, " C"]

    def sample(self, key: Key, model: DeepGP, num: int) -> Values:
        """Draws of the parts in proportion to their weights, in random order."""
        place, order, draw = jr.split(key, 3)
        levels = (jnp.arange(num, dtype=self.weight.dtype) + jr.uniform(place)) / num
        which = jnp.searchsorted(jnp.cumsum(self.weight), levels)
        which = jr.permutation(order, jnp.minimum(which, len(self.weight) - 1))

        def one(key: Key, number: Int[Array, ""]) -> Values:
            return jax.tree.map(lambda v: v[0], part(self.parts, number).sample(key, model, 1))

        return jax.vmap(one)(jr.split(draw, num), which)


def part(parts: AnchoredPosterior, number: Int[Array, ""] | int) -> AnchoredPosterior:
    """One of the parts."""
    return jax.tree.map(lambda leaf: leaf[number] if eqx.is_array(leaf) else leaf, parts)


def blend(
    parts: AnchoredPosterior,
    log_joint: Float[Array, "C S"],
    log_q: Float[Array, "C S C"],
    num_rounds: int = 500,
) -> MixturePosterior:
    """The weights with the largest bound of the mixture, from draws of each part.

        Σ_c w_c E_c [log p(y, v) - log Σ_b w_b q_b(v)]

    is concave in w, and `w_c ∝ w_c exp(½ E_c[log p(y, v) - log q(v)])` climbs it. Parts that found
    the same mode share its weight. Weights in proportion to the exponential of each part's own
    bound would count the mode once for each of them.
    """

    def round_(_: Int[Array, ""], log_w: Float[Array, " C"]) -> Float[Array, " C"]:
        mixed = jax.nn.logsumexp(log_q + log_w[None, None], axis=2)
        return jax.nn.log_softmax(log_w + 0.5 * jnp.mean(log_joint - mixed, axis=1))

    even = jnp.full(len(log_joint), -jnp.log(float(len(log_joint))), log_joint.dtype)
    return MixturePosterior(parts, jnp.exp(jax.lax.fori_loop(0, num_rounds, round_, even)))


def densities(
    key: Key, parts: AnchoredPosterior, num_draws: int, num_importance: int
) -> tuple[Values, Float[Array, "C S C"]]:
    """Draws of every part, and the log density of each draw under all parts.

    The density is an average over importance draws. A draw's own noise is among those of its own
    part, so that the bound of the mixture is one from the right side, as that of each part is.
    """
    if not isinstance(parts.player1, Recogniser):
        raise InputError('a mixture of starts needs densities; use player1="recogniser".')
    num_parts = len(jax.tree.leaves(parts.frame)[0])
    numbers = jnp.arange(num_parts)

    def of_part(key: Key, own: Int[Array, ""]) -> tuple[Values, Float[Array, "S C"]]:
        draw, rest = jr.split(key)
        mine = part(parts, own)
        eps, _, h = mine.draw(draw, num_draws)
        values = mine.values(h)

        def under(key: Key, other: Int[Array, ""]) -> Float[Array, " S"]:
            theirs = part(parts, other)
            player1 = theirs.player1
            assert isinstance(player1, Recogniser)
            guess, rest = jr.split(key)
            at = theirs.coordinates(values)
            guessed = player1.guess(guess, at, theirs.places, 1)[:, 0]
            noise = jnp.where(other == own, eps, guessed)
            given, joint = player1.log_weights(rest, theirs, noise, at, num_importance)
            return log_mean_exp(given + joint) - theirs.log_det

        columns = jax.lax.map(lambda pair: under(*pair), (jr.split(rest, num_parts), numbers))
        return values, columns.T

    return jax.lax.map(lambda pair: of_part(*pair), (jr.split(key, num_parts), numbers))
