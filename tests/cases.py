"""The registries that contract tests run over, and small problems to run them on."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from nashgp import kernels
from nashgp.batch import Data, make_data
from nashgp.engines import DSVI, SGHMC, Collapsed, NaturalGradient, PaperGame
from nashgp.likelihoods import Bernoulli, Gaussian, Poisson, RobustMax, Softmax, StudentT
from nashgp.posteriors import Fitted, GaussianPosterior
from nashgp.precision import dtype_of, scope
from nashgp.recipes import Config, build

# Each entry takes the number of input columns.
KERNELS = {
    "rbf": lambda d: kernels.RBF(np.linspace(0.7, 1.6, d), 1.3),
    "rbf-shared": lambda d: kernels.RBF(0.9, 0.5),
    "rbf-columns": lambda d: kernels.RBF([0.8], 1.1, columns=(d - 1,)),
    "matern12": lambda d: kernels.Matern12(np.linspace(0.7, 1.6, d), 1.3),
    "matern32": lambda d: kernels.Matern32(np.linspace(0.7, 1.6, d), 1.3),
    "matern52": lambda d: kernels.Matern52(np.linspace(0.7, 1.6, d), 1.3),
    "rational-quadratic": lambda d: kernels.RationalQuadratic(np.linspace(0.7, 1.6, d), 1.3, 0.7),
    "periodic": lambda d: kernels.Periodic(np.linspace(0.7, 1.6, d), 1.3, np.linspace(1.0, 2.0, d)),
    "linear": lambda d: kernels.Linear(np.linspace(0.5, 1.5, d)),
    "constant": lambda d: kernels.Constant(0.8),
    "sum": lambda d: kernels.RBF(0.9) + kernels.Linear(0.3),
    "product": lambda d: kernels.Periodic(1.2, period=1.7) * kernels.Matern32(2.0),
    "nested": lambda d: (kernels.RBF(0.9) + kernels.Constant(0.4)) * kernels.Linear(0.3),
}

# Name -> (likelihood for Q targets, number of targets, targets for N rows).
LIKELIHOODS = {
    "gaussian": (
        lambda q: Gaussian(np.linspace(0.1, 0.3, q)),
        2,
        lambda r, n: r.normal(size=(n, 2)),
    ),
    "heteroscedastic": (
        lambda q: Gaussian(np.linspace(0.1, 0.3, q), varies=True),
        2,
        lambda r, n: r.normal(size=(n, 2)),
    ),
    "student-t": (lambda q: StudentT(0.3, 4.0), 1, lambda r, n: r.normal(size=(n, 1))),
    "bernoulli": (lambda q: Bernoulli(), 1, lambda r, n: 1.0 * r.integers(0, 2, (n, 1))),
    "poisson": (lambda q: Poisson(), 1, lambda r, n: 1.0 * r.poisson(2.0, (n, 1))),
    "robust-max": (lambda q: RobustMax(3), 1, lambda r, n: 1.0 * r.integers(0, 3, (n, 1))),
    "softmax": (lambda q: Softmax(3), 1, lambda r, n: 1.0 * r.integers(0, 3, (n, 1))),
}

ENGINES = {
    "dsvi": DSVI(num_samples=2),
    "dsvi-drawn": DSVI(num_samples=3, draw_inducing=True),
    "dsvi-power": DSVI(num_samples=2, power=0.5),
    "dsvi-drawn-power": DSVI(num_samples=2, power=1.0, draw_inducing=True),
    "collapsed": Collapsed(num_samples=2),
    "natural": NaturalGradient(num_samples=2),
    "game": PaperGame(num_samples=2),
    "sghmc": SGHMC(num_chains=2, num_draws=3, burn_in=1, spacing=1, window=2),
}

# Compiling is most of the time of a test, so not every engine meets every likelihood: each engine
# meets the Gaussian, and each likelihood the two engines that ask different things of it.
PAIRS = [(engine, "gaussian") for engine in ENGINES] + [
    (engine, name)
    for name in LIKELIHOODS
    if name != "gaussian"
    for engine in ("dsvi", "dsvi-drawn-power")
]
PAIRS += [("natural", "poisson"), ("game", "robust-max")]
PAIRS += [("natural", "heteroscedastic"), ("collapsed", "heteroscedastic")]


def rows(num: int = 12, width: int = 2, seed: int = 0) -> np.ndarray:
    """Standard normal inputs."""
    return np.random.default_rng(seed).normal(size=(num, width))


def tiny_data(
    likelihood: str = "gaussian", num: int = 12, width: int = 2, dtype: str = "float64"
) -> Data:
    """A small data set for one likelihood of the registry."""
    targets = LIKELIHOODS[likelihood][2](np.random.default_rng(1), num)
    return make_data(rows(num, width), targets, dtype=dtype)


def tiny_fitted(
    likelihood: str = "gaussian",
    num_layers: int = 2,
    width: int = 2,
    dtype: str = "float64",
    **settings,
) -> Fitted:
    """A small model with a posterior away from its start, so that no term vanishes."""
    make, num_targets, _ = LIKELIHOODS[likelihood]
    with scope(dtype):
        config = Config(
            num_layers=num_layers,
            num_inducing=5,
            likelihood=make(num_targets),
            hidden_scale=0.3,
            **settings,
        )
    return disturb(build(rows(12, width), num_targets, config, dtype=dtype))


def disturb(fitted: Fitted, seed: int = 3, size: float = 0.3) -> Fitted:
    """Move the posterior's parameters at random, and a field of the likelihood."""
    random = np.random.default_rng(seed)

    def moved(leaf, amount):
        return jnp.asarray(np.asarray(leaf) + amount * random.normal(size=leaf.shape), leaf.dtype)

    with scope(dtype_of(fitted)):
        means = tuple(moved(leaf, size) for leaf in fitted.posterior.means)
        roots = tuple(jnp.tril(moved(leaf, 0.2 * size)) for leaf in fitted.posterior.roots)
        model = fitted.model
        if getattr(model.likelihood, "field", None):
            value = moved(model.likelihood.field.value, size)
            model = eqx.tree_at(lambda each: each.likelihood.field.value, model, value)
        return Fitted(model, GaussianPosterior(means, roots))
