"""Likelihoods of class labels: `C` functions, one column of labels."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import logsumexp, ndtr
from jaxtyping import Array, Bool, Float

from nashgp.errors import InputError
from nashgp.likelihoods.base import AbstractLikelihood, Latent, Targets, draw, is_zero
from nashgp.quadrature import RADIUS, even_rule, inverse_power, log_mean_power, root
from nashgp.shapes import Key, Number

Probabilities = Float[Array, "N C"]


class AbstractClasses(AbstractLikelihood):
    """One function for each class; targets are one column of labels `0 .. C-1`."""

    num_classes: eqx.AbstractVar[int]

    def __check_init__(self):
        if self.num_classes < 2:
            raise InputError(f"num_classes must be at least 2, got {self.num_classes}.")

    @property
    def is_discrete(self) -> bool:
        return True

    def num_latent(self, num_targets: int) -> int:
        if num_targets != 1:
            raise InputError(f"y must be one column of labels, got {num_targets} columns.")
        return self.num_classes

    def cdf(self, mean: Latent, var: Latent, y: Targets) -> Targets:
        raise InputError("classes have no order, so no cdf or quantile; ask for moments instead.")

    def check_targets(self, y: Float[np.ndarray, "N Q"]) -> None:
        super().check_targets(y)
        self.num_latent(y.shape[1])
        if not np.all(np.isnan(y) | np.isin(y, np.arange(self.num_classes))):
            raise InputError(
                f"y must hold labels 0 to {self.num_classes - 1}; recode the classes that way or "
                "raise num_classes."
            )

    def chosen(self, y: Targets) -> Bool[Array, "N C"]:
        """Which function belongs to the label of each row."""
        return y == jnp.arange(self.num_classes, dtype=y.dtype)[None, :]


def pick(values: Probabilities, own: Bool[Array, "N C"]) -> Float[Array, "N 1"]:
    """The entry of each row that `own` marks."""
    return jnp.sum(jnp.where(own, values, 0.0), axis=1, keepdims=True)


class RobustMax(AbstractClasses):
    """`p = 1 - ε` for the class with the largest function, `ε / (C - 1)` for each other one.

    Every average follows from `P = P(argmax f = y)`. Cost: `64 C` normal cdfs for each row.
    """

    num_classes: int = eqx.field(static=True)
    epsilon: float = eqx.field(static=True, default=1e-3)

    def __check_init__(self):
        if not 0.0 < self.epsilon < 1.0:
            raise InputError(f"epsilon must lie between 0 and 1, got {self.epsilon}.")

    @property
    def levels(self) -> tuple[float, float]:
        """The two values of `log p`: of a right label and of a wrong one."""
        return math.log1p(-self.epsilon), math.log(self.epsilon / (self.num_classes - 1))

    def log_prob(self, f: Latent, y: Targets) -> Targets:
        right, wrong = self.levels
        winner = jnp.argmax(f, axis=1)[:, None].astype(y.dtype)
        return jnp.where(winner == y, right, wrong).astype(f.dtype)

    def power_term(self, mean: Latent, var: Latent, y: Targets, power: Number) -> Targets:
        """`(1/a) log(P p_right^a + (1 - P) p_wrong^a)`."""
        right, wrong = self.levels
        win = pick(probability_of_largest(mean, var), self.chosen(y))
        gain = jnp.full((*win.shape, 1), right - wrong, win.dtype)  # a wrong label gains nothing
        return wrong + log_mean_power(gain, win[..., None], jnp.asarray(power, mean.dtype))

    def moments(self, mean: Latent, var: Latent) -> tuple[Probabilities, Probabilities]:
        right, wrong = (math.exp(level) for level in self.levels)
        p = wrong + (right - wrong) * probability_of_largest(mean, var)
        return p, p * (1.0 - p)

    def sample(self, key: Key, f: Latent) -> Targets:
        slip, other = jr.split(key)
        wrong = jr.uniform(slip, f.shape[:1], f.dtype) < self.epsilon
        shift = jnp.where(wrong, jr.randint(other, wrong.shape, 1, self.num_classes), 0)
        label = (jnp.argmax(f, axis=1).astype(shift.dtype) + shift) % self.num_classes
        return label[:, None].astype(f.dtype)


def probability_of_largest(mean: Probabilities, var: Probabilities, num: int = 64) -> Probabilities:
    """`P(f_c ≥ f_k for all k) = ∫ N(x; m_c, v_c) Π_{k≠c} Φ((x - m_k) / s_k) dx` for each class.

    Left of `x₀ = max_k (m_k - 6.5 s_k)` nothing is left of some factor. Right of it every factor
    varies over its own `s_k`, hence slowly next to its distance from `x₀` or not at all any more:
    even nodes in `log(x - x₀)` resolve all of them at once, for any ratio of the `s_k`.
    """
    sd = root(var)
    left = jnp.max(mean - RADIUS * sd, axis=1, keepdims=True)
    right = jnp.max(mean + RADIUS * sd, axis=1, keepdims=True)
    low, high = jnp.log(0.7 * jnp.min(sd, axis=1, keepdims=True)), jnp.log(right - left)
    left, low, step = jax.lax.stop_gradient((left, low, (high - low) / (num - 1)))
    t = low + step * jnp.arange(num, dtype=mean.dtype)[None, :]

    u = ((left - mean)[..., None] + jnp.exp(t)[:, None, :]) / sd[..., None]
    below = jnp.log(ndtr(u))  # safe, since u > -6.5
    others = jnp.sum(below, axis=1, keepdims=True) - below
    density = jnp.exp(others - 0.5 * u**2 + t[:, None, :]) / sd[..., None]
    p = jnp.sum(density, axis=2)
    return p / jnp.sum(p, axis=1, keepdims=True)  # which also supplies step / √2π


class Softmax(AbstractClasses):
    """`p(y | f) = exp(f_y) / S`, `S = Σ_c exp(f_c)`.

    The averages are exact up to quadrature, by way of the Laplace transform of `S`: a product over
    classes, since the functions are independent. The error stays below 1e-6 for variances up to 9.
    Cost: `72 × 36 × C` exponentials for each row, so training at power zero draws `f` instead.
    """

    num_classes: int = eqx.field(static=True)

    def log_prob(self, f: Latent, y: Targets) -> Targets:
        return pick(f, self.chosen(y)) - logsumexp(f, axis=1, keepdims=True)

    def power_term(self, mean: Latent, var: Latent, y: Targets, power: Number) -> Targets:
        """`(1/a) log E exp(a f_y) S^-a`.

        `exp(a f_y)` is moved into the weights of the nodes of `f_y`; what is left is `E S^-a`.
        """
        power = jnp.asarray(power, mean.dtype)
        own, sd = self.chosen(y), root(var)
        z, weights = even_rule(36, mean.dtype)
        lean = jnp.where(own, power * sd, 0.0)
        tilt = jnp.log(weights)[None, None, :] + lean[..., None] * z[None, None, :]
        leaning = jax.nn.softmax(tilt, axis=2)

        moved = mean + lean * sd
        log_mean = logsumexp(moved + 0.5 * var, axis=1, keepdims=True)  # log E S
        low = -10.0 - jnp.maximum(jnp.max(moved + var - log_mean, axis=1, keepdims=True), 0.0)
        t, step = _grid(log_mean, low, mean, sd)
        f = (mean - log_mean)[..., None] + sd[..., None] * z[None, None, :]
        laplace = jnp.exp(jnp.sum(_log_laplace(t, f, leaning), axis=1))
        rest = inverse_power(t, step, laplace, jnp.broadcast_to(power, step.shape))
        own_sd = pick(sd, own)
        first = log_mean_power(own_sd * z[None, :], weights[None, :], power)
        return pick(mean, own) - log_mean + (first + rest)[:, None]

    def data_term(
        self,
        key: Key,
        mean: Latent,
        conditional: Latent,
        spread: Latent | None,
        y: Targets,
        power: Number,
    ) -> Targets:
        """One draw of `f` at power zero, else one draw of its mean: unbiased, far cheaper."""
        if is_zero(power):
            var = conditional if spread is None else conditional + spread
            return self.log_prob(draw(key, mean, var), y)
        centre = mean if spread is None else draw(key, mean, spread)
        return self.power_term(centre, conditional, y, power)

    def moments(self, mean: Latent, var: Latent) -> tuple[Probabilities, Probabilities]:
        """`E exp(f_c) / S = ∫ -φ_c'(t) Π_{k≠c} φ_k(t) dt`, `φ_k(t) = E exp(-e^{t + f_k})`."""
        sd = root(var)
        z, weights = even_rule(36, mean.dtype)
        log_mean = logsumexp(mean + 0.5 * var, axis=1, keepdims=True)
        t, step = _grid(log_mean, jnp.full_like(log_mean, -20.0), mean, sd)
        f = (mean - log_mean)[..., None] + sd[..., None] * z[None, None, :]
        shared = jnp.broadcast_to(weights[None, None, :], f.shape)
        log_phi, slope = jax.jvp(lambda t: _log_laplace(t, f, shared), (t,), (jnp.ones_like(t),))
        density = -slope * jnp.exp(jnp.sum(log_phi, axis=1, keepdims=True))
        p = jnp.sum(step[..., None] * density, axis=2)
        p = p / jnp.sum(p, axis=1, keepdims=True)
        return p, p * (1.0 - p)

    def sample(self, key: Key, f: Latent) -> Targets:
        return jr.categorical(key, f, axis=1)[:, None].astype(f.dtype)


def _grid(
    log_mean: Float[Array, "N 1"], low: Float[Array, "N 1"], mean: Probabilities, sd: Probabilities
) -> tuple[Float[Array, "N K"], Float[Array, "N 1"]]:
    """72 even nodes from `low` to where the first factor `φ_k` has vanished, and their step."""
    high = 3.5 + jnp.min(log_mean - mean + RADIUS * sd, axis=1, keepdims=True)
    step = (jnp.minimum(high, 80.0) - low) / 71  # exp(80) is the end of single precision
    t = low + step * jnp.arange(72, dtype=mean.dtype)[None, :]
    return jax.lax.stop_gradient((t, step))


def _log_laplace(
    t: Float[Array, "N K"], f: Float[Array, "N C J"], weights: Float[Array, "N C J"]
) -> Float[Array, "N C K"]:
    """`log φ(t) = log Σ_j w_j exp(-e^{t + f_j})` for each class."""
    rate = jnp.exp(t)[:, None, :]

    @jax.checkpoint  # or the reverse pass would keep J arrays [N, C, K]
    def term(scale: Array, weight: Array) -> Array:
        return weight[..., None] * jnp.exp(-rate * scale[..., None])

    def add(total: Array, node: tuple[Array, Array]) -> tuple[Array, None]:
        return total + term(*node), None

    nodes = jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0), (jnp.exp(f), weights))
    total, _ = jax.lax.scan(add, jnp.zeros((*f.shape[:2], t.shape[1]), t.dtype), nodes)
    return jnp.log(jnp.maximum(total, jnp.finfo(t.dtype).tiny))
