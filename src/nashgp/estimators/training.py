"""How one model is trained: where it starts, a plan, and the legs of its way."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast

import jax.random as jr
import numpy as np

from nashgp import growth, recipes, train
from nashgp.batch import Data, make_data
from nashgp.checkpoints import FileCheckpoint
from nashgp.engines import Collapsed, Engine
from nashgp.errors import InputError
from nashgp.estimators.settings import COLLAPSED_SIZE, Settings, are_few, can_judge
from nashgp.likelihoods import AbstractLikelihood, Gaussian, has_varying_noise
from nashgp.posteriors import Fitted
from nashgp.shapes import Key

NUM_STEPS = {"collapsed": 500, "natural": 2_000, "gradient": 3_000, "game": 5_000}
NUM_STEPS["sampled"] = 15_000
PAPER_RATE, SAMPLER_RATE = 0.025, 0.01
BATCH_RATE, LARGE_BATCH = 0.1, 1_024  # of natural gradients for targets with noise and many rows
MIXED_SHARE = 1 / 6  # of the steps, played as an anchored game once its Gaussians are made
MIXED_RATE = 0.01  # in that game; a frame that is almost right moves little
FIRST_STAGE = 0.6  # share of the steps that a deep model spends as a shallow one
FULL_BATCH_ROWS = 1_000  # up to here a step on all rows costs little more than one on a batch
BATCH_SIZE = 512
BURN_IN = 2 / 3  # share of a sampler's steps before the first draw that is kept
SETTLE = 0.25  # share of a burn-in that is repeated with all rows once hyperparameters are held
HIDDEN_SCALE = 1e-3  # the published 1e-5 starts so far from the prior that Adam is long on its way
QUIET_SCALE = 1e-5  # the published start
LEARNED = {"learned_skip": True, "low_rank": True, "hidden_variance": 0.01, "lengthscale": 0.5}


class Task(NamedTuple):
    """What a fit is given: rows in the model's units, where it begins, and who is told of it."""

    x: np.ndarray
    t: np.ndarray
    w: np.ndarray
    likelihood: AbstractLikelihood
    previous: tuple[Fitted, ...] | None = None  # members to go on from
    shares: tuple[int, ...] = ()  # in which they predict, if not in equal parts
    keeper: FileCheckpoint | None = None

    @property
    def num_rows(self) -> int:
        return len(self.x)

    def of(self, chosen: np.ndarray) -> "Task":
        """The same with some of the rows."""
        return self._replace(x=self.x[chosen], t=self.t[chosen], w=self.w[chosen])

    def apart(self, seed: int, num_held: int) -> "tuple[Task, Task]":
        """The same without some random rows, and with those rows alone."""
        order = np.random.default_rng(seed).permutation(self.num_rows)
        return self.of(order[num_held:]), self.of(order[:num_held])

    def data(self, dtype: str, *, padded: bool = True) -> Data:
        return make_data(self.x, self.t, self.w, dtype=dtype, padded=padded)


class Plan(NamedTuple):
    """What the settings leave open, settled by the rows."""

    last_layer: str
    num_rows: int
    batch_size: int | None
    num_steps: int  # without those of an anchored game
    num_first: int  # of them, those before the model grows
    num_mixed: int  # of an anchored game
    many: bool  # rows enough for batches to find a deep model by themselves
    power: float
    judge: bool  # whether held-out rows choose the power
    num_restarts: int
    checkpoint: FileCheckpoint | None = None  # told how far the fit has got

    @property
    def num_judged(self) -> int:
        """Steps of the fits that choose the power."""
        return self.num_first // 2 if self.judge else 0


class Trained(NamedTuple):
    """A member of a fit: how it was to be trained, at which power, and what came of it."""

    plan: Plan
    power: float
    outcome: train.Outcome


class Leg(NamedTuple):
    """One stretch of a fit: where it begins, given what the one before has found."""

    key: Key
    num_steps: int
    begin: growth.Begin = lambda fitted: fitted
    network_rate: float | None = None  # of an anchored generator: None without one, 0 at rest


def fit_member(settings: Settings, seed: int, task: Task) -> Trained:
    """The first member of a fit, from nothing or from where a previous one was."""
    warm = task.previous is not None
    begun = task.previous[0] if task.previous else start(settings, seed, task)
    num_rows = task.num_rows - settings.num_held(task.num_rows)
    made = make_plan(settings, begun, num_rows, warm=warm)._replace(checkpoint=task.keeper)
    return train_as_planned(settings, seed, made, begun, task)


