"""Which models a fit is made of, and in which parts they predict: rows held out decide."""

import logging
from typing import NamedTuple

import jax.random as jr
import numpy as np

from nashgp import growth, recipes
from nashgp.estimators import training
from nashgp.estimators.settings import COLLAPSED_SIZE, DISTINCT, KERNEL, Settings, can_judge
from nashgp.estimators.training import MIXED_RATE, Plan, Task, Trained, fit_member
from nashgp.likelihoods import Gaussian, has_varying_noise
from nashgp.posteriors import Ensemble, Fitted
from nashgp.precision import dtype_of

log = logging.getLogger("nashgp")

DEPTHS = (2, 1, 3)  # the first unless another is clearly better
REPEATED = 0.05  # share of rows that are copies of others from which on memory is tried
ENOUGH, STRETCH = 0.01, 2.0  # error that is let pass, and lengthscales of `recipes.rounding`
WEIGHED, ABSORBING = 0.1, 0.1  # rows that weigh two members, and steps with them after, as shares
QUIET_POWER = 1.0  # bold where rows are few, and an average with a careful member can afford it


class Team(NamedTuple):
    """The members of a fit, how the first was trained, their powers and their shares."""

    first: Trained
    members: tuple[Fitted, ...]
    powers: list[float]
    shares: tuple[int, ...] = ()
    remembers: bool = False  # whether that is a single layer that knows every distinct row

    @property
    def fitted(self) -> Fitted | Ensemble:
        first, *others = self.members
        return Ensemble(self.members, self.shares) if others else first


def fit_team(settings: Settings, seed: int, task: Task) -> Team:
    """All members of a fit, of the kind that suits the rows."""
    suited, first = _suited(settings, seed, task)
    if first or not _weighs(suited, task):
        team = _alike(suited, seed, task, first)
    else:
        team = _weighed(suited, seed, task)
    return team._replace(remembers=settings.num_inducing != suited.num_inducing == DISTINCT)


def precise(settings: Settings, seed: int, task: Task) -> str:
    """The precision to compute in: where it is left open, the least that is enough for the rows."""
    if settings.dtype != "auto":
        return settings.dtype
    if task.previous:
        return str(dtype_of(task.previous[0]))
    double = settings.but(dtype="float64")
    start = training.start(_candidates(double, task)[0], seed, task)
    error = recipes.rounding(start.model, STRETCH)
    dtype = "float32" if error < ENOUGH else "float64"
    log.info("Rounding to float32 would cost %.2g prior deviations: dtype %s.", error, dtype)
    return dtype


# ---- of which kind ------------------------------------------------------------------------------


def _suited(settings: Settings, seed: int, task: Task) -> tuple[Settings, Trained | None]:
    """Of the candidates that whose fit to some rows predicts the others.

    With it the fit to those rows, if `Ctrl-C` made that the last one.
    """
    candidates = _candidates(settings, task)
    if len(candidates) == 1:
        return candidates[0], None
    kept, held = task.apart(seed, round(growth.HELD_OUT * task.num_rows))
    scores = []
    for candidate in candidates:
        trained = fit_member(candidate, seed, kept)
        if trained.outcome.history.interrupted:
            return candidate, trained
        scores.append(_scores(settings, seed, trained.outcome.fitted, held))
    return candidates[growth.clearly_best(np.stack(scores))], None


def _candidates(settings: Settings, task: Task) -> list[Settings]:
    """What held-out rows choose from where settings leave a choice; the first if in doubt."""
    wide = settings.may_be_wide(task.num_rows, task.likelihood)

    def deep(num_layers: int | str | None) -> Settings:
        return settings.wide if num_layers == 1 and wide else settings.but(num_layers=num_layers)

    if task.previous:
        depth = len(task.previous[0].model.layers)
        return [settings.memory if settings.remembers else deep(depth)]
    judged = can_judge(task.num_rows)
    tried = DEPTHS if judged else DEPTHS[:1]
    depths = {None: DEPTHS[:1], "auto": tried}.get(settings.num_layers, (settings.num_layers,))
    found = [deep(depth) for depth in depths]
    return [*found, settings.memory] if judged and may_remember(settings, task) else found


def may_remember(settings: Settings, task: Task) -> bool:
    """Whether rows repeat, and an inducing input for each distinct one can be afforded.

    Among rows that repeat, some held out have copies among those kept, and only a model with
    room for every row can tell.
    """
    chosen = (settings.num_inducing, settings.num_restarts, settings.power, settings.kernel)
    is_open = chosen == ("auto", "auto", "auto", KERNEL) and settings.batch_size is None
    is_open &= settings.num_layers in (None, "auto", 1)  # it has one layer
    is_open &= settings.last_layer in ("auto", "collapsed")
    is_open &= isinstance(task.likelihood, Gaussian)
    if not is_open or settings.plays_paper or settings.samples:
        return False
    num_rows, usual = task.num_rows, settings.inducing(task.num_rows)
    most = COLLAPSED_SIZE // (num_rows * settings.num_draws)
    if most <= usual:  # do not even count
        return False
    num_distinct = len(np.unique(task.x, axis=0))
    return usual < num_distinct <= min(most, (1.0 - REPEATED) * num_rows)


