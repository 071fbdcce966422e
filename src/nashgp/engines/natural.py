"""Natural gradients for the last layer, Adam for everything else: mini-batches, any likelihood."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PyTree

from nashgp.batch import Batch, Data
from nashgp.engines.base import Climbs, Info, ascend, cosine, number
from nashgp.engines.collapsed import below_last
from nashgp.engines.objectives import data_term
from nashgp.engines.responses import Evidence, add_prior, evidence, solve
from nashgp.errors import InputError
from nashgp.layers import Features, Inducing
from nashgp.likelihoods import Gaussian
from nashgp.linalg import inverse_root
from nashgp.model import DeepGP
from nashgp.posteriors import CollapsedPosterior, Fitted, GaussianPosterior, ToppedPosterior
from nashgp.priors import GPPrior
from nashgp.shapes import Key, Scalar
from nashgp.transforms import trainable

LEAST = 0.1  # share of its rate that a natural gradient ends with


class Last(NamedTuple):
    """`q(v_L) = N(value, precision⁻¹)`, with a precision for each output or one for all (R = 1)."""

    value: Float[Array, "M P"]
    precision: Float[Array, "R M M"]

    @property
    def is_shared(self) -> bool:
        return len(self.precision) < self.value.shape[1]

    @property
    def root(self) -> Float[Array, "R M M"]:
        """Lower triangular R with `R Rᵀ = precision⁻¹`."""
        return jax.vmap(inverse_root)(self.precision)


class State(NamedTuple):
    """The trainable part of model and hidden layers, the rest, Adam's memory, q(v_L), progress.

    `taken` counts steps; `share` is that of a whole run that one step is, 0 if it has no end.
    """

    params: PyTree
    frozen: PyTree
    opt_state: optax.OptState
    last: Last
    taken: Scalar
    share: Scalar


@dataclasses.dataclass(frozen=True)
class NaturalGradient(Climbs):
    """Move q(v_L) along its natural gradient, then climb with everything else.

        P ← P + ρ (P* - P)        μ ← μ + ρ P⁻¹ ∂/∂μ        (with the new P)

    With all rows, a Gaussian likelihood and `ρ = 1` one step is the optimum. There ρ starts at 1
    and falls as `1 / t` down to `rate`: the first batches are averaged and no start has to be
    forgotten. With other likelihoods ρ is `rate`, and falls with Adam's rates to a tenth of it, so
    that the last steps average many batches; `½ ρ² (P* - P) P⁻¹ (P* - P)` is added to the
    precision, which keeps it positive where the log likelihood is not concave.
    """

    learning_rate: float = number(0.01)
    num_samples: int = 1
    power: float = 0.0
    draw_inducing: bool = False
    rate: float = 0.1
    decay_steps: int | None = number(None)
    network_rate: float | None = number(None)
    model_rate: float | None = None

    def init(self, key: Key, fitted: Fitted) -> State:
        del key  # nothing random about the start
        if not isinstance(fitted.model.prior, GPPrior):
            raise InputError("natural gradients need the GP prior.")
        parts = (fitted.model, below_last(fitted))
        params, frozen = eqx.partition(parts, trainable(parts))
        opt_state = self._adam.init(params)
        taken = jnp.zeros((), fitted.model.layers[-1].z.dtype)
        share = jnp.full_like(taken, 1.0 / self.decay_steps if self.decay_steps else 0.0)
        return State(params, frozen, opt_state, _start(fitted), taken, share)

    def step(self, key: Key, state: State, batch: Batch) -> tuple[State, Info]:
        draw, noise, rest = jr.split(key, 3)

        def payoff(params: PyTree) -> tuple[Scalar, Last]:
            model, hidden = eqx.combine(params, state.frozen)
            values, kl = hidden.sample_and_kl(draw, model, self.num_samples)
            gaussians = None if self.draw_inducing else hidden.gaussians()
            below = tuple(map(Inducing, values)) if gaussians is None else gaussians
            eps = model.noise(noise, self.num_samples, len(batch.x))
            features = model.last_features(batch.x, below, eps)
            last = self._move(rest, state, *jax.lax.stop_gradient((model, features)), batch)
            q = Inducing(last.value, last.root)
            moments = model.moments(len(model.layers) - 1, features, q)
            value = data_term(rest, model, moments, batch, power=self.power)
            return value - q.kl() - kl, last

        (value, last), gradient = eqx.filter_value_and_grad(payoff, has_aux=True)(state.params)
        params, opt_state = ascend(self._adam, state.opt_state, state.params, gradient)
        moved = state._replace(params=params, opt_state=opt_state, last=last)
        return moved._replace(taken=state.taken + 1.0), Info(value)

    def _move(
        self, key: Key, state: State, model: DeepGP, features: Features, batch: Batch
    ) -> Last:
        """One natural gradient step of q(v_L)."""
        old, root = state.last, state.last.root
        likelihood = model.likelihood.at(batch.x)

        def told(key: Key, features: Features) -> Evidence:
            moments = model.layers[-1].moments(features, Inducing(old.value, root))
            rows = batch.y, batch.weight
            known = key, likelihood, features, moments
            return evidence(*known, *rows, self.power, shared=old.is_shared)

        each = jax.vmap(told)(jr.split(key, len(features.a)), features)
        rows = jax.tree.map(lambda leaf: batch.scale * jnp.mean(leaf, axis=0), each)
        toward = add_prior(rows.precision) - old.precision
        if isinstance(likelihood, Gaussian):
            rate = jnp.maximum(self.rate, 1.0 / (state.taken + 1.0))
            precision = old.precision + rate * toward
        else:
            done = jnp.minimum(state.taken * state.share, 1.0)
            rate = self.rate * (LEAST + (1.0 - LEAST) * cosine(done))
            half = rate * toward @ root
            precision = old.precision + rate * toward + 0.5 * half @ jnp.swapaxes(half, 1, 2)
        root = jax.vmap(inverse_root)(precision)
        return Last(old.value + rate * solve(root, rows.slope - old.value), precision)

    def result(self, key: Key, state: State, data: Data, num: int) -> Fitted:
        del key, data, num
        model, hidden = eqx.combine(state.params, state.frozen)
        last = state.last
        if not isinstance(hidden, GaussianPosterior):
            return Fitted(model, ToppedPosterior(hidden, last.value, last.root))
        posterior = GaussianPosterior((*hidden.means, last.value), (*hidden.roots, last.root))
        return Fitted(model, posterior)


def _start(fitted: Fitted) -> Last:
    """q(v_L) to start from; the prior after a collapsed fit."""
    layer, posterior = fitted.model.layers[-1], fitted.posterior
    eye = jnp.eye(layer.num_inducing, dtype=layer.z.dtype)
    if isinstance(posterior, CollapsedPosterior):
        value = jnp.zeros((layer.num_inducing, layer.num_outputs), layer.z.dtype)
        return Last(value, jnp.tile(eye[None], (layer.num_outputs, 1, 1)))
    if isinstance(posterior, ToppedPosterior):
        mean, roots = posterior.mean, posterior.root
    else:
        assert isinstance(posterior, GaussianPosterior)
        mean, roots = posterior.means[-1], posterior.roots[-1]
    inverse = jax.vmap(lambda root: solve_triangular(root, eye, lower=True))(jnp.tril(roots))
    return Last(mean, jnp.einsum("pkm,pkn->pmn", inverse, inverse))
