"""Small deep GPs whose posterior every engine shares, and long NUTS chains that draw from it.

Hyperparameters are known and conditionals are their means, so `p(v | y)` over the whitened inducing
values is one density with a gradient. Hidden layers have the identity as their mean, which leaves
one mode; `mirror` has two of weight 1/2 by its symmetry (see `nashgp.experiments.mirror`).
"""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from nashgp import datasets, diagnostics
from nashgp.batch import Data, make_data
from nashgp.errors import InputError, NumericalError
from nashgp.experiments import mirror
from nashgp.layers import Inducing, SparseGPLayer
from nashgp.likelihoods import AbstractLikelihood, Bernoulli, Gaussian, StudentT
from nashgp.means import Identity, Zero
from nashgp.model import DeepGP
from nashgp.posteriors import Fitted, gaussian_posterior
from nashgp.precision import cast, scope
from nashgp.priors import Values
from nashgp.recipes import KERNELS
from nashgp.shapes import Key, Number, Scalar

MOST_NUMBERS, MOST_DRAWS = 45_000, 5_000  # of a reference that are kept: the files stay small
NUM_CHAINS = 4
ACCEPTANCE = 0.9  # a NUTS step so small that no chain leaves a narrow valley by an error
MOST_RHAT, LEAST_EFFECTIVE = 1.01, 1_000.0
Row = Float[np.ndarray, " N"]


@dataclasses.dataclass(frozen=True)
class Target:
    """Reach and number of the inducing inputs of each layer, the rows, and the likelihood."""

    layers: tuple[tuple[float, int], ...]
    num_rows: int
    truth: Callable[[Row, np.random.Generator], Row]
    likelihood: Callable[[], AbstractLikelihood]
    lengthscale: float = 0.6
    variance: float = 1.0  # of the last layer
    hidden_variance: float = 0.1


def _noisy(function: Callable[[Row], Row], noise: float) -> Callable[..., Row]:
    return lambda x, random: function(x) + noise**0.5 * random.normal(size=x.shape)


def _outliers(x: Row, random: np.random.Generator) -> Row:
    """A line with every fifth row far above it."""
    return 0.5 * x + 0.1 * random.normal(size=x.shape) + 1.5 * (np.arange(len(x)) % 5 == 2)


TARGETS = {
    "sine": Target(
        ((1.0, 8),), 25, _noisy(lambda x: np.sin(4.0 * x), 0.1), lambda: Gaussian([0.1])
    ),
    "all-ones": Target(((1.0, 5),), 12, lambda x, _: np.ones_like(x), Bernoulli, variance=16.0),
    "outliers": Target(((1.0, 8),), 15, _outliers, lambda: StudentT([0.1], [3.0])),
    "few-rows": Target(
        ((1.0, 5), (1.5, 6)), 5, _noisy(lambda x: 2.0 * np.abs(x), 0.1), lambda: Gaussian([0.1])
    ),
    "step": Target(
        ((1.0, 8), (1.5, 8)), 16, _noisy(lambda x: np.sign(x), 0.05), lambda: Gaussian([0.05])
    ),
    "gate": Target(
        ((1.0, 6), (1.5, 6)), 14, lambda x, _: 1.0 * (np.abs(x) < 0.5), Bernoulli, variance=4.0
    ),
    "three-layers": Target(
        ((1.0, 5), (1.5, 5), (1.5, 6)),
        15,
        _noisy(lambda x: np.sin(3.0 * x), 0.1),
        lambda: Gaussian([0.1]),
    ),
}
NAMES = [*TARGETS, "mirror"]


def problem(name: str, dtype: str = "float32") -> tuple[Fitted, Data]:
    """A model with half the prior's spread for a posterior, and its rows."""
    if name == "mirror":
        fitted, data = mirror.problem(dtype)
        model = fitted.model
    else:
        target = TARGETS[name]
        x = np.linspace(-1.0, 1.0, target.num_rows)
        y = target.truth(x, np.random.default_rng(0))
        with scope(dtype):
            model = cast(_model(target), dtype)
            data = make_data(x[:, None], y[:, None], dtype=dtype)
    with scope(dtype):
        return Fitted(model, gaussian_posterior(model, hidden_scale=0.5, last_scale=0.5)), data


def _model(target: Target) -> DeepGP:
    last = len(target.layers) - 1
    layers = tuple(
        SparseGPLayer(
            KERNELS["rbf"](
                target.lengthscale, target.variance if number == last else target.hidden_variance
            ),
            Zero(1) if number == last else Identity(),
            jnp.linspace(-reach, reach, num)[:, None],
            1,
        )
        for number, (reach, num) in enumerate(target.layers)
    )
    return DeepGP(layers, Pointwise(target.likelihood()), deterministic=True)


