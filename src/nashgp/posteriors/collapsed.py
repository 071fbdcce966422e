"""Posteriors with a Gaussian for the last layer: one for each draw of those below, or one."""

import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from nashgp.layers import Inducing
from nashgp.linalg import gaussian_kl
from nashgp.model import DeepGP
from nashgp.posteriors.base import AbstractPosterior, AbstractVariational
from nashgp.posteriors.gaussian import times
from nashgp.priors import Values
from nashgp.shapes import Key, Scalar


class CollapsedPosterior(AbstractPosterior):
    """`q(v) = 1/S Σ_s δ(v_1..L-1 - values_s) N(v_L | mean_s, root_s root_sᵀ)`.

    The Gaussian of a draw belongs to that draw's hidden layers, so the last layer is coupled to
    all below it. Without `root`, `mean` holds draws of v_L. `hidden` is what the draws came from,
    kept so that training can go on.
    """

    hidden: AbstractVariational
    values: tuple[Float[Array, "S _M _P"], ...]
    mean: Float[Array, "S M P"]
    root: Float[Array, "S P M M"] | None

    def sample(self, key: Key, model: DeepGP, num: int) -> Values:
        """The stored draws in turn; those of the last layer are new each time they come round."""
        *values, last = self._turns(num)
        if last.root is None:
            return (*(part.value for part in values), last.value)
        eps = jr.normal(key, last.value.shape, last.value.dtype)
        drawn = last.value + jnp.einsum("spmk,skp->smp", last.root, eps)
        return (*(part.value for part in values), drawn)

    def inducing(self, key: Key, model: DeepGP, num: int) -> tuple[Inducing, ...]:
        """The stored draws in turn; a single layer is one Gaussian and needs no draws."""
        return self._turns(num) if self.values else (self._last(0),)

    def _turns(self, num: int) -> tuple[Inducing, ...]:
        turn = slice(num) if num <= len(self.mean) else jnp.arange(num) % len(self.mean)
        return (*(Inducing(value[turn]) for value in self.values), self._last(turn))

    def _last(self, turn: slice | Array | int) -> Inducing:
        return Inducing(self.mean[turn], None if self.root is None else self.root[turn])


class ToppedPosterior(AbstractVariational):
    """`q(v) = q(v_1..L-1) N(v_L | mean, root rootᵀ)`: a Gaussian on top of any hidden posterior."""

    hidden: AbstractVariational
    mean: Float[Array, "M P"]
    root: Float[Array, "R M M"]

    def sample_and_kl(self, key: Key, model: DeepGP, num: int) -> tuple[Values, Scalar]:
        """The KL is that of the hidden layers, as they state it, and an exact one on top."""
        below, above = jr.split(key)
        values, kl = self.hidden.sample_and_kl(below, model, num)
        eps = jr.normal(above, (num, *self.mean.shape), self.mean.dtype)
        last = self.mean[None] + times(jnp.tril(self.root), eps)
        return (*values, last), kl + gaussian_kl(self.mean, self.root)

    def inducing(self, key: Key, model: DeepGP, num: int) -> tuple[Inducing, ...]:
        values = self.hidden.sample(jr.split(key)[0], model, num)
        return (*map(Inducing, values), Inducing(self.mean, jnp.tril(self.root)))
