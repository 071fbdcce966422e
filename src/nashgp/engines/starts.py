"""Several starts of one engine as a batched program, of which the best is kept."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from nashgp.batch import Batch, Data
from nashgp.engines.base import Engine, StepInfo
from nashgp.engines.lanes import lane
from nashgp.posteriors import Fitted
from nashgp.shapes import Key

MEMORY = 0.99  # of the running mean of the objective: some hundred steps


class State(NamedTuple):
    """The states of all starts stacked, and the running mean of each one's objective."""

    states: Any
    score: Float[Array, " L"]


@dataclasses.dataclass(frozen=True)
class Starts:
    """An engine from `num` random starts at once; its result is the start with the best objective.

    All see the same rows in a step and draw numbers of their own. A step's info is that of the
    start that leads. Only the objective on training rows decides.
    """

    engine: Engine
    num: int

    def init(self, key: Key, fitted: Fitted) -> State:
        states = eqx.filter_vmap(lambda one: self.engine.init(one, fitted))(jr.split(key, self.num))
        return State(states, jnp.zeros(self.num, fitted.model.layers[0].z.dtype))

    def step(self, key: Key, state: State, batch: Batch) -> tuple[State, StepInfo]:
        def one(states: Any, key: Key) -> tuple[Any, StepInfo]:
            return self.engine.step(key, states, batch)

        states, info = eqx.filter_vmap(one)(state.states, jr.split(key, self.num))
        score = MEMORY * state.score + (1.0 - MEMORY) * info.objective
        return State(states, score), lane(info, jnp.argmax(score))

    def result(self, key: Key, state: State, data: Data, num: int) -> Fitted:
        best = lane(state.states, jnp.argmax(state.score))
        return self.engine.result(key, best, data, num)
