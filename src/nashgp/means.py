"""Prior means of a layer."""

import abc

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float

from nashgp.shapes import Key, Number, Numbers, Scalar
from nashgp.transforms import Frozen


class AbstractMean(eqx.Module):
    """A function from inputs to the prior mean of every output."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, "N Din"]) -> Float[Array, "N Dout"]:
        """The prior mean at each row."""

    def log_prior(self) -> Number:
        """Log density, up to a constant, of what it has learned; none by default."""
        return 0.0


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
    """`m(x) = x (W + s V / √Din)`: a projection that training moves, with prior `V ~ N(0, I)`.

    The deviation `s` is that of the part learned, at a row whose entries are about 1. V is found,
    not integrated out: its prior is one term of every engine's objective.
    """

    first: Frozen
    moved: Float[Array, "Din Dout"]
    deviation: float = eqx.field(static=True, default=0.5)

    def __call__(self, x: Float[Array, "N Din"]) -> Float[Array, "N Dout"]:
        stride = self.deviation / len(self.moved) ** 0.5
        return x @ (self.first.value + stride * self.moved)

    def log_prior(self) -> Scalar:
        return -0.5 * jnp.sum(self.moved**2)


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
    """The paper's frozen skip connection of a hidden layer, or one that is learned.

    The identity when the widths agree, the identity padded with zeros when the output is wider,
    and otherwise a projection on the leading right singular vectors of the rows seen by the layer.
    One that is learned starts there too, but its projection is half whitened: singular values
    enter by their roots, or what varies little would hardly be seen. Mean squares are then 1.
    """
    width = inputs.shape[1]
    if num_outputs == width and not learned:
        return Identity()
    if num_outputs >= width:
        weight = np.eye(width, num_outputs)
    else:
        weight, size = _leading(inputs, num_outputs)
        if learned and size[0] > 0.0:  # rows that are all alike have no directions to whiten
            root = np.sqrt(np.maximum(size, 1e-6 * size[0]))
            weight = weight / root * np.sqrt(len(inputs) / np.mean(size**2 / root**2))
    first = Frozen(jnp.asarray(weight, dtype=float))
    return Learned(first, jnp.zeros_like(first.array)) if learned else Projection(first)


def _leading(
    inputs: Float[np.ndarray, "N Din"], num: int
) -> tuple[Float[np.ndarray, "Din num"], Float[np.ndarray, " num"]]:
    """The leading right singular vectors and their singular values."""
    num_rows, width = inputs.shape
    if num_rows < width:
        _, size, basis = np.linalg.svd(inputs, full_matrices=True)
        return basis[:num].T, np.pad(size, (0, width - num_rows))[:num]
    last = width - num, width - 1  # the largest of the squares: a few, of few numbers
    square, basis = scipy.linalg.eigh(inputs.T @ inputs, subset_by_index=last)
    return basis[:, ::-1], np.sqrt(np.maximum(square[::-1], 0.0))
