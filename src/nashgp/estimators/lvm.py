"""The deep GP latent variable model in the manner of scikit-learn: a transformer."""

import dataclasses
from typing import Any, no_type_check

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from nashgp import growth, latent, placing, predict, recipes, train
from nashgp.engines import CollapsedLatents, Engine, NaturalLatents
from nashgp.errors import InputError
from nashgp.estimators import rows
from nashgp.estimators.files import SavedEstimator
from nashgp.estimators.rows import Rows
from nashgp.estimators.settings import at_least_one, inside, seed_of
from nashgp.likelihoods import Gaussian
from nashgp.placing import Placed
from nashgp.posteriors import (
    Below,
    Fitted,
    GaussianLatents,
    GaussianPosterior,
    LatentPosterior,
    anchored_latents,
    anchored_posterior,
)
from nashgp.precision import scope
from nashgp.shapes import Key

NUM_STEPS, BATCH_STEPS = 500, 3_000
MIXED_SHARE = 0.4  # steps of the anchored latents over those that made their Gaussians
LEARNING_RATE, MIXED_RATE, NETWORK_RATE = 0.03, 0.01, 3e-4
NUM_INDUCING, DENSE_ROWS = 100, 200  # no inducing variables up to so many rows
HIDDEN_VARIANCE = 1e-3  # hidden layers start at a prior of little variance, near the identity
COLLAPSED_SIZE = 2**21  # largest rows x inducing inputs for which every step sees all rows
BATCH_SIZE = 512
ENGINES = {"ipvi": "anchored", "dsvi": "gaussian"}  # and the posterior that each one finds


