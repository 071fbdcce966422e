"""Unconstrained parameters: positive numbers by softplus, frozen arrays."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from nashgp.errors import InputError
from nashgp.shapes import Numbers

FLOOR = 1e-6  # no variance, noise or lengthscale is ever smaller than this


def positive(raw: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Map any real number to one above `FLOOR`: `softplus(raw) + FLOOR`."""
    return jax.nn.softplus(raw) + FLOOR


def unconstrained(value: Numbers) -> Float[Array, "..."]:
    """Invert `positive`: `x + log(1 - exp(-x))` with `x = value - FLOOR`."""
    host = np.asarray(value, dtype=np.float64) - FLOOR
    if not np.all(host > 0.0) or not np.all(np.isfinite(host)):
        raise InputError(f"a positive parameter must be finite and above {FLOOR:g}, got {value}.")
    return jnp.asarray(host + np.log(-np.expm1(-host)), dtype=float)


class Frozen(eqx.Module):
    """An array that belongs to the model but is never trained."""

    array: Float[Array, "..."]

    @property
    def value(self) -> Float[Array, "..."]:
        return jax.lax.stop_gradient(self.array)


def is_frozen(node: object) -> bool:
    """Whether a node of a pytree is a `Frozen` array."""
    return isinstance(node, Frozen)


def trainable(tree: PyTree) -> PyTree[bool]:
    """Mark what an optimiser may move: floating-point arrays outside `Frozen`."""
    return jax.tree.map(eqx.is_inexact_array, tree, is_leaf=is_frozen)
