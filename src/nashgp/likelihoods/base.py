"""What every likelihood answers, and what those with one function per target share."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from nashgp.errors import InputError
from nashgp.quadrature import focused_rule, root
from nashgp.shapes import Key, Number, Scalar

NUM_OUTER = 24  # nodes over the spread of the mean, where that takes numbers

Latent = Float[Array, "N P"]
Targets = Float[Array, "N Q"]


def masked_sum(terms: Float[Array, "N Q"], weight: Float[Array, "N Q"]) -> Scalar:
    """`Σ weight · terms` over positive weights; the other terms may be anything, NaN included."""
    return jnp.sum(weight * jnp.where(weight > 0.0, terms, 0.0))


def draw(key: Key, mean: Latent, var: Latent) -> Latent:
    """One draw of `N(mean, var)`, differentiable in both."""
    return mean + root(var) * jr.normal(key, mean.shape, mean.dtype)


def is_zero(power: Number) -> bool:
    """Whether a power is known to be zero before anything is compiled."""
    return isinstance(power, int | float) and power == 0


class AbstractLikelihood(eqx.Module):
    """`p(y | f)`, and its averages over `f ~ N(mean, var)`, independent over rows and columns."""

    @property
    @abc.abstractmethod
    def is_discrete(self) -> bool:
        """Whether targets are whole numbers."""

    @abc.abstractmethod
    def num_latent(self, num_targets: int) -> int:
        """How many functions `num_targets` columns of targets need."""

    @abc.abstractmethod
    def log_prob(self, f: Latent, y: Targets) -> Targets:
        """`log p(y | f)`."""

    @abc.abstractmethod
    def power_term(self, mean: Latent, var: Latent, y: Targets, power: Number) -> Targets:
        """`(1/a) log E p(y | f)^a` for `0 ≤ a ≤ 1`, smooth through `E log p(y | f)` at `a = 0`.

        It grows with `a`. The power may be a Python number or a traced one.
        """

    def expected_log_prob(self, mean: Latent, var: Latent, y: Targets) -> Targets:
        """`E log p(y | f)`: the data term of the ELBO."""
        return self.power_term(mean, var, y, 0.0)

    def log_predictive(self, mean: Latent, var: Latent, y: Targets) -> Targets:
        """`log E p(y | f)`: what a prediction is scored by."""
        return self.power_term(mean, var, y, 1.0)

    def data_term(
        self,
        key: Key,
        mean: Latent,
        conditional: Latent,
        spread: Latent | None,
        y: Targets,
        power: Number,
    ) -> Targets:
        """`E power_term(m, conditional, y)` over `m ~ N(mean, spread)`, or at `m = mean` without.

        `conditional` is `Var(f | U)` and `spread` the variance of `E(f | U)` under `q(U)`; without
        `spread` U was drawn. The average of power zero is known, `E log p` at the total variance,
        so the sum over nodes is only for what the power adds: nothing at all for `a = 0`.
        """
        if spread is None:
            return self.power_term(mean, conditional, y, power)
        known = self.expected_log_prob(mean, conditional + spread, y)
        if is_zero(power):
            return known

        @jax.checkpoint  # intermediate arrays are large, and cheap to compute again
        def added(z: Latent) -> Targets:
            m = mean + root(spread) * z
            plain = self.expected_log_prob(m, conditional, y)
            return self.power_term(m, conditional, y, power) - plain

        nodes, weights = self.outer_rule(key, mean, conditional, spread, y)
        return known + jnp.sum(weights * jax.lax.map(added, nodes), axis=0)

    def outer_rule(
        self, key: Key, mean: Latent, conditional: Latent, spread: Latent, y: Targets
    ) -> tuple[Float[Array, "K N P"], Float[Array, "K N Q"]]:
        """Nodes `z` and weights for an average over `mean + √spread z`: one draw of weight one."""
        del conditional, spread
        return jr.normal(key, (1, *mean.shape), mean.dtype), jnp.ones((1, *y.shape), mean.dtype)

    @abc.abstractmethod
    def moments(self, mean: Latent, var: Latent) -> tuple[Float[Array, "N R"], Float[Array, "N R"]]:
        """Mean and variance of the targets; for classes, of each class's indicator."""

    @abc.abstractmethod
    def cdf(self, mean: Latent, var: Latent, y: Targets) -> Targets:
        """`P(Y ≤ y)`, `f` averaged out."""

    @abc.abstractmethod
    def sample(self, key: Key, f: Latent) -> Targets:
        """Targets drawn from `p(y | f)`."""

    def at(self, x: Float[Array, "N D"]) -> "AbstractLikelihood":
        """The likelihood of these rows; itself, unless something of it depends on the inputs."""
        del x
        return self

    def log_prior(self) -> Number:
        """Log density, up to a constant, of what it has found of the inputs; none by default."""
        return 0.0

    def offset(self, y: Float[np.ndarray, "N Q"]) -> Float[np.ndarray, " P"] | None:
        """A constant to start the functions from, given the targets; None for zero."""
        del y

    def check_targets(self, y: Float[np.ndarray, "N Q"]) -> None:
        """Raise `InputError` for targets that cannot occur; NaN stands for a missing one."""
        if np.any(np.isinf(y)):
            raise InputError("y holds infinity; use NaN for a missing target.")


class AbstractScalar(AbstractLikelihood):
    """A likelihood with one function for each column of targets."""

    def num_latent(self, num_targets: int) -> int:
        return num_targets

    @abc.abstractmethod
    def bend(
        self, conditional: Float[Array, "N Q"], y: Targets
    ) -> tuple[Float[Array, "N Q"], Float[Array, "N Q"]]:
        """Near which `f` the log likelihood bends, and over what width."""

    def outer_rule(
        self, key: Key, mean: Latent, conditional: Latent, spread: Latent, y: Targets
    ) -> tuple[Float[Array, "K N P"], Float[Array, "K N Q"]]:
        """Fixed nodes: one dimension needs no luck."""
        del key
        centre, width = self.bend(conditional, y)
        sd = root(spread)
        return focused_rule((centre - mean) / sd, width / sd, NUM_OUTER)