class DeepGPLVM(ClassNamePrefixFeaturesOutMixin, TransformerMixin, SavedEstimator):
    """Rows as a deep GP of latents that nobody has seen: a map of `X`, and the way back.

    NaN in `X` is a missing entry, in `fit` and everywhere else; a row may miss all of them, and its
    latent is then the prior. Columns are centred and divided by one number for all, or by one for
    each with `standardize`. With `num_inducing=None` there are no inducing variables, at a cost of
    N³ in each step; "auto" does so for few rows. Engine "ipvi" finds posteriors of any shape by the
    anchored game, "dsvi" Gaussian ones. Noise is normal, and `power` that of the data term.

    A finite `tail` gives each new row a noise scale of its own, as if all its entries were one draw
    of a Student-t with so many degrees of freedom: where rows may be unlike those of the fit, what
    is seen of one tells how far to believe it.
    """

    n_features_in_: int  # set by scikit-learn's validation
    _needed = frozenset({"fitted_", "centre_", "unit_", "seed_"})

    @no_type_check  # scikit-learn wants any value stored as it is; `fit` checks them all
    def __init__(
        self,
        latent_dim: int = 2,
        num_layers: int = 1,
        *,
        hidden_dim: int | None = None,
        num_inducing: int | str | None = "auto",
        kernel: recipes.Kernel = "rbf",
        likelihood: str = "gaussian",
        engine: str = "ipvi",
        game: str = "anchored",
        standardize: bool = False,
        num_steps: int | None = None,
        batch_size: int | None = None,
        num_samples: int = 1,
        power: float = 0.0,
        learning_rate: float = LEARNING_RATE,
        num_mixture: int = 20,
        num_draws: int = 200,
        tail: float = np.inf,
        dtype: str = "float64",
        random_state: int | np.random.RandomState | None = None,
        progress: bool = False,
    ):
        self.latent_dim = latent_dim
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.num_inducing = num_inducing
        self.kernel = kernel
        self.likelihood = likelihood
        self.engine = engine
        self.game = game
        self.standardize = standardize
        self.num_steps = num_steps
        self.batch_size = batch_size
        self.num_samples = num_samples
        self.power = power
        self.learning_rate = learning_rate
        self.num_mixture = num_mixture
        self.num_draws = num_draws
        self.tail = tail
        self.dtype = dtype
        self.random_state = random_state
        self.progress = progress

    # ---- fit ----------------------------------------------------------------------------------

    def fit(self, X: Rows, y: object = None) -> "DeepGPLVM":
        """Learn latents and functions from the rows of `X` alone; `y` is not looked at.

        `Ctrl-C` ends the training and keeps what is done.
        """
        del y
        self._check_settings()
        table = rows.observations(self, X, reset=True)
        centre, unit = self._measure(table)
        seed = seed_of(self.random_state)
        outcome = self._train(seed, (table - centre) / unit)
        # Only now: a fit that failed leaves the estimator as it was.
        self.seed_, self.centre_, self.unit_ = seed, centre, unit
        self.fitted_, self.history_ = outcome.fitted, outcome.history
        return self

    def _check_settings(self) -> None:
        """Raise `InputError` for a setting that no rows could make valid."""
        recipes.check_kernel(self.kernel)
        recipes.choose("engine", self.engine, ENGINES)
        recipes.choose("game", self.game, dict.fromkeys(("anchored",)))
        recipes.choose("likelihood", self.likelihood, dict.fromkeys(("gaussian",)))
        recipes.choose("dtype", self.dtype, dict.fromkeys(("float64", "float32")))
        for name in ("latent_dim", "num_layers", "num_samples", "num_mixture", "num_draws"):
            at_least_one(name, getattr(self, name))
        for name in ("hidden_dim", "num_steps", "batch_size"):
            at_least_one(name, getattr(self, name), optional=True)
        if self.num_inducing is not None and self.num_inducing != "auto":
            at_least_one("num_inducing", self.num_inducing, otherwise='"auto" or None')
        inside("power", self.power, lambda a: 0.0 <= a <= 1.0, "from 0 to 1")
        inside("learning_rate", self.learning_rate, lambda r: 0.0 < r < np.inf, "above 0")
        inside("tail", self.tail, lambda t: t > 0.0, "above 0")

    def _measure(self, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Centre and unit of every column."""
        if len(table) < 2:
            raise InputError("X has one row (n_samples = 1); pass at least two.")
        empty = np.all(np.isnan(table), axis=0)
        if np.any(empty):
            raise InputError(
                f"X has no value in column {int(np.argmax(empty))}; leave that column out."
            )
        for name in ("latent_dim", *(["hidden_dim"] if self.num_layers > 1 else [])):
            if (getattr(self, name) or 1) > min(table.shape):
                raise InputError(
                    f"{name} {getattr(self, name)} is more than the {min(table.shape)} components "
                    f"that X of shape {table.shape} has; make it smaller."
                )
        centre = np.nanmean(table, axis=0)
        unit = np.sqrt(np.nanmean((table - centre) ** 2, axis=0))
        if not self.standardize:
            unit = np.full_like(unit, np.sqrt(np.mean(unit**2)))
        return centre, np.where(unit > 0.0, unit, 1.0)

    def _train(self, seed: int, table: np.ndarray) -> train.Outcome:
        """Gaussians from the start at principal components, then what mixes them."""
        first, second, make, _ = _keys(seed)
        num_inducing = self._num_inducing(len(table))
        config = recipes.Config(
            num_layers=self.num_layers,
            hidden_dim=self.hidden_dim or self.latent_dim,
            num_inducing=num_inducing or 1,
            kernel=self.kernel,
            hidden_scale=1.0,
            hidden_variance=HIDDEN_VARIANCE,
            shared=True,
        )
        dense, kind = num_inducing is None, {"dtype": self.dtype}
        start = latent.start(table, self.latent_dim, config, dense=dense, seed=seed, **kind)
        data = latent.number_rows(table, **kind)
        batch_size = self._batch_size(len(table), num_inducing)
        num_steps = self.num_steps or (NUM_STEPS if batch_size is None else BATCH_STEPS)
        mixes = self.engine == "ipvi"

        def stage(num_steps: int, rate: float, num_kept: int) -> growth.Stage:
            options = {"batch_size": batch_size, "progress": self.progress, "num_kept": num_kept}
            return growth.Stage(self._engine(batch_size, num_steps, rate), num_steps, options)

        climb = stage(num_steps, self.learning_rate, 0 if mixes else self.num_mixture)
        outcome = climb.run(first, start, data)
        if not mixes:
            return outcome
        with scope(self.dtype):
            mixed = _anchor(make, outcome.fitted)
        game = stage(max(1, round(MIXED_SHARE * num_steps)), MIXED_RATE, self.num_mixture)
        return growth.go_on(second, outcome, mixed, game, data)

    def _num_inducing(self, num_rows: int) -> int | None:
        """Inducing inputs of a layer, None if the rows take their place."""
        if self.num_inducing != "auto":
            return self.num_inducing
        whole = self.batch_size is None or self.batch_size >= num_rows
        return None if whole and num_rows <= DENSE_ROWS else NUM_INDUCING

    def _batch_size(self, num_rows: int, num_inducing: int | None) -> int | None:
        """Rows in a step, None for all of them."""
        if num_inducing is None:
            if (self.batch_size or num_rows) < num_rows:
                raise InputError(
                    f"batch_size {self.batch_size} is less than the {num_rows} rows that every "
                    "step needs without inducing variables; set num_inducing."
                )
            return None
        many = num_rows * num_inducing > COLLAPSED_SIZE
        some = self.batch_size or (BATCH_SIZE if many else num_rows)
        return None if some >= num_rows else some

    def _engine(self, batch_size: int | None, num_steps: int, rate: float) -> Engine:
        kind = CollapsedLatents if batch_size is None else NaturalLatents
        return kind(
            learning_rate=rate,
            num_samples=self.num_samples,
            power=float(self.power),
            decay_steps=num_steps,
            network_rate=NETWORK_RATE,
        )

    # ---- latents of rows ----------------------------------------------------------------------

    def transform(self, X: Rows) -> np.ndarray:
        """The posterior mean of each row's latent, [N, latent_dim]."""
        return self._place(self._rows(X)).mean

    def sample_latent(self, X: Rows, n_samples: int = 1, random_state: int = 0) -> np.ndarray:
        """Draws of each row's latent given its observed entries, [N, latent_dim, n_samples]."""
        at_least_one("n_samples", n_samples)
        random = np.random.default_rng(random_state)
        return np.moveaxis(self._place(self._rows(X)).sample(random, n_samples), 0, 2)

    def latent_log_density(self, X: Rows, points: Rows) -> np.ndarray:
        """`log p(x, y_O)` of each row of `X` at each latent of `points`, [N, K].

        On a grid, up to a constant, the posterior of a row's latent itself.
        """
        table, points = self._rows(X), rows.latents(points, self.latent_dim)
        found = placing.log_posterior(self.key_, self.fitted_, points, table, **self._law)
        return found - self._log_units(table)[:, None]

    def score_samples(self, X: Rows) -> np.ndarray:
        """Log density of the observed entries of each row; about 0 for a row without any."""
        table = self._rows(X)
        return self._place(table).log_evidence - self._log_units(table)

    def score(self, X: Rows, y: object = None) -> float:
        """The mean of `score_samples`."""
        del y
        return float(np.mean(self.score_samples(X)))

    def _rows(self, X: Rows) -> np.ndarray:
        """The rows of `X` in the model's units."""
        check_is_fitted(self)
        return (rows.observations(self, X, reset=False) - self.centre_) / self.unit_

    def _log_units(self, table: np.ndarray) -> np.ndarray:
        """What the units of a row's observed entries take from its log density."""
        return np.isfinite(table) @ np.log(self.unit_)

    def _place(self, table: np.ndarray) -> Placed:
        return placing.place(self.key_, self.fitted_, table, num=self.num_draws, **self._law)

    @property
    def _law(self) -> dict[str, Any]:
        """What the law of a new row's entries depends on, beside the fit."""
        return {"num_samples": self.num_mixture, "tail": float(self.tail)}

    # ---- and back -----------------------------------------------------------------------------

    def inverse_transform(self, X: Rows) -> np.ndarray:
        """The mean of the rows that latents stand for."""
        check_is_fitted(self)
        points = rows.latents(X, self.latent_dim)
        functions, _ = jr.split(self.key_)
        mean, _ = predict.summarise(
            predict.moments, functions, self.fitted_, points, num_samples=self.num_mixture
        )
        return self.centre_ + self.unit_ * np.asarray(mean, np.float64)

    def reconstruct(self, X: Rows, n_samples: int = 1, random_state: int = 0) -> np.ndarray:
        """Draws of complete rows given what is observed of them, [N, n_features, n_samples].

        Each is drawn at a latent of its own, so that a row with several explanations has draws of
        all; entries that were observed stay as they are.
        """
        at_least_one("n_samples", n_samples)
        table, random = self._rows(X), np.random.default_rng(random_state)
        latents = self._place(table).sample(random, n_samples).reshape(-1, self.latent_dim)
        again = np.tile(table, (n_samples, 1))
        drawn = placing.complete(
            self.key_, self.fitted_, latents, again, random=random, **self._law
        )
        whole = self.centre_ + self.unit_ * np.asarray(drawn, np.float64)
        whole = np.moveaxis(whole.reshape(n_samples, *table.shape), 0, 2)
        given = rows.observations(self, X, reset=False)[:, :, None]
        return np.where(np.isnan(given), whole, given)

    # ---- what was learned ---------------------------------------------------------------------

    @property
    def embedding_(self) -> np.ndarray:
        """Where training has put the latents of its rows."""
        return np.asarray(self._below.latents.centres, np.float64)

    def sample_embedding(self, n_samples: int = 1, random_state: int = 0) -> np.ndarray:
        """Draws of the latents of the training rows as they were fitted, [N, D, n_samples]."""
        at_least_one("n_samples", n_samples)
        latents, key = self._below.latents, jr.key(random_state)
        with scope(self.dtype):
            drawn = latents.sample(key, jnp.arange(len(latents.centres)), n_samples)
            return np.moveaxis(np.asarray(drawn, np.float64), 0, 2)

    @property
    def noise_std_(self) -> np.ndarray:
        """Standard deviation of the noise of each column."""
        check_is_fitted(self)
        likelihood = self.fitted_.model.likelihood
        assert isinstance(likelihood, Gaussian)
        with scope(self.dtype):
            return np.sqrt(float(likelihood.noise)) * self.unit_

    @property
    def _below(self) -> Below:
        check_is_fitted(self)
        assert isinstance(self.fitted_.posterior, LatentPosterior)
        return self.fitted_.posterior.below

    @property
    def _n_features_out(self) -> int:
        """For the names of the latents that scikit-learn makes up."""
        return self.latent_dim

    @property
    def key_(self) -> Key:
        """Of the functions and draws that answer every question."""
        return _keys(self.seed_)[3]

    @classmethod
    def _from_file(cls, parameters: dict[str, Any]) -> "DeepGPLVM":
        """Files of before name the posterior in place of the engine that finds it."""
        finds = {posterior: engine for engine, posterior in ENGINES.items()}
        if "posterior" in (given := dict(parameters)):
            given["engine"] = finds[given.pop("posterior")]
        return cls(**given)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _keys(seed: int) -> tuple[Key, ...]:
    """One for each of both stages, one for what mixes, one for answers."""
    return tuple(jr.split(jr.key(seed), 4))


def _anchor(key: Key, fitted: Fitted) -> Fitted:
    """The same fit with generators around the Gaussians of latents and hidden layers."""
    posterior = fitted.posterior
    assert isinstance(posterior, LatentPosterior)
    latents, hidden = posterior.below.latents, posterior.below.hidden
    assert isinstance(latents, GaussianLatents) and isinstance(hidden, GaussianPosterior)
    first, second = jr.split(key)
    below = Below(
        anchored_latents(first, latents),
        anchored_posterior(second, hidden, fitted.model, rank=0) if hidden.means else hidden,
        posterior.below.dense,
    )
    return Fitted(fitted.model, dataclasses.replace(posterior, below=below))