def split(model: DeepGP, flat: Float[Array, "S D"]) -> Values:
    """Rows of all inducing values as those of each layer; `diagnostics.flat` undoes it."""
    ends = np.cumsum([layer.num_inducing * layer.num_outputs for layer in model.layers])[:-1]
    parts = jnp.split(flat, ends, axis=1)
    shapes = [(layer.num_inducing, layer.num_outputs) for layer in model.layers]
    return tuple(part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True))


@eqx.filter_jit
def functions(model: DeepGP, values: Values, x: Float[Array, "N 1"]) -> Float[Array, "S N"]:
    """Every draw's function at some inputs; where conditionals are means, noise has no effect."""
    still = model.noise(jr.key(0), len(values[0]), 1)
    return model.propagate(x, tuple(map(Inducing, values)), still).mean[:, :, 0]


def log_joint(model: DeepGP, data: Data) -> Callable[[Float[Array, " D"]], Scalar]:
    """`log p(y, v)` of a flat v, in plain words: no engine has a part in it.

    Covariances of inducing inputs are factorised once and not in every step of a chain.
    """
    inverses = eqx.filter_jit(lambda model: [layer.factor().inverse for layer in model.layers])(
        model
    )

    def density(flat: Float[Array, " D"]) -> Scalar:
        f, values = data.x, [value[0] for value in split(model, flat[None])]
        for layer, inverse, v in zip(model.layers, inverses, values, strict=True):
            f = layer.mean(f) + layer.kernel.cross(f, layer.z) @ (inverse.T @ v)
        return jnp.sum(model.likelihood.log_prob(f, data.y)) - 0.5 * jnp.sum(flat**2)

    return density


def averaged(fitted: Fitted) -> Fitted:
    """The same target with the likelihood itself, for engines that have to know it."""
    likelihood = fitted.model.likelihood
    assert isinstance(likelihood, Pointwise)
    return eqx.tree_at(lambda f: f.model.likelihood, fitted, likelihood.inner)


class Pointwise(AbstractLikelihood):
    """A likelihood where functions are known given the inducing values: averages are values.

    The same target without quadrature over a variance that is zero.
    """

    inner: AbstractLikelihood

    @property
    def is_discrete(self) -> bool:
        return self.inner.is_discrete

    def num_latent(self, num_targets: int) -> int:
        return self.inner.num_latent(num_targets)

    def log_prob(self, f: Float[Array, "N P"], y: Float[Array, "N Q"]) -> Float[Array, "N Q"]:
        return self.inner.log_prob(f, y)

    def power_term(
        self,
        mean: Float[Array, "N P"],
        var: Float[Array, "N P"],
        y: Float[Array, "N Q"],
        power: Number,
    ) -> Float[Array, "N Q"]:
        del var, power
        return self.inner.log_prob(mean, y)

    def moments(
        self, mean: Float[Array, "N P"], var: Float[Array, "N P"]
    ) -> tuple[Float[Array, "N R"], Float[Array, "N R"]]:
        return self.inner.moments(mean, var)

    def cdf(
        self, mean: Float[Array, "N P"], var: Float[Array, "N P"], y: Float[Array, "N Q"]
    ) -> Float[Array, "N Q"]:
        return self.inner.cdf(mean, var, y)

    def sample(self, key: Key, f: Float[Array, "N P"]) -> Float[Array, "N Q"]:
        return self.inner.sample(key, f)


# ---- references ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Reference:
    """Thinned draws of `p(v | y)`, the recipe of their chains, and whether these agree."""

    draws: Float[np.ndarray, "R D"]
    log_density: Float[np.ndarray, " R"]
    seed: int
    num_chains: int
    num_warm_up: int
    num_steps: int
    rhat: float
    effective: float
    divergences: int
    seconds: float

    @property
    def settled(self) -> bool:
        good = self.rhat < MOST_RHAT and self.effective > LEAST_EFFECTIVE
        return good and self.divergences == 0

    def save(self, path: Path) -> None:
        with datasets.whole_file(path) as partial, open(partial, "wb") as file:
            np.savez_compressed(file, **dataclasses.asdict(self))

    @staticmethod
    def load(path: Path) -> "Reference":
        with np.load(path, allow_pickle=False) as arrays:
            fields = {field.name: arrays[field.name] for field in dataclasses.fields(Reference)}
        return Reference(**{k: v if v.ndim else v.item() for k, v in fields.items()})


