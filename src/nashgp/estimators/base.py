"""What all estimators share: settings, `fit`, the learned hyperparameters."""

import abc
import copy
import dataclasses
import itertools
import logging
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from inspect import Signature, signature
from typing import Any, NamedTuple, cast, no_type_check

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PyTree
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from nashgp import chains, growth, kernels, paths, persist, predict, recipes, train
from nashgp.batch import Data, make_data
from nashgp.checkpoints import SECONDS, FileCheckpoint
from nashgp.engines import Collapsed, Engine
from nashgp.errors import InputError, UnsettledChainsWarning, UntrustedRatioWarning
from nashgp.estimators import rows
from nashgp.estimators.files import SavedEstimator
from nashgp.estimators.functions import FunctionSample, Part, draw_targets
from nashgp.estimators.rows import Rows
from nashgp.likelihoods import AbstractLikelihood, Gaussian
from nashgp.persist import FilePath
from nashgp.posteriors import (
    DrawnPosterior,
    Ensemble,
    Fitted,
    measure_information,
    members_of,
)
from nashgp.posteriors.anchored import find_anchored
from nashgp.precision import dtype_of, scope
from nashgp.scaling import Scaling, is_constant
from nashgp.shapes import Key

log = logging.getLogger("nashgp")

NUM_STEPS = {"collapsed": 500, "natural": 2_000, "gradient": 3_000, "game": 5_000}
NUM_STEPS["sampled"] = 15_000
NUM_SAMPLES, PAPER_SAMPLES = 1, 10
LEARNING_RATE, PAPER_RATE, SAMPLER_RATE = 0.03, 0.025, 0.01
BATCH_RATE, LARGE_BATCH = 0.1, 1_024  # of natural gradients for targets with noise and many rows
MIXED_SHARE = 1 / 6  # of the steps, played as an anchored game once its Gaussians are made
MIXED_RATE, NETWORK_RATE = 0.01, 3e-4  # in that game; a frame that is almost right moves little
BURN_IN = 2 / 3  # share of a sampler's steps before the first draw that is kept
SETTLE = 0.25  # share of a burn-in that is repeated with all rows once hyperparameters are held
DISAGREE = 1.2  # largest R-hat of chains that say the same
TOLD_APART = 0.9  # accuracy above which a discriminator's log ratio falls short of the KL
FIRST_STAGE = 0.6  # share of the steps that a deep model spends as a shallow one
NUM_INDUCING, FEW_ROWS, MANY_INDUCING = 128, 2_000, 256  # more inducing inputs while rows are few
JUDGED_ROWS = 200  # fewer rows than this cannot tell powers or depths apart
DEPTHS = (2, 1, 3)  # the first unless another is clearly better
FULL_BATCH_ROWS = 1_000  # up to here a step on all rows costs little more than one on a batch
BATCH_SIZE = 512
RELEVANCE_DRAWS = 20
ENOUGH, STRETCH = 0.01, 2.0  # error that is let pass, and lengthscales of `recipes.rounding`
COLLAPSED_SIZE = 2**21  # largest rows x inducing inputs x draws for which every step sees all rows
FULL_SIZE = 2**21  # largest width x inducing inputs² of a hidden layer with a root for each output
QUIET_SCALE = 1e-5  # the published start
QUIET_POWER = 1.0  # bold where rows are few, and an average with a careful member can afford it
KERNEL, DISTINCT = "rbf+matern32", "distinct"
REPEATED = 0.05  # share of rows that are copies of others from which on memory is tried
MEMORY_STEPS, MEMORY_RATE = 60, 0.05  # few, for they are dear, and so with larger strides
MEMORY = {"num_layers": 1, "num_inducing": DISTINCT, "kernel": "matern12", "power": 0.5}
WIDE_INDUCING, WIDE_SIZE = 1_024, 2**25  # of a wide single layer, and most rows x those
# Of the last of several layers where rows are many, beside a wide layer and where none is afforded.
TOP_INDUCING, TOP_ALONE = 256, 512
WIDE_STEPS, WIDE_RATE = 100, 0.05
WEIGHED, ABSORBING = 0.1, 0.1  # rows that weigh the two, and steps with them after that, as shares
WIDE = {"num_layers": 1, "num_inducing": WIDE_INDUCING, "last_layer": "collapsed", "power": 1.0}
LEARNED = {"learned_skip": True, "low_rank": True, "hidden_variance": 0.01, "lengthscale": 0.5}
HIDDEN_SCALE = 1e-3  # the published 1e-5 starts so far from the prior that Adam is long on its way

_draw = eqx.filter_jit(paths.draw_functions)


class Targets(NamedTuple):
    """Targets as a table of numbers, how many times each row counts, and what to remember."""

    table: np.ndarray
    weight: np.ndarray
    learned: dict[str, Any]


class Plan(NamedTuple):
    """How one fit is trained: what the settings leave open, settled by the rows."""

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


class Task(NamedTuple):
    """What a fit is given: rows in the model's units, where it begins, and who is told of it."""

    x: np.ndarray
    t: np.ndarray
    w: np.ndarray
    likelihood: AbstractLikelihood
    previous: tuple[Fitted, ...] | None = None  # members to go on from
    keeper: FileCheckpoint | None = None

    def of(self, chosen: np.ndarray) -> "Task":
        """The same with some of the rows."""
        return self._replace(x=self.x[chosen], t=self.t[chosen], w=self.w[chosen])

    def apart(self, seed: int, num_held: int) -> "tuple[Task, Task]":
        """The same without some random rows, and with those rows alone."""
        order = np.random.default_rng(seed).permutation(len(self.x))
        return self.of(order[num_held:]), self.of(order[:num_held])

    def data(self, dtype: str, *, padded: bool = True) -> Data:
        return make_data(self.x, self.t, self.w, dtype=dtype, padded=padded)


class Trained(NamedTuple):
    """A member of a fit: how it was to be trained, at which power, and what came of it."""

    plan: Plan
    power: float
    outcome: train.Outcome


class Team(NamedTuple):
    """The members of a fit, how the first was trained, their powers and their shares."""

    first: Trained
    members: tuple[Fitted, ...]
    powers: list[float]
    shares: tuple[int, ...] = ()

    @property
    def fitted(self) -> Fitted | Ensemble:
        first, *others = self.members
        return Ensemble(self.members, self.shares) if others else first


class Leg(NamedTuple):
    """One stretch of a fit: where it begins, given what the one before has found."""

    key: Key
    num_steps: int
    begin: growth.Begin = lambda fitted: fitted
    network_rate: float | None = None  # of an anchored generator: None without one, 0 at rest