# ---- before the first step ----------------------------------------------------------------------


def start(settings: Settings, seed: int, task: Task, *, quiet: bool = False) -> Fitted:
    """The model before training: one layer if deeper ones can grow from it.

    A `quiet` one is deep from the start, with hidden layers that hardly move. Its structure is
    that of a grown one, so the two share compiled programs.
    """
    num_rows, num_columns = task.x.shape
    offset, num_inducing = task.likelihood.offset(task.t), settings.inducing(num_rows)
    given: dict[str, Any] = {
        "num_layers": settings.num_layers,
        "num_inducing": num_inducing,
        "hidden_scale": HIDDEN_SCALE,
        "shared": settings.shares(settings.hidden_dim or min(num_columns, 30), num_inducing),
    }
    if settings.grows(num_columns, num_rows, task.likelihood):
        given["num_layers"] = 1
    if settings.hidden == "learned":
        given |= LEARNED
    if top := settings.top_inducing(num_rows, task.likelihood):
        given |= {"num_inducing": top, "hidden_inducing": num_inducing}
    if quiet:
        given |= {"num_layers": settings.num_layers, "hidden_kernel": "rbf"}
        given |= {"hidden_scale": QUIET_SCALE}
    config = recipes.Config(
        hidden_dim=settings.hidden_dim,
        kernel=settings.kernel,
        likelihood=task.likelihood,
        offset=None if offset is None else tuple(offset.tolist()),
        **given,
    )
    return recipes.build(task.x, task.t.shape[1], config, seed=seed, dtype=settings.dtype)


def make_plan(settings: Settings, begun: Fitted, num_rows: int, *, warm: bool = False) -> Plan:
    """How to train on so many rows: what the settings leave open."""
    likelihood, num_layers = begun.model.likelihood, len(begun.model.layers)
    size = num_rows * max(layer.num_inducing for layer in begun.model.layers)
    last_layer = _last_layer(settings, isinstance(likelihood, Gaussian), num_rows, size)
    collapsed, is_game = last_layer == "collapsed", settings.plays_paper
    many = settings.has_many(num_rows, likelihood) and last_layer == "natural"
    usual = LARGE_BATCH if many else BATCH_SIZE
    few = settings.batch_size or (num_rows if num_rows <= FULL_BATCH_ROWS else usual)
    power, judge = settings.power, False
    if power == "auto":
        gaussian = isinstance(likelihood, Gaussian)
        power = growth.POWERS[0] if gaussian and not is_game else 0.0
        # At power 1 rows are taken at their word; with noise of their own that would be twice.
        varies = has_varying_noise(likelihood)
        power = 1.0 if (settings.samples or many) and not varies else power
        judge = collapsed and not warm and num_layers == 1 and can_judge(num_rows) and not varies
        judge &= size * len(growth.POWERS) <= COLLAPSED_SIZE
    grows = num_layers < cast(int, settings.num_layers)
    restarts = settings.num_restarts
    if restarts == "auto":
        wide = settings.may_be_wide(num_rows, likelihood)
        restarts = 2 if (collapsed and grows) or wide else 1
    num_steps = settings.num_steps or NUM_STEPS["game" if is_game else last_layer]
    num_mixed = 0
    if settings.plays_anchored and (last_layer == "gradient" or settings.num_layers != 1):
        num_steps = settings.num_steps or round(num_steps / (1.0 - MIXED_SHARE))
        num_mixed = round(MIXED_SHARE * num_steps)
    num_steps -= num_mixed
    return Plan(
        last_layer,
        num_rows,
        batch_size=None if collapsed or few >= num_rows else few,
        num_steps=num_steps,
        num_first=round(FIRST_STAGE * num_steps) if grows else num_steps,
        num_mixed=num_mixed,
        many=many,
        power=float(power),
        judge=judge,
        num_restarts=int(restarts),
    )


def _last_layer(settings: Settings, gaussian: bool, num_rows: int, size: int) -> str:
    """How the posterior of the last layer is found; `size` is rows x inducing inputs."""
    whole = settings.batch_size is None or settings.batch_size >= num_rows
    if settings.last_layer == "auto":
        if settings.samples:
            return "sampled"
        if settings.plays_paper:
            return "gradient"
        fits = size * settings.num_draws <= COLLAPSED_SIZE
        fits &= are_few(num_rows) or settings.num_layers == 1
        return "collapsed" if gaussian and fits and whole else "natural"
    if settings.last_layer == "collapsed" and not whole:
        raise InputError(
            f"batch_size {settings.batch_size} is less than the {num_rows} rows that a "
            'collapsed last layer needs in each step; use last_layer="natural".'
        )
    return settings.last_layer


