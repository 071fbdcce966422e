"""Standard normal noise of a training step."""

import math

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.typing import DTypeLike
from jaxtyping import Array, Float, UInt32

from nashgp.shapes import Key

TURNS = jnp.cos, jnp.sin

Words = tuple[UInt32[Array, " N"], ...]


def normal(key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "..."]:
    """`N(0, I)`, decided by key and shape, under `vmap` as well as without.

    In single precision JAX's own numbers are a sixth of a small training step. These are four times
    as cheap: words of a hash, made normal by Box and Muller,

        √(-2 log u) cos(2π w),   √(-2 log u) sin(2π w)           u, w uniform

    with u of 24 bits, so that none is beyond 5.9. Keys are as random as JAX makes them. In double
    precision noise is no visible part of a step, and JAX's own.
    """
    if jnp.dtype(dtype).itemsize == 8:
        return jr.normal(key, shape, dtype)
    num = math.prod(shape)
    first, second, third, fourth = map(_uniform, words(key, -(-num // 4)))
    pairs = (first, second), (third, fourth)
    drawn = [
        jnp.sqrt(-2.0 * jnp.log(u)) * turn(2.0 * jnp.pi * w) for u, w in pairs for turn in TURNS
    ]
    return jnp.concatenate(drawn)[:num].reshape(shape).astype(dtype)


def words(key: Key, num: int) -> Words:
    """Four random words for each of the numbers 0, 1, .. `num` - 1.

    The hash PCG4D of Jarzynski and Olano, "Hash functions for GPU rendering" (2020), of number and
    key: a linear step for each word, then twice a round in which every word is moved by a product
    of two others.
    """
    seed = jr.key_data(key)
    count = jax.lax.iota(jnp.uint32, num)
    one, two = (jnp.broadcast_to(seed[place], count.shape) for place in (0, -1))
    x, y, z, w = (1664525 * word + 1013904223 for word in (count, one, two, one ^ ~two))
    x, y, z, w = _round(x, y, z, w)
    return _round(*(word ^ (word >> 16) for word in (x, y, z, w)))


def _round(x: Array, y: Array, z: Array, w: Array) -> Words:
    x = x + y * w
    y = y + z * x
    z = z + x * y
    w = w + y * z
    return x, y, z, w


def _uniform(word: UInt32[Array, " N"]) -> Float[Array, " N"]:
    """The middles of 2²⁴ cells of the unit interval: never 0, which has no logarithm."""
    return (word >> 8).astype(jnp.float32) * 2.0**-24 + 2.0**-25