def with_settings_of(base: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let the signature of `__init__(self, *, own, **settings)` show the settings of `base` too.

    scikit-learn learns from there which settings an estimator has.
    """

    def decorate(init: Callable[..., None]) -> Callable[..., None]:
        theirs, own = (signature(each).parameters.values() for each in (base.__init__, init))
        named = [*theirs, *(each for each in own if each.kind is each.KEYWORD_ONLY)]
        vars(init)["__signature__"] = Signature(named)
        return init

    return decorate


class DeepGPEstimator(SavedEstimator, abc.ABC):
    """Settings and life of an estimator; a subclass chooses the likelihood and what to predict."""

    _needed = frozenset({"fitted_", "scaling_", "kept_", "seed_", "one_target_"})
    _usual_rate = LEARNING_RATE
    n_features_in_: int  # set by scikit-learn's validation
    one_target_: bool

    @no_type_check  # scikit-learn wants any value stored as it is; `fit` checks them all
    def __init__(
        self,
        *,
        engine: str = "ipvi",
        game: str = "anchored",
        num_layers: int | str = 2,
        hidden: str = "gp",
        hidden_dim: int | None = None,
        num_inducing: int | str = "auto",
        kernel: recipes.Kernel = KERNEL,
        likelihood: str | AbstractLikelihood = "auto",
        covariance: str = "auto",
        num_steps: int | None = None,
        batch_size: int | None = None,
        num_samples: int | None = None,
        last_layer: str = "auto",
        power: float | str = "auto",
        learning_rate: float | None = None,
        validation_fraction: float = 0.0,
        num_restarts: int | str = "auto",
        num_mixture: int = 100,
        allow_missing: bool = False,
        warm_start: bool = False,
        dtype: str = "float64",
        random_state: int | np.random.RandomState | None = None,
        progress: bool = False,
        engine_options: Mapping[str, Any] | None = None,
    ):
        self.engine = engine
        self.game = game
        self.num_layers = num_layers
        self.hidden = hidden
        self.hidden_dim = hidden_dim
        self.num_inducing = num_inducing
        self.kernel = kernel
        self.likelihood = likelihood
        self.covariance = covariance
        self.num_steps = num_steps
        self.batch_size = batch_size
        self.num_samples = num_samples
        self.last_layer = last_layer
        self.power = power
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.num_restarts = num_restarts
        self.num_mixture = num_mixture
        self.allow_missing = allow_missing
        self.warm_start = warm_start
        self.dtype = dtype
        self.random_state = random_state
        self.progress = progress
        self.engine_options = engine_options

    # ---- fit ----------------------------------------------------------------------------------

    @abc.abstractmethod
    def _likelihood(self, t: np.ndarray) -> AbstractLikelihood:
        """The likelihood to start from, or an `InputError` for a name that is not known."""

    @abc.abstractmethod
    def _learn(self, y: Rows, weight: np.ndarray, *, warm: bool) -> Targets:
        """The targets of those rows of `y` whose weight is not zero."""

    def fit(
        self,
        X: Rows,
        y: Rows,
        sample_weight: Rows | None = None,
        *,
        checkpoint: FilePath | None = None,
        resume: FilePath | None = None,
        checkpoint_seconds: float = SECONDS,
    ) -> "DeepGPEstimator":
        """Learn a posterior over functions from the rows of `X` and their targets `y`.

        `sample_weight` says how many times each row counts. `Ctrl-C` ends the training and keeps
        what is done.

        With `checkpoint`, a file is written there every `checkpoint_seconds` and at the end, for
        `resume` in another process: with the same rows and settings it goes on from there, and ends
        with the same bits. It keeps writing to that file unless `checkpoint` names another.
        """
        self._check_settings()
        warm = self.warm_start and hasattr(self, "fitted_")
        x = rows.inputs(self, X, reset=not warm)
        w = rows.weights(sample_weight, len(x))
        if len(x) < 2:
            raise InputError("X has one row (n_samples = 1); pass at least two.")
        targets = self._learn(y, w, warm=warm)
        x, t, w = x[w > 0.0], targets.table, targets.weight

        previous = self._previous(t) if warm else None
        likelihood = previous[0].model.likelihood if previous else self._start_likelihood(t)
        likelihood.check_targets(t)
        kept, scaling = self._measure(x, t, likelihood, warm)
        keeper = self._keeper(checkpoint, resume, checkpoint_seconds, (x, t, w, previous))
        seed = keeper.seed if keeper else seed_of(self.random_state)
        task = Task(*scaling.forward(x[:, kept], t), w, likelihood, previous, keeper)
        precise = self._precise(seed, task)
        if precise is not self and not previous:
            task = task._replace(likelihood=precise._start_likelihood(t))
        maker, first = precise._suited(seed, task)
        weighs = not first and maker._weighs(task)
        team = maker._weighed(seed, task) if weighs else maker._team(seed, task, first)
        plan, power, outcome = team.first
        if keeper:
            keeper.write()

        # Only now: a fit that failed leaves the estimator as it was.
        self.seed_, self.kept_, self.scaling_ = seed, kept, scaling
        vars(self).update(targets.learned)
        self.fitted_ = team.fitted
        self.history_ = outcome.history
        self.num_inducing_ = outcome.fitted.model.layers[-1].num_inducing
        self.num_layers_ = len(outcome.fitted.model.layers)
        self.num_restarts_ = len(team.members)
        self.remembers_ = self.num_inducing != maker.num_inducing == DISTINCT
        self.num_steps_ = len(outcome.history.objective)
        self.batch_size_ = plan.batch_size or plan.num_rows
        self.dtype_ = precise.dtype
        self.last_layer_, self.power_, self.powers_ = plan.last_layer, power, team.powers
        self._warn_of_ratio()
        self._warn_of_chains()
        return self

    def _precise(self, seed: int, task: Task) -> "DeepGPEstimator":
        """This estimator, or one like it in the least precision that is enough for these rows."""
        if self.dtype != "auto":
            return self
        double = copy.copy(self).set_params(dtype="float64")
        if task.previous:
            return double.set_params(dtype=str(dtype_of(task.previous[0])))
        start = double._likes(task)[0]._start(seed, task)
        error = recipes.rounding(start.model, STRETCH)
        dtype = "float32" if error < ENOUGH else "float64"
        log.info("Rounding to float32 would cost %.2g prior deviations: dtype %s.", error, dtype)
        return double.set_params(dtype=dtype)

    def _suited(self, seed: int, task: Task) -> "tuple[DeepGPEstimator, Trained | None]":
        """Of the estimators like this one, that whose fit to some rows predicts the others.

        With it the fit to those rows, if `Ctrl-C` made that the last one.
        """
        likes, num_rows = self._likes(task), len(task.x)
        if len(likes) == 1:
            return likes[0], None
        kept, held = task.apart(seed, round(growth.HELD_OUT * num_rows))
        scores = []
        for like in likes:
            trained = like._member(seed, kept)
            if trained.outcome.history.interrupted:
                return like, trained
            scores.append(self._scores(seed, trained.outcome.fitted, held))
        return likes[growth.clearly_best(np.stack(scores))], None

    def _scores(self, seed: int, fitted: Fitted, held: Task) -> np.ndarray:
        """Log density of each row that was set apart."""
        key, data = jr.split(jr.key(seed))[1], held.data(self.dtype, padded=False)
        return growth.scores(key, fitted, data, num_samples=self.num_mixture)

    def _likes(self, task: Task) -> "list[DeepGPEstimator]":
        """What held-out rows choose from where settings leave a choice; the first if in doubt."""

        def like(**settings: Any) -> DeepGPEstimator:
            return copy.copy(self).set_params(**settings)

        def remembering() -> DeepGPEstimator:
            return self._brief(MEMORY, MEMORY_STEPS, MEMORY_RATE)

        wide = self._may_be_wide(len(task.x), task.likelihood)

        def deep(num_layers: int | str) -> DeepGPEstimator:
            return self._wide if num_layers == 1 and wide else like(num_layers=num_layers)

        if task.previous:
            depth = len(task.previous[0].model.layers)
            return [remembering() if self._remembered else deep(depth)]
        judged = len(task.x) >= JUDGED_ROWS
        depths = (self.num_layers,)
        if self.num_layers == "auto":
            depths = DEPTHS if judged else DEPTHS[:1]
        likes = [deep(depth) for depth in depths]
        return [*likes, remembering()] if judged and self._may_remember(task) else likes

    def _brief(self, settings: Mapping[str, Any], steps: int, rate: float) -> "DeepGPEstimator":
        """One like this with other settings, whose steps are few and large."""
        steps = min(self.num_steps or steps, steps)
        rate = self.learning_rate or rate
        return copy.copy(self).set_params(**settings, num_steps=steps, learning_rate=rate)

    @property
    def _wide(self) -> "DeepGPEstimator":
        """One like this with a single layer of many inducing inputs, integrated out."""
        return self._brief(WIDE, WIDE_STEPS, WIDE_RATE)

    def _may_be_wide(self, num_rows: int, likelihood: AbstractLikelihood) -> bool:
        """Whether a wide single layer can be afforded, and no setting says otherwise.

        Where rows are many, a single GP with inducing inputs enough is another good answer: it
        sees what is local, and a deep one what is not smooth everywhere alike.
        """
        chosen = (self.num_inducing, self.power, self.last_layer, self.batch_size)
        is_open = chosen == ("auto", "auto", "auto", None) and self.validation_fraction == 0.0
        is_open &= not self._plays_paper and not self._samples
        few = num_rows * WIDE_INDUCING * self._num_samples <= WIDE_SIZE
        return is_open and few and self._has_many(num_rows, likelihood)

    @property
    def _remembered(self) -> bool:
        """Whether the last fit chose an inducing input for every distinct row."""
        return getattr(self, "remembers_", False)

    def _may_remember(self, task: Task) -> bool:
        """Whether rows repeat, and an inducing input for each distinct one can be afforded.

        Among rows that repeat, some held out have copies among those kept, and only a model with
        room for every row can tell.
        """
        chosen = (self.num_inducing, self.num_restarts, self.power, self.kernel)
        is_open = chosen == ("auto", "auto", "auto", KERNEL) and self.batch_size is None
        is_open &= self.last_layer in ("auto", "collapsed")
        is_open &= isinstance(task.likelihood, Gaussian)
        if not is_open or self._plays_paper or self._samples:
            return False
        num_rows, usual = len(task.x), self._num_inducing(len(task.x))
        most = COLLAPSED_SIZE // (num_rows * self._num_samples)
        if most <= usual:  # do not even count
            return False
        num_distinct = len(np.unique(task.x, axis=0))
        return usual < num_distinct <= min(most, (1.0 - REPEATED) * num_rows)

    def _member(self, seed: int, task: Task) -> Trained:
        """The first member of a fit, from nothing or from where a previous one was."""
        num_rows, warm = len(task.x), task.previous is not None
        start = task.previous[0] if task.previous else self._start(seed, task)
        plan = self._plan(start, num_rows - self._num_held(num_rows), warm=warm)
        plan = plan._replace(checkpoint=task.keeper)
        return Trained(plan, *self._train(seed, plan, start, task))

    def _team(self, seed: int, task: Task, first: Trained | None = None) -> Team:
        """All members, in equal parts or in those of the fit to go on from."""
        first = first or self._member(seed, task)
        outcome, previous = first.outcome, task.previous
        members, powers = [outcome.fitted], [first.power]
        for number in range(1, len(previous) if previous else first.plan.num_restarts):
            if outcome.history.interrupted:
                break
            again = self._restart(number, seed + number, first.plan, task)
            outcome.history.events += tuple(
                f"member {number + 1}: {event}" for event in again.outcome.history.events
            )
            if not again.outcome.history.interrupted:  # half a member would only do harm
                members.append(again.outcome.fitted)
                powers.append(again.power)
        shares = getattr(self.fitted_, "shares", ()) if previous else ()
        return Team(first, tuple(members), powers, shares if len(shares) == len(members) else ())

    def _weighs(self, task: Task) -> bool:
        """Whether members are a deep model and a wide layer, and rows can be spared to tell."""
        few = self._num_kept(len(task.x))
        two = self.num_restarts in ("auto", 2) and self.num_layers != 1 and not task.previous
        return two and all(self._may_be_wide(n, task.likelihood) for n in (few, len(task.x)))

    def _num_kept(self, num_rows: int) -> int:
        """Rows that are left when some are set apart to weigh members."""
        return num_rows - round(WEIGHED * num_rows)

    def _weighed(self, seed: int, task: Task) -> Team:
        """A deep model and a wide layer in the shares that rows set apart find best.

        Then both learn from those rows too: the wide layer's posterior is that of all rows, and the
        deep model takes some steps more. A member without a share is left out.
        """
        num_held = len(task.x) - self._num_kept(len(task.x))
        kept, held = task.apart(seed, num_held)
        team = self._team(seed, kept)
        if len(team.members) == 1:
            return team
        scores = np.stack([self._scores(seed, member, held) for member in team.members])
        shares = growth.best_shares(scores)
        log.info("Rows set apart give the deep model and the wide layer shares of %s.", shares)
        makers = (self, self._wide)
        members = tuple(
            maker._absorb(seed + number, power, member, task)
            for number, (maker, member, power) in enumerate(
                zip(makers, team.members, team.powers, strict=True)
            )
            if shares[number]
        )
        parts = tuple(share for share in shares if share)
        return team._replace(members=members, powers=team.powers[: len(members)], shares=parts)

    def _absorb(self, seed: int, power: float, fitted: Fitted, task: Task) -> Fitted:
        """A fit of most rows of a task, gone on with all of them."""
        plan = self._plan(fitted, len(task.x), warm=True)._replace(checkpoint=task.keeper)
        num_steps = 0 if plan.last_layer == "collapsed" else round(ABSORBING * plan.num_steps)
        slow = copy.copy(self).set_params(learning_rate=self.learning_rate or MIXED_RATE)
        game = self._network_rate if recipes.is_anchored(fitted) else None
        engine = slow._engine(plan, num_steps, power, game)
        options = {"num_kept": self.num_mixture} | self._run_options(plan)
        key = jr.fold_in(jr.key(seed), 2)
        return (
            growth.Stage(engine, num_steps, options).run(key, fitted, task.data(self.dtype)).fitted
        )

    def _keeper(
        self, checkpoint: FilePath | None, resume: FilePath | None, seconds: float, given: Any
    ) -> FileCheckpoint | None:
        """What is told how far a fit of these rows has got, if anything is."""
        place = resume if checkpoint is None else checkpoint
        if place is None:
            return None
        inside("checkpoint_seconds", seconds, lambda s: s >= 0.0, "0 or more")
        fixed = isinstance(self.random_state, int | np.integer)
        seed = (
            seed_of(self.random_state) if fixed or resume is None else None
        )  # None: the file knows
        settings = self._to_file()
        del settings["progress"], settings["random_state"]  # of no effect; told by the seed
        origin: dict[str, str | int | None] = {
            "estimator": type(self).__name__,
            "rows": persist.fingerprint(given),
        }
        origin |= {name: persist.fingerprint(value) for name, value in settings.items()}
        origin["random_state"] = seed
        keeper = FileCheckpoint(place, origin, seconds)
        if resume is not None:
            keeper.resume(resume)
            if os.path.realpath(place) == os.path.realpath(resume):
                return keeper
        return keeper.begin()

    def _warn_of_ratio(self) -> None:
        """Say so when the discriminator of a game could not be believed."""
        seen = self.history_.info
        if "accuracy" not in seen or not len(seen["accuracy"]):
            return
        last = slice(-max(1, len(seen["accuracy"]) // 10), None)
        accuracy, ratio = (float(np.mean(seen[name][last])) for name in ("accuracy", "log_ratio"))
        if accuracy > TOLD_APART:
            warnings.warn(
                f"the discriminator tells the posterior from the prior in {accuracy:.0%} of the "
                f"draws, so its log ratio of {ratio:.0f} nats says little of the KL and the "
                "objective is no bound; use engine='dsvi', or fewer inducing inputs and layers.",
                UntrustedRatioWarning,
                stacklevel=3,
            )

    def _warn_of_chains(self) -> None:
        """Say so when chains, or the halves of one, have not seen the same posterior."""
        posterior = self._first.posterior
        if self.history_.interrupted or not isinstance(posterior, DrawnPosterior):
            return
        if posterior.num_draws < chains.FEWEST:
            return
        report = self.chains_
        if report.worst > DISAGREE:
            warnings.warn(
                f"the chains disagree ({report}), so some of the posterior has not been seen; "
                "raise num_steps, or start several with engine_options={'num_chains': 4}.",
                UnsettledChainsWarning,
                stacklevel=3,
            )

    def _check_settings(self) -> None:
        """Raise `InputError` for a setting that no rows could make valid."""
        recipes.check_kernel(self.kernel)
        engines = recipes.choose("engine", self.engine, recipes.ENGINES)
        recipes.choose("game", self.game, dict.fromkeys(("anchored", "paper")))
        if self._plays_anchored:  # over all that makes Gaussians
            engines = recipes.ENGINES["dsvi"]
        recipes.choose("last_layer", self.last_layer, {"auto": None, **engines})
        recipes.choose("hidden", self.hidden, dict.fromkeys(("gp", "learned")))
        recipes.choose("covariance", self.covariance, dict.fromkeys(("auto", "full", "shared")))
        recipes.choose("dtype", self.dtype, dict.fromkeys(("float64", "float32", "auto")))
        at_least_one("num_steps", self.num_steps, optional=True)
        at_least_one("batch_size", self.batch_size, optional=True)
        at_least_one("hidden_dim", self.hidden_dim, optional=True)
        at_least_one("num_samples", self.num_samples, optional=True)
        at_least_one("num_mixture", self.num_mixture)
        if self.num_layers != "auto":
            at_least_one("num_layers", self.num_layers, otherwise='"auto"')
        if self.num_inducing not in ("auto", DISTINCT):
            at_least_one("num_inducing", self.num_inducing, otherwise='"auto" or "distinct"')
        if self.num_restarts != "auto":
            at_least_one("num_restarts", self.num_restarts, otherwise='"auto"')
        if self.power != "auto":
            inside("power", self.power, lambda a: 0.0 <= a <= 1.0, 'from 0 to 1 or "auto"')
        if self.learning_rate is not None:
            inside("learning_rate", self.learning_rate, lambda r: 0.0 < r < np.inf, "above 0")
        fraction = self.validation_fraction
        inside("validation_fraction", fraction, lambda f: 0.0 <= f < 1.0, "from 0 to below 1")
        options = self.engine_options or {}
        inside("engine_options", options, lambda o: isinstance(o, Mapping), "a dict")

    def _plan(self, start: Fitted, num_rows: int, *, warm: bool = False) -> Plan:
        """How to train on so many rows: what the settings leave open."""
        gaussian = isinstance(start.model.likelihood, Gaussian)
        size = num_rows * max(layer.num_inducing for layer in start.model.layers)
        whole = self.batch_size is None or self.batch_size >= num_rows
        last_layer, is_game = self.last_layer, self._plays_paper
        if last_layer == "auto":
            fits = size * self._num_samples <= COLLAPSED_SIZE
            fits &= num_rows <= FEW_ROWS or self.num_layers == 1
            last_layer = "collapsed" if gaussian and fits and whole else "natural"
            last_layer = "gradient" if is_game else last_layer
            last_layer = "sampled" if self._samples else last_layer
        collapsed = last_layer == "collapsed"
        if collapsed and not whole:
            raise InputError(
                f"batch_size {self.batch_size} is less than the {num_rows} rows that a "
                'collapsed last layer needs in each step; use last_layer="natural".'
            )
        many = self._has_many(num_rows, start.model.likelihood) and last_layer == "natural"
        usual = LARGE_BATCH if many else BATCH_SIZE
        few = self.batch_size or (num_rows if num_rows <= FULL_BATCH_ROWS else usual)
        batch_size = None if collapsed or few >= num_rows else few
        power, judge = self.power, False
        if power == "auto":
            power = growth.POWERS[0] if gaussian and not is_game else 0.0
            power = 1.0 if self._samples or many else power
            judge = collapsed and not warm and len(start.model.layers) == 1
            judge &= num_rows >= JUDGED_ROWS and size * len(growth.POWERS) <= COLLAPSED_SIZE
        grows = len(start.model.layers) < self.num_layers
        restarts = self.num_restarts
        if restarts == "auto":
            wide = self._may_be_wide(num_rows, start.model.likelihood)
            restarts = 2 if (collapsed and grows) or wide else 1
        num_steps = int(self.num_steps or NUM_STEPS["game" if is_game else last_layer])
        num_mixed = 0
        if self._plays_anchored and (last_layer == "gradient" or self.num_layers > 1):
            num_steps = int(self.num_steps or round(num_steps / (1.0 - MIXED_SHARE)))
            num_mixed = round(MIXED_SHARE * num_steps)
        num_steps -= num_mixed
        return Plan(
            last_layer,
            num_rows,
            batch_size,
            num_steps=num_steps,
            num_first=round(FIRST_STAGE * num_steps) if grows else num_steps,
            num_mixed=num_mixed,
            many=many,
            power=float(power),
            judge=judge,
            num_restarts=int(restarts),
        )

    def _engine(
        self, plan: Plan, num_steps: int, power: float, network_rate: float | None = None
    ) -> Engine:
        paper = self._plays_paper
        usual = BATCH_RATE if plan.many else self._usual_rate
        rate = PAPER_RATE if paper else MIXED_RATE if network_rate else usual
        settings = {
            "learning_rate": float(self.learning_rate or rate),
            "num_samples": self._num_samples,
            "power": power,
        }
        if not paper:  # the paper's rates are constant
            settings["decay_steps"] = max(1, num_steps)
        if network_rate and plan.last_layer == "gradient":
            settings["draw_inducing"] = True  # as the mixture needs it
        if network_rate is not None:
            settings["network_rate"] = network_rate
        settings |= self._options[0]
        made = recipes.engine(self.engine if paper else "dsvi", plan.last_layer, **settings)
        if not network_rate:
            return made
        turns = (self.engine_options or {}).get(recipes.TURNS, 0)
        return recipes.by_turns(made, turns, network_rate, max(1, num_steps))

    def _sampler(self, plan: Plan, num_steps: int, after: int, **settings: Any) -> growth.Stage:
        """A run of a sampler, whose draws are to be spread over the steps `after` its burn-in."""
        options = self._options[0]
        num_chains = options.get("num_chains", 1)
        num_draws = max(1, min(-(-self.num_mixture // num_chains), after))
        settings |= {
            "learning_rate": float(self.learning_rate or SAMPLER_RATE),
            "num_samples": self._num_samples,
            "power": plan.power,
            "num_draws": num_draws,
            "spacing": max(1, after // num_draws),
        }
        if self.warm_start and hasattr(self, "fitted_"):
            settings["start"] = None
        settings |= options
        engine = recipes.engine(self.engine, plan.last_layer, **settings)
        kept = min(self.num_mixture, settings["num_draws"] * num_chains)
        run = self._run_options(plan) | {"num_kept": kept}
        return growth.Stage(engine, num_steps, run)

    def _sample(
        self,
        key: Key,
        plan: Plan,
        start: Fitted,
        data: Data,
        apart: tuple[Data, Data] | None,
    ) -> train.Outcome:
        """A burn-in in which hyperparameters climb, then draws while they are held.

        With rows in two parts, hyperparameters are those of a burn-in on the first that predict
        the second best; the draws are then made with all rows.
        """
        num_burn_in = round(BURN_IN * plan.num_steps)
        num_after = plan.num_steps - num_burn_in
        if apart is None:
            stage = self._sampler(plan, plan.num_steps, num_after, burn_in=num_burn_in)
            return stage.run(key, start, data)
        first, second = jr.split(key)
        brief = round(growth.TRIED * num_burn_in)
        stage = self._sampler(plan, num_burn_in, brief, burn_in=num_burn_in)
        outcome = growth.learn_hyperparameters(first, stage, start, *apart)
        if outcome.history.interrupted:
            return outcome
        settle = round(SETTLE * num_burn_in)
        stage = self._sampler(plan, settle + num_after, num_after, burn_in=settle, freeze=0)
        return growth.go_on(second, outcome, outcome.fitted, stage, data)

    @property
    def _samples(self) -> bool:
        return self.engine == "sghmc"

    @property
    def _plays_paper(self) -> bool:
        return self.engine == "ipvi" and self.game == "paper"

    @property
    def _plays_anchored(self) -> bool:
        return self.engine == "ipvi" and self.game == "anchored"

    @property
    def _options(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """`engine_options` of the engine, and those of the anchored generator."""
        given = dict(self.engine_options or {})
        names = recipes.ANCHOR_OPTIONS if self._plays_anchored else ()
        theirs = {name: given.pop(name) for name in names if name in given}
        if self._plays_anchored:  # these belong to one leg alone
            given.pop(recipes.TURNS, None)
            given.pop(recipes.NETWORK_RATE, None)
        return given, theirs

    @property
    def _network_rate(self) -> float:
        """Rate of the networks of an anchored game."""
        return float((self.engine_options or {}).get(recipes.NETWORK_RATE, NETWORK_RATE))

    @property
    def _num_samples(self) -> int:
        return int(self.num_samples or (PAPER_SAMPLES if self._plays_paper else NUM_SAMPLES))

    def _start_likelihood(self, t: np.ndarray) -> AbstractLikelihood:
        with scope(self._dtype):
            return self._likelihood(t)

    def _measure(
        self, x: np.ndarray, t: np.ndarray, likelihood: AbstractLikelihood, warm: bool
    ) -> tuple[np.ndarray, Scaling]:
        """Which columns to look at, and the units of the model."""
        if warm:
            return self.kept_, self.scaling_
        kept = ~is_constant(x)
        names = getattr(self, "feature_names_in_", range(x.shape[1]))
        if not np.all(kept):
            ignored = ", ".join(str(names[j]) for j in np.flatnonzero(~kept))
            log.info("Constant columns of X are ignored: %s.", ignored)
        if not np.any(kept):
            kept[0] = True  # a model needs an input; this one will say nothing
        return kept, Scaling.from_rows(x[:, kept], t, scale_targets=not likelihood.is_discrete)

    def _start(self, seed: int, task: Task, *, quiet: bool = False) -> Fitted:
        """The model before training: one layer if deeper ones can grow from it.

        A `quiet` one is deep from the start, with hidden layers that hardly move. Its structure is
        that of a grown one, so the two share compiled programs.
        """
        x, offset = task.x, task.likelihood.offset(task.t)
        num_inducing = self._num_inducing(len(x))
        config = recipes.Config(
            num_layers=1 if self._grows(task) else self.num_layers,
            hidden_dim=self.hidden_dim,
            num_inducing=num_inducing,
            kernel=self.kernel,
            likelihood=task.likelihood,
            offset=None if offset is None else tuple(offset.tolist()),
            hidden_scale=HIDDEN_SCALE,
            shared=self._shares(self.hidden_dim or min(x.shape[1], 30), num_inducing),
        )
        if self.hidden == "learned":
            config = dataclasses.replace(config, **LEARNED)
        if self._is_topped(len(x), task.likelihood):
            top = TOP_INDUCING if len(x) * WIDE_INDUCING <= WIDE_SIZE else TOP_ALONE
            config = dataclasses.replace(config, num_inducing=top, hidden_inducing=num_inducing)
        if quiet:
            config = dataclasses.replace(
                config, num_layers=self.num_layers, hidden_kernel="rbf", hidden_scale=QUIET_SCALE
            )
        return recipes.build(x, task.t.shape[1], config, seed=seed, dtype=self.dtype)

    def _restart(self, number: int, seed: int, plan: Plan, task: Task) -> Trained:
        """A further member of the ensemble: every second one is of another kind than the first.

        Where the first has grown, it is deep from the start, and its hidden layers hardly move at
        first, as published. Where rows are many, and the first was deep from the start, it is a
        wide single layer. An average of two kinds is badly wrong less often than either.
        """
        previous = task.previous[number] if task.previous else None
        if number % 2 == 1 and self.num_layers != 1 and self._goes_wide(previous, task):
            one = task._replace(previous=(previous,) if previous else None)
            return self._wide._member(seed, one)
        quiet = number % 2 == 1 and self._grows(task) and self.num_layers > 1
        if previous:
            start = previous
        else:
            start = self._start(seed, task, quiet=quiet)
            if quiet:
                power = QUIET_POWER if self.power == "auto" else plan.power
                plan = plan._replace(judge=False, num_first=plan.num_steps, power=power)
        return Trained(plan, *self._train(seed, plan, start, task))

    def _goes_wide(self, previous: Fitted | None, task: Task) -> bool:
        """Whether a second member is to be a wide single layer, or was one."""
        if previous:
            return len(previous.model.layers) == 1
        return self._may_be_wide(len(task.x), task.likelihood)

    def _has_many(self, num_rows: int, likelihood: AbstractLikelihood) -> bool:
        """Whether there are rows enough for batches to find a deep model by themselves."""
        gaussian = isinstance(likelihood, Gaussian)
        return gaussian and num_rows > FEW_ROWS and self.last_layer in ("auto", "natural")

    def _is_topped(self, num_rows: int, likelihood: AbstractLikelihood) -> bool:
        """Whether the last layer has more inducing inputs than those below."""
        deep = self.num_layers != 1 and self.num_inducing == "auto"
        deep &= not self._plays_paper and not self._samples
        return deep and self._has_many(num_rows, likelihood)

    def _grows(self, task: Task) -> bool:
        """Whether a deep model starts from a shallow one: its hidden layers start as identities.

        Gradient steps for the last layer are there to do as published, and so start as published;
        a kernel that was given for every layer is theirs from the start; on many rows a deep model
        finds better places by itself; and layers that are learned are no identities.
        """
        if self.hidden == "learned" or self._has_many(len(task.x), task.likelihood):
            return False
        width = self.hidden_dim or task.x.shape[1]
        named = isinstance(self.kernel, str)
        other = not self._plays_paper and not self._samples and self.last_layer != "gradient"
        return named and other and width == task.x.shape[1]

    def _num_inducing(self, num_rows: int) -> int:
        if self.num_inducing == DISTINCT:
            return num_rows  # no more are taken than are distinct
        if self.num_inducing != "auto":
            return int(self.num_inducing)
        return MANY_INDUCING if num_rows <= FEW_ROWS else NUM_INDUCING

    def _shares(self, width: int, num_inducing: int) -> bool:
        """Whether the outputs of a hidden layer share one covariance."""
        if self.covariance == "auto":
            return width * num_inducing**2 > FULL_SIZE
        return self.covariance == "shared"

    def _previous(self, t: np.ndarray) -> tuple[Fitted, ...]:
        """The last fit, all members of it, if new rows can go on from it."""
        if t.shape[1] != len(self.scaling_.y_scale):
            raise InputError(
                f"y has {t.shape[1]} columns and the fit to go on from had "
                f"{len(self.scaling_.y_scale)}; set warm_start=False."
            )
        depths = ("auto", len(self._first.model.layers))
        if self.num_layers not in depths and not self._remembered:
            raise InputError(
                f"num_layers is {self.num_layers} and the fit to go on from had "
                f"{len(self._first.model.layers)} layers; set warm_start=False."
            )
        return members_of(self.fitted_)

    def _train(
        self, seed: int, plan: Plan, start: Fitted, task: Task
    ) -> tuple[float, train.Outcome]:
        """Choose a power, then walk the legs of the fit; the last one makes the result."""
        data, ending = self._hold_out(seed, task)
        judge, *keys = jr.split(jr.split(jr.key(seed))[0], 3)
        if self._samples:
            apart = (data, ending["validation"].data) if "validation" in ending else None
            rows = task.data(self.dtype)
            return plan.power, self._sample(keys[0], plan, start, rows, apart)
        legs = self._legs(plan, start, keys, seed)

        def stage(leg: Leg, power: float) -> growth.Stage:
            engine = self._engine(plan, leg.num_steps, power, leg.network_rate)
            options = ending if leg is legs[-1] else {"num_kept": 0}
            return growth.Stage(engine, leg.num_steps, options | self._run_options(plan))

        # The first program is compiled by its own training; meanwhile those that follow it.
        later = [stage(leg, plan.power) for leg in legs[0 if plan.num_judged else 1 :]]
        with ThreadPoolExecutor(1) as aside:
            begins = [leg.begin for leg in legs]
            ready = aside.submit(growth.compile_ahead, later, start, begins, data)
            power, outcome = self._judge(judge, plan, start, data)
            for leg in legs:
                if outcome:
                    ready.result()
                begin = leg.begin(outcome.fitted if outcome else start)
                outcome = growth.go_on(leg.key, outcome, begin, stage(leg, power), data)
        assert outcome is not None
        return power, outcome

    def _run_options(self, plan: Plan) -> dict[str, Any]:
        """What every run of a fit is told."""
        return {
            "batch_size": plan.batch_size,
            "progress": self.progress,
            "checkpoint": plan.checkpoint,
        }

    def _hold_out(self, seed: int, task: Task) -> tuple[Data, dict[str, Any]]:
        """The rows to learn from, and how the last leg ends: rows held out decide when."""
        num_rows = len(task.x)
        held, num_held = np.zeros(num_rows, dtype=bool), self._num_held(num_rows)
        if num_rows - num_held < 2:
            raise InputError(
                f"validation_fraction {self.validation_fraction} leaves fewer than two of "
                f"{num_rows} rows to learn from; make it smaller."
            )
        held[np.random.default_rng(seed).permutation(num_rows)[:num_held]] = True
        ending: dict[str, Any] = {"num_kept": self.num_mixture}
        if num_held:
            ending["validation"] = train.Validation(task.of(held).data(self.dtype, padded=False))
        return task.of(~held).data(self.dtype), ending

    def _judge(
        self, key: Key, plan: Plan, start: Fitted, data: Data
    ) -> tuple[float, train.Outcome | None]:
        """The power of the fit, and the training so far if held-out rows chose it."""
        if not plan.num_judged:
            return plan.power, None
        engine = cast(Collapsed, self._engine(plan, plan.num_judged, plan.power))
        options = self._run_options(plan)
        return growth.choose_power(key, start, data, engine, num_steps=plan.num_judged, **options)

    def _legs(self, plan: Plan, start: Fitted, keys: Sequence[Key], seed: int) -> list[Leg]:
        """Train what is there, make it deep, play the anchored game: as far as the plan asks.

        The generator over hidden layers is there before it moves, so that a deep Gaussian and the
        game are one program. Over all layers, or where batches of many rows want quiet gradients,
        it would have to draw what a Gaussian integrates out.
        """
        whole = plan.last_layer == "gradient"
        mixes = self._plays_anchored and (whole or self.num_layers > 1)
        rests = mixes and not whole and not plan.many
        rate = self._network_rate
        if mixes and recipes.is_anchored(start):  # a warm start: the game goes on
            return [Leg(keys[0], plan.num_steps + plan.num_mixed, network_rate=rate)]

        def anchor(fitted: Fitted, **settings: float) -> Fitted:
            return recipes.anchor(fitted, whole=whole, seed=seed, **self._options[1] | settings)

        def rest(fitted: Fitted) -> Fitted:
            return anchor(fitted, first_mix=0.0) if rests else fitted

        def deepen(fitted: Fitted) -> Fitted:
            shared = self._shares(*reversed(fitted.model.layers[0].z.shape))
            return rest(recipes.deepen(fitted, self.num_layers, shared=shared))

        still = 0.0 if rests else None
        if len(start.model.layers) == self.num_layers:
            legs = [Leg(keys[0], plan.num_first - plan.num_judged, rest, still)]
        else:
            legs = [
                Leg(keys[0], plan.num_first - plan.num_judged),
                Leg(keys[1], plan.num_steps - plan.num_first, deepen, still),
            ]
        if plan.num_mixed:
            legs.append(Leg(jr.fold_in(keys[1], 1), plan.num_mixed, anchor, rate))
        return legs

    def _num_held(self, num_rows: int) -> int:
        """Rows set aside to decide when to stop."""
        return round(self.validation_fraction * num_rows)

    # ---- predict ------------------------------------------------------------------------------

    def _inputs(self, X: Rows) -> np.ndarray:
        """The rows of `X` in the model's units."""
        check_is_fitted(self)
        return self.scaling_.inputs(rows.inputs(self, X, reset=False)[:, self.kept_])

    @abc.abstractmethod
    def _outputs(self, values: np.ndarray) -> np.ndarray:
        """What the likelihood says of the targets, [N, R, ...], as the user wants to read it."""

    def _summarise(self, summary: Callable[..., PyTree], x: np.ndarray, *others: np.ndarray) -> Any:
        """A property of the predictive mixture at scaled inputs; the seed of the fit decides."""
        key = jr.split(jr.key(self.seed_))[1]
        return predict.summarise(
            summary, key, self.fitted_, x, *others, num_samples=self.num_mixture
        )

    def sample_functions(self, n_samples: int = 1, random_state: int = 0) -> FunctionSample:
        """Draw whole functions from the posterior: call the result on any rows, again and again."""
        check_is_fitted(self)
        at_least_one("n_samples", n_samples)
        members, key = members_of(self.fitted_), jr.key(random_state)
        deal = self.fitted_.deal if isinstance(self.fitted_, Ensemble) else (0,)
        turns = list(itertools.islice(itertools.cycle(deal), n_samples))
        parts = []
        with scope(self._dtype):
            for number, member in enumerate(members):
                share = sum(turn == number for turn in turns)
                one = key if len(members) == 1 else jr.fold_in(key, number)
                if share:
                    parts.append(Part(_draw(one, member, share), member.model.likelihood))
        return FunctionSample(parts, self._inputs, self._outputs)

    def _draw_targets(self, X: Rows, n_samples: int, random_state: int) -> np.ndarray:
        """Targets [N, Q, n_samples] in the model's units, the rows of one draw of one function."""
        x, sample = self._inputs(X), self.sample_functions(n_samples, random_state)
        return draw_targets(sample, jr.fold_in(jr.key(random_state), 1), x)

    # ---- what was learned ---------------------------------------------------------------------

    @property
    def _first(self) -> Fitted:
        """The first member, whose hyperparameters are reported."""
        return members_of(self.fitted_)[0]

    @property
    def lengthscales_(self) -> list[np.ndarray]:
        """Lengthscale of each input column in each layer, infinite where a column plays no part.

        Those of the first layer are in the units of the columns of `X`. A sum or product of
        kernels reports the shortest of its parts.
        """
        check_is_fitted(self)
        layers = self._first.model.layers
        found = [_lengthscale(layer.kernel, layer.z.shape[1]) for layer in layers]
        first = np.full(self.n_features_in_, np.inf)
        first[self.kept_] = found[0] * self.scaling_.x_scale
        return [first, *found[1:]]

    @property
    def variances_(self) -> list[float]:
        """Mean prior variance of each layer's functions at its inducing inputs.

        Hidden layers have no unit; the last is in squared units of standardised targets (of the
        log rate for counts).
        """
        check_is_fitted(self)
        with scope(self._dtype):
            layers = self._first.model.layers
            return [float(jnp.mean(layer.kernel.diag(layer.z))) for layer in layers]

    @property
    def noise_std_(self) -> np.ndarray | None:
        """Standard deviation of the noise of each target; None for counts and classes."""
        check_is_fitted(self)
        likelihood = self._first.model.likelihood
        if likelihood.is_discrete:
            return None
        with scope(self._dtype):
            zero = jnp.zeros((1, len(self.scaling_.y_scale)), self._dtype)
            variance = np.asarray(likelihood.moments(zero, zero)[1][0], np.float64)
        return np.sqrt(variance) * self.scaling_.y_scale

    @property
    def relevance_(self) -> np.ndarray:
        """Share of each column of `X` in the slopes of the prediction.

            r_j ∝ s_j √(mean_z |∂ E(y | x) / ∂ x_j|²)        at the inducing inputs z

        with `s_j` the spread of a column. Lengthscales tell the same of a single layer; in a deep
        model they do not, since every layer sees the inputs.
        """
        check_is_fitted(self)
        key = jr.split(jr.key(self.seed_))[1]
        with scope(self._dtype):
            z = self._first.model.layers[0].z
            slopes = np.asarray(predict.slopes(key, self.fitted_, z, RELEVANCE_DRAWS), np.float64)
        share = np.zeros(self.n_features_in_)
        share[self.kept_] = np.sqrt(np.mean(np.sum(slopes**2, axis=1), axis=0))
        total = np.sum(share)
        return share / total if total > 0.0 else share

    @property
    def chains_(self) -> chains.ChainReport:
        """Whether the chains of engine "sghmc" agree: split R-hat and effective draws.

        Of the log density and of the function at the first layer's inducing inputs.
        """
        check_is_fitted(self)
        return chains.examine(self._first, self._first.model.layers[0].z)

    @property
    def information_(self) -> dict[str, Any] | None:
        """What the draws of an anchored game tell of their noise, in nats; None without a game.

        `total` is how far the posterior is from one Gaussian, `gap` what the objective misses of
        it, `layers` the parts of single layers. What layers tell of one another is `across` by
        their common noise and `coupled` by the Gaussian itself. Of the first member.
        """
        check_is_fitted(self)
        anchored = find_anchored(self._first.posterior)
        if anchored is None:
            return None
        with scope(self._dtype):
            found = measure_information(jr.key(self.seed_), anchored)
        return {name: np.asarray(part).tolist() for name, part in found._asdict().items()}

    def summary(self) -> str:
        """A table of the input columns and a line for every layer and the noise, to print."""
        relevance = self.relevance_
        names = getattr(self, "feature_names_in_", np.arange(self.n_features_in_))
        table = sorted(
            zip(names, self.lengthscales_[0], relevance, strict=True),
            key=lambda line: -line[2],
        )
        width = max(8, *(len(str(name)) for name in names))
        lines = [f"{'column':{width}}  lengthscale  relevance"]
        lines += [
            f"{name!s:{width}}  {length:11.4g}  {share:9.3f}" for name, length, share in table
        ]
        layers = zip(self._first.model.layers, self.variances_, strict=True)
        for number, (layer, variance) in enumerate(layers, start=1):
            kernel = _kernel_name(layer.kernel)
            lines.append(
                f"layer {number}: {kernel}, {layer.num_inducing} inducing inputs, "
                f"{layer.num_outputs} outputs, prior variance {variance:.4g}"
            )
        if self.noise_std_ is not None:
            lines.append(
                f"noise: standard deviation {', '.join(f'{s:.4g}' for s in self.noise_std_)}"
            )
        posterior = self._first.posterior
        if isinstance(posterior, DrawnPosterior) and posterior.num_draws >= chains.FEWEST:
            lines.append(f"chains: {self.chains_}")
        if (told := self.information_) is not None:
            between = told["across"] + told["coupled"]
            lines.append(
                f"anchored game: draws tell {told['total']:.3g} nats of their noise, the objective "
                f"misses {told['gap']:.2g} of them; layers tell {between:.2g} nats of one another"
            )
        return "\n".join(lines)


def _kernel_name(kernel: kernels.AbstractKernel) -> str:
    """The classes of a kernel's parts."""
    if isinstance(kernel, kernels.Sum):
        return f"{_kernel_name(kernel.left)} + {_kernel_name(kernel.right)}"
    return type(kernel).__name__


def _lengthscale(kernel: kernels.AbstractKernel, width: int) -> np.ndarray:
    """Lengthscale of each column, the shortest over the parts of a compound kernel."""
    if isinstance(kernel, kernels.Sum | kernels.Product):
        parts = (_lengthscale(part, width) for part in (kernel.left, kernel.right))
        return np.minimum(*parts)
    found = np.full(width, np.inf)
    if isinstance(kernel, kernels.AbstractStationary | kernels.Periodic):
        with scope(kernel.raw_lengthscale.dtype):
            columns = slice(None) if kernel.columns is None else list(kernel.columns)
            found[columns] = np.asarray(kernel.lengthscale)
    return found


def at_least_one(name: str, value: object, *, optional: bool = False, otherwise: str = "") -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        otherwise = "None" if optional else otherwise
        also = otherwise and f" or {otherwise}"
        raise InputError(f"{name} must be a whole number of at least 1{also}; got {value!r}.")


def inside(name: str, value: Any, test: Callable[[Any], bool], where: str) -> None:
    try:
        is_inside = test(value)
    except TypeError:
        is_inside = False
    if not is_inside:
        raise InputError(f"{name} must be {where}; got {value!r}.")


def seed_of(random_state: Any) -> int:
    """A seed from whatever scikit-learn takes for one."""
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise InputError(
            f"random_state must be a whole number, a RandomState or None; got {random_state!r}."
        ) from error
