"""Whole functions drawn from a fitted estimator, callable on the user's own rows."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nashgp import paths, predict
from nashgp.estimators.rows import Rows
from nashgp.likelihoods import AbstractLikelihood
from nashgp.precision import dtype_of, scope


class Part(NamedTuple):
    """Functions of one model, and what they mean for the targets."""

    draws: paths.FunctionDraws
    likelihood: AbstractLikelihood


class FunctionSample:
    """`num` functions from the posterior; each is the same function at every call.

    Calling it gives the mean of the targets under each function, without observation noise, as an
    array [N, num], or [N, Q, num] when the targets had two axes; of a classifier the probability of
    each class, [N, C, num].
    """

    def __init__(
        self,
        parts: Sequence[Part],
        inputs: Callable[[Rows], np.ndarray],
        outputs: Callable[[np.ndarray], np.ndarray],
    ):
        self._parts, self._inputs, self._outputs = parts, inputs, outputs

    def __call__(self, X: Rows) -> np.ndarray:
        return self._outputs(self.evaluate(_targets, self._inputs(X)))

    def layers(self, X: Rows) -> list[np.ndarray]:
        """The output [N, width, num] of every layer, in the model's own units."""
        return list(self.evaluate(_hidden, self._inputs(X)))

    def evaluate(self, what: Callable[..., Any], x: Float[np.ndarray, "N D"]) -> Any:
        """`what(part, x)` over chunks of rows; the functions of all parts side by side."""
        parts = [_over_rows(what, part, x) for part in self._parts]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=-1), *parts)


def _over_rows(what: Callable[..., Any], part: Part, x: Float[np.ndarray, "N D"]) -> Any:
    first = part.draws.draws[0]
    widest = max(first.correction.shape[1], 0 if first.weight is None else first.weight.shape[1])
    dtype = dtype_of(part.draws)
    with scope(dtype):
        return predict.over_rows(
            lambda rows: _evaluate(what, part, rows),
            (x,),
            dtype,
            predict.rows_at_once(len(part.draws) * widest),
        )


@eqx.filter_jit
def _evaluate(what: Callable[..., Any], part: Part, x: Array) -> Any:
    return what(part, x)


def _hidden(part: Part, x: Float[Array, "N D"]) -> tuple[Float[Array, "N _P S"], ...]:
    return tuple(jnp.moveaxis(layer, 0, -1) for layer in part.draws.hidden(x))


def _targets(part: Part, x: Float[Array, "N D"]) -> Float[Array, "N Q S"]:
    """`E(y | f)` under each function."""
    f = part.draws(x)
    mean, _ = jax.vmap(lambda f: part.likelihood.moments(f, jnp.zeros_like(f)))(f)
    return jnp.moveaxis(mean, 0, -1)


def draw_targets(
    sample: FunctionSample, key: Array, x: Float[np.ndarray, "N D"]
) -> Float[np.ndarray, "N Q S"]:
    """Targets drawn around each function: rows of one draw belong together."""
    keys = jax.random.split(key, len(sample._parts))
    pairs = zip(keys, sample._parts, strict=True)
    return np.concatenate([_draw_around(k, part, x) for k, part in pairs], axis=-1)


def _draw_around(key: Array, part: Part, x: Float[np.ndarray, "N D"]) -> np.ndarray:
    f = _over_rows(_hidden, part, x)[-1]
    with scope(f.dtype):
        moved = jnp.moveaxis(jnp.asarray(f), -1, 0)
        likelihood = part.likelihood.at(jnp.asarray(x, f.dtype))
        drawn = jax.vmap(likelihood.sample)(jax.random.split(key, len(moved)), moved)
        return np.moveaxis(np.asarray(drawn), 0, -1)
