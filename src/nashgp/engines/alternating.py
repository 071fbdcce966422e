"""The anchored game by turns: Player 1 answers, then Player 2 moves against that answer."""

import dataclasses
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Int, PyTree

from nashgp.batch import Batch, Data
from nashgp.engines.base import Engine, StepInfo, adam, ascend, number
from nashgp.errors import InputError
from nashgp.posteriors import AnchoredPosterior, Fitted
from nashgp.posteriors.anchored import AbstractPlayer1, find_anchored, is_anchored
from nashgp.shapes import Key, Scalar


class State(NamedTuple):
    """The state of Player 2's engine, which holds Player 1 too, and Player 1's own memory."""

    inner: Any
    memory: optax.OptState


@dataclasses.dataclass(frozen=True)
class Alternating:
    """`num` moves of Player 1 up the information bound, then a step of `engine` for all the rest.

    Player 1's moves need no rows. Both climb one payoff, so turns and joint ascent (the `engine`
    by itself) have the same equilibria; turns keep the bound tight where the generator is quick.
    """

    engine: Engine
    num: int = 1
    player1_rate: float = number(0.003)
    num_draws: int = 16
    decay_steps: int | None = number(None)

    def init(self, key: Key, fitted: Fitted) -> State:
        inner = self.engine.init(key, fitted)
        return State(inner, self._adam.init(cast(PyTree, _player1(inner))))

    def step(self, key: Key, state: State, batch: Batch) -> tuple[State, StepInfo]:
        first, second = jr.split(key)
        whole = eqx.combine(state.inner.params, state.inner.frozen)
        posterior = jax.lax.stop_gradient(_anchored(whole))

        def move(
            turn: Int[Array, ""], carry: tuple[AbstractPlayer1, optax.OptState]
        ) -> tuple[AbstractPlayer1, optax.OptState]:
            draw, others = jr.split(jr.fold_in(first, turn))
            eps, _, h = posterior.draw(draw, self.num_draws)

            def payoff(player1: AbstractPlayer1) -> Scalar:
                return jnp.mean(
                    player1.information(others, posterior, eps, h, posterior.num_importance)
                )

            player1, memory = carry
            return ascend(self._adam, memory, player1, jax.grad(payoff)(player1))

        start = (_player1(state.inner), state.memory)
        player1, memory = jax.lax.fori_loop(0, self.num, move, start)
        answered = _replace(state.inner, player1)
        inner, info = self.engine.step(second, answered, batch)
        return State(_replace(inner, player1), memory), info

    @property
    def _adam(self) -> optax.GradientTransformation:
        return adam(self.player1_rate, self.decay_steps and self.decay_steps * self.num)

    def result(self, key: Key, state: State, data: Data, num: int) -> Fitted:
        return self.engine.result(key, state.inner, data, num)


def _anchored(tree: Any) -> AnchoredPosterior:
    found = find_anchored(tree)
    if found is None:
        raise InputError("only an anchored game can be played by turns.")
    return found


def _player1(inner: Any) -> AbstractPlayer1:
    return _anchored(inner.params).player1


def _replace(inner: Any, player1: AbstractPlayer1) -> Any:
    """The engine's state with another Player 1."""

    def one(node: Any) -> Any:
        return dataclasses.replace(node, player1=player1) if is_anchored(node) else node

    return inner._replace(params=jax.tree.map(one, inner.params, is_leaf=is_anchored))