def _scores(settings: Settings, seed: int, fitted: Fitted, held: Task) -> np.ndarray:
    """Log density of each row that was set apart."""
    key, data = jr.split(jr.key(seed))[1], held.data(settings.dtype, padded=False)
    return growth.scores(key, fitted, data, num_samples=settings.num_mixture)


# ---- members ------------------------------------------------------------------------------------


def _alike(settings: Settings, seed: int, task: Task, first: Trained | None = None) -> Team:
    """All members, in equal parts or in those of the fit to go on from."""
    first = first or fit_member(settings, seed, task)
    outcome, previous = first.outcome, task.previous
    members, powers = [outcome.fitted], [first.power]
    for number in range(1, len(previous) if previous else first.plan.num_restarts):
        if outcome.history.interrupted:
            break
        again = _restart(settings, number, seed + number, first.plan, task)
        outcome.history.events += tuple(
            f"member {number + 1}: {event}" for event in again.outcome.history.events
        )
        if not again.outcome.history.interrupted:  # half a member would only do harm
            members.append(again.outcome.fitted)
            powers.append(again.power)
    shares = task.shares if len(task.shares) == len(members) else ()
    return Team(first, tuple(members), powers, shares)


def _restart(settings: Settings, number: int, seed: int, plan: Plan, task: Task) -> Trained:
    """A further member of the ensemble: every second one is of another kind than the first.

    Where the first has grown, it is deep from the start, and its hidden layers hardly move at
    first, as published. Where rows are many, and the first was deep from the start, it is a
    wide single layer. An average of two kinds is badly wrong less often than either.
    """
    other = number % 2 == 1 and settings.num_layers != 1
    previous = task.previous[number] if task.previous else None
    if other and _goes_wide(settings, previous, task):
        one = task._replace(previous=(previous,) if previous else None)
        return fit_member(settings.wide, seed, one)
    if previous:
        return training.train_as_planned(settings, seed, plan, previous, task)
    quiet = other and settings.grows(task.x.shape[1], task.num_rows, task.likelihood)
    if quiet:
        bold = settings.power == "auto" and not has_varying_noise(task.likelihood)
        power = QUIET_POWER if bold else plan.power
        plan = plan._replace(judge=False, num_first=plan.num_steps, power=power)
    start = training.start(settings, seed, task, quiet=quiet)
    return training.train_as_planned(settings, seed, plan, start, task)


def _goes_wide(settings: Settings, previous: Fitted | None, task: Task) -> bool:
    """Whether a second member is to be a wide single layer, or was one."""
    if previous:
        return len(previous.model.layers) == 1
    return settings.may_be_wide(task.num_rows, task.likelihood)


# ---- members of two kinds -----------------------------------------------------------------------


def _weighs(settings: Settings, task: Task) -> bool:
    """Whether members are a deep model and a wide layer, and rows can be spared to tell."""
    sizes = (task.num_rows - _num_weighing(task), task.num_rows)
    two = settings.num_restarts in ("auto", 2) and settings.num_layers != 1 and not task.previous
    return two and all(settings.may_be_wide(size, task.likelihood) for size in sizes)


def _num_weighing(task: Task) -> int:
    """Rows that are set apart to weigh members."""
    return round(WEIGHED * task.num_rows)


def _weighed(settings: Settings, seed: int, task: Task) -> Team:
    """A deep model and a wide layer in the shares that rows set apart find best.

    Then both learn from those rows too: the wide layer's posterior is that of all rows, and the
    deep model takes some steps more. A member without a share is left out.
    """
    kept, held = task.apart(seed, _num_weighing(task))
    team = _alike(settings, seed, kept)
    if len(team.members) == 1:
        return team
    scores = np.stack([_scores(settings, seed, each, held) for each in team.members])
    shares = growth.best_shares(scores)
    log.info("Rows set apart give the deep model and the wide layer shares of %s.", shares)
    makers = (settings, settings.wide)
    members = tuple(
        _absorb(maker, seed + number, power, fitted, task)
        for number, (maker, fitted, power) in enumerate(
            zip(makers, team.members, team.powers, strict=True)
        )
        if shares[number]
    )
    parts = tuple(share for share in shares if share)
    return team._replace(members=members, powers=team.powers[: len(members)], shares=parts)


def _absorb(settings: Settings, seed: int, power: float, fitted: Fitted, task: Task) -> Fitted:
    """A fit of most rows of a task, gone on with all of them."""
    plan = training.make_plan(settings, fitted, task.num_rows, warm=True)
    plan = plan._replace(checkpoint=task.keeper)
    num_steps = 0 if plan.last_layer == "collapsed" else round(ABSORBING * plan.num_steps)
    slow = settings.but(learning_rate=settings.learning_rate or MIXED_RATE)
    game = settings.network_rate if recipes.is_anchored(fitted) else None
    engine = training.engine(slow, plan, num_steps, power, game)
    options = {"num_kept": settings.num_mixture} | training.run_options(settings, plan)
    stage = growth.Stage(engine, num_steps, options)
    return stage.run(jr.fold_in(jr.key(seed), 2), fitted, task.data(settings.dtype)).fitted
