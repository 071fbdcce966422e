"""The one loop: drives any engine in compiled chunks of steps."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from threadpoolctl import threadpool_limits
from tqdm.auto import tqdm

from nashgp import predict
from nashgp.batch import Data
from nashgp.engines.base import Engine, State, StepInfo, slower
from nashgp.engines.lanes import lane
from nashgp.errors import NumericalError
from nashgp.layers import SparseGPLayer
from nashgp.linalg import check_factor
from nashgp.posteriors import Fitted
from nashgp.precision import scoped
from nashgp.programs import LASTING, PASSING, Program
from nashgp.shapes import Key

logger = logging.getLogger("nashgp")

CHUNK = 100  # steps between two looks at held-out rows
FEW_ROWS = 256  # in a step
NUM_ROLLBACKS, SLOWER = 3, 0.3  # a step that fails is tried again from the last good state


@dataclasses.dataclass(frozen=True)
class Validation:
    """Held-out *training* rows that decide when to stop; `patience` counts chunks of steps."""

    data: Data
    patience: int = 5
    num_samples: int = 50


@dataclasses.dataclass
class History:
    """What happened: one entry per step in `info`, one per chunk in the rest.

    `seconds` count training and its compilation, not the scoring of held-out rows. `events` say
    where numbers failed and what was done about it.
    """

    info: dict[str, Float[np.ndarray, " steps *lanes"]]
    step: Int[np.ndarray, " chunks"]
    seconds: Float[np.ndarray, " chunks"]
    validation: Float[np.ndarray, " chunks"]
    best_step: int
    interrupted: bool = False
    events: tuple[str, ...] = ()

    @property
    def objective(self) -> Float[np.ndarray, " steps *lanes"]:
        return self.info["objective"]

    def followed_by(self, other: "History") -> "History":
        """Two runs as one; what only one of them recorded is left out."""
        steps, seconds = len(self.objective), float(self.seconds[-1]) if len(self.seconds) else 0.0
        names = self.info.keys() & other.info.keys()
        return History(
            info={name: np.concatenate([self.info[name], other.info[name]]) for name in names},
            step=np.concatenate([self.step, steps + other.step]),
            seconds=np.concatenate([self.seconds, seconds + other.seconds]),
            validation=np.concatenate([self.validation, other.validation]),
            best_step=steps + other.best_step,
            interrupted=self.interrupted or other.interrupted,
            events=self.events + other.events,
        )


class Outcome(NamedTuple):
    """What a run hands back."""

    fitted: Fitted
    history: History
    state: State


class Best(NamedTuple):
    """The state with the best held-out score, after which step, and how many chunks ago."""

    state: State
    step: int = 0
    score: float = -np.inf
    age: int = 0

    def offer(self, state: State, step: int, score: float) -> "Best":
        """The better of this and a new state."""
        if score > self.score:
            return Best(state, step, score)
        return self._replace(age=self.age + 1)


class Record(NamedTuple):
    """What a run has reported: by step, by chunk (step, seconds, held-out score), and events."""

    infos: tuple[dict[str, np.ndarray], ...] = ()
    marks: tuple[tuple[int, float, float], ...] = ()
    events: tuple[str, ...] = ()


class Snapshot(NamedTuple):
    """A run at the end of a chunk: all that the steps after it depend on, and what it reported."""

    state: State
    best: Best
    record: Record


@runtime_checkable
class Checkpoint(Protocol):
    """Remembers the runs of a fit for another process; `nashgp.checkpoints` has one of files."""

    def enter(self, state: State) -> Snapshot | None:
        """The next run begins, in this state: where it had got to, if it was begun before."""
        ...

    def keep(self, snapshot: Snapshot) -> None:
        """The run has got this far."""
        ...


def _advance(
    engine: Engine,
    key: Key,
    state: State,
    data: Data,
    span: tuple[Int[Array, ""], Int[Array, ""]],
    batch_size: int | None,
    chunk: int,
) -> tuple[State, StepInfo]:
    """Run steps `span[0] .. span[1]`, at most `chunk` of them, as one compiled loop.

    The end of the span is a traced number, so a short last chunk compiles nothing. Each step's key
    comes from the step's own number: step 500 is the same whatever ran before it in this process.
    """

    @eqx.filter_jit  # so that the shapes below and the loop share one trace
    def one(step: Int[Array, ""], state: State) -> tuple[State, StepInfo]:
        draw, move = jr.split(jr.fold_in(key, step))
        return engine.step(move, state, data.sample(draw, batch_size))

    def body(step: Int[Array, ""], carry: tuple[State, StepInfo]) -> tuple[State, StepInfo]:
        state, record = carry
        state, info = one(step, state)
        slot = step - span[0]
        return state, jax.tree.map(lambda all_, new: all_.at[slot].set(new), record, info)

    _, shapes = eqx.filter_eval_shape(one, span[0], state)
    record = jax.tree.map(lambda leaf: jnp.zeros((chunk, *leaf.shape), leaf.dtype), shapes)
    return jax.lax.fori_loop(span[0], span[1], body, (state, record))


def _result(engine: Engine, key: Key, state: State, data: Data, num: int) -> Fitted:
    return engine.result(key, state, data, num)


_few, _many, _finish = (
    Program(_advance, PASSING),
    Program(_advance, LASTING),
    Program(_result, PASSING),
)


def _loop(data: Data, batch_size: int | None) -> Program:
    """Steps over few rows are done before the compiler would have made them fast."""
    return _few if (batch_size or len(data)) <= FEW_ROWS else _many


@scoped
def compile_steps(engine: Engine, fitted: Fitted, data: Data, batch_size: int | None) -> None:
    """Have the program ready that `run` spends its steps in; takes none."""
    key, none = jr.key(0), jnp.asarray(0)
    state = _blank(engine, key, fitted)
    advance = _loop(data, batch_size)
    advance.compile(engine, key, state, data, (none, none), batch_size, CHUNK)


@scoped
def compile_result(engine: Engine, fitted: Fitted, data: Data, num_kept: int) -> None:
    """Have the program ready that ends a `run`."""
    key = jr.key(0)
    state = _blank(engine, key, fitted)
    _finish.compile(engine, key, state, data, num_kept)


def _blank(engine: Engine, key: Key, fitted: Fitted) -> State:
    """A state of the right shapes, for which nothing is compiled."""

    def zeros(leaf: Any) -> Any:
        is_shape = isinstance(leaf, jax.ShapeDtypeStruct)
        return jax.device_put(np.zeros(leaf.shape, leaf.dtype)) if is_shape else leaf

    shapes = eqx.filter_eval_shape(lambda key, fitted: engine.init(key, fitted), key, fitted)
    return jax.tree.map(zeros, shapes)


@scoped
@threadpool_limits.wrap(limits=1, user_api="blas")  # LAPACK's threads would fight with XLA's
def run(
    key: Key,
    engine: Engine,
    fitted: Fitted,
    data: Data,
    *,
    num_steps: int,
    batch_size: int | None = None,
    chunk: int = CHUNK,
    validation: Validation | None = None,
    num_kept: int = 100,
    state: State | None = None,
    progress: bool = False,
    checkpoint: Checkpoint | None = None,
) -> Outcome:
    """Fit: `num_steps` steps of `engine` from `fitted`, every row in each step unless `batch_size`.

    With `validation`, stop when the held-out log density has not improved for `patience` chunks
    and hand back the best state. Engines whose posterior is made of draws keep `num_kept` of them.
    `state` is where to begin, in place of the engine's own. `Ctrl-C` ends the run and hands back
    what is done. Steps that leave the finite numbers are taken again at a smaller rate; after three
    such events the next one is a `NumericalError`. A `checkpoint` is told of every chunk; a run it
    knows goes on from where it was, and no number shows that it had stopped.
    """
    start, steps, final, score = jr.split(key, 4)
    if state is None:  # compiled anew each time: it holds numbers that equal engines differ in
        state = eqx.filter_jit(lambda key, fitted: engine.init(key, fitted))(start, fitted)
    advance = _loop(data, batch_size)
    log, pace, best = _Log(len(data), num_steps, progress), _Pace(), Best(state)
    if checkpoint is not None and (known := checkpoint.enter(state)) is not None:
        state, best = known.state, known.best
        log.go_on(known.record)
    try:
        for begin in range(log.done, num_steps, chunk):
            if validation is not None and best.age >= validation.patience:
                break
            end = min(begin + chunk, num_steps)
            good = state
            while True:  # until the whole chunk is finite
                failure = None
                for span in pace.cut(begin, end):
                    traced = (jnp.asarray(span[0]), jnp.asarray(span[1]))
                    after, info = advance(engine, steps, state, data, traced, batch_size, chunk)
                    num = span[1] - span[0]
                    info = jax.tree.map(lambda leaf, num=num: np.asarray(leaf)[:num], info)
                    if not _is_finite(info.objective, after):
                        failure = _Failure(info, span)
                        break
                    state = after
                    log.steps(info)
                if failure is None:
                    break
                if len(log.events) == NUM_ROLLBACKS:  # look at the state that the bad step met
                    traced = (jnp.asarray(failure.span[0]), jnp.asarray(failure.step))
                    state, _ = advance(engine, steps, state, data, traced, batch_size, chunk)
                    failure.explain(_finish(engine, final, state, data, 1))
                state = good = slower(good, SLOWER)
                log.go_back(begin, failure)
            held_out = np.nan
            if validation is not None:
                with log.paused():
                    now = _finish(engine, final, state, data, validation.num_samples)
                    held_out = _held_out(score, now, validation)
                best = best.offer(state, end, held_out)
            log.mark(end, held_out)
            if checkpoint is not None:
                with log.paused():
                    checkpoint.keep(Snapshot(state, best, log.record()))
    except KeyboardInterrupt:
        log.interrupted = True
    finally:
        log.close()
    if best.step == 0:  # no held-out rows, or interrupted before they were first scored
        best = Best(state, log.done)
    fitted = _finish(engine, final, best.state, data, num_kept)
    return Outcome(fitted, log.history(best.step), state)


def _held_out(key: Key, fitted: Fitted, validation: Validation) -> float:
    """Mean log density of the held-out rows."""
    batch = validation.data.all()
    rows = predict.summarise(
        predict.log_density,
        key,
        fitted,
        batch.x,
        batch.y,
        batch.weight,
        num_samples=validation.num_samples,
    )
    return float(np.mean(rows))


def _is_finite(*trees: PyTree) -> bool:
    """Whether every number is finite: an objective tells only of the step before it.

    On the host, where arrays of many shapes compile nothing.
    """
    floats = [leaf for leaf in jax.tree.leaves(trees) if eqx.is_inexact_array(leaf)]
    return all(bool(np.all(np.isfinite(np.asarray(leaf)))) for leaf in floats)


class _Failure(NamedTuple):
    """Steps that left the finite numbers."""

    info: StepInfo
    span: tuple[int, int]

    @property
    def bad(self) -> np.ndarray:
        """Where the objective is not finite."""
        return np.argwhere(~np.isfinite(self.info.objective))

    @property
    def step(self) -> int:
        """Steps that went well, as far as the objective tells."""
        return self.span[0] + int(self.bad[0][0]) if len(self.bad) else self.span[0]

    def __str__(self) -> str:
        if not len(self.bad):
            return f"a gradient became NaN at step {self.span[1]}"
        value = self.info.objective[tuple(self.bad[0])]
        return f"the objective became {value} at step {self.step + 1}"

    def explain(self, before: Fitted) -> NoReturn:
        """Raise, naming the layer whose covariance is to blame or is the closest to it."""
        lanes = self.info.objective.shape[1:]
        fits = [lane(before, number) for number in range(*lanes)] if lanes else [before]
        layers = [each for fit in fits for each in enumerate(fit.model.layers, start=1)]
        ratio, worst = max((_condition(layer, number), number) for number, layer in layers)
        raise NumericalError(
            f"{self}, and {NUM_ROLLBACKS} smaller learning rates did not help; the worst "
            f"conditioned covariance is that of layer {worst} (about {ratio:.0e}); "
            "use a smaller learning rate, float64, or standardised inputs and targets."
        )


def _condition(layer: SparseGPLayer, number: int) -> float:
    """How far the covariance of a layer's inducing inputs is from round; an error if it is none."""
    name = f"the covariance of the inducing inputs of layer {number}"
    roots = np.diag(np.asarray(check_factor(layer.factor(), name).chol))
    return float((np.max(roots) / np.min(roots)) ** 2)


