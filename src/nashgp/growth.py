"""Training by stages: a shallow model first, its power chosen on held-out rows, then the deep one."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Bool, Float

from nashgp import predict, recipes, train
from nashgp.batch import Data
from nashgp.engines import Collapsed, Engine, Lanes, lane
from nashgp.posteriors import Fitted
from nashgp.precision import dtype_of, scope
from nashgp.shapes import Key

POWERS = (0.5, 0.0, 1.0)  # the first unless another is clearly better
HELD_OUT = 0.2  # share of the training rows that judge the powers


@dataclasses.dataclass(frozen=True)
class Stage:
    """How one stage is trained: the arguments of `train.run`."""

    engine: Engine
    num_steps: int
    options: dict[str, Any]

    def run(self, key: Key, start: Fitted, data: Data) -> train.Outcome:
        return train.run(key, self.engine, start, data, num_steps=self.num_steps, **self.options)


def deepen(
    key: Key, shallow: train.Outcome, num_layers: int, stage: Stage, data: Data
) -> train.Outcome:
    """Go on from a shallow model with a deep one; an interrupted stage is the last."""
    start = recipes.deepen(shallow.fitted, num_layers)
    if shallow.history.interrupted:
        stage = dataclasses.replace(stage, num_steps=0)
    deep = stage.run(key, start, data)
    return deep._replace(history=shallow.history.followed_by(deep.history))


def choose_power(
    key: Key,
    start: Fitted,
    data: Data,
    engine: Collapsed,
    *,
    num_steps: int,
    powers: Sequence[float] = POWERS,
    progress: bool = False,
) -> tuple[float, train.Outcome]:
    """The power whose fit without some rows predicts those rows best, and its fit to all rows.

    Every power is fitted twice, with and without the held-out rows, all as lanes of one program;
    so nothing has to be fitted again once the power is known. The first of `powers` stays unless
    another is better by more than a standard error of the difference over the rows.
    """
    split, fit, score = jr.split(key, 3)
    dtype, num = dtype_of(start), len(powers)
    held = _held_out(split, data)
    with scope(dtype):
        lanes = Lanes(engine, 2 * num)
        kept = jnp.asarray(~held, dtype)
        weight = jnp.stack([kept] * num + [jnp.ones_like(kept)] * num)
        state = lanes.start(fit, start, weight, power=jnp.asarray([*powers] * 2, dtype))
    outcome = train.run(
        fit, lanes, start, data, num_steps=num_steps, num_kept=1, state=state, progress=progress
    )
    rows = tuple(np.asarray(part)[held] for part in (data.x, data.y, data.weight))
    scores = np.stack(
        [_scores(score, lane(outcome.fitted, number), *rows) for number in range(num)]
    )
    best = int(np.argmax(np.mean(scores, axis=1)))
    gain = scores[best] - scores[0]
    if np.mean(gain) <= np.std(gain) / len(gain) ** 0.5:
        best = 0
    winner = num + best
    history = dataclasses.replace(
        outcome.history,
        info={name: values[:, winner] for name, values in outcome.history.info.items()},
    )
    result = train.Outcome(
        lane(outcome.fitted, winner), history, lane(outcome.state.states, winner)
    )
    return powers[best], result


def _held_out(key: Key, data: Data) -> Bool[np.ndarray, " N"]:
    """A random share of the rows that are not padding."""
    held = np.zeros(data.x.shape[0], dtype=bool)
    order = np.asarray(jr.permutation(key, len(data)))
    held[order[: round(HELD_OUT * len(data))]] = True
    return held


def _scores(
    key: Key, fitted: Fitted, x: np.ndarray, y: np.ndarray, weight: np.ndarray
) -> Float[np.ndarray, " N"]:
    return predict.summarise(predict.log_density, key, fitted, x, y, weight, num_samples=1)
