"""One layer: a vector-valued GP summarised by its values at M inducing inputs.

The inducing values are kept whitened. With `C Cᵀ = K(z, z)`,

    u = m(z) + C v,    so that under the GP prior    v ~ N(0, I).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nashgp.kernels import AbstractKernel
from nashgp.linalg import Factor, factor_tangent, factorise, gaussian_kl, jittered
from nashgp.means import AbstractMean
from nashgp.precision import in_double

# Where features are in single precision: with less, the rounding of `K(x, z)` shows in them.
NARROW_JITTER = 1e-7


class Inducing(NamedTuple):
    """Whitened inducing values of one layer: a draw, or the Gaussian N(value, root rootᵀ).

    `root` is one matrix for each output, or a single one for all of them (R = 1). Either may carry
    a leading axis S, one entry per joint draw of all layers.
    """

    value: Float[Array, "*S M P"]
    root: Float[Array, "*S R M M"] | None = None

    def kl(self) -> Float[Array, "*S"]:
        """`KL(N(value, root rootᵀ) ‖ N(0, I))`, of each draw if stacked."""
        assert self.root is not None
        return (jax.vmap(gaussian_kl) if is_stacked(self) else gaussian_kl)(self.value, self.root)


def is_stacked(inducing: Inducing) -> bool:
    """Whether there is one entry per draw."""
    return inducing.value.ndim == 3


class Features(NamedTuple):
    """What a layer knows of some inputs before it knows its inducing values."""

    mean: Float[Array, "N P"]
    a: Float[Array, "N M"]
    residual: Float[Array, " N"]


class Moments(NamedTuple):
    """Marginal law of a layer's output, split by where the variance comes from.

    `conditional` is Var(f | u); `spread` is the variance of E(f | u) under q(u), absent when u was
    drawn. They enter a power data term differently and a prediction only through their sum.
    """

    mean: Float[Array, "*S N P"]
    conditional: Float[Array, "*S N P"]
    spread: Float[Array, "*S N P"] | None

    @property
    def variance(self) -> Float[Array, "*S N P"]:
        return self.conditional if self.spread is None else self.conditional + self.spread


class SparseGPLayer(eqx.Module):
    """A GP with `num_outputs` outputs that share one kernel and one set of inducing inputs.

    With `low_rank` its kernel is `K(x, z) K(z, z)⁻¹ K(z, x')`, of rank M: the inducing values then
    say all there is to know of f, and f given u has no variance left.
    """

    kernel: AbstractKernel
    mean: AbstractMean
    z: Float[Array, "M D"]
    num_outputs: int = eqx.field(static=True)
    jitter: float | None = eqx.field(static=True, default=None)
    low_rank: bool = eqx.field(static=True, default=False)

    @property
    def num_inducing(self) -> int:
        return self.z.shape[0]

    def factor(self) -> Factor:
        """`C` with `C Cᵀ = K(z, z)`, and `C⁻¹`."""
        return _factor(self.kernel, self.z, jitter=self.jitter)

    def features(self, x: Float[Array, "N D"]) -> Features:
        """`A = K(x, z) C⁻ᵀ` and what is left of the prior variance, `k(x, x) - Σ A²`."""
        a = self.kernel.cross(x, self.z) @ self.factor().inverse.T
        if self.low_rank:
            return Features(self.mean(x), a, jnp.zeros_like(a[:, 0]))
        residual = jnp.maximum(self.kernel.diag(x) - jnp.sum(a**2, axis=1), 0.0)  # rounding
        return Features(self.mean(x), a, residual)

    def moments(self, features: Features, inducing: Inducing) -> Moments:
        """Marginals of f at the inputs of `features`.

            E f = m(x) + A v        Var f = k(x, x) - Σ A² + Σ (A R)²

        Without `root` R, `v` is one draw and the last term is absent. With it, the inducing values
        are N(v, R Rᵀ) and have been integrated out.
        """
        mean = features.mean + features.a @ inducing.value
        conditional = jnp.broadcast_to(features.residual[:, None], mean.shape)
        if inducing.root is None:
            return Moments(mean, conditional, None)
        r, m, _ = inducing.root.shape
        side_by_side = jnp.moveaxis(inducing.root, 0, 1).reshape(m, r * m)  # one matmul for all R
        ar = (features.a @ side_by_side).reshape(-1, r, m)
        spread = jnp.sum(ar**2, axis=2)
        return Moments(mean, conditional, jnp.broadcast_to(spread, mean.shape))

    def unwhiten(self, v: Float[Array, "M P"]) -> Float[Array, "M P"]:
        """`u = m(z) + C v`."""
        return self.mean(self.z) + self.factor().chol @ v

    def whiten(self, u: Float[Array, "M P"]) -> Float[Array, "M P"]:
        """`v = C⁻¹ (u - m(z))`."""
        return self.factor().inverse @ (u - self.mean(self.z))


@eqx.filter_custom_jvp
def _factor(kernel: AbstractKernel, z: Float[Array, "M D"], *, jitter: float | None) -> Factor:
    """The factor of `K(z, z)`, found in double precision and rounded to that of `z`.

    Neighbouring inducing inputs make `K(z, z)` all but singular: in single precision its rounding
    asks for a hundred times more jitter, and that is most of what single precision costs. The
    derivative has no such need, and stays in the precision of `z`.
    """
    numbers, rest = eqx.partition(kernel, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(numbers)
    relative = _relative(jitter, z)

    def find(z: Float[Array, "M D"], *leaves: Array) -> Factor:
        wide = eqx.combine(jax.tree.unflatten(structure, leaves), rest)
        return factorise(wide.gram(z), relative)

    return in_double(find, z, *leaves)


@_factor.def_jvp
def _factor_jvp(primals, tangents, *, jitter):  # pyright: ignore[reportUnknownParameterType]
    factor = _factor(*primals, jitter=jitter)

    def shifted(kernel: AbstractKernel, z: Float[Array, "M D"]) -> Float[Array, "M M"]:
        return jittered(kernel.gram(z), _relative(jitter, z), factor.tries)

    _, moved = eqx.filter_jvp(shifted, primals, tangents)
    return factor, Factor(*factor_tangent(factor, moved), None)  # pyright: ignore[reportArgumentType]


def _relative(jitter: float | None, z: Float[Array, "M D"]) -> float | None:
    """The jitter asked for, or that of the precision of `z`."""
    return NARROW_JITTER if jitter is None and z.dtype.itemsize < 8 else jitter
