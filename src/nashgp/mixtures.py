"""The predictive distribution: an equal-weight mixture over posterior draws."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from nashgp.likelihoods import AbstractLikelihood
from nashgp.shapes import Key, Scalar


class AbstractMixture(eqx.Module):
    """A distribution of the targets for each row; quantiles follow from moments and cdf."""

    @property
    @abc.abstractmethod
    def is_discrete(self) -> bool:
        """Whether targets are whole numbers."""

    @abc.abstractmethod
    def components(self) -> tuple[Float[Array, "S N R"], Float[Array, "S N R"]]:
        """Mean and variance of the targets within each draw."""

    @abc.abstractmethod
    def moments(self) -> tuple[Float[Array, "N R"], Float[Array, "N R"]]:
        """Mean and variance of the targets (class probabilities for classes)."""

    @abc.abstractmethod
    def noise_variance(self) -> Float[Array, "N R"]:
        """Variance of the targets given f, at the mean of f, averaged over draws."""

    @abc.abstractmethod
    def log_density(
        self, y: Float[Array, "N Q"], weight: Float[Array, "N Q"]
    ) -> Float[Array, " N"]:
        """The joint log density of each row's targets; those with weight 0 are left out."""

    @abc.abstractmethod
    def cdf(self, y: Float[Array, "N Q"]) -> Float[Array, "N Q"]:
        """`P(Y ≤ y)` of each target by itself."""

    @abc.abstractmethod
    def sample(self, key: Key, num: int) -> Float[Array, "{num} N Q"]:
        """Draws of the targets; rows are drawn independently of one another."""

    def quantile(self, q: Float[Array, " T"]) -> Float[Array, "N Q T"]:
        """The smallest y with `P(Y ≤ y) ≥ q`, by bisection on the mixture's own cdf."""
        one = self._whole_quantile if self.is_discrete else self._real_quantile
        return jnp.moveaxis(jax.lax.map(one, q), 0, -1)

    def _real_quantile(self, level: Scalar) -> Float[Array, "N Q"]:
        """Between the bounds of Cantelli, `μ - σ √((1-q)/q) ≤ y_q ≤ μ + σ √(q/(1-q))`."""
        mean, variance = self.moments()
        sd = jnp.sqrt(variance)
        low = mean - 1.001 * sd * jnp.sqrt((1.0 - level) / level)
        high = mean + 1.001 * sd * jnp.sqrt(level / (1.0 - level))

        def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bracket
            return self._narrow(level, low, 0.5 * (low + high), high)

        # Enough halvings to reach the rounding of any bracket.
        num_steps = 80 if low.dtype.itemsize == 8 else 48
        return jax.lax.fori_loop(0, num_steps, halve, (low, high))[1]

    def _whole_quantile(self, level: Scalar) -> Float[Array, "N Q"]:
        """Among whole numbers from 0 to Markov's bound, `y_q ≤ μ / (1-q)`.

        The middle is taken on the scale of `log(y + 2)`: the bound of a rate known to a power of
        ten says nothing of its quantiles. An evaluation is costly, so nothing runs after the end.
        """
        mean, _ = self.moments()
        largest = 0.01 * jnp.finfo(mean.dtype).max
        high = jnp.ceil(jnp.minimum(1.001 * mean / (1.0 - level) + 1.0, largest))

        def middle(low: Array, high: Array) -> Array:
            return jnp.floor(jnp.exp(0.5 * (jnp.log(low + 2.0) + jnp.log(high + 2.0))) - 2.0)

        def is_open(bracket: tuple[Array, Array]) -> Array:
            low, high = bracket
            gap = jnp.maximum(1.0, 4.0 * jnp.finfo(high.dtype).eps * high)
            return jnp.any(high - low > gap)

        def halve(bracket: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bracket
            between = jnp.clip(middle(low, high), low + 1.0, jnp.maximum(high - 1.0, low + 1.0))
            return self._narrow(level, low, between, high)

        return jax.lax.while_loop(is_open, halve, (jnp.full_like(mean, -1.0), high))[1]

    def _narrow(
        self, level: Scalar, low: Array, middle: Array, high: Array
    ) -> tuple[Float[Array, "N Q"], Float[Array, "N Q"]]:
        """The half of a bracket that holds the quantile; one that is closed stays as it is."""
        enough = self.cdf(middle) >= level
        return jnp.where(enough, low, middle), jnp.where(enough, jnp.minimum(middle, high), high)


class Mixture(AbstractMixture):
    """`p(y_n) = 1/S Σ_s ∫ p(y_n | f) N(f | mean_sn, variance_sn) df`, one for each row.

    Everything here is a property of the mixture, not of a Gaussian with its moments.
    """

    mean: Float[Array, "S N P"]
    variance: Float[Array, "S N P"]
    likelihood: AbstractLikelihood

    @property
    def is_discrete(self) -> bool:
        return self.likelihood.is_discrete

    def components(self) -> tuple[Float[Array, "S N R"], Float[Array, "S N R"]]:
        return jax.vmap(self.likelihood.moments)(self.mean, self.variance)

    def moments(self) -> tuple[Float[Array, "N R"], Float[Array, "N R"]]:
        return _total(*self.components())

    def noise_variance(self) -> Float[Array, "N R"]:
        _, noise = jax.vmap(self.likelihood.moments)(self.mean, jnp.zeros_like(self.variance))
        return jnp.mean(noise, axis=0)

    def log_density(
        self, y: Float[Array, "N Q"], weight: Float[Array, "N Q"]
    ) -> Float[Array, " N"]:
        """`log 1/S Σ_s Π_q p_s(y_nq)` of each row; targets with weight 0 are left out."""
        terms = jax.vmap(lambda m, v: self.likelihood.log_predictive(m, v, y))(
            self.mean, self.variance
        )
        joint = jnp.sum(jnp.where(weight[None] > 0.0, terms, 0.0), axis=2)
        return logsumexp(joint, axis=0) - jnp.log(1.0 * joint.shape[0]).astype(joint.dtype)

    def cdf(self, y: Float[Array, "N Q"]) -> Float[Array, "N Q"]:
        parts = jax.vmap(lambda m, v: self.likelihood.cdf(m, v, y))(self.mean, self.variance)
        return jnp.mean(parts, axis=0)

    def sample(self, key: Key, num: int) -> Float[Array, "{num} N Q"]:
        def one(key: Key) -> Float[Array, "N Q"]:
            pick, latent, target = jr.split(key, 3)
            rows = jnp.arange(self.mean.shape[1])
            part = jr.randint(pick, rows.shape, 0, self.mean.shape[0])
            mean, variance = self.mean[part, rows], self.variance[part, rows]
            f = mean + jnp.sqrt(variance) * jr.normal(latent, mean.shape, mean.dtype)
            return self.likelihood.sample(target, f)

        return jax.vmap(one)(jr.split(key, num))


class Blend(AbstractMixture):
    """Several mixtures averaged: what an ensemble of models predicts.

    `p(y) = Σ_i w_i p_i(y)`, `w_i` the share of `i` in `deal`; draws are in that proportion too.
    """

    members: tuple[AbstractMixture, ...]
    deal: tuple[int, ...] = eqx.field(static=True)

    @property
    def weights(self) -> Float[np.ndarray, " I"]:
        return np.bincount(self.deal, minlength=len(self.members)) / len(self.deal)

    @property
    def is_discrete(self) -> bool:
        return self.members[0].is_discrete

    def components(self) -> tuple[Float[Array, "S N R"], Float[Array, "S N R"]]:
        means, variances = zip(*(member.components() for member in self.members), strict=True)
        return jnp.concatenate(means), jnp.concatenate(variances)

    def moments(self) -> tuple[Float[Array, "N R"], Float[Array, "N R"]]:
        means, variances = zip(*(member.moments() for member in self.members), strict=True)
        return _total(jnp.stack(means), jnp.stack(variances), self.weights)

    def noise_variance(self) -> Float[Array, "N R"]:
        parts = jnp.stack([member.noise_variance() for member in self.members])
        return jnp.tensordot(self.weights.astype(parts.dtype), parts, axes=1)

    def log_density(
        self, y: Float[Array, "N Q"], weight: Float[Array, "N Q"]
    ) -> Float[Array, " N"]:
        parts = jnp.stack([member.log_density(y, weight) for member in self.members])
        return logsumexp(parts, axis=0, b=self.weights.astype(parts.dtype)[:, None])

    def cdf(self, y: Float[Array, "N Q"]) -> Float[Array, "N Q"]:
        parts = jnp.stack([member.cdf(y) for member in self.members])
        return jnp.tensordot(self.weights.astype(parts.dtype), parts, axes=1)

    def sample(self, key: Key, num: int) -> Float[Array, "{num} N Q"]:
        pick, rest = jr.split(key)
        keys = jr.split(rest, len(self.members))
        drawn = jnp.stack([m.sample(k, num) for m, k in zip(self.members, keys, strict=True)])
        turn = jr.randint(pick, (1, *drawn.shape[1:3], 1), 0, len(self.deal))
        return jnp.take_along_axis(drawn, jnp.asarray(self.deal)[turn], axis=0)[0]


def _total(
    means: Float[Array, "S N R"],
    variances: Float[Array, "S N R"],
    weights: Float[np.ndarray, " S"] | None = None,
) -> tuple[Float[Array, "N R"], Float[Array, "N R"]]:
    """`E y = mean_s m_s` and `Var y = mean_s v_s + mean_s (m_s - E y)²`, weighed means if asked."""
    weights = None if weights is None else weights.astype(means.dtype)
    mean = jnp.average(means, axis=0, weights=weights)
    return mean, jnp.average(variances + (means - mean[None]) ** 2, axis=0, weights=weights)
