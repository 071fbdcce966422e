"""The deep GP latent variable model in the manner of scikit-learn: a transformer."""

from collections.abc import Mapping
from typing import Any, cast, no_type_check

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from nashgp import growth, latent, placing, predict, recipes, train
from nashgp.engines import CollapsedLatents, Engine, NaturalLatents
from nashgp.errors import InputError
from nashgp.estimators import rows
from nashgp.estimators.base import at_least_one, seed_of
from nashgp.estimators.rows import Rows
from nashgp.placing import Placed
from nashgp.posteriors import Fitted, GaussianLatents, LatentPosterior, anchored_latents
from nashgp.precision import scope

NUM_STEPS, BATCH_STEPS = 500, 3_000
MIXED_SHARE = 0.4  # steps of the anchored latents over those that made their Gaussians
LEARNING_RATE, MIXED_RATE, NETWORK_RATE = 0.03, 0.01, 3e-4
NUM_INDUCING = 100
COLLAPSED_SIZE = 2**21  # largest rows x inducing inputs for which every step sees all rows
BATCH_SIZE = 512
POSTERIORS = ("anchored", "gaussian")


class DeepGPLVM(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Rows as a deep GP of unseen latents: a map of `X`, and the way back.

    NaN in `X` is a missing entry, in `fit` and everywhere else; a row may miss all of them, and its
    latent is then the prior. Columns are centred and divided by one number for all, or by one for
    each with `standardize`. With `num_inducing=None` there are no inducing variables, at a cost of
    N³ in each step.
    """

    n_features_in_: int  # set by scikit-learn's validation

    @no_type_check  # scikit-learn wants any value stored as it is; `fit` checks them all
    def __init__(
        self,
        latent_dim: int = 2,
        num_layers: int = 1,
        *,
        hidden_dim: int | None = None,
        num_inducing: int | None = NUM_INDUCING,
        kernel: recipes.Kernel = "rbf",
        posterior: str = "anchored",
        standardize: bool = False,
        num_steps: int | None = None,
        batch_size: int | None = None,
        num_samples: int = 1,
        learning_rate: float = LEARNING_RATE,
        num_mixture: int = 20,
        num_draws: int = 200,
        dtype: str = "float64",
        random_state: int | np.random.RandomState | None = None,
        progress: bool = False,
    ):
        self.latent_dim = latent_dim
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.num_inducing = num_inducing
        self.kernel = kernel
        self.posterior = posterior
        self.standardize = standardize
        self.num_steps = num_steps
        self.batch_size = batch_size
        self.num_samples = num_samples
        self.learning_rate = learning_rate
        self.num_mixture = num_mixture
        self.num_draws = num_draws
        self.dtype = dtype
        self.random_state = random_state
        self.progress = progress

    # ---- fit ----------------------------------------------------------------------------------

    def fit(self, X: Rows, y: object = None) -> "DeepGPLVM":
        """Learn latents and functions from the rows of `X` alone; `y` is not looked at."""
        del y
        self._check_settings()
        table = rows.observations(self, X, reset=True)
        centre, unit = self._measure(table)
        seed = seed_of(self.random_state)
        outcome = self._train(seed, (table - centre) / unit)
        self.seed_, self.centre_, self.unit_ = seed, centre, unit
        self.fitted_, self.history_ = outcome.fitted, outcome.history
        return self

    def _check_settings(self) -> None:
        recipes.check_kernel(self.kernel)
        recipes.choose("posterior", self.posterior, dict.fromkeys(POSTERIORS))
        recipes.choose("dtype", self.dtype, dict.fromkeys(("float64", "float32")))
        for name in ("latent_dim", "num_layers", "num_samples", "num_mixture", "num_draws"):
            at_least_one(name, getattr(self, name))
        for name in ("hidden_dim", "num_inducing", "num_steps", "batch_size"):
            at_least_one(name, getattr(self, name), optional=True)

    def _measure(self, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Centre and unit of every column."""
        if len(table) < 2:
            raise InputError("X has one row (n_samples = 1); pass at least two.")
        empty = np.all(np.isnan(table), axis=0)
        if np.any(empty):
            raise InputError(
                f"X has no value in column {int(np.argmax(empty))}; leave that column out."
            )
        if self.latent_dim > min(table.shape):
            raise InputError(
                f"latent_dim {self.latent_dim} is more than the {min(table.shape)} components that "
                f"X of shape {table.shape} has; make it smaller."
            )
        centre = np.nanmean(table, axis=0)
        unit = np.sqrt(np.nanmean((table - centre) ** 2, axis=0))
        if not self.standardize:
            unit = np.full_like(unit, np.sqrt(np.mean(unit**2)))
        return centre, np.where(unit > 0.0, unit, 1.0)

    def _train(self, seed: int, table: np.ndarray) -> train.Outcome:
        """Gaussian latents from the start at principal components, then anchored ones."""
        first, second, make = jr.split(jr.key(seed), 3)
        config = recipes.Config(
            num_layers=self.num_layers,
            hidden_dim=self.hidden_dim or self.latent_dim,
            num_inducing=self.num_inducing or 1,
            kernel=self.kernel,
            shared=True,
        )
        dense, kind = self.num_inducing is None, {"dtype": self.dtype}
        start = latent.start(table, self.latent_dim, config, dense=dense, seed=seed, **kind)
        data = latent.number_rows(table, **kind)
        batch_size, num_steps = self._plan(start, len(table))
        options = {"batch_size": batch_size, "progress": self.progress}
        options["num_kept"] = self.num_mixture
        engine = self._engine(batch_size, num_steps, self.learning_rate)
        stage = growth.Stage(engine, num_steps, options)
        outcome = growth.go_on(first, None, start, stage, data)
        if self.posterior == "gaussian":
            return outcome
        num_steps = max(1, round(MIXED_SHARE * num_steps))
        engine = self._engine(batch_size, num_steps, MIXED_RATE)
        with scope(self.dtype):
            mixed = _anchor(make, outcome.fitted)
        stage = growth.Stage(engine, num_steps, options)
        return growth.go_on(second, outcome, mixed, stage, data)

    def _plan(self, start: Fitted, num_rows: int) -> tuple[int | None, int]:
        """Rows in a step, None for all of them, and the number of steps."""
        size = num_rows * start.model.layers[-1].num_inducing
        some = self.batch_size or (BATCH_SIZE if size > COLLAPSED_SIZE else num_rows)
        batch_size = None if some >= num_rows else some
        return batch_size, self.num_steps or (NUM_STEPS if batch_size is None else BATCH_STEPS)

    def _engine(self, batch_size: int | None, num_steps: int, rate: float) -> Engine:
        kind = CollapsedLatents if batch_size is None else NaturalLatents
        return kind(
            learning_rate=rate,
            num_samples=self.num_samples,
            decay_steps=num_steps,
            network_rate=NETWORK_RATE,
        )

    # ---- latents of rows ----------------------------------------------------------------------

    def transform(self, X: Rows) -> np.ndarray:
        """The posterior mean of each row's latent, [N, latent_dim]."""
        return self._place(X).mean

    def sample_latent(self, X: Rows, n_samples: int = 1, random_state: int = 0) -> np.ndarray:
        """Draws of each row's latent given its observed entries, [N, latent_dim, n_samples]."""
        at_least_one("n_samples", n_samples)
        drawn = self._place(X).sample(np.random.default_rng(random_state), n_samples)
        return np.moveaxis(drawn, 0, 2)

    def score_samples(self, X: Rows) -> np.ndarray:
        """Log density of the observed entries of each row; 0 for a row without any."""
        placed, seen = self._place(X), np.isfinite(rows.observations(self, X, reset=False))
        return placed.log_evidence - seen @ np.log(self.unit_)

    def score(self, X: Rows, y: object = None) -> float:
        """The mean of `score_samples`."""
        del y
        return float(np.mean(self.score_samples(X)))

    def _place(self, X: Rows) -> Placed:
        check_is_fitted(self)
        table = (rows.observations(self, X, reset=False) - self.centre_) / self.unit_
        return placing.place(
            self._key, self.fitted_, table, num=self.num_draws, num_samples=self.num_mixture
        )

    # ---- and back -----------------------------------------------------------------------------

    def inverse_transform(self, X: Rows) -> np.ndarray:
        """The mean of the rows that latents stand for."""
        check_is_fitted(self)
        points = np.asarray(X, np.float64)
        if points.ndim != 2 or points.shape[1] != self.latent_dim:
            raise InputError(
                f"latents must be a table with {self.latent_dim} columns, got {points.shape}."
            )
        summary = predict.moments
        key, num = self._key, self.num_mixture
        mean, _ = predict.summarise(summary, key, self.fitted_, points, num_samples=num)
        return self.centre_ + self.unit_ * np.asarray(mean, np.float64)

    def reconstruct(self, X: Rows, n_samples: int = 1, random_state: int = 0) -> np.ndarray:
        """Draws of complete rows given what is observed of them, [N, n_features, n_samples].

        Each is drawn at a latent of its own, so that a row with several explanations has draws of
        all; entries that were observed stay as they are.
        """
        table = rows.observations(self, X, reset=False)
        latents = self.sample_latent(X, n_samples, random_state)
        flat = np.moveaxis(latents, 2, 1).reshape(-1, self.latent_dim)
        mean, variance = predict.summarise(
            predict.moments, self._key, self.fitted_, flat, num_samples=self.num_mixture
        )
        random = np.random.default_rng([random_state, 1])
        drawn = mean + np.sqrt(variance) * random.normal(size=mean.shape)
        whole = self.centre_ + self.unit_ * np.asarray(drawn, np.float64)
        whole = np.moveaxis(whole.reshape(len(table), n_samples, -1), 1, 2)
        return np.where(np.isnan(table)[:, :, None], whole, table[:, :, None])

    # ---- what was learned ---------------------------------------------------------------------

    @property
    def embedding_(self) -> np.ndarray:
        """Where training has put the latents of its rows."""
        check_is_fitted(self)
        assert isinstance(self.fitted_.posterior, LatentPosterior)
        return np.asarray(self.fitted_.posterior.below.latents.centres, np.float64)

    @property
    def _n_features_out(self) -> int:
        """For the names of the latents that scikit-learn makes up."""
        return self.latent_dim

    @property
    def _key(self) -> Any:
        return jr.fold_in(jr.key(self.seed_), 1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """With arrays on the host: JAX would take them back in single precision."""
        state = dict(cast(Mapping[str, Any], super().__getstate__()))
        if "fitted_" in state:
            state["fitted_"] = jax.tree.map(np.asarray, state["fitted_"])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "fitted_" in state:
            with scope(self.dtype):
                self.fitted_ = jax.tree.map(jnp.asarray, state["fitted_"])


def _anchor(key: Any, fitted: Fitted) -> Fitted:
    """The same fit with a generator around the Gaussians of its latents."""
    assert isinstance(fitted.posterior, LatentPosterior)
    frame = fitted.posterior.below.latents
    assert isinstance(frame, GaussianLatents)
    made = anchored_latents(key, frame)
    return eqx.tree_at(lambda f: f.posterior.below.latents, fitted, made)
