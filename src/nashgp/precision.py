"""Run a computation in the precision of its arrays without touching JAX's global setting."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree

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


def in_double(function: Callable[..., R], *arrays: Array) -> R:
    """`function(*arrays)` computed in double precision, rounded to that of the arrays.

    It has no derivative: whoever needs one gives it. Under `vmap`, which may come long after the
    scope has ended, it is `vmap(function)` that is computed so.
    """
    dtype = dtype_of(arrays)

    @jax.custom_batching.custom_vmap
    def run(*arrays: Array) -> R:
        with scope("float64"):
            return cast(function(*cast(arrays, "float64")), dtype)

    @run.def_vmap
    def _(size: int, batched: Sequence[bool], *arrays: Array) -> tuple[R, PyTree[bool]]:
        axes = tuple(0 if each else None for each in batched)
        result = in_double(jax.vmap(function, axes, axis_size=size), *arrays)
        return result, jax.tree.map(lambda _: True, result)

    return run(*arrays)


def scoped(function: Callable[A, R]) -> Callable[A, R]:
    """Run `function` in the precision of the arrays among its arguments."""

    @functools.wraps(function)
    def wrapper(*args: A.args, **kwargs: A.kwargs) -> R:
        with scope(dtype_of((args, kwargs))):
            return function(*args, **kwargs)

    return wrapper