class _Pace:
    """Cuts a stretch of steps into compiled calls of about a second.

    `Ctrl-C` and the progress bar are served between calls. Where the cuts fall changes no number.
    """

    def __init__(self, seconds: float = 1.0):
        self.seconds, self.stride = seconds, 1

    def cut(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        while begin < end:
            stop = min(begin + self.stride, end)
            started = time.perf_counter()
            yield begin, stop
            rate = (stop - begin) / (time.perf_counter() - started)
            self.stride = max(1, int(rate * self.seconds))
            begin = stop


class _Log:
    """Collects the history and shows the progress bar."""

    def __init__(self, num_rows: int, num_steps: int, progress: bool):
        self.num_rows, self.done, self.interrupted = num_rows, 0, False
        self.infos: list[dict[str, np.ndarray]] = []
        self.marks: list[tuple[int, float, float]] = []
        self.shown: dict[str, str] = {}
        self.events: list[str] = []
        self.began = time.perf_counter()
        self.bar = tqdm(total=num_steps, disable=not progress, unit="step")

    def steps(self, info: StepInfo) -> None:
        self.infos.append(info._asdict())
        self.done += len(info.objective)
        self.shown["objective/row"] = f"{np.mean(info.objective) / self.num_rows:.3f}"
        self.bar.set_postfix(self.shown, refresh=False)
        self.bar.update(len(info.objective))

    def go_back(self, step: int, failure: _Failure) -> None:
        """Forget what came after a step, and say why."""
        while self.infos and self.done > step:
            self.done -= len(self.infos.pop()["objective"])
        self.bar.n = self.done
        what = f"{failure}; back to step {step}, learning rate times {SLOWER:g}"
        self.events.append(what)
        logger.warning("%s%s.", what[0].upper(), what[1:])

    def record(self) -> Record:
        return Record(tuple(self.infos), tuple(self.marks), tuple(self.events))

    def go_on(self, record: Record) -> None:
        """Take over what was reported before, and count steps and seconds on from there."""
        self.infos, self.marks = list(record.infos), list(record.marks)
        self.events = list(record.events)
        self.done, seconds, _ = self.marks[-1]
        self.began -= seconds
        self.bar.initial = self.bar.n = self.done

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What happens here takes no time of the training."""
        began = time.perf_counter()
        yield
        self.began += time.perf_counter() - began

    def mark(self, step: int, held_out: float) -> None:
        self.marks.append((step, time.perf_counter() - self.began, held_out))
        if not np.isnan(held_out):
            self.shown["held-out"] = f"{held_out:.3f}"

    def close(self) -> None:
        self.bar.close()

    def history(self, best_step: int) -> History:
        steps, seconds, held_out = zip(*self.marks, strict=True) if self.marks else ((), (), ())
        names = self.infos[0] if self.infos else ("objective",)
        info = {
            name: np.concatenate([part[name] for part in self.infos] or [np.zeros(0)])
            for name in names
        }
        return History(
            info=info,
            step=np.asarray(steps, dtype=int),
            seconds=np.asarray(seconds, dtype=float),
            validation=np.asarray(held_out, dtype=float),
            best_step=best_step,
            interrupted=self.interrupted,
            events=tuple(self.events),
        )
