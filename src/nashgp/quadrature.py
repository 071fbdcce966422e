"""One-dimensional integrals: averages over a normal, a tilted normal and a gamma variable.

Most of them are trapezoid sums over evenly spaced nodes of a well chosen variable. For a smooth
integrand that dies out at both ends the error falls exponentially with the number of nodes; unlike
Gauss-Hermite it stays small when the integrand is sharp next to a wide normal. Where the nodes lie
does not change the value of an integral, so it carries no gradient.

New axes of nodes (`K`) come last unless a docstring says otherwise.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from nashgp.shapes import Scalar

RADIUS = 6.5  # standard deviations kept on either side; the rest of a normal weighs 1e-10
WIDE = 12.0  # the same where integrands outweigh the normal; exp(-WIDE² / 2) fits in float32
TAIL = 22.0  # nats kept on either side of a gamma density
NEWTON_STEPS = 6

Elementwise = Callable[[Float[Array, "..."]], Float[Array, "..."]]
Rule = tuple[Float[Array, " K"], Float[Array, " K"]]


@functools.cache
def _sinh(num: int, radius: float, core: float) -> tuple[np.ndarray, np.ndarray]:
    angle = np.linspace(-1.0, 1.0, num) * np.arcsinh(radius / core)
    nodes = core * np.sinh(angle)
    weights = np.cosh(angle) * np.exp(-0.5 * nodes**2)
    return nodes, weights / weights.sum()


def even_rule(num: int, dtype: DTypeLike) -> Rule:
    """Nodes and weights with `Σ w g(z) ≈ E g(z)`, `z ~ N(0, 1)`: evenly spaced, for sharp `g`."""
    nodes, weights = _sinh(num, RADIUS, 1e3)
    return jnp.asarray(nodes, dtype), jnp.asarray(weights, dtype)


def wide_rule(num: int, dtype: DTypeLike) -> Rule:
    """The same by `z = 2 sinh τ` with even `τ`, for `g` that grow up to `exp(z² / 2)`."""
    nodes, weights = _sinh(num, WIDE, 2.0)
    return jnp.asarray(nodes, dtype), jnp.asarray(weights, dtype)


def focused_rule(
    centre: Float[Array, "N Q"], width: Float[Array, "N Q"], num: int
) -> tuple[Float[Array, "K N Q"], Float[Array, "K N Q"]]:
    """The same with nodes gathered around `centre`, as close as `width` there; they come first."""
    # Three standard deviations out a bend stops to count, and following it any further would
    # leave too few nodes for the bulk of the normal.
    centre, width = jax.lax.stop_gradient((centre, width))
    width = width + jnp.maximum(jnp.abs(centre) - 3.0, 0.0)
    centre = jnp.clip(centre, -3.0, 3.0)
    low, high = (jnp.arcsinh((end - centre) / width) for end in (-RADIUS, RADIUS))
    angle = jnp.linspace(low, high, num)
    nodes = centre[None] + width[None] * jnp.sinh(angle)
    weights = jnp.cosh(angle) * jnp.exp(-0.5 * nodes**2)
    return nodes, weights / jnp.sum(weights, axis=0, keepdims=True)


def root(var: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`√var` with a finite slope: variances below the rounding unit count as that unit."""
    return jnp.sqrt(jnp.maximum(var, jnp.finfo(var.dtype).eps))


def expect(
    function: Elementwise, mean: Float[Array, "N P"], var: Float[Array, "N P"], num: int
) -> Float[Array, "N P"]:
    """`E g(f)`, `f ~ N(mean, var)`; `g` is given all nodes at once, `[N, P, K]`."""
    nodes, weights = even_rule(num, mean.dtype)
    return function(mean[..., None] + root(var)[..., None] * nodes[None, None, :]) @ weights


def _quotient(function: Elementwise, series: list[float], x: Array) -> Array:
    """`function(x) / x`, by the first four terms of its series where division is inaccurate."""
    small = jnp.abs(x) < jnp.finfo(x.dtype).eps ** 0.25
    near = jnp.polyval(jnp.asarray(series, x.dtype), jnp.where(small, x, 0.0))
    safe = jnp.where(small, 1.0, x)
    return jnp.where(small, near, function(safe) / safe)


