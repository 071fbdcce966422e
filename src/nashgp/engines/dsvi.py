"""Doubly stochastic variational inference: gradient ascent on a sampled objective."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import optax
from jaxtyping import PyTree

from nashgp.batch import Batch, Data
from nashgp.engines.base import Climbs, Info, ascend, number
from nashgp.engines.objectives import objective
from nashgp.errors import InputError
from nashgp.posteriors import AbstractVariational, Fitted
from nashgp.shapes import Key, Scalar
from nashgp.transforms import trainable


class State(NamedTuple):
    """The trainable part, the rest, and Adam's memory."""

    params: PyTree
    frozen: PyTree
    opt_state: optax.OptState


@dataclasses.dataclass(frozen=True)
class DSVI(Climbs):
    """Maximise the objective over posterior, inducing inputs and hyperparameters together.

    Salimbeni and Deisenroth, "Doubly stochastic variational inference for deep Gaussian
    processes" (2017), when everything is left at its default. `draw_inducing` draws the inducing
    values instead of integrating them out; `power` above 0 changes the data term.
    """

    learning_rate: float = number(0.01)
    num_samples: int = 1
    power: float = 0.0
    draw_inducing: bool = False
    decay_steps: int | None = number(None)
    network_rate: float | None = number(None)
    model_rate: float | None = None

    def init(self, key: Key, fitted: Fitted) -> State:
        del key  # nothing random about the start
        if not isinstance(fitted.posterior, AbstractVariational):
            kind = type(fitted.posterior).__name__
            raise InputError(f"gradient steps cannot go on from a {kind}.")
        params, frozen = eqx.partition(fitted, trainable(fitted))
        return State(params, frozen, self._adam.init(params))

    def step(self, key: Key, state: State, batch: Batch) -> tuple[State, Info]:
        def payoff(params: PyTree) -> Scalar:
            return objective(
                key,
                eqx.combine(params, state.frozen),
                batch,
                num_samples=self.num_samples,
                power=self.power,
                draw_inducing=self.draw_inducing,
            )

        value, gradient = eqx.filter_value_and_grad(payoff)(state.params)
        params, opt_state = ascend(self._adam, state.opt_state, state.params, gradient)
        return State(params, state.frozen, opt_state), Info(value)

    def result(self, key: Key, state: State, data: Data, num: int) -> Fitted:
        del key, data, num
        return eqx.combine(state.params, state.frozen)
