"""Smooth functions of the inputs that are found, not integrated out: how noise varies."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from nashgp.kernels import squared_distance
from nashgp.shapes import Scalar
from nashgp.transforms import Frozen

REACH = 0.5  # lengthscale over √D, the distance of a standardised row from the mean row
DEVIATION = 1.5  # of h under its prior: noise deviations within a factor of two, more where told
CAP = 5.0  # no |h| is larger: variances stay within a factor of 150 of the typical one
JITTER = 1e-4  # of unit variances: next to `DEVIATION` nobody sees it, and float32 is safe


class Field(eqx.Module):
    """A function h for each target, a GP of fixed kernel known by its values at M places.

        h(x) = s k(x, z) C⁻ᵀ w,    C Cᵀ = k(z, z),    k(x, x') = exp(-|x - x'|² / 2ℓ²)

    with prior `w ~ N(0, I)`, one term of every engine's objective. Far from all places h is 0.
    Where it would exceed `CAP` it bends: `CAP tanh(h / CAP)`.
    """

    places: Frozen
    inverse: Frozen
    value: Float[Array, "M Q"]

    def __init__(self, places: Float[np.ndarray, "M D"], num_targets: int):
        self.places = Frozen(jnp.asarray(places, float))
        gram = _kernel(self.places.value, self.places.value)
        chol = jnp.linalg.cholesky(gram + JITTER * jnp.eye(len(places)))
        self.inverse = Frozen(solve_triangular(chol, jnp.eye(len(places)), lower=True))
        self.value = jnp.zeros((len(places), num_targets))

    def __call__(self, x: Float[Array, "N D"]) -> Float[Array, "N Q"]:
        a = _kernel(x, self.places.value) @ self.inverse.value.T
        return CAP * jnp.tanh(DEVIATION / CAP * (a @ self.value))

    def log_prior(self) -> Scalar:
        return -0.5 * jnp.sum(self.value**2)


def _kernel(x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
    """An RBF kernel whose lengthscale knows only the number of columns."""
    return jnp.exp(-0.5 * squared_distance(x, z) / (REACH**2 * x.shape[1]))