def log1p_ratio(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`log(1 + x) / x`, smooth through zero."""
    return _quotient(jnp.log1p, [-1 / 4, 1 / 3, -1 / 2, 1.0], x)


def expm1_ratio(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`(exp(x) - 1) / x`, smooth through zero."""
    return _quotient(jnp.expm1, [1 / 24, 1 / 6, 1 / 2, 1.0], x)


def log_mean_power(
    values: Float[Array, "... K"], weights: Float[Array, "... K"], power: Scalar
) -> Float[Array, "..."]:
    """`(1/a) log Σ w exp(a l)`, smooth through its limit `Σ w l` at `a = 0`; for `l` near zero."""
    rise = jnp.sum(weights * values * expm1_ratio(power * values), axis=-1)
    return rise * log1p_ratio(power * rise)


def tilted(
    log_p: Elementwise,
    mean: Float[Array, "N P"],
    var: Float[Array, "N P"],
    power: Scalar,
    start: Float[Array, "N P"],
    num: int,
) -> Float[Array, "N P"]:
    """`(1/a) log E exp(a l(f))`, `f ~ N(m, v)`, for a concave `l`, smooth through `a = 0`.

    The nodes are laid around the mode `m + a v g` of `N(f; m, v) exp(a l(f))`, at the width
    `s² = v / (1 + a v c)` of its Laplace approximation, with `g = l'` and `c = -l''` there:

        E exp(a l) = E_z exp(a [l(m + a v g + s z) + c v z² / 2(1 + a v c) - g s z - a v g² / 2]
                             - log(1 + a v c) / 2)

    Everything beside `l` is proportional to `a`, so no precision is lost for small powers. `start`
    is where Newton's method for the mode begins; `log_p` meets arrays `[N, P, K]` and `[N, P, 1]`.
    """
    mean, var, start = mean[..., None], root(var)[..., None] ** 2, start[..., None]
    slope, curvature = _mode(log_p, *jax.lax.stop_gradient((mean, power * var, start)))
    nodes, weights = wide_rule(num, mean.dtype)
    z = nodes[None, None, :]
    stretch = 1.0 + power * var * curvature
    step = jnp.sqrt(var / stretch) * z
    values = (
        log_p(mean + power * var * slope + step)
        + 0.5 * var * curvature * (z**2 / stretch - log1p_ratio(power * var * curvature))
        - slope * (step + 0.5 * power * var * slope)
    )
    centre = values[..., num // 2]  # near the mode, where the values are nearly equal
    return centre + log_mean_power(values - centre[..., None], weights[None, None, :], power)


def _mode(
    log_p: Elementwise, mean: Float[Array, "N P 1"], pull: Array, start: Float[Array, "N P 1"]
) -> tuple[Float[Array, "N P 1"], Float[Array, "N P 1"]]:
    """`l'` and `-l''` where `f = mean + pull l'(f)`, by Newton's method."""

    def slope(f: Array) -> Array:
        return jax.jvp(log_p, (f,), (jnp.ones_like(f),))[1]

    def both(f: Array) -> tuple[Array, Array]:
        first, second = jax.jvp(slope, (f,), (jnp.ones_like(f),))
        return first, jnp.maximum(-second, 0.0)

    def step(_: object, f: Array) -> Array:
        first, second = both(f)
        return f - (f - mean - pull * first) / (1.0 + pull * second)

    first, second = both(jax.lax.fori_loop(0, NEWTON_STEPS, step, start))
    return jax.lax.stop_gradient(first), jax.lax.stop_gradient(second)


def gamma_grid(
    shape: Float[Array, "N Q 1"], reach: Float[Array, "N Q 1"], num: int
) -> tuple[Float[Array, "N Q K"], Float[Array, "N Q 1"]]:
    """Even nodes in `log λ` where `λ^b exp(-λ x)` counts for any `0 ≤ log x ≤ reach`; their step.

    With `λ = b eᵘ / x` the density is `exp(-b (eᵘ - 1 - u))`, which has lost `TAIL` nats outside
    `-(r + √2r) < u < log(1 + r + √2r)`, `r = TAIL / b`.
    """
    ratio = TAIL / shape
    width = ratio + jnp.sqrt(2.0 * ratio)
    low = jnp.log(shape) - width - reach
    step = (jnp.log(shape) + jnp.log1p(width) - low) / (num - 1)
    nodes = low + step * jnp.arange(num, dtype=shape.dtype)[None, None, :]
    return jax.lax.stop_gradient(nodes), jax.lax.stop_gradient(step)


def gamma_rule(
    shape: Float[Array, "N Q"], num: int
) -> tuple[Float[Array, "N Q K"], Float[Array, "N Q K"]]:
    """Nodes `u` and weights with `Σ w g(u) ≈ E g(log(λ / b))`, `λ ~ Gamma(b, 1)`."""
    shape = shape[..., None]
    nodes, _ = gamma_grid(shape, jnp.zeros_like(shape), num)
    u = nodes - jax.lax.stop_gradient(jnp.log(shape))
    weights = jnp.exp(shape * (u - jnp.expm1(u)))
    return u, weights / jnp.sum(weights, axis=-1, keepdims=True)


def inverse_power(
    t: Float[Array, "*shape K"],
    step: Float[Array, "*shape 1"],
    laplace: Float[Array, "*shape K"],
    power: Float[Array, "*shape 1"],
) -> Float[Array, "*shape"]:
    """`(1/b) log E X^-b` of a positive `X` with mean one, and `-E log X` at `b = 0`; for `b ≤ 1`.

        E X^-b = 1 + b J,   J = 1/Γ(1 + b) ∫ e^{bt} (L(eᵗ) - exp(-eᵗ)) dt,   L(λ) = E exp(-λ X)

    The subtracted term is the integral of the constant `X = 1`: it makes the integrand fall like
    `e^{2t}` on the left, however small `b`, and by Jensen's inequality `J ≥ 0`.
    """
    kernel = jnp.exp(power * t - gammaln(1.0 + power)) * (laplace - jnp.exp(-jnp.exp(t)))
    excess = jnp.sum(step * kernel, axis=-1)
    return excess * log1p_ratio(power[..., 0] * excess)
