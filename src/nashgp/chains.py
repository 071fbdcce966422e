"""Whether the chains of a sampler agree, and draws of any posterior for ArviZ."""

import dataclasses
import importlib
import inspect
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nashgp import diagnostics
from nashgp.errors import InputError
from nashgp.layers import Inducing
from nashgp.model import DeepGP
from nashgp.posteriors import DrawnPosterior, Fitted
from nashgp.precision import dtype_of, scoped
from nashgp.priors import Values
from nashgp.shapes import Key

FEWEST = 4  # draws of a chain whose halves can be compared


@dataclasses.dataclass(frozen=True)
class ChainReport:
    """Split R-hat and effective draws of the log density and of the function at some inputs."""

    num_chains: int
    num_draws: int
    rhat: float
    effective: float
    function_rhat: Float[np.ndarray, "N P"]
    function_effective: Float[np.ndarray, "N P"]

    @property
    def worst(self) -> float:
        """The largest R-hat of all."""
        return max(self.rhat, float(np.max(self.function_rhat)))

    def __str__(self) -> str:
        return (
            f"{self.num_chains} x {self.num_draws} draws; log density: R-hat {self.rhat:.2f}, "
            f"{self.effective:.0f} effective; functions: R-hat up to "
            f"{np.max(self.function_rhat):.2f}, {np.min(self.function_effective):.0f} effective "
            "or more"
        )


@scoped
def examine(fitted: Fitted, x: Float[Array, "N D"]) -> ChainReport:
    """Compare the chains of a sampler by their log density and by `E f(x)` under each draw.

    Draws of inducing values are compared by what they say: many of them make one function.
    """
    posterior = fitted.posterior
    if not isinstance(posterior, DrawnPosterior):
        raise InputError(f"a {type(posterior).__name__} has no chains; use engine 'sghmc'.")
    functions = _functions(fitted.model, posterior.values, jnp.asarray(x, dtype_of(fitted)))
    density, functions = (
        np.asarray(posterior.by_chain(each)) for each in (posterior.log_density, functions)
    )
    return ChainReport(
        *density.shape,
        rhat=float(diagnostics.split_rhat(density)),
        effective=float(diagnostics.effective_draws(density)),
        function_rhat=diagnostics.split_rhat(functions),
        function_effective=diagnostics.effective_draws(functions),
    )


@eqx.filter_jit
def _functions(model: DeepGP, values: Values, x: Float[Array, "N D"]) -> Float[Array, "S N P"]:
    """The last layer's mean at some inputs for every draw, hidden layers at their means."""
    noise = tuple(
        jnp.zeros((1, 1, layer.num_outputs), layer.z.dtype) for layer in model.layers[:-1]
    )
    return model.propagate(x, tuple(map(Inducing, values)), noise).mean


@scoped
def to_arviz(key: Key, fitted: Fitted, num: int = 1_000) -> Any:
    """Draws of the whitened inducing values of a fitted model, as ArviZ holds them.

    Variables are `layer_1`, `layer_2` and so on. A sampler's draws come by chain, with their log
    density as `lp`; of any other posterior come `num` draws as one chain.
    """
    try:
        arviz = importlib.import_module("arviz")
    except ImportError as error:
        raise InputError("to_arviz needs ArviZ; run `pip install 'nashgp[arviz]'`.") from error
    posterior, groups = fitted.posterior, {}
    if isinstance(posterior, DrawnPosterior):
        values = tuple(map(posterior.by_chain, posterior.values))
        density = np.asarray(posterior.by_chain(posterior.log_density))
        groups["sample_stats"] = {"lp": density}
    else:
        values = tuple(value[None] for value in posterior.sample(key, fitted.model, num))
    names = (f"layer_{number}" for number in range(1, len(values) + 1))
    draws = dict(zip(names, map(np.asarray, values), strict=True))
    groups["posterior"] = draws
    by_name = "posterior" in inspect.signature(arviz.from_dict).parameters  # before ArviZ 1.0
    return arviz.from_dict(**groups) if by_name else arviz.from_dict(groups)
