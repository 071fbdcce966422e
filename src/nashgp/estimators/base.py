"""What all estimators share: settings, `fit`, the learned hyperparameters."""

import abc
import itertools
import logging
import os
import warnings
from collections.abc import Callable, Mapping
from inspect import Signature, signature
from typing import Any, NamedTuple, no_type_check

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PyTree
from sklearn.utils.validation import check_is_fitted

from nashgp import chains, kernels, paths, persist, predict, recipes
from nashgp.checkpoints import SECONDS, FileCheckpoint
from nashgp.errors import InputError, UnsettledChainsWarning, UntrustedRatioWarning
from nashgp.estimators import rows
from nashgp.estimators.files import SavedEstimator
from nashgp.estimators.functions import FunctionSample, Part, draw_targets
from nashgp.estimators.rows import Rows
from nashgp.estimators.settings import (
    KERNEL,
    LEARNING_RATE,
    Settings,
    at_least_one,
    check,
    inside,
    seed_of,
)
from nashgp.estimators.teams import fit_team, precise
from nashgp.estimators.training import Task
from nashgp.likelihoods import AbstractLikelihood
from nashgp.persist import FilePath
from nashgp.posteriors import (
    DrawnPosterior,
    Ensemble,
    Fitted,
    measure_information,
    members_of,
)
from nashgp.posteriors.anchored import find_anchored
from nashgp.precision import scope
from nashgp.scaling import Scaling, is_constant

log = logging.getLogger("nashgp")

DISAGREE = 1.2  # largest R-hat of chains that say the same
TOLD_APART = 0.9  # accuracy above which a discriminator's log ratio falls short of the KL
RELEVANCE_DRAWS = 20

_draw = eqx.filter_jit(paths.draw_functions)


class Targets(NamedTuple):
    """Targets as a table of numbers, how many times each row counts, and what to remember."""

    table: np.ndarray
    weight: np.ndarray
    learned: dict[str, Any]


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
        num_layers: int | str | None = None,
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

        settings, previous = self._settings, self._previous(t) if warm else None
        start = self._start_likelihood
        likelihood = previous[0].model.likelihood if previous else start(t, settings.dtype)
        likelihood.check_targets(t)
        kept, scaling = self._measure(x, t, likelihood, warm)
        keeper = self._keeper(checkpoint, resume, checkpoint_seconds, (x, t, w, previous))
        seed = keeper.seed if keeper else seed_of(self.random_state)
        shares = getattr(self.fitted_, "shares", ()) if previous else ()
        task = Task(*scaling.forward(x[:, kept], t), w, likelihood, previous, shares, keeper)
        dtype = precise(settings, seed, task)
        if not previous:
            task = task._replace(likelihood=start(t, dtype))
        team = fit_team(settings.but(dtype=dtype), seed, task)
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
        self.remembers_ = team.remembers
        self.num_steps_ = len(outcome.history.objective)
        self.batch_size_ = plan.batch_size or plan.num_rows
        self.dtype_ = dtype
        self.last_layer_, self.power_, self.powers_ = plan.last_layer, power, team.powers
        self._warn_of_ratio()
        self._warn_of_chains()
        return self

    def _check_settings(self) -> None:
        """Raise `InputError` for a setting that no rows could make valid."""
        check(self)

    @property
    def _settings(self) -> Settings:
        """What training is told; an earlier fit counts where a new one goes on from it."""
        others = {"usual_rate": self._usual_rate, "remembers": self._remembered}
        return Settings.of(self, **others)

    @property
    def _remembered(self) -> bool:
        """Whether the last fit chose an inducing input for every distinct row."""
        return getattr(self, "remembers_", False)

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

    def _start_likelihood(self, t: np.ndarray, dtype: str) -> AbstractLikelihood:
        with scope("float64" if dtype == "auto" else dtype):
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

    def _previous(self, t: np.ndarray) -> tuple[Fitted, ...]:
        """The last fit, all members of it, if new rows can go on from it."""
        if t.shape[1] != len(self.scaling_.y_scale):
            raise InputError(
                f"y has {t.shape[1]} columns and the fit to go on from had "
                f"{len(self.scaling_.y_scale)}; set warm_start=False."
            )
        depth = len(self._first.model.layers)
        if self.num_layers not in (None, "auto", depth):
            raise InputError(
                f"num_layers is {self.num_layers} and the fit to go on from had {depth}; "
                f"set num_layers={depth}, or warm_start=False."
            )
        return members_of(self.fitted_)

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
        """Standard deviation of the noise of each target; None for counts and classes.

        Where it varies with the inputs, the typical one: `predict_noise_std` has that of rows.
        """
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
