"""The settings of a fit: what is allowed, and what they mean for so many rows."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from nashgp import recipes
from nashgp.errors import InputError
from nashgp.likelihoods import AbstractLikelihood, Gaussian, has_varying_noise

KERNEL, DISTINCT = "rbf+matern32", "distinct"
NUM_SAMPLES, PAPER_SAMPLES = 1, 10
LEARNING_RATE, NETWORK_RATE = 0.03, 3e-4
NUM_INDUCING, FEW_ROWS, MANY_INDUCING = 128, 2_000, 256  # more inducing inputs while rows are few
JUDGED_ROWS = 200  # fewer rows than this cannot tell powers or depths apart
COLLAPSED_SIZE = 2**21  # largest rows x inducing inputs x draws for which every step sees all rows
MEMORY_STEPS, MEMORY_RATE = 60, 0.05  # few, for they are dear, and so with larger strides
MEMORY = {"num_layers": 1, "num_inducing": DISTINCT, "kernel": "matern12", "power": 0.5}
WIDE_INDUCING, WIDE_SIZE = 1_024, 2**25  # of a wide single layer, and most rows x those
WIDE_STEPS, WIDE_RATE = 100, 0.05
WIDE = {"num_layers": 1, "num_inducing": WIDE_INDUCING, "last_layer": "collapsed", "power": 1.0}
# Of the last of several layers where rows are many, beside a wide layer and where none is afforded.
TOP_INDUCING, TOP_ALONE = 256, 512


@dataclasses.dataclass(frozen=True)
class Settings:
    """Arguments of an estimator that say how its models are trained, already checked.

    Whatever they leave open, by "auto" or None, the rows decide.
    """

    engine: str
    game: str
    num_layers: int | str | None
    hidden: str
    hidden_dim: int | None
    num_inducing: int | str
    kernel: recipes.Kernel
    covariance: str
    num_steps: int | None
    batch_size: int | None
    num_samples: int | None
    last_layer: str
    power: float | int | str
    learning_rate: float | int | None
    validation_fraction: float | int
    num_restarts: int | str
    num_mixture: int
    dtype: str
    progress: bool
    engine_options: Mapping[str, Any] | None
    usual_rate: float = LEARNING_RATE  # of Adam, unless `learning_rate` says
    remembers: bool = False  # whether the fit to go on from knows every distinct row by heart

    @classmethod
    def of(cls, estimator: Any, **others: Any) -> "Settings":
        """Those of an estimator; `others` are no arguments of it."""
        names = [field.name for field in dataclasses.fields(cls) if field.name not in others]
        return cls(**{name: _plain(getattr(estimator, name)) for name in names}, **others)

    def but(self, **settings: Any) -> "Settings":
        """The same with some others."""
        return dataclasses.replace(self, **settings)

    # ---- who plays ----------------------------------------------------------------------------

    @property
    def samples(self) -> bool:
        return self.engine == "sghmc"

    @property
    def plays_paper(self) -> bool:
        return self.engine == "ipvi" and self.game == "paper"

    @property
    def plays_anchored(self) -> bool:
        return self.engine == "ipvi" and self.game == "anchored"

    @property
    def num_draws(self) -> int:
        """Posterior draws in each training step."""
        return self.num_samples or (PAPER_SAMPLES if self.plays_paper else NUM_SAMPLES)

    @property
    def of_engine(self) -> dict[str, Any]:
        """The `engine_options` of the engine itself."""
        given = dict(self.engine_options or {})
        if self.plays_anchored:  # the rest belongs to its game
            for name in (*recipes.ANCHOR_OPTIONS, recipes.TURNS, recipes.NETWORK_RATE):
                given.pop(name, None)
        return given

    @property
    def of_generator(self) -> dict[str, Any]:
        """Those of the generator and Player 1 of an anchored game."""
        given = self.engine_options or {}
        return {name: given[name] for name in recipes.ANCHOR_OPTIONS if name in given}

    @property
    def num_turns(self) -> Any:
        """Moves of Player 1 before each step of an anchored game."""
        return (self.engine_options or {}).get(recipes.TURNS, 0)

    @property
    def network_rate(self) -> float:
        """Rate of the networks of an anchored game."""
        return float((self.engine_options or {}).get(recipes.NETWORK_RATE, NETWORK_RATE))

    # ---- what rows make of them ---------------------------------------------------------------

    def has_many(self, num_rows: int, likelihood: AbstractLikelihood) -> bool:
        """Whether there are rows enough for batches to find a deep model by themselves."""
        gaussian = isinstance(likelihood, Gaussian)
        return gaussian and not are_few(num_rows) and self.last_layer in ("auto", "natural")

    def grows(self, num_columns: int, num_rows: int, likelihood: AbstractLikelihood) -> bool:
        """Whether a deep model starts from a shallow one: its hidden layers start as identities.

        Gradient steps for the last layer are there to do as published, and so start as published;
        a kernel that was given for every layer is theirs from the start; on many rows a deep model
        finds better places by itself; and layers that are learned are no identities.
        """
        if self.hidden == "learned" or self.has_many(num_rows, likelihood):
            return False
        width = self.hidden_dim or num_columns
        named = isinstance(self.kernel, str)
        other = not self.plays_paper and not self.samples and self.last_layer != "gradient"
        return named and other and width == num_columns

    def inducing(self, num_rows: int) -> int:
        """Inducing inputs of a layer."""
        if self.num_inducing == DISTINCT:
            return num_rows  # no more are taken than are distinct
        if self.num_inducing != "auto":
            return int(self.num_inducing)
        return MANY_INDUCING if are_few(num_rows) else NUM_INDUCING

    def top_inducing(self, num_rows: int, likelihood: AbstractLikelihood) -> int | None:
        """Inducing inputs of the last layer where it has more than those below."""
        deep = self.num_layers != 1 and self.num_inducing == "auto"
        if not deep or self.plays_paper or self.samples or not self.has_many(num_rows, likelihood):
            return None
        return TOP_INDUCING if num_rows * WIDE_INDUCING <= WIDE_SIZE else TOP_ALONE

    def shares(self, width: int, num_inducing: int) -> bool:
        """Whether the outputs of a hidden layer share one covariance."""
        if self.covariance == "auto":
            return width * num_inducing**2 > recipes.FULL_SIZE
        return self.covariance == "shared"

    def num_held(self, num_rows: int) -> int:
        """Rows set aside to decide when to stop."""
        return round(self.validation_fraction * num_rows)

    # ---- models of another kind ---------------------------------------------------------------

    @property
    def wide(self) -> "Settings":
        """A single layer of many inducing inputs, integrated out."""
        return self._brief(WIDE, WIDE_STEPS, WIDE_RATE)

    @property
    def memory(self) -> "Settings":
        """A single layer with an inducing input for every distinct row."""
        return self._brief(MEMORY, MEMORY_STEPS, MEMORY_RATE)

    def _brief(self, settings: Mapping[str, Any], steps: int, rate: float) -> "Settings":
        """The same with some others, and steps that are few and large."""
        steps = min(self.num_steps or steps, steps)
        return self.but(**settings, num_steps=steps, learning_rate=self.learning_rate or rate)

    def may_be_wide(self, num_rows: int, likelihood: AbstractLikelihood) -> bool:
        """Whether a wide single layer can be afforded, and no setting says otherwise.

        Where rows are many, a single GP with inducing inputs enough is another good answer: it
        sees what is local, and a deep one what is not smooth everywhere alike.
        """
        chosen = (self.num_inducing, self.power, self.last_layer, self.batch_size)
        is_open = chosen == ("auto", "auto", "auto", None) and self.validation_fraction == 0.0
        is_open &= not self.plays_paper and not self.samples and not has_varying_noise(likelihood)
        affordable = num_rows * WIDE_INDUCING * self.num_draws <= WIDE_SIZE
        return is_open and affordable and self.has_many(num_rows, likelihood)


def are_few(num_rows: int) -> bool:
    """Whether all rows fit in each step of a deep model, and small models know most of them."""
    return num_rows <= FEW_ROWS


def can_judge(num_rows: int) -> bool:
    """Whether rows that are held out can tell models apart."""
    return num_rows >= JUDGED_ROWS


def _plain(value: Any) -> Any:
    """A number as Python has it: a grid search hands out those of NumPy."""
    return value.item() if isinstance(value, np.generic) else value


# ---- checks -------------------------------------------------------------------------------------


def check(given: Any) -> None:
    """Raise `InputError` for an estimator's setting that no rows could make valid."""
    recipes.check_kernel(given.kernel)
    engines = recipes.choose("engine", given.engine, recipes.ENGINES)
    recipes.choose("game", given.game, dict.fromkeys(("anchored", "paper")))
    if (given.engine, given.game) == ("ipvi", "anchored"):  # over all that makes Gaussians
        engines = recipes.ENGINES["dsvi"]
    recipes.choose("last_layer", given.last_layer, {"auto": None, **engines})
    recipes.choose("hidden", given.hidden, dict.fromkeys(("gp", "learned")))
    recipes.choose("covariance", given.covariance, dict.fromkeys(("auto", "full", "shared")))
    recipes.choose("dtype", given.dtype, dict.fromkeys(("float64", "float32", "auto")))
    at_least_one("num_steps", given.num_steps, optional=True)
    at_least_one("batch_size", given.batch_size, optional=True)
    at_least_one("hidden_dim", given.hidden_dim, optional=True)
    at_least_one("num_samples", given.num_samples, optional=True)
    at_least_one("num_mixture", given.num_mixture)
    if given.num_layers != "auto":
        at_least_one("num_layers", given.num_layers, optional=True, otherwise='"auto"')
    if given.num_inducing not in ("auto", DISTINCT):
        at_least_one("num_inducing", given.num_inducing, otherwise='"auto" or "distinct"')
    if given.num_restarts != "auto":
        at_least_one("num_restarts", given.num_restarts, otherwise='"auto"')
    if given.power != "auto":
        inside("power", given.power, lambda a: 0.0 <= a <= 1.0, 'from 0 to 1 or "auto"')
    if given.learning_rate is not None:
        inside("learning_rate", given.learning_rate, lambda r: 0.0 < r < np.inf, "above 0")
    fraction = given.validation_fraction
    inside("validation_fraction", fraction, lambda f: 0.0 <= f < 1.0, "from 0 to below 1")
    options = given.engine_options or {}
    inside("engine_options", options, lambda o: isinstance(o, Mapping), "a dict")


def at_least_one(name: str, value: object, *, optional: bool = False, otherwise: str = "") -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        also = "".join(f" or {word}" for word in (otherwise, optional and "None") if word)
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
