"""Whole functions drawn from a fitted estimator, callable on the user's own rows."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nashgp import paths, predict
from nashgp.estimators.rows import Rows
from nashgp.likelihoods import AbstractLikelihood
from nashgp.precision import dtype_of, scope


class FunctionSample:
    """`num` functions from the posterior; each is the same function at every call.

    Calling it gives the mean of the targets under each function, without observation noise, as an
    array [N, num], or [N, Q, num] when the targets had two axes.
    """

    def __init__(
        self,
        draws: paths.FunctionDraws,
        likelihood: AbstractLikelihood,
        inputs: Callable[[Rows], np.ndarray],
        outputs: Callable[[np.ndarray], np.ndarray],
    ):
        self._draws, self._likelihood = draws, likelihood
        self._inputs, self._outputs = inputs, outputs

    def __call__(self, X: Rows) -> np.ndarray:
        return self._outputs(self.evaluate(_targets, self._inputs(X)))

    def layers(self, X: Rows) -> list[np.ndarray]:
        """The output [N, width, num] of every layer, in the model's own units."""
        return list(self.evaluate(_hidden, self._inputs(X)))

    def evaluate(self, what: Callable[..., Any], x: Float[np.ndarray, "N D"]) -> Any:
        """`what(draws, likelihood, x)` over chunks of rows."""
        first = self._draws.draws[0]
        widest = max(
            first.correction.shape[1], 0 if first.weight is None else first.weight.shape[1]
        )
        dtype = dtype_of(self._draws)
        with scope(dtype):
            return predict.over_rows(
                lambda rows: _evaluate(what, self._draws, self._likelihood, rows),
                (x,),
                dtype,
                predict.rows_at_once(len(self._draws) * widest),
            )


@eqx.filter_jit
def _evaluate(
    what: Callable[..., Any], draws: paths.FunctionDraws, likelihood: AbstractLikelihood, x: Array
) -> Any:
    return what(draws, likelihood, x)


def _hidden(
    draws: paths.FunctionDraws, likelihood: AbstractLikelihood, x: Float[Array, "N D"]
) -> tuple[Float[Array, "N _P S"], ...]:
    del likelihood
    return tuple(jnp.moveaxis(layer, 0, -1) for layer in draws.hidden(x))


def _targets(
    draws: paths.FunctionDraws, likelihood: AbstractLikelihood, x: Float[Array, "N D"]
) -> Float[Array, "N Q S"]:
    """`E(y | f)` under each function."""
    f = draws(x)
    mean, _ = jax.vmap(lambda f: likelihood.moments(f, jnp.zeros_like(f)))(f)
    return jnp.moveaxis(mean, 0, -1)


def _latent(
    draws: paths.FunctionDraws, likelihood: AbstractLikelihood, x: Float[Array, "N D"]
) -> Float[Array, "N P S"]:
    return _hidden(draws, likelihood, x)[-1]


def draw_targets(
    sample: FunctionSample, key: Array, x: Float[np.ndarray, "N D"]
) -> Float[np.ndarray, "N Q S"]:
    """Targets drawn around each function: rows of one draw belong together."""
    f = sample.evaluate(_latent, x)
    with scope(f.dtype):
        moved = jnp.moveaxis(jnp.asarray(f), -1, 0)
        drawn = jax.vmap(sample._likelihood.sample)(jax.random.split(key, len(moved)), moved)
        return np.moveaxis(np.asarray(drawn), 0, -1)
