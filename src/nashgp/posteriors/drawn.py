"""The posterior of a sampler: its draws, and nothing else."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from nashgp.model import DeepGP
from nashgp.posteriors.base import AbstractPosterior
from nashgp.priors import Values
from nashgp.shapes import Key


class DrawnPosterior(AbstractPosterior):
    """`q(v) = 1/S Σ_s δ(v - values_s)`, joint draws of all layers.

    Draws of several chains take turns: entry `t · num_chains + c` is draw t of chain c, so the last
    `num_chains` entries are where the chains stood. `log_density` is `log p(y, v)` of each draw, as
    the sampler saw it.
    """

    values: tuple[Float[Array, "S _M _P"], ...]
    log_density: Float[Array, " S"]
    num_chains: int = eqx.field(static=True, default=1)

    @property
    def num_draws(self) -> int:
        """Draws of each chain."""
        return len(self.log_density) // self.num_chains

    def sample(self, key: Key, model: DeepGP, num: int) -> Values:
        """`num` of the stored draws, spread evenly over them; each in turn if there are fewer."""
        size = len(self.log_density)
        turn = jnp.arange(num) * size // num if num <= size else jnp.arange(num) % size
        return tuple(value[turn] for value in self.values)

    def last(self) -> Values:
        """The last draw of every chain."""
        return tuple(value[-self.num_chains :] for value in self.values)

    def by_chain(self, values: Float[Array, "S ..."]) -> Float[Array, "K T ..."]:
        """One entry per draw, sorted by chain and time."""
        turns = values.reshape(-1, self.num_chains, *values.shape[1:])
        return jnp.swapaxes(turns, 0, 1)