# ---- training -----------------------------------------------------------------------------------


def train_as_planned(
    settings: Settings, seed: int, plan: Plan, begun: Fitted, task: Task
) -> Trained:
    """Choose a power, then walk the legs of the fit; the last one makes the result."""
    data, ending = _hold_out(settings, seed, task)
    judge, *keys = jr.split(jr.split(jr.key(seed))[0], 3)
    if settings.samples:
        apart = (data, ending["validation"].data) if "validation" in ending else None
        return Trained(plan, plan.power, _sample(settings, keys[0], plan, begun, task, apart))
    legs = _legs(settings, plan, begun, keys, seed)

    def stage(leg: Leg, power: float) -> growth.Stage:
        made = engine(settings, plan, leg.num_steps, power, leg.network_rate)
        options = ending if leg is legs[-1] else {"num_kept": 0}
        return growth.Stage(made, leg.num_steps, options | run_options(settings, plan))

    # The first program is compiled by its own training; meanwhile those that follow it.
    later = [stage(leg, plan.power) for leg in legs[0 if plan.num_judged else 1 :]]
    with ThreadPoolExecutor(1) as aside:
        begins = [leg.begin for leg in legs]
        ready = aside.submit(growth.compile_ahead, later, begun, begins, data)
        power, outcome = _judge(settings, judge, plan, begun, data)
        for leg in legs:
            if outcome:
                ready.result()
            begin = leg.begin(outcome.fitted if outcome else begun)
            outcome = growth.go_on(leg.key, outcome, begin, stage(leg, power), data)
    assert outcome is not None
    return Trained(plan, power, outcome)


def engine(
    settings: Settings, plan: Plan, num_steps: int, power: float, network_rate: float | None = None
) -> Engine:
    """The engine of one leg; `network_rate` is that of an anchored generator, if there is one."""
    paper = settings.plays_paper
    usual = BATCH_RATE if plan.many else settings.usual_rate
    rate = PAPER_RATE if paper else MIXED_RATE if network_rate else usual
    given: dict[str, Any] = {
        "learning_rate": float(settings.learning_rate or rate),
        "num_samples": settings.num_draws,
        "power": power,
    }
    if not paper:  # the paper's rates are constant
        given["decay_steps"] = max(1, num_steps)
    if network_rate and plan.last_layer == "gradient":
        given["draw_inducing"] = True  # as the mixture needs it
    if network_rate is not None:
        given["network_rate"] = network_rate
    name = settings.engine if paper else "dsvi"
    made = recipes.engine(name, plan.last_layer, **given | settings.of_engine)
    if not network_rate:
        return made
    return recipes.by_turns(made, settings.num_turns, network_rate, max(1, num_steps))


def run_options(settings: Settings, plan: Plan) -> dict[str, Any]:
    """What every run of a fit is told."""
    return {
        "batch_size": plan.batch_size,
        "progress": settings.progress,
        "checkpoint": plan.checkpoint,
    }


def _hold_out(settings: Settings, seed: int, task: Task) -> tuple[Data, dict[str, Any]]:
    """The rows to learn from, and how the last leg ends: rows held out decide when."""
    num_rows = task.num_rows
    held, num_held = np.zeros(num_rows, dtype=bool), settings.num_held(num_rows)
    if num_rows - num_held < 2:
        raise InputError(
            f"validation_fraction {settings.validation_fraction} leaves fewer than two of "
            f"{num_rows} rows to learn from; make it smaller."
        )
    held[np.random.default_rng(seed).permutation(num_rows)[:num_held]] = True
    ending: dict[str, Any] = {"num_kept": settings.num_mixture}
    if num_held:
        apart = task.of(held).data(settings.dtype, padded=False)
        ending["validation"] = train.Validation(apart)
    return task.of(~held).data(settings.dtype), ending


