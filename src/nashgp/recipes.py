"""From data and a few settings to a sensible start."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from nashgp import kernels, means
from nashgp.engines import (
    DSVI,
    SGHMC,
    Alternating,
    Collapsed,
    Engine,
    NaturalGradient,
    PaperGame,
    Starts,
)
from nashgp.engines.collapsed import above_hidden, below_last
from nashgp.errors import InputError
from nashgp.layers import Inducing, SparseGPLayer
from nashgp.likelihoods import (
    AbstractLikelihood,
    Bernoulli,
    Gaussian,
    Poisson,
    RobustMax,
    Softmax,
    StudentT,
)
from nashgp.model import DeepGP
from nashgp.posteriors import (
    Fitted,
    GaussianPosterior,
    anchored_posterior,
    gaussian_posterior,
)
from nashgp.posteriors.anchored import FIRST_MIX, find_anchored
from nashgp.precision import cast, dtype_of, scope
from nashgp.programs import PASSING, Program

KERNELS: dict[str, Callable[..., kernels.AbstractStationary]] = {
    "rbf": kernels.RBF,
    "matern12": kernels.Matern12,
    "matern32": kernels.Matern32,
    "matern52": kernels.Matern52,
    "rational-quadratic": kernels.RationalQuadratic,
}

FULL_SIZE = 2**21  # largest width x inducing inputs² of a hidden layer with a root for each output

# Each takes the number of targets; noise and scale are in units of standardised targets.
LIKELIHOODS: dict[str, Callable[[int], AbstractLikelihood]] = {
    "gaussian": lambda num_targets: Gaussian(np.full(num_targets, 0.1)),
    "heteroscedastic": lambda num_targets: Gaussian(np.full(num_targets, 0.1), varies=True),
    "student-t": lambda num_targets: StudentT(np.full(num_targets, 0.3), np.full(num_targets, 4.0)),
    "poisson": lambda _: Poisson(),
}

# Each takes the number of classes.
CLASS_LIKELIHOODS: dict[str, Callable[[int], AbstractLikelihood]] = {
    "bernoulli": lambda _: Bernoulli(),
    "robust-max": lambda num_classes: RobustMax(num_classes),
    "softmax": lambda num_classes: Softmax(num_classes),
}

# Name -> class for each treatment of the last layer.
ENGINES: dict[str, dict[str, Callable[..., Engine]]] = {
    "ipvi": {"gradient": PaperGame},  # the paper's; an anchored game is one over those of "dsvi"
    "dsvi": {"collapsed": Collapsed, "natural": NaturalGradient, "gradient": DSVI},
    "sghmc": {"sampled": SGHMC},
}

# Settings of an anchored game that belong to its generator and Player 1.
# `num_responses` are Player 1's own moves before each step; 0 lets both players move together.
TURNS = "num_responses"
NETWORK_RATE = "network_rate"
ANCHOR_OPTIONS = (
    *("noise_dim", "width", "depth", "num_importance", "first_mix", "player1", "rank", "tied"),
)

Kernel = str | kernels.AbstractKernel | Callable[[int], kernels.AbstractKernel]

FIELD_PLACES = 64  # of a function that says how noise varies: it is smooth
KMEANS_ROWS = 20_000  # more rows than this do not move the centres, they only cost time
CLOSE = 4.0  # rows within so many roots of a rounding error are one


@dataclasses.dataclass(frozen=True)
class Config:
    """The shape of a deep GP. Widths left at None are chosen from the data.

    `kernel` is a name, names joined by "+", a kernel to start every layer from, or a function of a
    layer's input width; hidden layers may have another. Lengthscales of named kernels start at
    `lengthscale` times the distance of a typical row from the mean row. `offset` is where the prior
    mean of the last layer starts, a constant that is then learned. Hidden layers may have fewer
    inducing inputs, `hidden_inducing`; `hidden_scale` and `hidden_variance` say how they start, and
    with `shared` the outputs of each have one covariance, with `last_shared` those of the last one
    too. With `learned_skip` the skip connections of hidden layers, which the paper freezes, are
    trained with the kernels; with `low_rank` hidden layers are what their inducing values say and
    no more, so they add no noise to a row.
    """

    num_layers: int = 2
    hidden_dim: int | None = None
    num_inducing: int = 128
    kernel: Kernel = "rbf"
    hidden_kernel: Kernel | None = None
    lengthscale: float = 1.0
    likelihood: AbstractLikelihood | None = None
    offset: tuple[float, ...] | None = None
    hidden_scale: float = 1e-5
    hidden_variance: float = 1.0
    shared: bool = False
    last_shared: bool = False
    noise: float = 0.1
    hidden_inducing: int | None = None
    learned_skip: bool = False
    low_rank: bool = False

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_inducing", "hidden_inducing", "hidden_dim"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, got {value}.")
        check_kernel(self.kernel)
        check_kernel(self.hidden_kernel or self.kernel)


def check_kernel(kernel: object) -> None:
    """Raise `InputError` for what is no kernel and makes none."""
    if isinstance(kernel, kernels.AbstractKernel) or callable(kernel):
        return
    for part in kernel.split("+") if isinstance(kernel, str) else [kernel]:
        choose("kernel", part, KERNELS, 'a sum of them such as "rbf+matern32", or a kernel object')


def choose(name: str, value: object, known: Mapping[str, Any], otherwise: str = "") -> Any:
    """The entry of a table by its name, or an error that lists the names."""
    if not isinstance(value, str) or value not in known:
        names = ", ".join(known)
        otherwise = otherwise and f", {otherwise}"
        raise InputError(f"{name} must be one of {names}{otherwise}; got {value!r}.")
    return known[value]


def engine(name: str, last_layer: str = "gradient", **settings: Any) -> Engine:
    """An engine by its name and its treatment of the last layer; `settings` are its fields.

    A game starts at random networks, so it also takes `num_starts`.
    """
    kind = choose("last_layer", last_layer, choose("engine", name, ENGINES))
    known = [field.name for field in dataclasses.fields(kind)]
    if name == "ipvi":
        known.append("num_starts")
    for option in settings:
        if option not in known:
            raise InputError(
                f"engine {name!r} with last_layer {last_layer!r} has no option {option!r}; "
                f"it has {', '.join(known)}."
            )
    num_starts = settings.pop("num_starts", 1)
    if num_starts < 1:
        raise InputError(f"num_starts must be at least 1, got {num_starts}.")
    made = kind(**settings)
    return Starts(made, num_starts) if num_starts > 1 else made


def by_turns(engine: Engine, num_responses: int, rate: float, num_steps: int) -> Engine:
    """An engine whose anchored game is played by turns, if Player 1 is to have any."""
    if not isinstance(num_responses, int) or num_responses < 0:
        raise InputError(f"{TURNS} must be a whole number of at least 0; got {num_responses!r}.")
    if num_responses == 0:
        return engine
    return Alternating(engine, num_responses, rate, decay_steps=num_steps)


@threadpool_limits.wrap(limits=1)  # several threads add up in any order, and no seed decides that
def inducing_inputs(
    x: Float[np.ndarray, "N D"], num: int, *, seed: int
) -> Float[np.ndarray, "M D"]:
    """Centres of k-means clusters, or the distinct rows when there are no more than `num`."""
    random = np.random.default_rng(seed)
    rows = x if len(x) <= KMEANS_ROWS else x[random.choice(len(x), KMEANS_ROWS, replace=False)]
    num_distinct = len(_distinct(rows))
    if num_distinct <= num:  # only now: of millions it takes long
        distinct = _distinct(x)
        if len(distinct) <= num:
            return distinct
    num = min(num, num_distinct)
    found = KMeans(num, n_init="auto", max_iter=50, random_state=seed).fit(rows)
    return np.asarray(found.cluster_centers_)


def _distinct(x: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "K D"]:
    """One of all rows that k-means cannot tell apart: it rounds squared distances."""
    step = CLOSE * np.finfo(x.dtype).eps ** 0.5 * (np.max(np.ptp(x, axis=0)) or 1.0)
    _, first = np.unique(np.round(x / step), axis=0, return_index=True)
    return x[first]


def rounding(model: DeepGP, stretch: float = 1.0) -> float:
    """Largest error of single precision in `f` given inducing values, in prior deviations.

    Mean and standard deviation in every layer, midway between inducing inputs, at values drawn from
    the prior. Training often lengthens lengthscales, and neighbours then look alike: `stretch`
    measures as if they were so many times as long.
    """
    random = np.random.default_rng(0)
    pairs = [random.permutation(layer.num_inducing) for layer in model.layers]
    values = [random.normal(size=(layer.num_inducing, layer.num_outputs)) for layer in model.layers]
    host = jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, model)

    def tell(dtype: str) -> list[Float[np.ndarray, "2 M P"]]:
        def put(leaf: Any) -> Any:
            known = isinstance(leaf, np.ndarray) and np.issubdtype(leaf.dtype, np.floating)
            return jnp.asarray(leaf, dtype) if known else leaf

        near = jax.tree.map(put, host).layers
        draws = [jnp.asarray(value, dtype) for value in values]
        return [
            np.asarray(_laws(*each, stretch), float)
            for each in zip(near, pairs, draws, strict=True)
        ]

    with scope("float32"):
        single = tell("float32")
    with scope("float64"):
        double = tell("float64")
    return max(float(np.max(np.abs(a - b))) for a, b in zip(single, double, strict=True))


def _midway(
    layer: SparseGPLayer,
    pair: Int[Array, " M"],
    value: Float[Array, "M P"],
    stretch: float,
) -> Float[Array, "2 M P"]:
    """Mean and standard deviation midway between pairs of inducing inputs, in prior deviations."""
    near = eqx.tree_at(lambda each: each.z, layer, layer.z / stretch)
    x = 0.5 * (near.z + near.z[pair])
    features = near.features(x)
    law = near.moments(features, Inducing(value))
    parts = jnp.stack([law.mean - features.mean, jnp.sqrt(law.variance)])
    return parts / jnp.sqrt(near.kernel.diag(x))[None, :, None]


_laws = Program(_midway, PASSING)  # step by step it would be hundreds of programs


def build(
    x: Float[np.ndarray, "N D"],
    num_targets: int,
    config: Config,
    *,
    seed: int = 0,
    dtype: DTypeLike = np.float64,
) -> Fitted:
    """A deep GP at its start, with the Gaussian posterior of DSVI.

    Inducing inputs are k-means centres, pushed up through the skip connections; lengthscales start
    by the distance of a typical row from the mean row, which is `√D` if standardised.
    """
    likelihood = config.likelihood
    with scope(dtype):
        if likelihood is None:
            likelihood = Gaussian(jnp.full(num_targets, config.noise))
        if isinstance(likelihood, Gaussian) and likelihood.varies:
            likelihood = likelihood.placed(inducing_inputs(x, FIELD_PLACES, seed=seed), num_targets)
        width = config.hidden_dim or min(x.shape[1], 30)
        widths = [width] * (config.num_layers - 1) + [likelihood.num_latent(num_targets)]
        top = inducing_inputs(x, config.num_inducing, seed=seed)
        few = config.num_layers > 1 and config.hidden_inducing
        z = inducing_inputs(x, few, seed=seed) if few else top
        layers, h = [], x
        for number, num_outputs in enumerate(widths, start=1):
            last = number == config.num_layers
            skip = functools.partial(means.skip, learned=config.learned_skip)
            mean = _top_mean(config, num_outputs) if last else skip(h, num_outputs)
            variance = 1.0 if last else config.hidden_variance
            chosen = config.kernel if last else config.hidden_kernel or config.kernel
            kernel = cast(_kernel(chosen, h, number, config.lengthscale, variance), dtype)
            place = jnp.asarray(top if last else z, dtype)
            low_rank = config.low_rank and not last
            layers.append(SparseGPLayer(kernel, mean, place, num_outputs, low_rank=low_rank))
            h, z, top = (np.asarray(mean(jnp.asarray(rows, float))) for rows in (h, z, top))
        model = cast(DeepGP(tuple(layers), likelihood), dtype)
        posterior = gaussian_posterior(
            model,
            hidden_scale=config.hidden_scale,
            shared=config.shared,
            last_shared=config.last_shared,
        )
        return Fitted(model, posterior)


def deepen(
    fitted: Fitted, num_layers: int, variance: float = 1e-3, *, shared: bool = False
) -> Fitted:
    """A deeper model that starts as the one given: identity layers of little variance below it.

    New layers begin at their prior, an identity plus a GP of standard deviation `√variance`, so
    training goes on from about the objective that the shallow model has reached. Started any
    other way, a deep model tends to end below a shallow one. With `shared` the outputs of a new
    layer have one covariance.
    """
    bottom = fitted.model.layers[0]
    num_new, width = num_layers - len(fitted.model.layers), bottom.z.shape[1]
    with scope(bottom.z.dtype):
        kernel = cast(_named("rbf", np.full(width, width**0.5), variance), bottom.z.dtype)
        layer = SparseGPLayer(kernel, means.Identity(), bottom.z, width)
        layers = (layer,) * num_new + fitted.model.layers
        model = eqx.tree_at(lambda m: m.layers, fitted.model, layers)
        start = gaussian_posterior(model, hidden_scale=1.0, shared=shared)
        old = below_last(fitted)
        assert isinstance(old, GaussianPosterior)
        new, last = slice(num_new), slice(-1, None)
        return Fitted(
            model,
            GaussianPosterior(
                start.means[new] + old.means + start.means[last],
                start.roots[new] + old.roots + start.roots[last],
            ),
        )


def anchor(fitted: Fitted, *, whole: bool, seed: int = 0, **settings: Any) -> Fitted:
    """The same model and posterior with an anchored generator around its Gaussians.

    It mixes the layers below the last one, or the `whole` of them; where there is a generator
    already, it begins anew. `settings` are those of `anchored_posterior`; with `first_mix=0` the
    generator is at rest, and the posterior still the Gaussian. Outputs that shared a covariance
    have their own from then on, unless they are too wide for that.
    """
    model, old = fitted.model, find_anchored(fitted.posterior)
    with scope(model.layers[0].z.dtype):
        # An input of the program, so that other values share it.
        settings["first_mix"] = jnp.asarray(settings.get("first_mix", FIRST_MIX), float)
        frame = old.frame if old else fitted.posterior if whole else below_last(fitted)
        assert isinstance(frame, GaussianPosterior)
        posterior = _anchored(jr.key(seed), frame.unshared(FULL_SIZE), model, **settings)
        if old is not None:
            return eqx.tree_at(lambda f: find_anchored(f.posterior), fitted, posterior)
        return Fitted(model, posterior) if whole else above_hidden(model, posterior)


# In one program: random numbers of many shapes would be as many programs.
_anchored = Program(anchored_posterior, PASSING)


def is_anchored(fitted: Fitted) -> bool:
    """Whether an anchored generator is at work in a posterior."""
    return find_anchored(fitted.posterior) is not None


def _top_mean(config: Config, num_outputs: int) -> means.AbstractMean:
    return means.Zero(num_outputs) if config.offset is None else means.Constant(config.offset)


def _named(
    name: str, lengthscale: Float[np.ndarray, " D"], variance: float
) -> kernels.AbstractKernel:
    """A kernel by its name, or the sum of several with an even share each."""
    names = name.split("+")
    parts: list[kernels.AbstractKernel] = [
        KERNELS[part](lengthscale, variance / len(names)) for part in names
    ]
    return functools.reduce(lambda left, right: left + right, parts)


def _kernel(
    kernel: Kernel, h: Float[np.ndarray, "N D"], layer: int, lengthscale: float, variance: float
) -> kernels.AbstractKernel:
    """The kernel of the layer that has rows `h` below it, checked to fit them."""
    width = h.shape[1]
    if isinstance(kernel, str):
        distance = np.sqrt(np.sum(np.var(h, axis=0))) or width**0.5
        return _named(kernel, np.full(width, lengthscale * distance), variance)
    if isinstance(kernel, kernels.AbstractKernel):
        try:
            jax.eval_shape(kernel.gram, jnp.zeros((2, width), dtype_of(kernel)))
        except ValueError as error:
            raise InputError(
                f"kernel does not fit layer {layer}, which has {width} input columns; give "
                "one lengthscale for all columns, or a function of the number of columns."
            ) from error
        return kernel
    return kernel(width)
