"""Cholesky factors that survive rounding, their inverses, and the Gaussian KL."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from nashgp.errors import NotPositiveDefiniteError
from nashgp.shapes import Scalar

NUM_TRIES = 3
# Relative to the mean of the diagonal, and just above the rounding error of a Gram matrix of a
# few hundred rows, so that the first try nearly always succeeds.
JITTER = {2: 1e-2, 4: 1e-5, 8: 1e-8}


class Factor(NamedTuple):
    """`a + jitter I = chol cholᵀ`, with the inverse of `chol` beside it."""

    chol: Float[Array, "M M"]
    inverse: Float[Array, "M M"]
    tries: Int[Array, ""]


def factorise(a: Float[Array, "M M"], jitter: float | None = None) -> Factor:
    """Factorise a covariance matrix, adding ten times more jitter after each failure.

    At most `NUM_TRIES` tries; after that the factor is NaN, which `check_factor` turns into an
    error outside compiled code. The inverse is explicit because one matmul with it beats a
    triangular solve with as many right-hand sides as there are rows of data.
    """
    relative = JITTER[a.dtype.itemsize] if jitter is None else jitter
    return Factor(*_factorise(a, relative * jnp.trace(a) / len(a)))


def _growth(tries: Int[Array, ""], dtype: DTypeLike) -> Scalar:
    """How much larger the jitter is after some failures."""
    return jnp.power(10, tries).astype(dtype)


@jax.custom_jvp
def _factorise(
    a: Float[Array, "M M"], amount: Scalar
) -> tuple[Float[Array, "M M"], Float[Array, "M M"], Int[Array, ""]]:
    eye = jnp.eye(len(a), dtype=a.dtype)

    def attempt(tries: Int[Array, ""]) -> Float[Array, "M M"]:
        return jnp.linalg.cholesky(a + amount * _growth(tries, a.dtype) * eye)

    def failed(carry: tuple[Float[Array, "M M"], Int[Array, ""]]) -> Array:
        chol, tries = carry
        return ~jnp.all(jnp.isfinite(chol)) & (tries < NUM_TRIES)

    def again(
        carry: tuple[Float[Array, "M M"], Int[Array, ""]],
    ) -> tuple[Float[Array, "M M"], Int[Array, ""]]:
        _, tries = carry
        return attempt(tries), tries + 1

    first = jnp.zeros((), dtype=jnp.int32)
    chol, tries = jax.lax.while_loop(failed, again, (attempt(first), first + 1))
    return chol, jax.scipy.linalg.solve_triangular(chol, eye, lower=True), tries


@_factorise.defjvp
def _factorise_jvp(primals, tangents):  # pyright: ignore[reportUnknownParameterType]
    """`dC = C Φ` and `dC⁻¹ = -Φ C⁻¹`, where Φ = C⁻¹ dA C⁻ᵀ without its upper half.

    Written once for the factor that succeeded, so the ladder needs no derivative of its own, and
    with matmuls only.
    """
    chol, inverse, tries = _factorise(*primals)
    jitter = tangents[1] * _growth(tries - 1, chol.dtype) * jnp.eye(len(chol), dtype=chol.dtype)
    inner = inverse @ (tangents[0] + jitter) @ inverse.T
    phi = jnp.tril(inner) - 0.5 * jnp.diag(jnp.diag(inner))
    zero = jnp.zeros(tries.shape, dtype=jax.dtypes.float0)
    return (chol, inverse, tries), (chol @ phi, -phi @ inverse, zero)


def check_factor(factor: Factor, name: str) -> Factor:
    """Raise when the ladder ran out; call this outside compiled code."""
    if not bool(jnp.all(jnp.isfinite(factor.chol))):
        raise NotPositiveDefiniteError(
            f"{name} is not positive definite even after {NUM_TRIES} tries with growing jitter; "
            "look for NaN inputs, duplicated inducing inputs or an extreme lengthscale."
        )
    return factor


def gaussian_kl(mean: Float[Array, "M P"], root: Float[Array, "P M M"]) -> Scalar:
    """`Σ_p KL(N(m_p, R_p R_pᵀ) ‖ N(0, I)) = ½ Σ (R² + m²) - ½ M P - Σ log |diag R|`."""
    diagonal = jnp.diagonal(root, axis1=-2, axis2=-1)
    squares = jnp.sum(jnp.tril(root) ** 2) + jnp.sum(mean**2)
    return 0.5 * (squares - mean.size) - jnp.sum(jnp.log(jnp.abs(diagonal)))


def safe_sqrt(square: Float[Array, "..."]) -> Float[Array, "..."]:
    """A square root whose derivative at zero is zero instead of infinite."""
    tiny = jnp.finfo(square.dtype).tiny
    return jnp.where(square > tiny, jnp.sqrt(jnp.where(square > tiny, square, 1.0)), 0.0)
