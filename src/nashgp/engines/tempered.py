"""Any engine on rows that count little at first: what finds modes that are far apart."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from nashgp.batch import Batch, Data
from nashgp.engines.base import Engine, StepInfo, number
from nashgp.errors import InputError
from nashgp.posteriors import Fitted
from nashgp.shapes import Key, Scalar


class State(NamedTuple):
    """The engine's own state, the steps taken, and the two numbers of the schedule."""

    inner: Any
    step: Int[Array, ""]
    log_first: Scalar
    share: Scalar


@dataclasses.dataclass(frozen=True)
class Tempered:
    """Maximise `β · data term - KL`, with β rising from `first_weight` to 1 over `warm_up` steps.

    The logarithm of β rises evenly. While β is small the posterior is wide and modes overlap, so a
    posterior that can split has no valley to cross. A step's objective is that of its own β.
    """

    engine: Engine
    warm_up: int = number(1_000)
    first_weight: float = number(0.01)

    def init(self, key: Key, fitted: Fitted) -> State:
        if not 0.0 < self.first_weight <= 1.0 or self.warm_up < 1:
            raise InputError(
                "first_weight must be above 0 and at most 1 and warm_up at least 1, "
                f"got {self.first_weight} and {self.warm_up}."
            )
        dtype = fitted.model.layers[0].z.dtype
        return State(
            self.engine.init(key, fitted),
            jnp.zeros((), int),
            jnp.log(jnp.asarray(self.first_weight, dtype)),
            jnp.asarray(1.0 / self.warm_up, dtype),
        )

    def step(self, key: Key, state: State, batch: Batch) -> tuple[State, StepInfo]:
        left = jnp.maximum(1.0 - state.step.astype(state.share.dtype) * state.share, 0.0)
        beta: Float[Array, ""] = jnp.exp(state.log_first * left)
        counted = eqx.tree_at(
            lambda b: b.scale, batch, beta.astype(batch.scale.dtype) * batch.scale
        )
        inner, info = self.engine.step(key, state.inner, counted)
        return state._replace(inner=inner, step=state.step + 1), info

    def result(self, key: Key, state: State, data: Data, num: int) -> Fitted:
        return self.engine.result(key, state.inner, data, num)
