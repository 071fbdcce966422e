"""Several starts of one engine as a batched program, of which the best is kept."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from nashgp.batch import Batch, Data
from nashgp.engines.base import Engine, StepInfo
from nashgp.engines.lanes import lane
from nashgp.engines.objectives import log_likelihood
from nashgp.errors import InputError
from nashgp.posteriors import AnchoredPosterior, Fitted, GaussianPosterior, gaussian_posterior
from nashgp.posteriors.mixture import blend, densities
from nashgp.priors import Values
from nashgp.shapes import Key, Scalar

BLEND_DRAWS, BLEND_IMPORTANCE = 100, 100  # of each start, to weigh it
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

    The starts of an anchored game differ if they are scattered: the centres of their frames are
    draws of the prior and the spreads `scatter` times its own. With `blended`, the result is the
    mixture of all starts with the largest bound; their model has to be the same, and so is known.
    """

    engine: Engine
    num: int
    scatter: float | None = None
    blended: bool = False

    def init(self, key: Key, fitted: Fitted) -> State:
        if self.blended and getattr(_innermost(self.engine), "model_rate", None) != 0.0:
            raise InputError("starts of different models cannot be blended; set model_rate=0.")

        def one(key: Key) -> Any:
            place, start = jr.split(key)
            there = fitted if self.scatter is None else _scattered(place, fitted, self.scatter)
            return self.engine.init(start, there)

        states = eqx.filter_vmap(one)(jr.split(key, self.num))
        return State(states, jnp.zeros(self.num, fitted.model.layers[0].z.dtype))

    def step(self, key: Key, state: State, batch: Batch) -> tuple[State, StepInfo]:
        def one(states: Any, key: Key) -> tuple[Any, StepInfo]:
            return self.engine.step(key, states, batch)

        states, info = eqx.filter_vmap(one)(state.states, jr.split(key, self.num))
        score = MEMORY * state.score + (1.0 - MEMORY) * info.objective
        return State(states, score), lane(info, jnp.argmax(score))

    def result(self, key: Key, state: State, data: Data, num: int) -> Fitted:
        if not self.blended:
            best = lane(state.states, jnp.argmax(state.score))
            return self.engine.result(key, best, data, num)
        all_ = eqx.filter_vmap(lambda one: self.engine.result(key, one, data, num))(state.states)
        model, parts = lane(all_.model, 0), all_.posterior
        if not isinstance(parts, AnchoredPosterior):
            raise InputError("only anchored posteriors of all layers can be blended.")
        draw, rest = jr.split(key)
        values, log_q = densities(draw, parts, BLEND_DRAWS, BLEND_IMPORTANCE)
        batch, power = data.all(), getattr(_innermost(self.engine), "power", 0.0)

        def log_joint(pair: tuple[Key, Values]) -> Scalar:
            key, one = pair
            noise, rest = jr.split(key)
            one = jax.tree.map(lambda v: v[None], one)
            fit = log_likelihood(noise, rest, model, one, batch, power)
            return fit + model.prior.log_density(model.layers, jax.tree.map(lambda v: v[0], one))

        flat = jax.tree.map(lambda v: v.reshape(-1, *v.shape[2:]), values)
        joint = jax.lax.map(log_joint, (jr.split(rest, self.num * BLEND_DRAWS), flat))
        return Fitted(model, blend(parts, joint.reshape(self.num, BLEND_DRAWS), log_q))


def _innermost(engine: Any) -> Any:
    """The engine inside those that only change its rows or turns."""
    return _innermost(engine.engine) if hasattr(engine, "engine") else engine


def _scattered(key: Key, fitted: Fitted, scale: float) -> Fitted:
    """The same game with its frame somewhere else."""
    posterior, model = fitted.posterior, fitted.model
    if not isinstance(posterior, AnchoredPosterior):
        raise InputError("only an anchored game of all layers has frames to scatter.")
    means = model.prior.sample(key, model.layers)
    roots = gaussian_posterior(model, hidden_scale=scale, last_scale=scale).roots
    frame = GaussianPosterior(means, roots)
    return Fitted(model, dataclasses.replace(posterior, frame=frame))
