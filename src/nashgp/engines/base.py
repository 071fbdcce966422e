"""What an inference engine is: three functions and the batch in the signature."""

import dataclasses
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from nashgp.batch import Batch, Data
from nashgp.model import DeepGP
from nashgp.networks import Network
from nashgp.posteriors import Coupling, Fitted
from nashgp.shapes import Key, Scalar


def number(default: Any) -> Any:
    """A setting that only `init` reads, so that steps compiled for one value serve all others."""
    return dataclasses.field(default=default, compare=False)


State = Any
"""What the next step needs: parameters, optimiser states, momenta. Private to each engine."""


@runtime_checkable
class StepInfo(Protocol):
    """A named tuple of what only a reader needs, one array per step in the history.

    Every engine reports `objective`, in nats over the whole data.
    """

    @property
    def objective(self) -> Any: ...

    def _asdict(self) -> dict[str, Any]: ...


class Info(NamedTuple):
    """The least that an engine reports."""

    objective: Scalar


@runtime_checkable
class Engine(Protocol):
    """Improve a posterior and its model step by step.

    An engine is a frozen dataclass of plain settings: equal settings are equal keys of the
    compilation cache, so a second fit with the same shapes compiles nothing. A `number` that
    `init` puts into the state is no part of the key: programs are shared by all its values.
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


class Pace(NamedTuple):
    """How far a run is, the rate it started with, and the share of its fall that a step takes."""

    step: Int[Array, ""]
    rate: Float[Array, ""]
    share: Float[Array, ""]


def cosine(done: Scalar) -> Scalar:
    """From 1 to 0 as a run goes from 0 to 1, slow at both ends."""
    return 0.5 * (1.0 + jnp.cos(jnp.pi * done))


def falling(rate: float, decay_steps: int | None) -> optax.GradientTransformation:
    """Multiply by `-rate`, which falls to zero along a cosine if `decay_steps` are given.

    The numbers are part of the optimiser's state and not of the program: runs of other lengths and
    rates need not compile again.
    """

    def init(params: PyTree) -> Pace:
        del params
        share = 0.0 if decay_steps is None else 1.0 / decay_steps
        return Pace(jnp.zeros((), int), jnp.asarray(rate, float), jnp.asarray(share, float))

    def update(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        del params
        pace: Pace = state
        done = jnp.minimum(pace.step.astype(pace.share.dtype) * pace.share, 1.0)
        factor = -pace.rate * cosine(done)
        scaled = jax.tree.map(lambda leaf: factor.astype(leaf.dtype) * leaf, updates)
        return scaled, pace._replace(step=pace.step + 1)

    return optax.GradientTransformation(init, update)


def slower(state: State, factor: float) -> State:
    """The same state with smaller rates from here on."""

    def is_pace(node: object) -> bool:
        return isinstance(node, Pace)

    return jax.tree.map(
        lambda node: node._replace(rate=factor * node.rate) if is_pace(node) else node,
        state,
        is_leaf=is_pace,
    )


def adam(
    learning_rate: float,
    decay_steps: int | None = None,
    momentum: float = 0.9,
    network_rate: float | None = None,
    model_rate: float | None = None,
) -> optax.GradientTransformation:
    """Adam at a constant rate, or with a rate that falls to zero along a cosine.

    Networks may have a rate of their own, since what moves a kernel is too much for them, and a
    coupling shares it: its many numbers would add up the noise of fast steps. So may the model, at
    rate 0 if it is known.
    """

    def one(rate: float) -> optax.GradientTransformation:
        return optax.chain(optax.scale_by_adam(momentum), falling(rate, decay_steps))

    if network_rate is None and model_rate is None:
        return one(learning_rate)
    rates = {"network": network_rate, "model": model_rate, "rest": None}
    return optax.partition(
        {kind: one(learning_rate if rate is None else rate) for kind, rate in rates.items()}, _kinds
    )


class Climbs:
    """Engines whose parameters climb by Adam, networks and model at rates of their own if given."""

    learning_rate: float
    decay_steps: int | None
    network_rate: float | None
    model_rate: float | None

    @property
    def _adam(self) -> optax.GradientTransformation:
        return adam(
            self.learning_rate,
            self.decay_steps,
            network_rate=self.network_rate,
            model_rate=self.model_rate,
        )


def _kinds(params: PyTree) -> PyTree[str]:
    """Which rate each part of a pytree climbs at."""

    names = {Network: "network", Coupling: "network", DeepGP: "model"}

    def kind(node: object) -> PyTree[str]:
        return jax.tree.map(lambda _: names.get(type(node), "rest"), node)

    return jax.tree.map(kind, params, is_leaf=lambda node: type(node) in names)


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
