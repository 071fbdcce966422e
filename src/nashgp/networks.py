"""Small fully connected networks: the strategies of the players of a game."""

import itertools
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from nashgp.shapes import Key


class Network(eqx.Module):
    """`x ↦ W_k a(… a(W_1 x + b_1) …) + b_k` with leaky ReLU `a`, on the last axis of `x`.

    The parameters are shared over all other axes of `x`, or there is a set of them for each place
    on the last but one.
    """

    weights: tuple[Float[Array, "... _I _O"], ...]
    biases: tuple[Float[Array, "... _O"], ...]

    def __call__(self, x: Float[Array, "*S M I"]) -> Float[Array, "*S M O"]:
        return self._above(_linear(x, self.weights[0], self.biases[0]))

    def of_pairs(self, x: Float[Array, "*S E"], y: Float[Array, "M D"]) -> Float[Array, "*S M O"]:
        """The network of every `x ⊕ y_m`: its first layer is a sum, so no pair is ever made.

        With parameters of its own, the network of a place knows which one it is: then of `x` alone.
        """
        weight, bias = self.weights[0], self.biases[0]
        if weight.ndim == 3:
            return self(jnp.broadcast_to(x[..., None, :], (*x.shape[:-1], len(y), x.shape[-1])))
        ours, theirs = weight[: x.shape[-1]], weight[x.shape[-1] :]
        of_y = _linear(y, theirs, bias)
        return self._above(
            (x @ ours)[..., None, :] + of_y.reshape((1,) * (x.ndim - 1) + of_y.shape)
        )

    def _above(self, x: Float[Array, "*S M H"]) -> Float[Array, "*S M O"]:
        """All that follows the first layer's sums."""
        for weight, bias in zip(self.weights[1:], self.biases[1:], strict=True):
            x = _linear(jax.nn.leaky_relu(x, 0.2), weight, bias)
        return x

    @property
    def num_parameters(self) -> int:
        return sum(leaf.size for leaf in (*self.weights, *self.biases))


def _linear(
    x: Float[Array, "*S M I"], weight: Float[Array, "... I O"], bias: Float[Array, "... O"]
) -> Float[Array, "*S M O"]:
    """`x W + b`, with parameters of their own for each place on the last but one axis, or one."""
    x = x @ weight if weight.ndim == 2 else jnp.einsum("...mi,mio->...mo", x, weight)
    return x + jnp.broadcast_to(bias, x.shape)


def network(
    key: Key,
    widths: Sequence[int],
    *,
    copies: int | None = None,
    dtype: DTypeLike = jnp.float32,
) -> Network:
    """Random normal start: weights `N(0, 2 / inputs)`, which keeps the size of what passes through.

    `widths` run from the input to the output; `copies` asks for that many sets of parameters.
    Biases are `N(0, 1)`, so that the kinks of a first layer lie where standardised inputs do.
    """
    many = () if copies is None else (copies,)
    weights, biases = [], []
    for number, (i, o) in enumerate(itertools.pairwise(widths)):
        weight, bias = jr.split(jr.fold_in(key, number))
        weights.append((2.0 / i) ** 0.5 * jr.normal(weight, (*many, i, o), dtype))
        biases.append(jr.normal(bias, (*many, o), dtype))
    return Network(tuple(weights), tuple(biases))
