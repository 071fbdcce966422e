"""Gradient ascent with the last layer integrated out: for Gaussian likelihoods and all rows."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import PyTree

from nashgp.batch import Batch, Data
from nashgp.engines.base import Climbs, Info, ascend, number
from nashgp.engines.objectives import collapsed_objective, draw_hidden, respond
from nashgp.errors import InputError
from nashgp.layers import Inducing
from nashgp.likelihoods import Gaussian
from nashgp.model import DeepGP
from nashgp.posteriors import (
    AbstractVariational,
    CollapsedPosterior,
    Fitted,
    GaussianPosterior,
    ToppedPosterior,
    gaussian_posterior,
)
from nashgp.priors import GPPrior, Values
from nashgp.shapes import Key, Scalar
from nashgp.transforms import trainable

MOST_KEPT = 2**23  # numbers in the stored roots: 64 MB in double precision


class State(NamedTuple):
    """The trainable part of model and hidden posterior, the rest, and Adam's memory.

    The power is a number of the state, so that lanes of a batch may differ in it.
    """

    params: PyTree
    frozen: PyTree
    opt_state: optax.OptState
    power: Scalar


@dataclasses.dataclass(frozen=True)
class Collapsed(Climbs):
    """Maximise the collapsed objective over hidden posterior, inducing inputs and hyperparameters.

    The last layer has no variational parameters: each draw of the layers below brings the exact
    Gaussian of v_L with it. One layer is the sparse GP of Titsias (power 0) or FITC (power 1).
    Needs every row in each step, since integrating v_L out couples them.
    """

    learning_rate: float = number(0.01)
    num_samples: int = 1
    power: float = number(0.5)
    decay_steps: int | None = number(None)
    network_rate: float | None = number(None)
    model_rate: float | None = None

    def init(self, key: Key, fitted: Fitted) -> State:
        del key  # nothing random about the start
        check_collapsible(fitted.model)
        parts = (fitted.model, below_last(fitted))
        params, frozen = eqx.partition(parts, trainable(parts))
        opt_state = self._adam.init(params)
        power = jnp.asarray(self.power, fitted.model.layers[0].z.dtype)
        return State(params, frozen, opt_state, power)

    def step(self, key: Key, state: State, batch: Batch) -> tuple[State, Info]:
        def payoff(params: PyTree) -> Scalar:
            model, hidden = eqx.combine(params, state.frozen)
            return collapsed_objective(
                key, model, hidden, batch, num_samples=self.num_samples, power=state.power
            )

        value, gradient = eqx.filter_value_and_grad(payoff)(state.params)
        params, opt_state = ascend(self._adam, state.opt_state, state.params, gradient)
        return state._replace(params=params, opt_state=opt_state), Info(value)

    def result(self, key: Key, state: State, data: Data, num: int) -> Fitted:
        """`num` joint draws, each with the Gaussian of the last layer that belongs to it.

        With `num = 0`, the hidden layers as trained and the prior of the last one: a start for
        more training, at no cost.
        """
        model, hidden = eqx.combine(state.params, state.frozen)
        if num == 0:
            return above_hidden(model, hidden)
        batch = data.all()

        def one(key: Key) -> tuple[Values, Inducing]:
            draw, rest = jr.split(key)
            values, features, _ = draw_hidden(draw, model, hidden, batch, 1)
            return values, respond(rest, model, features, batch, state.power)

        # A single layer has nothing random below it. One draw at a time, for memory.
        keys = jr.split(key, num if len(model.layers) > 1 else 1)
        drawn = jax.lax.map(one, keys)
        values, last = jax.tree.map(lambda leaf: leaf[:, 0], drawn)
        if last.root.size <= MOST_KEPT:
            return Fitted(model, CollapsedPosterior(hidden, values, last.value, last.root))
        eps = jr.normal(jr.fold_in(key, 1), last.value.shape, last.value.dtype)
        value = last.value + jnp.einsum("spmk,skp->smp", last.root, eps)
        return Fitted(model, CollapsedPosterior(hidden, values, value, None))


def check_collapsible(model: DeepGP) -> None:
    """Raise `InputError` unless the last layer has a Gaussian posterior given those below."""
    if not isinstance(model.likelihood, Gaussian) or not isinstance(model.prior, GPPrior):
        raise InputError(
            "the last layer can be integrated out for a Gaussian likelihood and the GP prior "
            f"alone, not for {type(model.likelihood).__name__} and {type(model.prior).__name__}."
        )


def above_hidden(model: DeepGP, hidden: AbstractVariational) -> Fitted:
    """The hidden layers as they are with the last layer at its prior: a start."""
    start = gaussian_posterior(model)
    mean, root = start.means[-1], start.roots[-1]
    if isinstance(hidden, GaussianPosterior):
        posterior = GaussianPosterior((*hidden.means, mean), (*hidden.roots, root))
        return Fitted(model, posterior)
    return Fitted(model, ToppedPosterior(hidden, mean, root))


def below_last(fitted: Fitted) -> AbstractVariational:
    """The posterior over all layers but the last."""
    if isinstance(fitted.posterior, CollapsedPosterior | ToppedPosterior):
        return fitted.posterior.hidden
    if isinstance(fitted.posterior, GaussianPosterior):
        return GaussianPosterior(fitted.posterior.means[:-1], fitted.posterior.roots[:-1])
    raise InputError(f"no engine can collapse a {type(fitted.posterior).__name__}.")
