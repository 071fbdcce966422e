"""Training by stages: powers judged on held-out rows, a shallow model, then the deep one.

Of a sampler: hyperparameters judged on held-out rows, then draws.
"""

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Bool, Float
from scipy.special import logsumexp

from nashgp import predict, train
from nashgp.batch import Data
from nashgp.engines import SGHMC, Collapsed, Engine, Lanes, hold, lane
from nashgp.posteriors import Fitted
from nashgp.precision import dtype_of, scope
from nashgp.shapes import Key

POWERS = (0.5, 0.0, 1.0)  # the first unless another is clearly better
HELD_OUT = 0.2  # share of the training rows that judge the powers
QUARTERS = 4  # parts of an average that its members may have
LOOKS = (0.1, 0.2, 0.4, 0.7, 1.0)  # at rows held out, as shares of a burn-in
TRIED = 0.5  # of a burn-in to draw for each look: fewer draws make late hyperparameters look bad

Begin = Callable[[Fitted], Fitted]
"""Where a stage begins, given what the one before has found."""

_compiled: set[Hashable] = set()


@dataclasses.dataclass(frozen=True)
class Stage:
    """How one stage is trained: the arguments of `train.run`."""

    engine: Engine
    num_steps: int
    options: dict[str, Any]

    @property
    def batch_size(self) -> int | None:
        return self.options.get("batch_size")

    @property
    def num_kept(self) -> int:
        return self.options["num_kept"]

    def run(self, key: Key, start: Fitted, data: Data) -> train.Outcome:
        return train.run(key, self.engine, start, data, num_steps=self.num_steps, **self.options)


def compile_ahead(
    stages: Sequence[Stage], start: Fitted, begins: Sequence[Begin], data: Data
) -> None:
    """Have the programs of stages ready that begin with what was made of each other's results.

    Here nothing is trained: `start` and what becomes of it count for their shapes alone. What this
    process has once compiled is not looked at again.
    """
    if not stages:
        return
    leaves, structure = jax.tree.flatten((start, data))
    programs = (structure, *((leaf.shape, leaf.dtype) for leaf in leaves))
    programs += tuple((stage.engine, stage.batch_size, stage.num_kept) for stage in stages)
    if programs in _compiled:
        return
    starts = list(itertools.accumulate(begins, lambda at, begin: begin(at), initial=start))
    with ThreadPoolExecutor(1) as beside:
        last = stages[-1]
        ended = beside.submit(train.compile_result, last.engine, starts[-1], data, last.num_kept)
        for stage, begun in zip(stages, starts[-len(stages) :], strict=True):
            train.compile_steps(stage.engine, begun, data, stage.batch_size)
        ended.result()
    _compiled.add(programs)


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
    **options: Any,
) -> tuple[float, train.Outcome]:
    """The power whose fit without some rows predicts those rows best, and that fit to go on from.

    The powers are lanes of one program. The first of them stays unless another is better by more
    than a standard error of the difference over the rows. `options` are those of `train.run`.
    """
    split, fit, score = jr.split(key, 3)
    held = _held_out(split, data)
    lanes, dtype = Lanes(engine, len(powers)), dtype_of(start)
    with scope(dtype):
        kept = jnp.stack([jnp.asarray(~held, dtype)] * len(powers))
        state = lanes.start(fit, start, kept, power=jnp.asarray(powers, dtype))
    outcome = train.run(
        fit, lanes, start, data, num_steps=num_steps, num_kept=1, state=state, **options
    )
    fits = [lane(outcome.fitted, number) for number in range(len(powers))]
    best = clearly_best(np.stack([scores(score, fitted, data, held) for fitted in fits]))
    steps = outcome.history.info.items()  # none at all when interrupted at once
    info = {name: values[:, best] if values.size else values for name, values in steps}
    history = dataclasses.replace(outcome.history, info=info)
    return powers[best], train.Outcome(fits[best], history, lane(outcome.state.states, best))


def clearly_best(scores: Float[np.ndarray, "L N"]) -> int:
    """The line with the largest mean, or the first if the gain over it is within its error."""
    best = int(np.argmax(np.mean(scores, axis=1)))
    gain = scores[best] - scores[0]
    return best if np.mean(gain) > np.std(gain) / len(gain) ** 0.5 else 0


def best_shares(scores: Float[np.ndarray, "I N"]) -> tuple[int, ...]:
    """The shares in an average of models under which held-out rows are most likely.

        argmax_w Σ_n log Σ_i w_i exp(scores_in)        w_i in quarters, w_0 > 0

    so that the first model stays whatever happens.
    """
    every = itertools.product(range(QUARTERS + 1), repeat=len(scores))
    fair = sorted((s for s in every if sum(s) == QUARTERS and s[0] > 0), key=max)  # even ones first
    return max(fair, key=lambda s: np.mean(logsumexp(scores.T, axis=1, b=np.array(s) / QUARTERS)))


def learn_hyperparameters(
    key: Key, stage: Stage, start: Fitted, data: Data, apart: Data
) -> train.Outcome:
    """A sampler's burn-in, or the part of it after which rows set `apart` are predicted best.

    At each look hyperparameters are held for as long as it takes to make draws, which are scored;
    then the burn-in goes on from where it was. The whole of it counts unless a part is better by
    more than a standard error of the difference over the rows. The outcome is that of the draws.
    """
    assert isinstance(stage.engine, SGHMC)
    ends = sorted({max(1, round(share * stage.num_steps)) for share in LOOKS})
    options, history, looks, tries = dict(stage.options), None, [], []
    for number, (begin, end) in enumerate(itertools.pairwise([0, *ends])):
        climb, draw, look = jr.split(jr.fold_in(key, number), 3)
        part = dataclasses.replace(stage, num_steps=end - begin, options=options)
        burnt = part.run(climb, start, data)
        history = history.followed_by(burnt.history) if history else burnt.history
        if history.interrupted:
            return burnt._replace(history=history)
        held = stage.options | {"state": hold(burnt.state)}
        brief = max(1, round(TRIED * stage.num_steps))
        tries.append(
            dataclasses.replace(stage, num_steps=brief, options=held).run(draw, start, data)
        )
        history.events += tries[-1].history.events
        num_draws = stage.engine.num_draws
        looks.append(scores(look, tries[-1].fitted, apart, num_samples=num_draws))
        history.validation[-1] = np.mean(looks[-1])
        options["state"] = burnt.state
    assert history is not None
    best = len(ends) - 1 - clearly_best(np.stack(looks[::-1]))
    return tries[best]._replace(history=dataclasses.replace(history, best_step=ends[best]))


def _held_out(key: Key, data: Data) -> Bool[np.ndarray, " N"]:
    """A random share of the rows that are not padding."""
    held = np.zeros(data.x.shape[0], dtype=bool)
    order = np.asarray(jr.permutation(key, len(data)))
    held[order[: round(HELD_OUT * len(data))]] = True
    return held


def scores(
    key: Key,
    fitted: Fitted,
    data: Data,
    chosen: Bool[np.ndarray, " N"] | None = None,
    *,
    num_samples: int = 1,
) -> Float[np.ndarray, " S"]:
    """Log density of the `chosen` rows, or of all, under the predictive mixture."""
    which = slice(None) if chosen is None else chosen
    with scope(dtype_of(fitted)):
        batch = data.all()
    rows = (np.asarray(part)[which] for part in (batch.x, batch.y, batch.weight))
    return predict.summarise(predict.log_density, key, fitted, *rows, num_samples=num_samples)