def reference(
    name: str, folder: Path, *, num_steps: int, num_warm_up: int, seed: int = 0, loose: bool = False
) -> Reference:
    """The draws of a target, from its file if there is one and it belongs to this target.

    Unless `loose`, chains must agree: split R-hat, effective draws and divergences are demanded.
    """
    path = folder / f"{name}-{num_steps}-{seed}.npz"
    model, data = _exact(name)
    found = Reference.load(path) if path.is_file() else None
    if found is None or not _belongs(found, model, data):
        found = _sampled(name, num_steps, num_warm_up, seed)
        found.save(path)
    if not (loose or found.settled):
        raise NumericalError(
            f"the chains of {name!r} have not settled (R-hat {found.rhat:.4f}, effective draws "
            f"{found.effective:.0f}, divergences {found.divergences}); use more reference steps."
        )
    return found


def _exact(name: str) -> tuple[DeepGP, Data]:
    fitted, data = problem(name, "float64")
    return fitted.model, data


def _belongs(found: Reference, model: DeepGP, data: Data) -> bool:
    """Whether the draws have the log densities they are said to have, up to their rounding."""
    if found.draws.shape[1] != sum(layer.num_inducing for layer in model.layers):
        return False
    with scope("float64"):
        some = jnp.asarray(found.draws[:100], "float64")
        again = jax.jit(jax.vmap(log_joint(model, data)))(some)
    return bool(np.allclose(again, found.log_density[:100], atol=0.01))


def _sampled(name: str, num_steps: int, num_warm_up: int, seed: int) -> Reference:
    model, data = _exact(name)
    began = time.perf_counter()
    with scope("float64"):
        chains, divergences = nuts(
            jr.key(seed),
            log_joint(model, data),
            sum(layer.num_inducing for layer in model.layers),
            num_warm_up=num_warm_up,
            num_steps=num_steps,
        )
        if name == "mirror":
            chains = mirror.folded(model, chains)
        all_ = chains.reshape(-1, chains.shape[2])
        kept = min(MOST_DRAWS, MOST_NUMBERS // all_.shape[1], len(all_))
        places = np.linspace(0, len(all_) - 1, kept).astype(int)
        draws = all_[places]
        if name == "mirror":  # every other draw is turned: each half has weight 1/2 exactly
            draws[1::2] = mirror.flipped(model, draws[1::2])
        draws = draws.astype(np.float32)
        density = jax.vmap(log_joint(model, data))
        return Reference(
            draws,
            np.asarray(jax.jit(density)(jnp.asarray(draws, "float64")), np.float32),
            seed,
            NUM_CHAINS,
            num_warm_up,
            num_steps,
            float(np.max(diagnostics.split_rhat(chains))),
            float(np.min(diagnostics.effective_draws(chains))),
            divergences,
            time.perf_counter() - began,
        )


def nuts(
    key: Key,
    log_density: Callable[[Float[Array, " D"]], Scalar],
    num_dims: int,
    *,
    num_warm_up: int,
    num_steps: int,
) -> tuple[Float[np.ndarray, "K T D"], int]:
    """Chains of the No-U-Turn sampler from draws of the prior, and how many steps diverged.

    Step size and a dense mass matrix adapt in the warm-up, for each chain by itself.
    """
    try:
        import blackjax
    except ImportError as error:
        raise InputError("Reference draws need BlackJAX; run `pip install blackjax`.") from error
    nuts_: Any = blackjax.nuts

    def one(key: Key, start: Float[Array, " D"]) -> tuple[Float[Array, "T D"], Array]:
        warm, draw = jr.split(key)
        adaptation: Any = blackjax.window_adaptation(
            nuts_, log_density, is_mass_matrix_diagonal=False, target_acceptance_rate=ACCEPTANCE
        )
        (state, settings), _ = adaptation.run(warm, start, num_warm_up)
        step = nuts_(log_density, **settings).step

        def body(state: Any, key: Key) -> tuple[Any, tuple[Array, Array]]:
            state, info = step(key, state)
            return state, (state.position, info.is_divergent)

        return jax.lax.scan(body, state, jr.split(draw, num_steps))[1]

    place, move = jr.split(key)
    # BlackJAX mixes dtypes and ranks, which is its own affair.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        start = jr.normal(place, (NUM_CHAINS, num_dims))
        chains, divergent = jax.jit(jax.vmap(one))(jr.split(move, NUM_CHAINS), start)
    return np.asarray(chains), int(np.sum(divergent))
