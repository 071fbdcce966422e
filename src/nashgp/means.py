"""Prior means of a layer."""

import abc

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from nashgp.shapes import Key, Numbers
from nashgp.transforms import Frozen


class AbstractMean(eqx.Module):
    """A function from inputs to the prior mean of every output."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, "N Din"]) -> Float[Array, "N Dout"]:
        """The prior mean at each row."""


class Zero(AbstractMean):
    """`m(x) = 0`."""

    num_outputs: int = eqx.field(static=True)

    def __call__(self, x: Float[Array, "N Din"]) -> Float[Array, "N Dout"]:
        return jnp.zeros((x.shape[0], self.num_outputs), dtype=x.dtype)


class Constant(AbstractMean):
    """`m(x) = c`, trained."""

    value: Float[Array, " Dout"]

    def __init__(self, value: Numbers):
        self.value = jnp.atleast_1d(jnp.asarray(value, dtype=float))

    def __call__(self, x: Float[Array, "N Din"]) -> Float[Array, "N Dout"]:
        return jnp.broadcast_to(self.value, (x.shape[0], *self.value.shape))


class Identity(AbstractMean):
    """`m(x) = x`."""

    def __call__(self, x: Float[Array, "N Din"]) -> Float[Array, "N Dout"]:
        return x


class Projection(AbstractMean):
    """`m(x) = x W` with a `W` that is not trained."""

    weight: Frozen

    def __call__(self, x: Float[Array, "N Din"]) -> Float[Array, "N Dout"]:
        return x @ self.weight.value


class Learned(AbstractMean):
    """`m(x) = x (W + s Δ)`: a projection that training moves, in small strides of s.

    The entries of `W` are small beside those of kernels, which Adam moves at the same rate.
    """

    first: Frozen
    moved: Float[Array, "Din Dout"]
    stride: float = eqx.field(static=True, default=0.02)

    def __call__(self, x: Float[Array, "N Din"]) -> Float[Array, "N Dout"]:
        return x @ (self.first.value + self.stride * self.moved)


class Linear(AbstractMean):
    """`m(x) = x W + b`, trained."""

    weight: Float[Array, "Din Dout"]
    bias: Float[Array, " Dout"]

    def __init__(self, num_inputs: int, num_outputs: int, *, key: Key):
        scale = 1.0 / np.sqrt(num_inputs)
        self.weight = scale * jr.normal(key, (num_inputs, num_outputs), dtype=float)
        self.bias = jnp.zeros(num_outputs, dtype=float)

    def __call__(self, x: Float[Array, "N Din"]) -> Float[Array, "N Dout"]:
        return x @ self.weight + self.bias[None, :]


def skip(
    inputs: Float[np.ndarray, "N Din"], num_outputs: int, *, learned: bool = False
) -> AbstractMean:
    """The paper's frozen skip connection of a hidden layer, or one that starts there.

    The identity when the widths agree, the identity padded with zeros when the output is wider,
    and otherwise a projection on the leading right singular vectors of the rows seen by the layer.
    """
    width = inputs.shape[1]
    if num_outputs == width and not learned:
        return Identity()
    if num_outputs >= width:
        weight = np.eye(width, num_outputs)
    else:
        weight = np.linalg.svd(inputs, full_matrices=len(inputs) < width)[2][:num_outputs].T
    first = Frozen(jnp.asarray(weight, dtype=float))
    return Learned(first, jnp.zeros_like(first.array)) if learned else Projection(first)
