"""Finite differences and dense references, which know of the package what is trained."""

from collections.abc import Callable

import equinox as eqx
import jax
import numpy as np

from nashgp.transforms import trainable


def directional_error(function: Callable, tree, seed: int = 0, step: float = 1e-5) -> float:
    """Relative gap between the gradient and a central difference along one random direction.

    Of what is trained: frozen arrays have no gradient, and stay where they are.
    """
    arrays, static = eqx.partition(tree, trainable(tree))
    random = np.random.default_rng(seed)
    direction = jax.tree.map(lambda leaf: random.normal(size=leaf.shape), arrays)
    both = jax.jit(jax.value_and_grad(lambda a: function(eqx.combine(a, static))))

    def at(t: float) -> float:
        return float(both(jax.tree.map(lambda leaf, d: leaf + t * d, arrays, direction))[0])

    slopes = jax.tree.map(lambda g, d: float(np.sum(np.asarray(g) * d)), both(arrays)[1], direction)
    slope = sum(jax.tree.leaves(slopes))
    difference = (at(step) - at(-step)) / (2.0 * step)
    return abs(slope - difference) / max(1.0, abs(difference))


def log_normal(y: np.ndarray, covariance: np.ndarray) -> float:
    """`log N(y | 0, covariance)`, densely."""
    sign, log_det = np.linalg.slogdet(covariance)
    assert sign > 0
    quadratic = y @ np.linalg.solve(covariance, y)
    return float(-0.5 * (quadratic + log_det + len(y) * np.log(2.0 * np.pi)))
