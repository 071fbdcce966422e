"""The last layer's Gaussian in closed form: what is best against given layers below.

Under `q(v) = N(μ, P⁻¹)` the rows have means `f̄ = m(x) + A μ` and spreads `s`. For each output,

    ∂/∂μ = Aᵀ ∂/∂f̄ - μ            (data term minus KL)
    P*   = I + Aᵀ diag(-2 ∂/∂s) A    where the objective is stationary in the covariance

With a Gaussian likelihood `-2 ∂/∂s = 1/D` whatever q is, so the optimum is one step away; with any
other likelihood these are the ingredients of a natural gradient step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nashgp.layers import Features, Inducing, Moments
from nashgp.likelihoods import AbstractLikelihood, masked_sum
from nashgp.linalg import inverse_root
from nashgp.shapes import Key, Number


class Evidence(NamedTuple):
    """What some rows say about v: slope of the data term in μ, and precision they add."""

    slope: Float[Array, "*S M P"]
    precision: Float[Array, "*S R M M"]


def evidence(
    key: Key,
    likelihood: AbstractLikelihood,
    features: Features,
    moments: Moments,
    y: Float[Array, "N Q"],
    weight: Float[Array, "N Q"],
    power: Number,
    *,
    shared: bool = False,
) -> Evidence:
    """`Aᵀ ∂/∂f̄` and `Aᵀ diag(-2 ∂/∂s) A` of the data term at some q.

    Outputs that share one precision are told the mean of what each would be told: the KL counts it
    once for each of them.
    """

    def total(mean: Float[Array, "N P"], spread: Float[Array, "N P"]) -> Array:
        terms = likelihood.data_term(key, mean, moments.conditional, spread, y, power)
        return masked_sum(terms, weight)

    spread = jnp.zeros_like(moments.mean) if moments.spread is None else moments.spread
    slope, bend = jax.grad(total, argnums=(0, 1))(moments.mean, spread)
    a, bend = features.a, jnp.mean(bend, axis=1, keepdims=True) if shared else bend
    precision = jax.vmap(lambda b: (a * b[:, None]).T @ a, in_axes=1)(-2.0 * bend)
    return Evidence(a.T @ slope, precision)


def best_response(
    key: Key,
    likelihood: AbstractLikelihood,
    features: Features,
    y: Float[Array, "N Q"],
    weight: Float[Array, "N Q"],
    power: Number,
) -> Inducing:
    """The Gaussian that maximises data term minus KL, for a Gaussian likelihood.

    B = I + Aᵀ D⁻¹ A,    v ~ N(B⁻¹ Aᵀ D⁻¹ (y - m(x)), B⁻¹),    D = power · residual + noise
    """
    conditional = jnp.broadcast_to(features.residual[:, None], features.mean.shape)
    at_zero = Moments(features.mean, conditional, None)
    rows = evidence(key, likelihood, features, at_zero, y, weight, power)
    root = jax.vmap(inverse_root)(add_prior(rows.precision))
    return Inducing(solve(root, rows.slope), root)


def add_prior(precision: Float[Array, "R M M"]) -> Float[Array, "R M M"]:
    """`I + precision`: the prior of v is N(0, I)."""
    return precision + jnp.eye(precision.shape[1], dtype=precision.dtype)[None]


def solve(root: Float[Array, "R M M"], right: Float[Array, "M P"]) -> Float[Array, "M P"]:
    """`P⁻¹ b` of each output, from `P⁻¹ = R Rᵀ`, which may be one for all."""
    if len(root) < right.shape[1]:
        return root[0] @ (root[0].T @ right)
    return jnp.einsum("pmk,pnk,np->mp", root, root, right)
