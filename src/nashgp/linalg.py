"""Cholesky factors that survive rounding, their inverses, and the Gaussian KL."""

from collections.abc import Callable
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

BLOCK = 32  # most rows of the triangular blocks that are inverted row by row

Right = Float[Array, "M P"]


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
    return Factor(*_factorise(a, _amount(a, jitter)))


def jittered(
    a: Float[Array, "M M"], jitter: float | None, tries: Int[Array, ""]
) -> Float[Array, "M M"]:
    """What was factorised after so many tries."""
    return a + _amount(a, jitter) * _growth(tries - 1, a.dtype) * jnp.eye(len(a), dtype=a.dtype)


def factor_tangent(
    factor: Factor, moved: Float[Array, "M M"]
) -> tuple[Float[Array, "M M"], Float[Array, "M M"]]:
    """How a factor moves with its matrix: `dC = C Φ` and `dC⁻¹ = -Φ C⁻¹`.

    Φ is `C⁻¹ dA C⁻ᵀ` without its upper half. Written once for the try that succeeded, so the ladder
    needs no derivative of its own, and with matmuls only.
    """
    inner = factor.inverse @ moved @ factor.inverse.T
    phi = jnp.tril(inner) - 0.5 * jnp.diag(jnp.diag(inner))
    return factor.chol @ phi, -phi @ factor.inverse


def _amount(a: Float[Array, "M M"], jitter: float | None) -> Scalar:
    """The jitter of the first try."""
    relative = JITTER[a.dtype.itemsize] if jitter is None else jitter
    return relative * jnp.trace(a) / len(a)


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

    start = jnp.full_like(a, jnp.nan), jnp.zeros((), dtype=jnp.int32)
    chol, tries = jax.lax.while_loop(failed, again, start)
    return chol, invert_lower(chol), tries


@_factorise.defjvp
def _factorise_jvp(primals, tangents):  # pyright: ignore[reportUnknownParameterType]
    factor = Factor(*_factorise(*primals))
    moved, amount = tangents
    eye = jnp.eye(len(moved), dtype=moved.dtype)
    moved = moved + amount * _growth(factor.tries - 1, moved.dtype) * eye
    zero = jnp.zeros(factor.tries.shape, dtype=jax.dtypes.float0)
    chol, inverse = factor_tangent(factor, moved)
    return (factor.chol, factor.inverse, factor.tries), (chol, inverse, zero)


