"""Run a computation in the precision of its arrays without touching JAX's global setting."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import PyTree

A = ParamSpec("A")
R = TypeVar("R")
T = TypeVar("T")


@contextlib.contextmanager
def scope(dtype: DTypeLike) -> Iterator[None]:
    """Allow 64-bit numbers inside the block exactly when `dtype` needs them."""
    with jax.enable_x64(jnp.dtype(dtype).itemsize == 8):
        yield


def dtype_of(tree: PyTree) -> jnp.dtype:
    """The widest floating-point type among the device arrays of a pytree."""
    arrays = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    floats = [leaf.dtype for leaf in arrays if eqx.is_inexact_array(leaf)]
    return max(floats, key=lambda dtype: dtype.itemsize)


def cast(tree: T, dtype: DTypeLike) -> T:
    """Give every floating-point array of a pytree the same precision."""
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, tree
    )


def scoped(function: Callable[A, R]) -> Callable[A, R]:
    """Run `function` in the precision of the arrays among its arguments."""

    @functools.wraps(function)
    def wrapper(*args: A.args, **kwargs: A.kwargs) -> R:
        with scope(dtype_of((args, kwargs))):
            return function(*args, **kwargs)

    return wrapper
