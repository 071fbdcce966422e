"""Training by stages: powers judged on held-out rows, a shallow model, then the deep one."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Bool, Float

from nashgp import predict, train
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


def go_on(
    key: Key, before: train.Outcome | None, start: Fitted, stage: Stage, data: Data
) -> train.Outcome:
    """The next stage, or the first; after an interrupted one it only makes the result."""
    if before is None:
        return stage.run(key, start, data)
    if before.history.interrupted:
        stage = dataclasses.replace(stage, num_steps=0)
    after = stage.run(key, start, data)
    return after._replace(history=before.history.followed_by(after.history))


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
    """The power whose fit without some rows predicts those rows best, and that fit to go on from.

    The powers are lanes of one program. The first of them stays unless another is better by more
    than a standard error of the difference over the rows.
    """
    split, fit, score = jr.split(key, 3)
    held = _held_out(split, data)
    lanes, dtype = Lanes(engine, len(powers)), dtype_of(start)
    with scope(dtype):
        kept = jnp.stack([jnp.asarray(~held, dtype)] * len(powers))
        state = lanes.start(fit, start, kept, power=jnp.asarray(powers, dtype))
    outcome = train.run(
        fit, lanes, start, data, num_steps=num_steps, num_kept=1, state=state, progress=progress
    )
    with scope(dtype):
        batch = data.all()
    rows = tuple(np.asarray(part)[held] for part in (batch.x, batch.y, batch.weight))
    fits = [lane(outcome.fitted, number) for number in range(len(powers))]
    best = clearly_best(np.stack([_scores(score, fitted, *rows) for fitted in fits]))
    steps = outcome.history.info.items()  # none at all when interrupted at once
    info = {name: values[:, best] if values.size else values for name, values in steps}
    history = dataclasses.replace(outcome.history, info=info)
    return powers[best], train.Outcome(fits[best], history, lane(outcome.state.states, best))


def clearly_best(scores: Float[np.ndarray, "L N"]) -> int:
    """The line with the largest mean, or the first if the gain over it is within its error."""
    best = int(np.argmax(np.mean(scores, axis=1)))
    gain = scores[best] - scores[0]
    return best if np.mean(gain) > np.std(gain) / len(gain) ** 0.5 else 0


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