def invert_lower(chol: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """The inverse of a lower triangular matrix, by doubling; most of it is matmuls.

    Small blocks on the diagonal are inverted all at once; then neighbours join, again and again:

        [A 0]⁻¹   [   A⁻¹      0 ]
        [B C]   = [-C⁻¹BA⁻¹   C⁻¹]

    Inside a compiled loop this is several times faster than a LAPACK solve, which waits for
    threads that are busy with other matmuls.
    """
    num_blocks = 1 << (-(-len(chol) // BLOCK) - 1).bit_length()
    size = -(-len(chol) // num_blocks)  # no more padding than it takes to have them alike
    padded = jnp.eye(num_blocks * size, dtype=chol.dtype).at[: len(chol), : len(chol)].set(chol)
    inverse = _substitute(_diagonal_blocks(padded, size))
    while len(inverse) > 1:
        size = inverse.shape[1]
        below = _diagonal_blocks(padded, 2 * size)[:, size:, :size]
        first, last = inverse[0::2], inverse[1::2]
        inverse = jnp.block([[first, jnp.zeros_like(first)], [-last @ (below @ first), last]])
    return inverse[0, : len(chol), : len(chol)]


def _diagonal_blocks(a: Float[Array, "M M"], size: int) -> Float[Array, "B {size} {size}"]:
    """The square blocks along the diagonal."""
    index = jnp.arange(len(a) // size)
    return a.reshape(len(index), size, len(index), size)[index, :, index, :]


def _substitute(chol: Float[Array, "B T T"]) -> Float[Array, "B T T"]:
    """Forward substitution: row i of `X = C⁻¹` is `(e_i - Σ_j C_ij X_j) / C_ii` over `j < i`."""
    eye = jnp.eye(chol.shape[1], dtype=chol.dtype)

    def next_row(i: Int[Array, ""], x: Float[Array, "B T T"]) -> Float[Array, "B T T"]:
        row = chol[:, i]  # rows of `x` from i on are still zero
        known = jnp.einsum("bt,btk->bk", row, x)
        return x.at[:, i].set((eye[i][None] - known) / row[:, i][:, None])

    return jax.lax.fori_loop(0, chol.shape[1], next_row, jnp.zeros_like(chol))


def inverse_root(precision: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """Lower triangular R with `R Rᵀ = P⁻¹`, for a precision matrix that is no smaller than I.

    The Cholesky factor of P with rows and columns in reverse order, inverted, transposed and
    turned back. P needs no jitter but what rounding takes.
    """
    turned = precision[::-1, ::-1]
    factor = factorise(turned, 4.0 * float(jnp.finfo(precision.dtype).eps))
    return factor.inverse.T[::-1, ::-1]


def check_factor(factor: Factor, name: str) -> Factor:
    """Raise when the ladder ran out; call this outside compiled code."""
    if not bool(jnp.all(jnp.isfinite(factor.chol))):
        raise NotPositiveDefiniteError(
            f"{name} is not positive definite even after {NUM_TRIES} tries with growing jitter; "
            "look for NaN inputs, duplicated inducing inputs, an extreme lengthscale or a large "
            "learning rate."
        )
    return factor


def gaussian_kl(mean: Float[Array, "M P"], root: Float[Array, "R M M"]) -> Scalar:
    """`Σ_p KL(N(m_p, R_p R_pᵀ) ‖ N(0, I)) = ½ Σ (R² + m²) - ½ M P - Σ log |diag R|`.

    A single root serves all outputs.
    """
    times = mean.shape[1] // len(root)
    eye = jnp.eye(len(mean), dtype=root.dtype)
    diagonal = jnp.sum(root * eye[None], axis=2)  # unlike an index, its derivative fuses
    squares = times * jnp.sum(jnp.tril(root) ** 2) + jnp.sum(mean**2)
    return 0.5 * (squares - mean.size) - times * jnp.sum(jnp.log(jnp.abs(diagonal)))


def safe_sqrt(square: Float[Array, "..."]) -> Float[Array, "..."]:
    """A square root whose derivative at zero is zero instead of infinite."""
    tiny = jnp.finfo(square.dtype).tiny
    return jnp.where(square > tiny, jnp.sqrt(jnp.where(square > tiny, square, 1.0)), 0.0)


def conjugate_gradients(
    apply: Callable[[Right], Right],
    precondition: Callable[[Right], Right],
    right: Right,
    num_steps: int,
) -> Right:
    """`num_steps` towards `A⁻¹ b` from zero, each column with a positive definite A of its own.

    Exact after one step if the preconditioner is. A column that has arrived stays where it is.
    """

    def ratio(above: Float[Array, " P"], below: Float[Array, " P"]) -> Float[Array, "1 P"]:
        moving = below > jnp.finfo(below.dtype).tiny
        return jnp.where(moving, above / jnp.where(moving, below, 1.0), 0.0)[None]

    def step(_: Array, carry: tuple[Right, ...]) -> tuple[Right, ...]:
        x, rest, toward, along = carry
        square, moved = jnp.sum(rest * toward, axis=0), apply(along)
        size = ratio(square, jnp.sum(along * moved, axis=0))
        x, rest = x + size * along, rest - size * moved
        toward = precondition(rest)
        along = toward + ratio(jnp.sum(rest * toward, axis=0), square) * along
        return x, rest, toward, along

    toward = precondition(right)
    start = jnp.zeros_like(right), right, toward, toward
    return jax.lax.fori_loop(0, num_steps, step, start)[0]
