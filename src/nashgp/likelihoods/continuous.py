"""Likelihoods of real targets: normal noise, and heavy-tailed noise for outliers."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import gammaln, logsumexp, ndtr
from jaxtyping import Array, Float

from nashgp.errors import InputError
from nashgp.likelihoods.base import AbstractLikelihood, AbstractScalar, Latent, Targets
from nashgp.likelihoods.fields import Field
from nashgp.quadrature import RADIUS, gamma_grid, gamma_rule, inverse_power, log1p_ratio
from nashgp.shapes import Key, Number, Numbers
from nashgp.transforms import positive, unconstrained


def check_columns(name: str, parameter: Array, y: Float[np.ndarray, "N Q"]) -> None:
    """Raise when a parameter given for each column has another length than the targets."""
    if parameter.ndim and parameter.shape != y.shape[1:]:
        raise InputError(
            f"y has {y.shape[1]} columns but {name} has shape {parameter.shape}; "
            f"give one number, or one for each column."
        )


class Gaussian(AbstractLikelihood):
    """`N(y; f, σ²)`, with one noise variance or one per column. Everything is in closed form.

    With `varies` it is `N(y; f, σ² exp h(x))`, h the `Field` that `placed` puts on some inputs, and
    `at(x)` has the noise of rows x. Without a field `σ²` is what there is to say.
    """

    raw_noise: Float[Array, "*Q"]
    field: Field | None = None
    factor: Float[Array, "N Q"] | None = None  # exp h(x), of the rows of `at`
    varies: bool = eqx.field(static=True, default=False)

    def __init__(self, noise: Numbers = 0.1, *, varies: bool = False):
        self.raw_noise = unconstrained(noise)
        self.field, self.factor, self.varies = None, None, varies

    @property
    def noise(self) -> Float[Array, "*Q"]:
        noise = positive(self.raw_noise)
        if self.factor is None:
            return noise
        return self.factor * jnp.broadcast_to(noise, self.factor.shape)

    def placed(self, places: Float[np.ndarray, "M D"], num_targets: int) -> "Gaussian":
        """The same with h = 0, free to differ around each of some inputs."""
        return self._with(Field(places, num_targets), None)

    def at(self, x: Float[Array, "N D"]) -> "Gaussian":
        return self if self.field is None else self._with(None, jnp.exp(self.field(x)))

    def log_prior(self) -> Number:
        return 0.0 if self.field is None else self.field.log_prior()

    def _with(self, field: Field | None, factor: Float[Array, "N Q"] | None) -> "Gaussian":
        return eqx.tree_at(
            lambda each: (each.field, each.factor),
            self,
            (field, factor),
            is_leaf=lambda node: node is None,
        )

    @property
    def is_discrete(self) -> bool:
        return False

    def num_latent(self, num_targets: int) -> int:
        return num_targets

    def log_prob(self, f: Latent, y: Targets) -> Targets:
        return self._term(f, jnp.zeros_like(f), jnp.zeros_like(f), y, 0.0)

    def power_term(self, mean: Latent, var: Latent, y: Targets, power: Number) -> Targets:
        return self._term(mean, var, jnp.zeros_like(var), y, power)

    def data_term(
        self,
        key: Key,
        mean: Latent,
        conditional: Latent,
        spread: Latent | None,
        y: Targets,
        power: Number,
    ) -> Targets:
        del key  # closed form
        spread = jnp.zeros_like(mean) if spread is None else spread
        return self._term(mean, conditional, spread, y, power)

    def _term(
        self, mean: Latent, var: Latent, spread: Latent, y: Targets, power: Number
    ) -> Targets:
        """`-½ log 2πD - ((y - m)² + spread) / 2D - (1-a)/2a log(1 + a q/σ²)`, `D = a q + σ²`."""
        power = jnp.asarray(power, mean.dtype)
        noise = jnp.broadcast_to(self.noise, y.shape)
        total = power * var + noise
        square = (y - mean) ** 2 + spread
        correction = (1.0 - power) * (var / noise) * log1p_ratio(power * var / noise)
        return -0.5 * (jnp.log(2.0 * math.pi * total) + square / total + correction)

    def moments(self, mean: Latent, var: Latent) -> tuple[Float[Array, "N R"], Float[Array, "N R"]]:
        return mean, var + jnp.broadcast_to(self.noise, var.shape)

    def cdf(self, mean: Latent, var: Latent, y: Targets) -> Targets:
        return ndtr((y - mean) / jnp.sqrt(var + jnp.broadcast_to(self.noise, var.shape)))

    def sample(self, key: Key, f: Latent) -> Targets:
        sd = jnp.broadcast_to(jnp.sqrt(self.noise), f.shape)
        return f + sd * jr.normal(key, f.shape, f.dtype)

    def check_targets(self, y: Float[np.ndarray, "N Q"]) -> None:
        super().check_targets(y)
        check_columns("noise", self.raw_noise, y)


def has_varying_noise(likelihood: AbstractLikelihood) -> bool:
    """Whether noise is normal and depends on the inputs."""
    return isinstance(likelihood, Gaussian) and likelihood.varies


NUM_NODES = 80  # of the gamma integrals below: errors stay under 1e-6 from `df` 2 to 200


class StudentT(AbstractScalar):
    """`t_ν((y - f) / s)`: an outlier costs `(ν + 1) log |y - f|`, not its square.

    `ν = df > 2` always, so that the variance `s² ν / (ν - 2)` exists. Averages over `f` go through
    the gamma mixture of normals a Student-t is: quadrature over `f` itself would need nodes as
    close as `s`, which is often far below the standard deviation of `f`.
    """

    raw_scale: Float[Array, "*Q"]
    raw_df: Float[Array, "*Q"]

    def __init__(self, scale: Numbers = 0.3, df: Numbers = 4.0):
        if not np.all(np.asarray(df) > 2.0):
            raise InputError(f"df must exceed 2 so that the variance exists, got {df}.")
        self.raw_scale = unconstrained(scale)
        self.raw_df = unconstrained(np.asarray(df) - 2.0)

    @property
    def scale(self) -> Float[Array, "*Q"]:
        return positive(self.raw_scale)

    @property
    def df(self) -> Float[Array, "*Q"]:
        return 2.0 + positive(self.raw_df)

    @property
    def is_discrete(self) -> bool:
        return False

    def log_prob(self, f: Latent, y: Targets) -> Targets:
        df, unit = self._parameters(y)
        return self._log_peak(df, unit) - 0.5 * (df + 1.0) * jnp.log1p((y - f) ** 2 / unit)

    def power_term(self, mean: Latent, var: Latent, y: Targets, power: Number) -> Targets:
        df, unit = self._parameters(y)
        exponent = 0.5 * (df + 1.0)
        shape = exponent * jnp.asarray(power, mean.dtype)
        return self._log_peak(df, unit) + exponent * _log_decay(y - mean, var, unit, shape)

    def bend(
        self, conditional: Float[Array, "N Q"], y: Targets
    ) -> tuple[Float[Array, "N Q"], Float[Array, "N Q"]]:
        _, unit = self._parameters(y)
        return y, jnp.sqrt(unit + conditional)

    def moments(self, mean: Latent, var: Latent) -> tuple[Float[Array, "N R"], Float[Array, "N R"]]:
        df, unit = self._parameters(mean)
        return mean, var + unit / (df - 2.0)

    def cdf(self, mean: Latent, var: Latent, y: Targets) -> Targets:
        """`E Φ((y - m) / √(v + s² / λ))`, `λ ~ Gamma(ν/2, ν/2)`."""
        df, unit = self._parameters(y)
        u, weights = gamma_rule(0.5 * df, NUM_NODES)
        total = var[..., None] + (unit / df)[..., None] * jnp.exp(-u)
        return jnp.sum(weights * ndtr((y - mean)[..., None] / jnp.sqrt(total)), axis=-1)

    def sample(self, key: Key, f: Latent) -> Targets:
        df, unit = self._parameters(f)
        return f + jnp.sqrt(unit / df) * jr.t(key, df, f.shape, f.dtype)

    def check_targets(self, y: Float[np.ndarray, "N Q"]) -> None:
        super().check_targets(y)
        check_columns("scale", self.raw_scale, y)
        check_columns("df", self.raw_df, y)

    def _parameters(self, like: Targets) -> tuple[Targets, Targets]:
        """`ν` and `ν s²` for every target."""
        df = jnp.broadcast_to(self.df, like.shape)
        return df, df * jnp.broadcast_to(self.scale, like.shape) ** 2

    def _log_peak(self, df: Targets, unit: Targets) -> Targets:
        """The log density at its mode: `log Γ((ν+1)/2) - log Γ(ν/2) - ½ log(π ν s²)`."""
        return gammaln(0.5 * (df + 1.0)) - gammaln(0.5 * df) - 0.5 * jnp.log(math.pi * unit)


def _log_decay(gap: Targets, var: Targets, unit: Targets, shape: Targets) -> Targets:
    """`(1/b) log E (1 + x²/u)^-b`, `x ~ N(gap, var)`, and `-E log(1 + x²/u)` at `b = 0`.

    `X = 1 + x²/u` has the Laplace transform

        L(λ) = (1 + 2 λ v/u)^-½ exp(-λ - λ d² / (u + 2 λ v)),

    from which `E X^-b = 1/Γ(b) ∫ λ^b L(λ) dlog λ` for `b ≥ 1`. For smaller `b` that integral
    spreads out, and `inverse_power` takes over at the same nodes, with X divided by its mean.
    """
    gap, var, unit, shape = (array[..., None] for array in (gap, var, unit, shape))
    large = jnp.maximum(shape, 1.0)
    farthest = (jnp.abs(gap) + RADIUS * jnp.sqrt(var)) ** 2 / unit
    spread = jnp.where(shape < 1.0, 2.0, shape)  # the subtraction makes it fall like e^{2t}
    t, step = gamma_grid(*jax.lax.stop_gradient((spread, jnp.log1p(farthest))), NUM_NODES)
    rate = jnp.exp(t)
    blur = unit + 2.0 * rate * var
    log_laplace = -rate - 0.5 * jnp.log(blur / unit) - rate * gap**2 / blur

    total = logsumexp(large * t + log_laplace, axis=-1, keepdims=True)
    direct = (total + jnp.log(step) - gammaln(large)) / large
    log_mean = jnp.log1p((gap**2 + var) / unit)
    small = jnp.minimum(shape, 1.0)
    below = inverse_power(t + log_mean, step, jnp.exp(log_laplace), small) - log_mean[..., 0]
    return jnp.where(shape[..., 0] < 1.0, below, direct[..., 0])
