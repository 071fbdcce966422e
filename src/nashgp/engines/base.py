"""What an inference engine is: three functions and the batch in the signature."""

import functools
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import optax
from jaxtyping import PyTree

from nashgp.batch import Batch, Data
from nashgp.posteriors import Fitted
from nashgp.shapes import Key, Scalar

State = Any
"""What the next step needs: parameters, optimiser states, momenta. Private to each engine."""


@runtime_checkable
class StepInfo(Protocol):
    """A named tuple of what only a reader needs, one array per step in the history.

    Every engine reports `objective`, in nats over the whole data.
    """

    @property
    def objective(self) -> Any: ...

    @property
    def _fields(self) -> tuple[str, ...]: ...


class Info(NamedTuple):
    """The least that an engine reports."""

    objective: Scalar


@runtime_checkable
class Engine(Protocol):
    """Improve a posterior and its model step by step.

    An engine is a frozen dataclass of plain settings: equal settings are equal keys of the
    compilation cache, so a second fit with the same shapes compiles nothing.
    """

    def init(self, key: Key, fitted: Fitted) -> State:
        """The state before the first step."""
        ...

    def step(self, key: Key, state: State, batch: Batch) -> tuple[State, StepInfo]:
        """One update from one batch; pure, and traced once."""
        ...

    def result(self, key: Key, state: State, data: Data, num: int) -> Fitted:
        """What prediction needs, with one last look at the rows for engines that want it.

        Engines that keep draws keep `num` of them.
        """
        ...


@functools.cache
def adam(
    learning_rate: float, decay_steps: int | None = None, momentum: float = 0.9
) -> optax.GradientTransformation:
    """Adam at a constant rate, or with a rate that falls to zero along a cosine."""
    if decay_steps is None:
        return optax.adam(learning_rate, momentum)
    return optax.adam(optax.cosine_decay_schedule(learning_rate, decay_steps), momentum)


def ascend(
    optimiser: optax.GradientTransformation,
    opt_state: optax.OptState,
    params: PyTree,
    gradient: PyTree,
) -> tuple[PyTree, optax.OptState]:
    """One optimiser step *up* the gradient of the trainable part of a pytree."""
    down = optax.tree.scale(-1.0, gradient)
    with jax.numpy_dtype_promotion("standard"):  # optax raises floats to an integer step count
        updates, opt_state = optimiser.update(down, opt_state, params)
    return eqx.apply_updates(params, updates), opt_state