def _judge(
    settings: Settings, key: Key, plan: Plan, begun: Fitted, data: Data
) -> tuple[float, train.Outcome | None]:
    """The power of the fit, and the training so far if held-out rows chose it."""
    if not plan.num_judged:
        return plan.power, None
    made = cast(Collapsed, engine(settings, plan, plan.num_judged, plan.power))
    options = run_options(settings, plan)
    return growth.choose_power(key, begun, data, made, num_steps=plan.num_judged, **options)


def _legs(
    settings: Settings, plan: Plan, begun: Fitted, keys: Sequence[Key], seed: int
) -> list[Leg]:
    """Train what is there, make it deep, play the anchored game: as far as the plan asks.

    The generator over hidden layers is there before it moves, so that a deep Gaussian and the
    game are one program. Over all layers, or where batches of many rows want quiet gradients,
    it would have to draw what a Gaussian integrates out.
    """
    depth = cast(int, settings.num_layers)
    whole = plan.last_layer == "gradient"
    mixes = settings.plays_anchored and (whole or depth > 1)
    rests = mixes and not whole and not plan.many
    rate = settings.network_rate
    if mixes and recipes.is_anchored(begun):  # a warm start: the game goes on
        return [Leg(keys[0], plan.num_steps + plan.num_mixed, network_rate=rate)]

    def anchor(fitted: Fitted, **others: float) -> Fitted:
        return recipes.anchor(fitted, whole=whole, seed=seed, **settings.of_generator | others)

    def rest(fitted: Fitted) -> Fitted:
        return anchor(fitted, first_mix=0.0) if rests else fitted

    def deepen(fitted: Fitted) -> Fitted:
        shared = settings.shares(*reversed(fitted.model.layers[0].z.shape))
        return rest(recipes.deepen(fitted, depth, shared=shared))

    still = 0.0 if rests else None
    if len(begun.model.layers) == depth:
        legs = [Leg(keys[0], plan.num_first - plan.num_judged, rest, still)]
    else:
        legs = [
            Leg(keys[0], plan.num_first - plan.num_judged),
            Leg(keys[1], plan.num_steps - plan.num_first, deepen, still),
        ]
    if plan.num_mixed:
        legs.append(Leg(jr.fold_in(keys[1], 1), plan.num_mixed, anchor, rate))
    return legs


# ---- sampling -----------------------------------------------------------------------------------


def _sample(
    settings: Settings,
    key: Key,
    plan: Plan,
    begun: Fitted,
    task: Task,
    apart: tuple[Data, Data] | None,
) -> train.Outcome:
    """A burn-in in which hyperparameters climb, then draws while they are held.

    With rows in two parts, hyperparameters are those of a burn-in on the first that predict
    the second best; the draws are then made with all rows.
    """
    num_burn_in = round(BURN_IN * plan.num_steps)
    num_after = plan.num_steps - num_burn_in
    warm: dict[str, Any] = {"start": None} if task.previous else {}  # from where the draws are
    data, climb = task.data(settings.dtype), warm | {"burn_in": num_burn_in}
    if apart is None:
        stage = _sampler(settings, plan, plan.num_steps, num_after, **climb)
        return stage.run(key, begun, data)
    first, second = jr.split(key)
    brief = round(growth.TRIED * num_burn_in)
    stage = _sampler(settings, plan, num_burn_in, brief, **climb)
    outcome = growth.learn_hyperparameters(first, stage, begun, *apart)
    if outcome.history.interrupted:
        return outcome
    settle = round(SETTLE * num_burn_in)
    hold = warm | {"burn_in": settle, "freeze": 0}
    stage = _sampler(settings, plan, settle + num_after, num_after, **hold)
    return growth.go_on(second, outcome, outcome.fitted, stage, data)


def _sampler(
    settings: Settings, plan: Plan, num_steps: int, after: int, **given: Any
) -> growth.Stage:
    """A run of a sampler, whose draws are to be spread over the steps `after` its burn-in."""
    options = settings.of_engine
    num_chains = options.get("num_chains", 1)
    num_draws = max(1, min(-(-settings.num_mixture // num_chains), after))
    given |= {
        "learning_rate": float(settings.learning_rate or SAMPLER_RATE),
        "num_samples": settings.num_draws,
        "power": plan.power,
        "num_draws": num_draws,
        "spacing": max(1, after // num_draws),
    }
    given |= options
    made = recipes.engine(settings.engine, plan.last_layer, **given)
    kept = min(settings.num_mixture, given["num_draws"] * num_chains)
    run = run_options(settings, plan) | {"num_kept": kept}
    return growth.Stage(made, num_steps, run)
